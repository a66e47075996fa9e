"""What a privacy statement says: a typed value, and the arithmetic that is allowed on it.

A bare pair of numbers cannot say whom it protects. `Guarantee` carries the kind, the unit, the
neighbouring relation, what was assumed, and whether the figure may be shown to outsiders. Guarantees of
different kinds bound different things, so comparing or adding them raises.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tacita import _check, _codec
from tacita._check import PrivacyError
from tacita._numbers import delta_text, factor_text, round_up_text, success_text
from tacita.assumptions import Assumption, assume
from tacita.composition import compose
from tacita.profile import Profile

SCHEMA = 3
SMALLEST_EPSILON = 1e-6  # Figures below this are reported as this: numerical resolution, not a promise.

Kind = Literal["worst_case", "bayesian", "individual", "empirical_lower"]
Scope = Literal["guarantee", "reading"]

_WHO = {
    "worst_case": "Worst case (any {unit} whatsoever)",
    "bayesian": "Typical case (a {unit} drawn from the population that the followed {unit}s represent)",
    "individual": "This {unit} alone",
    "empirical_lower": "Attack (a lower bound)",
}


@dataclass(frozen=True, kw_only=True)
class Guarantee(_codec.Checked):
    """A statement about what an outsider can learn, with everything it rests on.

    Attributes:
        kind: Whom it covers: `worst_case`, `bayesian`, `individual`, or `empirical_lower` (an attack).
        epsilon: The bound; may be infinite. Rounded to the safe side wherever it is printed.
        delta: The total failure probability the user asked for, estimator failures included.
        method: How it was computed, such as `pld`, `rdp` or `moments`; for people, and decided on by no code.
        neighbours: `add_remove` or `replace_one`. Mixing the two refuses.
        unit: What one neighbour step adds or removes; a record unless said otherwise.
        sampling: How records enter a step; `poisson` means each on its own, with a fixed probability.
        scope: `guarantee` holds over every path of the mechanism; `reading` describes this run only.
        notion: For Bayesian figures, `strong` bounds the tail of the privacy loss and `weak` the
            expected hockey-stick divergence.
        estimator: For Bayesian figures, how a sample of records speaks for the population.
        composition: For Bayesian figures, how steps were added up.
        population: For Bayesian figures, the name of the population that is spoken of, such as a hospital's patients;
            None if it was not named. Statements about two populations do not add up.
        model: `distribution-free`, `model-based`, or None where no population enters.
        delta_split: Where the total delta goes, as (name, value) pairs.
        mechanism: Noise multiplier, sample rate, steps, as (name, value) pairs.
        assumptions: What must be true for the statement to hold.
        publishable: True only if no private data went into the figure.
        is_bound: False for figures kept for comparison only (`tacita.papers`), which may lie below the truth. They
            claim nothing, and are never publishable.
        profile: The whole privacy curve through (epsilon, delta). None where only the pair is known; `curve` is what
            that says.
        one_end: True if epsilon is that of one of several declared ends of a run: P(S) ≤ Σ_k e^{ε_k} Q(S, end k) + δ
            for every event S, of which this is one ε_k. For events that may happen at any end nothing follows from
            this epsilon alone, so the profile must be given. It is the whole plan's, which bounds what the run shows
            whenever it ends, and need not pass through (epsilon, delta).
    """

    kind: Kind
    epsilon: float
    delta: float
    method: str
    neighbours: Literal["add_remove", "replace_one"] = "add_remove"
    unit: str = "record"
    sampling: str = "poisson"
    scope: Scope = "guarantee"
    notion: Literal["strong", "weak"] | None = None
    estimator: str | None = None
    composition: str | None = None
    population: str | None = None
    model: Literal["distribution-free", "model-based"] | None = None
    delta_split: tuple[tuple[str, float], ...] = ()
    mechanism: tuple[tuple[str, float], ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    publishable: bool = False
    is_bound: bool = True
    profile: Profile | None = None
    one_end: bool = False

    def __post_init__(self) -> None:
        _check.one_of("kind", self.kind, tuple(_WHO))
        if self.is_bound and self.composition == "independent":
            raise PrivacyError("Steps taken as independent give no bound: is_bound must be False.")
        if self.publishable and not self.is_bound:
            raise PrivacyError("A figure that is no bound is for comparison only and cannot be publishable.")
        _check.in_range("delta", self.delta, 0.0, 1.0)
        epsilon = _check.number("epsilon", self.epsilon)
        lowest = 0.0 if self.kind == "empirical_lower" else SMALLEST_EPSILON
        if not epsilon >= lowest:
            raise PrivacyError(f"epsilon must be at least {lowest:g}, got {epsilon!r}.")
        super().__post_init__()
        if self.one_end and self.profile is None:
            raise PrivacyError("The figure of one declared end needs the profile of the whole plan.")
        if self.profile is not None and self.kind == "empirical_lower":
            raise PrivacyError("What an attack showed is a lower bound: it has no profile, which is an upper one.")
        if self.profile is not None and not self.one_end and not self._on(self.profile):
            raise PrivacyError("The profile does not pass through this epsilon and delta: it is another statement's.")

    def _on(self, profile: Profile) -> bool:
        return (
            profile.delta(self.epsilon) <= self.delta * (1.0 + 1e-6) + 1e-15
            and profile.epsilon(self.delta) >= 0.97 * self.epsilon - 2.0 * SMALLEST_EPSILON
        )

    @property
    def curve(self) -> Profile:
        """The privacy curve: the profile, or what the pair (epsilon, delta) alone says. An attack has none."""
        if self.kind == "empirical_lower":
            raise PrivacyError("What an attack showed is a lower bound, and bounds no other attack.")
        return self.profile or Profile.of_pair(self.epsilon, self.delta)

    @property
    def attack_success(self) -> float | None:
        """How often the best attack with even odds is right at most; None for figures that bound nothing."""
        return self.curve.attack_success() if self.is_bound and self.kind != "empirical_lower" else None

    def __lt__(self, other: Guarantee) -> bool:
        self._require_same(other, "compare")
        return self.epsilon < other.epsilon

    def __le__(self, other: Guarantee) -> bool:
        self._require_same(other, "compare")
        return self.epsilon <= other.epsilon

    def __add__(self, other: Guarantee) -> Guarantee:
        """Both releases together: by their privacy curves if both worst cases have one, else epsilons are added.

        Deltas are added. Curves compose if the second release was not chosen by what the first one showed, which is an
        assumption of the result; a ledger does without it. For Bayesian guarantees both must hold for the same
        population (Triastcyn & Faltings 2020, Prop. 4 of the thesis version): where their names differ, they are
        refused. Each one's assumptions carry over.
        """
        self._require_same(other, "add", same_delta=False)
        if self.kind == "empirical_lower":
            raise PrivacyError("Cannot add lower bounds from attacks: two attacks do not add up to one.")
        if self.one_end or other.one_end:
            raise PrivacyError("Cannot add the figure of one declared end: add those of the whole plans.")
        delta = self.delta + other.delta
        if delta >= 1.0:
            raise PrivacyError(f"delta adds up to {delta:g}, which promises nothing; use smaller deltas.")
        epsilon, curve, assumptions = self.epsilon + other.epsilon, None, self.assumptions + other.assumptions
        if self.kind == "worst_case" and self.profile is not None and other.profile is not None:
            together = compose([(self.profile, 1), (other.profile, 1)]) & Profile.of_pair(epsilon, delta)
            epsilon, curve = max(SMALLEST_EPSILON, min(epsilon, together.epsilon(delta))), together
            assumptions = (*assumptions, assume("releases-planned"))
        return replace(
            self,
            epsilon=epsilon,
            delta=delta,
            method="basic composition" if curve is None else "composition of curves",
            scope="guarantee" if self.scope == other.scope == "guarantee" else "reading",
            model="model-based" if "model-based" in (self.model, other.model) else self.model,
            estimator=self.estimator if self.estimator == other.estimator else "several",
            composition=self.composition if self.composition == other.composition else "several",
            delta_split=(("first", self.delta), ("second", other.delta)),
            mechanism=(),
            assumptions=tuple(dict.fromkeys(assumptions)),
            publishable=self.publishable and other.publishable,
            is_bound=self.is_bound and other.is_bound,
            profile=curve,
        )

    def __str__(self) -> str:
        if self.kind == "empirical_lower":
            return self.claim
        how = [self.method, self.estimator, self.composition, self.notion and f"{self.notion} notion"]
        parts = [self.claim, "Method: " + ", ".join(h for h in how if h) + "."]
        if self.delta_split:
            parts.append("Delta: " + ", ".join(f"{name} {delta_text(value)}" for name, value in self.delta_split) + ".")
        if self.assumptions:
            parts.append("Assumes: " + "; ".join(a.text for a in self.assumptions) + ".")
        return " ".join(parts)

    def __repr__(self) -> str:
        epsilon = round_up_text(self.epsilon, up=self.kind != "empirical_lower")
        what = self.kind if self.is_bound else f"{self.kind}, no bound"
        return f"<Guarantee: {what}: epsilon {epsilon} at delta {delta_text(self.delta)}, for one {self.unit}>"

    def _repr_html_(self) -> str:
        """Show the claim in a notebook, with what it rests on folded."""
        rests = "".join(f"<li>{html.escape(a.text)}" for a in self.assumptions)
        folded = f"<details><summary>What this assumes</summary><ul>{rests}</ul></details>" if rests else ""
        return f"<p>{html.escape(self.claim)}</p>{folded}"

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the mechanism spoken of."""
        values = dict(self.mechanism)
        if "noise_multiplier" not in values:
            raise AttributeError("This guarantee is not about a single mechanism.")
        return values["noise_multiplier"]

    @property
    def claim(self) -> str:
        """What is said, in plain words, without the method and the assumptions it rests on."""
        who = _WHO[self.kind].format(unit=self.unit)
        if self.kind == "empirical_lower":
            return (
                f"{who}: an attack showed an epsilon of at least {round_up_text(self.epsilon, up=False)} "
                f"at delta {delta_text(self.delta)}. The true value may be larger."
            )
        if math.isinf(self.epsilon):
            return f"{who}: epsilon is infinite at delta {delta_text(self.delta)}. Nothing is promised."
        if not self.is_bound:
            return (
                f"NOT AN UPPER BOUND, for comparison only: adding up as in the papers gives epsilon "
                f"{round_up_text(self.epsilon)} at delta {delta_text(self.delta)}. The true value may be larger."
            )
        plus = f", plus {delta_text(self.delta)}" if self.delta else ""
        parts = [
            f"{who}: epsilon {round_up_text(self.epsilon)} at delta {delta_text(self.delta)}. "
            f"{_CHANGE[self.kind, self.neighbours].format(unit=self.unit)} changes the probability of any set of "
            f"outcomes by a factor of at most {factor_text(self.epsilon)}{plus}; an attacker with even prior odds "
            "can tell whether it was there with a success rate of at most "
            f"{success_text(self.curve.attack_success())}."
        ]
        if self.one_end:
            parts.append("That rate is for the whole plan, whichever of its declared ends was reached.")
        if self.kind == "bayesian":
            parts.append(f"It promises nothing to a {self.unit} unlike that population.")
        if self.scope == "reading":
            parts.append("This is a reading of one run, not a guarantee over all runs.")
        if self.model == "model-based":
            parts.append("It is model-based: for populations with rare large contributions it can be too low.")
        if not self.publishable:
            parts.append("Computed from private data: for the data's owner, not for publication.")
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON. An infinite epsilon is the string "infinity"."""
        left_out = (("population", None), ("one_end", False))
        plain = {name: value for name, value in super().to_dict().items() if (name, value) not in left_out}
        return {
            "schema": SCHEMA,
            **plain,
            "delta_split": dict(self.delta_split),
            "mechanism": dict(self.mechanism),
            "attack_success": self.attack_success,
            "sentence": str(self),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Guarantee:
        """Rebuild what `to_dict` wrote. The sentence and the attack success are computed again, not read."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise ValueError(f"Not a guarantee of schema {SCHEMA}; those of older versions must be computed again.")
        fields = {name: value for name, value in data.items() if name not in ("schema", "attack_success", "sentence")}
        try:
            pairs = {name: tuple(fields[name].items()) for name in ("delta_split", "mechanism")}
            return super().from_dict({"population": None, "one_end": False} | fields | pairs)
        except (KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"This guarantee is damaged: {error}") from error

    def _require_same(self, other: object, verb: str, *, same_delta: bool = True) -> None:
        if not isinstance(other, Guarantee):
            raise TypeError(f"Cannot {verb} a Guarantee and {type(other).__name__}.")
        for field, why in (
            ("kind", "they bound different things"),
            ("notion", "they are different notions"),
            ("unit", "they protect different units"),
            ("neighbours", "their neighbouring relations differ"),
            ("population", "they speak of different populations"),
        ):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                raise PrivacyError(
                    f"Cannot {verb} a {mine} guarantee and a {theirs} one: {why}. Show them side by side, "
                    "or recompute both in one kind."
                )
        if same_delta and self.delta != other.delta:
            raise PrivacyError(
                f"Cannot {verb} guarantees at delta {self.delta:g} and {other.delta:g}. Recompute both at one delta."
            )


