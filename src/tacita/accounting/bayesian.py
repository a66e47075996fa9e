"""The Bayesian accountant: what a run costs a record drawn from the data's own distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting.conversion import NOTIONS, delta_from_costs, epsilon_by_order, epsilon_from_costs
from tacita.accounting.curves import RecordCurves, record_curves, worst_curve
from tacita.accounting.filters import Budget, MomentsBudget, TokenBudget
from tacita.accounting.levels import LEVELS, ORDERS, TOP, cost_table, level_of
from tacita.accounting.state import budget_from, budget_state, panel_from, panel_state, whole_numbers
from tacita.accounting.worst import check_mechanism, worst_case
from tacita.assumptions import assume
from tacita.estimators import band_mean, bernstein, binary, conformal_miss, student, unseen_mass
from tacita.guarantee import SMALLEST_EPSILON, Guarantee

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tacita._check import Counts, Floats

STATE_SCHEMA = 1
_COMPOSITIONS = ("panel", "hoelder", "independent")
_ESTIMATORS = ("band", "student", "bernstein", "binary", "conformal")
_MOMENT_ESTIMATORS = {"student": student, "bernstein": bernstein, "binary": binary}
_MODEL_BASED = ("student", "binary")
_FIRST_ORDERS = 96  # of ORDERS; the rest only if the minimum is not bracketed


class BayesianAccountant:
    """Follow records through a run and say what it costs a record of their population.

    Args:
        sample_rate: Chance q in (0, 1] with which each record enters a step.
        noise_multiplier: σ; noise standard deviation over the clip norm.
        composition: `panel` follows the same records through all steps (ours; no loss). `hoelder` is
            Theorem 1 of Triastcyn & Faltings 2020: fresh records every step, `steps` fixed beforehand.
            `independent` is the federated paper's product; it is not a bound, and is for comparison only.
        steps: The planned number of steps; going past it raises. Required for `hoelder`.
        levels: `observed`, or `static` to declare that each record's norm is fixed for the run; only then
            (or with a budget) is the result a guarantee rather than a reading.
        formula: `exact` (the left side of Theorem 3) or `papers` (the printed max of both sides).
        budget: For the conformal certificate: what a followed record may spend, declared beforehand.
        tolerated: For the conformal certificate: how many followed records may pass the budget.

    Examples:
        >>> acc = BayesianAccountant(sample_rate=0.01, noise_multiplier=1.0, levels="static")
        >>> acc.step(np.linspace(0.05, 0.4, 1000), steps=2000)
        >>> g = acc.guarantee(delta=1e-5)
        >>> g.kind, g.scope, g.epsilon < 2.0
        ('bayesian', 'guarantee', True)
    """

    def __init__(
        self,
        *,
        sample_rate: float,
        noise_multiplier: float,
        composition: Literal["panel", "hoelder", "independent"] = "panel",
        steps: int | None = None,
        levels: Literal["observed", "static"] = "observed",
        formula: Literal["exact", "papers"] = "exact",
        budget: Budget | None = None,
        tolerated: int = 0,
    ) -> None:
        self.sample_rate, self.noise_multiplier, _ = check_mechanism(sample_rate, noise_multiplier, 1)
        self.composition = _check.one_of("composition", composition, _COMPOSITIONS)
        self.planned = None if steps is None else _check.count("steps", steps)
        self.levels = _check.one_of("levels", levels, ("observed", "static"))
        self.formula = _check.one_of("formula", formula, ("exact", "papers"))
        if budget is not None and not isinstance(budget, MomentsBudget | TokenBudget):
            raise TypeError(f"budget must be a MomentsBudget or a TokenBudget, got {type(budget).__name__}.")
        self.budget = budget
        self.tolerated = _check.count("tolerated", tolerated, low=0)
        if levels == "static" and composition != "panel":
            raise ValueError("levels='static' is about followed records: use composition='panel'.")
        if composition == "hoelder" and steps is None:
            raise ValueError("composition 'hoelder' needs steps=T, fixed before the first step.")
        self.taken = 0
        self._counts: Counts | None = None  # (records, levels), for a panel
        self._last: Counts | None = None
        self._histograms: list[tuple[int, Counts]] = []  # (steps, records at each level), otherwise
        self._curves: RecordCurves | None = None

    def __repr__(self) -> str:
        return (
            f"BayesianAccountant(sample_rate={self.sample_rate:g}, noise_multiplier={self.noise_multiplier:g}, "
            f"composition={self.composition!r}, levels={self.levels!r}): {self.taken} steps charged"
        )

    def step(self, norms: ArrayLike, *, steps: int = 1) -> None:
        """Charge one step, or `steps` steps with the same norms.

        Args:
            norms: Shape (m,); each followed record's clipped contribution as a fraction of the clip norm.
                Every followed record is charged whether it was sampled or not. A panel keeps the same
                records in the same order.
            steps: How often to charge it. Only for norms that really stay the same: measuring every k-th
                step and charging k would make the figure meaningless.
        """
        values = _check.norms("norms", norms)
        repeat = _check.count("steps", steps)
        if self.planned is not None and self.taken + repeat > self.planned:
            raise PrivacyError(
                f"The plan covers {self.planned} steps but this would be step {self.taken + repeat}, so epsilon "
                f"would be understated. Plan with steps={self.taken + repeat} before the first step."
            )
        index = level_of(values)
        if self.levels == "static" and self._last is not None and not np.array_equal(index, self._last):
            raise PrivacyError(
                "The norms changed although levels='static' was declared. Use levels='observed' for a reading."
            )
        if self.composition == "panel":
            self._charge_panel(index, repeat)
        else:
            self._histograms.append((repeat, np.bincount(index, minlength=len(LEVELS))))
        self._last = index if self.levels == "static" else None
        self.taken += repeat
        self._curves = None

    def guarantee(
        self,
        *,
        delta: float,
        estimator: Literal["band", "student", "bernstein", "binary", "conformal"] = "band",
        gamma: float | None = None,
        notion: Literal["strong", "weak"] | None = None,
        method: Literal["pld", "moments"] | None = None,
    ) -> Guarantee:
        """Return the Bayesian statement at a total `delta`.

        Args:
            delta: The total failure probability, everything included.
            estimator: `band` (distribution-free, the default), the papers' `student`, `bernstein`, `binary`,
                or `conformal` for the certificate of a declared budget.
            gamma: How often an estimate may be too low; part of delta, once for every estimate that is
                taken. None picks it; the split is in the result's `delta_split`.
            notion: `weak` bounds the expected hockey-stick divergence, `strong` the tail of the privacy
                loss. Default: weak for `band`, strong for the others, as in the papers.
            method: For `band`: each record's own curve by `pld` (default) or by `moments`.

        Returns:
            A guarantee. In the weak notion its epsilon never exceeds the worst case at the same delta; the
            strong notion is not implied by worst-case DP, so its figure is left as it is.
        """
        total = _check.probability("delta", delta)
        _check.one_of("estimator", estimator, _ESTIMATORS)
        self._require_steps()
        if method is not None:
            _check.one_of("method", method, ("pld", "moments"))
        if notion is not None:
            _check.one_of("notion", notion, NOTIONS)
        if estimator == "conformal":
            return self._conformal(total, notion or ("weak" if isinstance(self.budget, TokenBudget) else "strong"))
        if estimator == "band":
            return self._band(total, gamma, notion or "weak", method or "pld")
        if method == "pld":
            raise ValueError(f"estimator {estimator!r} works on moments; method='pld' goes with 'band'.")
        return self._from_moments(total, estimator, gamma, notion or "strong")

    def delta(self, *, epsilon: float, gamma: float = 1e-8) -> float:
        """Return the total delta of the `band` statement at `epsilon`, gamma included.

        Never more than the worst-case delta at the same epsilon. For the delta of a `guarantee` at its own
        epsilon, pass that guarantee's gamma (in its `delta_split`).
        """
        eps = np.array([_check.in_range("epsilon", epsilon, 0.0, 1e12)])
        gamma = _check.probability("gamma", gamma)
        self._require_steps()
        values = self._panel_curves().delta(eps)
        worst = self._worst_curve().delta(eps)[:, 0]
        return float(min(band_mean(values, worst=worst, gamma=gamma)[0] + gamma, worst[0], 1.0))

    def running(self, *, delta: float) -> float:
        """Return the `band` epsilon so far, for progress: quick, and capped by our own worst-case curve."""
        total = _check.probability("delta", delta)
        self._require_steps()
        failure = self._gamma(total, None, uses=1, share=1 / 20)
        curves, most = self._panel_curves(), self._worst_curve()
        largest = float(most.epsilon(total)[0])
        epsilon = _smallest_epsilon(
            lambda eps: band_mean(curves.delta(eps), worst=most.delta(eps)[:, 0], gamma=failure),
            total - failure,
            largest,
        )
        return max(min(epsilon, largest), SMALLEST_EPSILON)

    def epsilons(self, *, delta: float) -> Floats:
        """Return each followed record's own epsilon, by PLD. Sensitive: never publish the list."""
        total = _check.probability("delta", delta)
        self._require_steps()
        return np.maximum(self._panel_curves().epsilon(total), SMALLEST_EPSILON)

    def percentiles(self, *, delta: float, percents: Sequence[float] = (50, 75, 90, 95, 99)) -> dict[float, float]:
        """Return the epsilon that each percentage of the followed records stays under, by PLD.

        A description of these records, for the data's owner. Never more than the worst case.
        """
        total = _check.probability("delta", delta)
        own = np.sort(self.epsilons(delta=total))
        worst = self.worst_case(delta=total).epsilon
        wanted = [_check.in_range("a percentage", p, 0.0, 100.0) for p in percents]
        ranks = [min(len(own) - 1, max(0, int(np.ceil(p / 100.0 * len(own))) - 1)) for p in wanted]
        return {p: float(min(own[r], worst)) for p, r in zip(percents, ranks, strict=True)}

    def worst_case(self, *, delta: float) -> Guarantee:
        """Return the worst-case guarantee of the steps taken so far."""
        self._require_steps()
        return worst_case(
            sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier, steps=self.taken, delta=delta
        )

    def floor(self, *, delta: float, gamma: float | None = None) -> tuple[float, float]:
        """Return the unseen mass at this panel size, and the epsilon below which no `band` figure can go.

        Records above everything seen are charged the worst case, so epsilon is at least the one at which
        the worst-case delta times the unseen mass fits into delta.
        """
        total = _check.probability("delta", delta)
        self._require_steps()
        gamma = self._gamma(total, gamma, uses=1, share=1 / 20)
        mass = unseen_mass(len(self._panel()), gamma=gamma)
        enough = min((total - gamma) / mass, 0.999)
        return mass, self.worst_case(delta=max(enough, total)).epsilon

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain data, fit for JSON; `from_state` reads it."""
        state: dict[str, Any] = {
            "schema": STATE_SCHEMA,
            "sample_rate": self.sample_rate,
            "noise_multiplier": self.noise_multiplier,
            "composition": self.composition,
            "steps": self.planned,
            "levels": self.levels,
            "formula": self.formula,
            "budget": budget_state(self.budget),
            "tolerated": self.tolerated,
            "taken": self.taken,
        }
        if self._counts is not None:
            state["panel"] = panel_state(self._counts)
        state["histograms"] = [[repeat, histogram.tolist()] for repeat, histogram in self._histograms]
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> BayesianAccountant:
        """Rebuild an accountant. A state that does not add up is refused, never repaired."""
        if not isinstance(state, Mapping) or repr(state.get("schema")) != repr(STATE_SCHEMA):
            raise PrivacyError(f"state must be a state_dict of schema {STATE_SCHEMA}.")
        names = ("sample_rate", "noise_multiplier", "composition", "steps", "levels", "formula", "tolerated")
        unknown = set(state) - {"schema", *names, "budget", "taken", "panel", "histograms"}
        if unknown:
            raise PrivacyError(f"state is damaged: unknown entries {sorted(map(str, unknown))}.")
        try:
            made = cls(**{name: state[name] for name in names}, budget=budget_from(state["budget"]))
            made.taken = _check.count("taken", state["taken"], low=0)
            made._counts = panel_from(state.get("panel"), made.taken)
            made._histograms = [
                (_check.count("steps", repeat), whole_numbers(histogram, (len(LEVELS),)))
                for repeat, histogram in state["histograms"]
            ]
        except PrivacyError:
            raise
        except KeyError as error:
            raise PrivacyError(f"state is damaged: {error} is missing.") from error
        except (TypeError, IndexError, ValueError) as error:
            raise PrivacyError(f"state is damaged: {error}") from error
        made._require_consistent()
        if made.levels == "static" and made._counts is not None:
            made._last = made._counts.argmax(axis=1)
        return made

    @property
    def counts(self) -> Counts:
        """How many steps each followed record spent at each level, shape (records, levels); sensitive."""
        return self._panel()

    def subset(self, records: ArrayLike) -> BayesianAccountant:
        """Return an accountant of some of the followed records, by their positions."""
        made = BayesianAccountant(
            sample_rate=self.sample_rate,
            noise_multiplier=self.noise_multiplier,
            steps=self.planned,
            formula=self.formula,  # type: ignore[arg-type]
        )
        made._counts, made.taken = self._panel()[np.asarray(records)], self.taken
        return made

    # The panel and its curves.

    def _charge_panel(self, index: Counts, repeat: int) -> None:
        if self._counts is None:
            self._counts = np.zeros((len(index), len(LEVELS)), dtype=np.int64)
        if len(index) != len(self._counts):
            raise ValueError(
                f"norms must hold the same {len(self._counts)} records at every step, got {len(index)}; "
                "for fresh records each step use composition='hoelder'."
            )
        self._counts[np.arange(len(index)), index] += repeat

    def _panel(self) -> Counts:
        if self._counts is None:
            raise PrivacyError(
                f"composition {self.composition!r} follows no records through the run; this needs composition='panel'."
            )
        return self._counts

    def _panel_curves(self) -> RecordCurves:
        if self._curves is None:
            self._curves = record_curves(
                self._panel(), sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier
            )
        return self._curves

    def _worst_curve(self) -> RecordCurves:
        return worst_curve(self.taken, sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier)

    def _table(self, orders: tuple[int, ...]) -> Floats:
        return cost_table(self.sample_rate, self.noise_multiplier, orders, self.formula == "papers")

    # The estimators.

    def _band(self, delta: float, gamma: float | None, notion: str, method: str) -> Guarantee:
        if method == "pld" and notion == "strong":
            raise PrivacyError("Curves by PLD bound the weak notion; for the strong one pass method='moments'.")
        failure = self._gamma(delta, gamma, uses=1, share=1 / 20)
        worst = self.worst_case(delta=delta)
        if method == "pld":
            curves, most = self._panel_curves(), self._worst_curve()
            epsilon = _smallest_epsilon(
                lambda eps: band_mean(curves.delta(eps), worst=most.delta(eps)[:, 0], gamma=failure),
                delta - failure,
                worst.epsilon,
            )
        else:
            epsilon = self._band_by_moments(delta - failure, failure, notion)
        split = (("band", failure), ("expected", delta - failure))
        return self._statement(epsilon, delta, worst, "band", notion, method, split)

    def _band_by_moments(self, target: float, gamma: float, notion: str) -> float:
        """Return the band's epsilon with each record's delta by moments, the order chosen inside the record."""
        orders = ORDERS[:_FIRST_ORDERS]
        table = self._table(orders)
        own, most = self._panel() @ table.T, self.taken * table[:, TOP]

        def bound(epsilons: Floats) -> Floats:
            values = np.stack([delta_from_costs(own, orders, epsilon=float(e), notion=notion) for e in epsilons])
            worst = np.array([delta_from_costs(most, orders, epsilon=float(e), notion=notion) for e in epsilons])
            return band_mean(values, worst=worst, gamma=gamma)

        enough = float(epsilon_from_costs(most, orders, delta=target, notion=notion))
        return _smallest_epsilon(bound, target, enough * (1.0 + 1e-12))

    def _from_moments(self, delta: float, estimator: str, gamma: float | None, notion: str) -> Guarantee:
        estimates = 1 if self.composition == "panel" else len(self._histograms)
        uses = estimates * len(ORDERS)
        failure = self._gamma(delta, gamma, uses=uses, share=1 / 100)
        spare = delta - uses * failure
        epsilon = np.inf
        for orders in (ORDERS[:_FIRST_ORDERS], ORDERS):
            costs = self._population_costs(estimator, orders, failure)
            by_order = epsilon_by_order(costs, orders, delta=spare, notion=notion)
            epsilon = float(by_order.min())
            if by_order[-1] > epsilon:
                break
        split = (("estimator", uses * failure), ("tail", spare))
        worst = self.worst_case(delta=delta)
        return self._statement(epsilon, delta, worst, estimator, notion, "moments", split)

    def _population_costs(self, estimator: str, orders: tuple[int, ...], gamma: float) -> Floats:
        """Return the estimate of log E_x exp(A_λ(x)) for every order."""
        table, estimate = self._table(orders), _MOMENT_ESTIMATORS[estimator]
        if self.composition == "panel":
            counts = self._panel()
            ones = np.ones(len(counts), dtype=np.int64)
            return estimate(table @ counts.T, weights=ones, gamma=gamma, worst=self.taken * table[:, TOP])
        power = self.planned if self.composition == "hoelder" and self.planned else 1
        total = np.zeros(len(orders))
        for repeat, histogram in self._histograms:
            seen = np.flatnonzero(histogram)
            one = estimate(power * table[:, seen], weights=histogram[seen], gamma=gamma, worst=power * table[:, TOP])
            total += repeat * one / power
        return total

    def _conformal(self, delta: float, notion: str) -> Guarantee:
        if self.budget is None:
            raise PrivacyError(
                "estimator 'conformal' needs a budget, declared as budget=... when the accountant is made."
            )
        counts = self._panel()
        miss = conformal_miss(len(counts), tolerated=self.tolerated)
        if miss >= delta:
            raise PrivacyError(
                f"With {len(counts)} followed records and {self.tolerated} tolerated, delta must be above "
                f"{miss:.3g}, got {delta:g}; follow more records or ask for a larger delta."
            )
        within = self.budget.within(counts, sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier)
        if np.count_nonzero(~within) > self.tolerated:
            raise PrivacyError("No certificate: more followed records passed the declared budget than were tolerated.")
        spare = delta - miss
        epsilon = self.budget.epsilon(
            spare, sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier, notion=notion
        )
        method = "pld" if isinstance(self.budget, TokenBudget) else "moments"
        split = (("conformal", miss), ("tail", spare))
        worst = self.worst_case(delta=delta)
        return self._statement(epsilon, delta, worst, "conformal", notion, method, split)

    def _gamma(self, delta: float, gamma: float | None, *, uses: int, share: float) -> float:
        """Return the failure probability of one estimate, and refuse if all of them reach delta."""
        if gamma is None:
            return delta * share / uses
        each = _check.probability("gamma", gamma)
        if uses * each >= delta:
            raise PrivacyError(
                f"gamma={each:g} counts {uses} times, once for every estimate taken, which reaches delta={delta:g}. "
                f"Pass gamma below {delta / uses:.1e} or leave it out."
            )
        return each

    def _statement(
        self,
        epsilon: float,
        delta: float,
        worst: Guarantee,
        estimator: str,
        notion: str,
        method: str,
        split: tuple[tuple[str, float], ...],
    ) -> Guarantee:
        certificate = estimator == "conformal"
        comparison = self.composition == "independent"
        static = self.levels == "static" and not comparison
        assumptions = [*worst.assumptions]
        if certificate:
            followed = len(self._panel())
            assumptions += [
                assume("exchangeable"),
                assume("certificate", followed=followed, tolerated=self.tolerated),
                assume("joint-delta"),
            ]
        else:
            assumptions += [assume("representative"), assume("static-norms" if static else "observed-norms")]
        if comparison:
            assumptions.append(assume("independent-steps"))
        if notion == "weak" and epsilon >= worst.epsilon:  # worst-case DP implies the weak notion, not the strong
            epsilon, method = worst.epsilon, "worst-case cap"
        return Guarantee(
            kind="bayesian",
            epsilon=max(epsilon, SMALLEST_EPSILON),
            delta=delta,
            method=method,
            scope="guarantee" if static or certificate else "reading",
            notion="strong" if notion == "strong" else "weak",
            estimator=estimator,
            composition=self.composition,
            model="model-based" if estimator in _MODEL_BASED else "distribution-free",
            delta_split=split,
            mechanism=worst.mechanism,
            assumptions=tuple(assumptions),
            publishable=certificate,
            is_bound=not comparison,
        )

    def _require_steps(self) -> None:
        if self.taken == 0:
            raise PrivacyError("No step was charged yet: call step(norms) first.")

    def _require_consistent(self) -> None:
        """Refuse a state in which records and steps do not add up."""
        if self.planned is not None and self.taken > self.planned:
            raise PrivacyError("state is damaged: more steps taken than planned.")
        if self._counts is not None and (self._counts.sum(axis=1) != self.taken).any():
            raise PrivacyError("state is damaged: a record's steps do not add up to the steps taken.")
        if self._histograms and sum(repeat for repeat, _ in self._histograms) != self.taken:
            raise PrivacyError("state is damaged: the histograms do not add up to the steps taken.")
        if self.levels == "static" and self._counts is not None and (np.count_nonzero(self._counts, axis=1) != 1).any():
            raise PrivacyError("state is damaged: a record moved between levels declared static.")
        if self._histograms and (self._counts is not None or not all(h.sum() for _, h in self._histograms)):
            raise PrivacyError("state is damaged: its histograms hold no records, or it has a panel too.")
        if self.taken and (self._counts is None) == (self.composition == "panel"):
            raise PrivacyError("state is damaged: it holds no records for its composition.")


def _smallest_epsilon(bound: Any, target: float, largest: float) -> float:
    """Return the smallest ε in [0, largest] with bound(ε) ≤ target, from the safe side; else infinity."""
    low, high = 0.0, largest
    for _ in range(4):
        grid = np.linspace(low, high, 33)
        fits = np.flatnonzero(bound(grid) <= target)
        if not len(fits):
            return np.inf
        if fits[0] == 0:
            return float(grid[0])
        low, high = float(grid[fits[0] - 1]), float(grid[fits[0]])
    return high