def group(guarantee: Guarantee, size: int) -> Guarantee:
    """Return what a guarantee for one record says about `size` records at once.

    (k ε, k e^{kε} δ), Dwork & Roth 2014; for Bayesian guarantees all k records are drawn from the
    population and the guarantee must hold for every dataset, so a `reading` is refused.

    Examples:
        >>> g = Guarantee(kind="worst_case", epsilon=0.5, delta=1e-8, method="pld")
        >>> pair = group(g, 2)
        >>> pair.epsilon, round(pair.delta * 1e8, 3)
        (1.0, 5.437)
    """
    k = _check.count("size", size)
    unsuited = guarantee.scope == "reading" or guarantee.kind in ("individual", "empirical_lower")
    if guarantee.one_end:
        raise PrivacyError("Group privacy needs one epsilon for every end: take the figure of the whole plan.")
    if unsuited or not guarantee.is_bound:
        raise PrivacyError(
            "Group privacy needs a guarantee that holds for every dataset and every record it covers, "
            f"got a {guarantee.kind} {guarantee.scope}."
        )
    if k == 1:
        return guarantee
    epsilon = k * guarantee.epsilon
    delta = math.exp(math.log(k * guarantee.delta) + epsilon) if guarantee.delta and epsilon < 700 else 0.0
    if epsilon >= 700 or delta >= 1.0:
        raise PrivacyError(f"A group of {k} has delta >= 1 at epsilon {epsilon:g}, which promises nothing.")
    return replace(
        guarantee,
        epsilon=epsilon,
        delta=delta,
        unit=f"group of {k} {guarantee.unit}s",
        method=f"{guarantee.method}, group privacy",
        delta_split=(),
        profile=None,
    )


def attack_success(epsilon: float, delta: float = 0.0) -> float:
    """Return the largest success rate of a membership test with even prior odds.

    (e^ε + δ) / (1 + e^ε); at δ = 0 this is the papers' P(A) = 1 / (1 + e^{-ε}) (Triastcyn & Faltings
    2020). It is all that one pair says, and loose: `Guarantee.attack_success` takes the whole curve. For a Bayesian
    guarantee it bounds the success averaged over records of the population.

    Examples:
        >>> [round(100 * attack_success(e), 3) for e in (2, 5, 10)]
        [88.08, 99.331, 99.995]
    """
    eps = _check.in_range("epsilon", epsilon, 0.0, math.inf)
    dlt = _check.in_range("delta", delta, 0.0, 1.0)
    decay = math.exp(-eps)
    return min(1.0, (1.0 + dlt * decay) / (1.0 + decay))


def share_above(delta: float, *, threshold: float) -> float:
    """Return the largest share of the population whose own δ_x(ε) reaches `threshold`.

    Markov's inequality on E_x δ_x(ε) ≤ δ: the share is at most δ / threshold. A (1, 1e-8) Bayesian
    guarantee is a (1, 1e-5) guarantee for 99.9% of the population:

    Examples:
        >>> share_above(1e-8, threshold=1e-5)
        0.001
    """
    dlt = _check.probability("delta", delta)
    phi = _check.in_range("threshold", threshold, 0.0, 1.0)
    return min(1.0, dlt / phi) if phi > 0.0 else 1.0


def outlier_probability(share: float, *, size: int) -> float:
    """Return the chance that a released set of `size` records holds at least one privacy outlier.

    1 - (1 - share)^size, with `share` from `share_above` (Triastcyn 2020, section 7.4.2). It speaks of
    sets whose records are drawn from the population itself.

    Examples:
        >>> round(outlier_probability(0.001, size=1000), 3), round(outlier_probability(0.001, size=100), 3)
        (0.632, 0.095)
    """
    p = _check.in_range("share", share, 0.0, 1.0)
    n = _check.count("size", size)
    return 1.0 if p == 1.0 else -math.expm1(n * math.log1p(-p))


_CHANGE = {
    ("worst_case", "add_remove"): "Adding or removing any one {unit}",
    ("worst_case", "replace_one"): "Replacing any one {unit} by another",
    ("bayesian", "add_remove"): "On average over such {unit}s, adding or removing one",
    ("bayesian", "replace_one"): "On average over such {unit}s, replacing one by another",
    ("individual", "add_remove"): "Adding or removing this {unit}",
    ("individual", "replace_one"): "Replacing this {unit} by another",
}
