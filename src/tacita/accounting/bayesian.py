"""The Bayesian accountant: what a run costs a record drawn from the data's own distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting.conversion import NOTIONS
from tacita.accounting.curves import RecordCurves, record_curves, worst_curve
from tacita.accounting.filters import Budget, MomentsBudget, TokenBudget
from tacita.accounting.history import History
from tacita.accounting.levels import TOP, cost_table, level_of
from tacita.accounting.population import (
    FIRST_ORDERS,
    Deltas,
    PopulationFigure,
    bayesian_guarantee,
    conformal_figure,
    deltas_by_moments,
    failure_of_each,
    mean_delta_epsilon,
    moments_figure,
    population_profile,
)
from tacita.accounting.spectra import products
from tacita.accounting.state import budget_from, budget_state, reading_state
from tacita.accounting.unmeasured import Sampled
from tacita.accounting.worst import check_mechanism, worst_case
from tacita.assumptions import Assumption, assume
from tacita.estimators import ESTIMATORS, share_bounds, unseen_mass
from tacita.guarantee import SMALLEST_EPSILON, Guarantee

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tacita._check import Counts, Floats

STATE_SCHEMA = 2
_SETTINGS = ("sample_rate", "noise_multiplier", "composition", "steps", "levels", "tolerated")
_BAND_SHARE = 1 / 20  # of delta, for an estimator that averages deltas

_MOVED = {
    "formula": "BayesianAccountant takes no formula: costs are always exact. The maximum that the papers print is "
    "tacita.papers.printed_figure(accountant, delta=...)."
}
_NO_BOUND = {
    "independent": "composition='independent' is no bound: use composition='hoelder', and for the papers' figure "
    "tacita.papers.product_figure(accountant, delta=...)."
}


class _Mechanism(TypedDict):
    sample_rate: float
    noise_multiplier: float


class BayesianAccountant:
    """Follow records through a run and say what it costs a record of their population.

    Args:
        sample_rate: Chance q in (0, 1] with which each record enters a step.
        noise_multiplier: σ; noise standard deviation over the clip norm.
        composition: `panel` follows the same records through all steps (ours; no loss). `hoelder` is
            Theorem 1 of Triastcyn & Faltings 2020: fresh records every step, `steps` fixed beforehand.
        steps: The planned number of steps; going past it raises. Required for `hoelder`.
        levels: `observed`, or `static` to declare that each record's norm is fixed for the run; only then
            (or with a budget) is the result a guarantee rather than a reading.
        budget: For the conformal certificate: what a followed record may spend, declared beforehand.
        tolerated: For the conformal certificate: how many followed records may pass the budget.
        **moved: Refused. `formula` is now in `tacita.papers`.

    Raises:
        ValueError: If an argument is out of range, or the arguments do not go together.

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
        composition: Literal["panel", "hoelder"] = "panel",
        steps: int | None = None,
        levels: Literal["observed", "static"] = "observed",
        budget: Budget | None = None,
        tolerated: int = 0,
        **moved: object,
    ) -> None:
        for name in moved:
            raise TypeError(_MOVED.get(name, f"BayesianAccountant takes no argument {name!r}."))
        self.sample_rate, self.noise_multiplier, _ = check_mechanism(sample_rate, noise_multiplier, 1)
        if composition in _NO_BOUND:
            raise ValueError(_NO_BOUND[composition])
        self.levels = _check.one_of("levels", levels, ("observed", "static"))
        if budget is not None and not isinstance(budget, MomentsBudget | TokenBudget):
            raise TypeError(f"budget must be a MomentsBudget or a TokenBudget, got {type(budget).__name__}.")
        self.budget = budget
        self.tolerated = _check.count("tolerated", tolerated, low=0)
        self._mechanism = _Mechanism(sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier)
        self.history = History(composition, steps, static=levels == "static")
        self.sampled: Sampled | None = None
        self._curves: RecordCurves | None = None

    def __repr__(self) -> str:
        return (
            f"BayesianAccountant(sample_rate={self.sample_rate:g}, noise_multiplier={self.noise_multiplier:g}, "
            f"composition={self.composition!r}, levels={self.levels!r}): {self.taken} steps charged"
        )

    @property
    def composition(self) -> str:
        """How steps are added up: `panel` or `hoelder`."""
        return self.history.composition

    @property
    def taken(self) -> int:
        """The number of steps charged so far."""
        return self.history.taken

    @property
    def planned(self) -> int | None:
        """The planned number of steps, if there is a plan."""
        return self.history.planned

    @property
    def counts(self) -> Counts:
        """How many steps each followed record spent at each level, shape (records, levels); sensitive.

        In the smallest signed type that holds the planned steps.
        """
        return self.history.panel

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What estimates from these records rest on, beyond what the worst case does."""
        seen = assume("representative"), assume("static-norms" if self.levels == "static" else "observed-norms")
        return seen if self.sampled is None else (*seen, self.sampled.assumption)

    def step(self, norms: ArrayLike, *, steps: int = 1) -> None:
        """Charge one step, or `steps` steps with the same norms.

        Args:
            norms: Shape (m,); each followed record's clipped contribution as a fraction of the clip norm.
                Every followed record is charged whether it was sampled or not. A panel keeps the same
                records in the same order.
            steps: How often to charge it. Only for norms that really stay the same: measuring every k-th
                step and charging k would make the figure meaningless.

        Raises:
            ValueError: If the norms are not in [0, 1], or a panel's number of records changes.
            PrivacyError: If there are more steps than planned, or norms declared static change.
        """
        values = _check.norms("norms", norms)
        self.history.charge(level_of(values), _check.count("steps", steps))
        self._curves = None

    def completed(self, seen: Counts, sampled: Sampled) -> BayesianAccountant:
        """Return an accountant of all steps of a run in which each record was measured at some, drawn at random.

        Args:
            seen: How many steps each record spent at each level, of those in which it was measured.
            sampled: How they were drawn.

        Raises:
            PrivacyError: If the accountant follows no records through the run, declares their levels, has a budget, was
                charged already, or plans fewer steps; or if there are more measurements than steps.

        Guarantee:
            For each record, except with probability `sampled.failure` over its coins, its true counts cost no more than
            those of the result. The failure is taken off the delta of every statement about the population; `shares`
            allow for it by a higher rank; it stands beside figures of single records.
        """
        if self.composition != "panel" or self.levels == "static" or self.budget is not None:
            raise PrivacyError("Only a panel of observed norms without a budget can be measured at some of the steps.")
        if self.taken:
            raise PrivacyError(f"The accountant has {self.taken} steps of its own; complete one that has no step.")
        if self.planned is not None and sampled.steps > self.planned:
            raise PrivacyError(f"The plan covers {self.planned} steps, and {sampled.steps} were taken.")
        made = BayesianAccountant(**self._mechanism, steps=self.planned)
        made.history.counts, made.history.taken, made.sampled = sampled.fill(seen), sampled.steps, sampled
        return made

    def guarantee(
        self,
        *,
        delta: float,
        estimator: str = "band",
        gamma: float | None = None,
        notion: Literal["strong", "weak"] | None = None,
        method: Literal["pld", "moments"] | None = None,
    ) -> Guarantee:
        """Return the Bayesian statement at a total `delta`.

        Args:
            delta: The total failure probability, everything included.
            estimator: A key of `tacita.estimators.ESTIMATORS`: `band` (distribution-free, the default), the papers'
                `student`, `bernstein`, `binary`; or `conformal` for the certificate of a declared budget.
            gamma: How often an estimate may be too low; part of delta, once for every estimate that is
                taken. None picks it; the split is in the result's `delta_split`.
            notion: `weak` bounds the expected hockey-stick divergence, `strong` the tail of the privacy
                loss. Default: weak for `band`, strong for the others, as in the papers.
            method: For `band`: each record's own curve by `pld` (default) or by `moments`.

        Returns:
            The statement, with everything that it rests on.

        Raises:
            ValueError: If an argument is out of range.
            PrivacyError: If nothing was charged, the estimates' failures reach delta, or there is no certificate.

        Guarantee:
            Holds for a record of the population that the followed records represent, under the result's
            assumptions. In the weak notion epsilon never exceeds the worst case at the same delta; the strong
            notion is not implied by worst-case DP, so its figure is left as it is.
        """
        total = _check.probability("delta", delta)
        _check.one_of("estimator", estimator, (*ESTIMATORS, "conformal"))
        self._require_steps()
        if method is not None:
            _check.one_of("method", method, ("pld", "moments"))
        if notion is not None:
            _check.one_of("notion", notion, NOTIONS)
        if estimator == "conformal":
            return self._certificate(total, notion)
        worst = self.worst_case(delta=total)
        if ESTIMATORS[estimator].averages == "deltas":
            figure = self._mean_delta(estimator, worst, gamma, notion or "weak", method or "pld")
        elif method == "pld":
            raise ValueError(f"estimator {estimator!r} works on moments; method='pld' goes with 'band'.")
        else:
            left = total - self._failure_before(total)
            figure = moments_figure(
                estimator, self.history.samples(), self._table, delta=left, gamma=gamma, notion=notion or "strong"
            )
        if self.sampled is not None:
            figure = replace(figure, delta_split=(*figure.delta_split, ("unmeasured", self.too_low)))
        return self._statement(figure, worst, self.assumptions)

    def delta(self, *, epsilon: float, gamma: float = 1e-8) -> float:
        """Return the total delta of the `band` statement at `epsilon`, gamma included.

        Never more than the worst-case delta at the same epsilon. For the delta of a `guarantee` at its own
        epsilon, pass that guarantee's gamma (in its `delta_split`).
        """
        eps = np.array([_check.in_range("epsilon", epsilon, 0.0, 1e12)])
        gamma = _check.probability("gamma", gamma)
        self._require_steps()
        values, worst = self._deltas_by_curves(eps)
        ones = np.ones(values.shape[1], dtype=np.int64)
        mean = ESTIMATORS["band"].bound(values, weights=ones, gamma=gamma, worst=worst)
        return float(min(mean[0] + gamma + self._failure_before(1.0), worst[0], 1.0))

    def running(self, *, delta: float) -> float:
        """Return the `band` epsilon so far, for progress: quick, and capped by our own worst-case curve."""
        total = _check.probability("delta", delta)
        self._require_steps()
        failure = total * _BAND_SHARE
        target = total - failure - self._failure_before(total)
        largest = float(self._worst_curve().epsilon(total)[0])
        epsilon = mean_delta_epsilon(
            ESTIMATORS["band"], self._deltas_by_curves, target=target, gamma=failure, largest=largest
        )
        return max(min(epsilon, largest), SMALLEST_EPSILON)

    def epsilons(self, *, delta: float) -> Floats:
        """Return each followed record's own epsilon, by PLD. Sensitive: never publish the list."""
        total = _check.probability("delta", delta)
        self._require_steps()
        return np.maximum(self._panel_curves().epsilon(total), SMALLEST_EPSILON)

    def individual(self, record: int, *, delta: float) -> Guarantee:
        """Return what the run costs one followed record, with its whole privacy curve.

        Args:
            record: Its position in the panel.
            delta: δ in (0, 1).

        Returns:
            The statement about this record alone, for the data's owner; never above the worst case. A reading of this
            run, unless levels are static.

        Raises:
            ValueError: If there is no such record.
            PrivacyError: If nothing was charged.
        """
        place = _check.count("record", record, low=0, high=len(self.counts) - 1)
        worst = self.worst_case(delta=delta)
        curve = self._panel_curves().profile(place) & worst.curve
        epsilon = min(max(curve.epsilon(worst.delta), SMALLEST_EPSILON), worst.epsilon)
        return replace(
            worst,
            kind="individual",
            epsilon=epsilon,
            method="record's own curve",
            scope="guarantee" if self.levels == "static" else "reading",
            assumptions=(*worst.assumptions, *self.assumptions[1:]),
            publishable=False,
            profile=curve,
        )

    def successes(self) -> Floats:
        """Return how often the best attack on each followed record is right, at even odds. Sensitive, as `epsilons`."""
        self._require_steps()
        return np.asarray(0.5 + 0.5 * self._panel_curves().delta(np.zeros(1))[0])

    def tprs(self, rates: Sequence[float]) -> Floats:
        """Return the true-positive rate of the best test for each followed record, at given false-positive rates.

        Shape (len(rates), records). Sensitive, as `epsilons`.
        """
        self._require_steps()
        checked = np.array([_check.in_range("a false-positive rate", rate, 0.0, 1.0) for rate in rates])
        return np.asarray(np.maximum(self._panel_curves().tpr(checked), checked[:, None]))

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

    def shares(
        self, *, delta: float, percents: Sequence[float] = (50, 75, 90, 95, 99), gamma: float = 1e-6
    ) -> dict[float, float]:
        """Return the epsilon that each percentage of the *population* stays under, by PLD.

        `percentiles` describes the followed records; this speaks of the people they were drawn from, for which it
        pays with a higher rank. A mean of delta is ruled by the few whom nobody followed; a share is not.

        Args:
            delta: The δ of every epsilon.
            percents: In (0, 100), chosen before the run.
            gamma: The probability, over who was followed, with which any of the statements may fail. It is apart from
                delta.

        Returns:
            From percentage to epsilon, at most the worst case; the worst case where too few records were followed.

        Guarantee:
            If the followed records were drawn independently from the population, were not trained on and steered
            nothing: except with probability `gamma`, at least each percentage of the population has, for the levels
            of this run, a privacy curve with δ_x(ε) ≤ delta. A reading, unless levels are static.

        Examples:
            >>> acc = BayesianAccountant(sample_rate=0.01, noise_multiplier=1.0)
            >>> acc.step(np.linspace(0.0, 1.0, 1000) ** 4, steps=2000)
            >>> [f"{percent}%: {epsilon:.2f}" for percent, epsilon in acc.shares(delta=1e-5, percents=(50, 90)).items()]
            ['50%: 0.16', '90%: 1.74']
        """
        worst = self.worst_case(delta=delta).epsilon
        own = self.epsilons(delta=delta)
        return share_bounds(own, percents=percents, gamma=gamma, worst=worst, low=self.too_low)

    def worst_case(self, *, delta: float) -> Guarantee:
        """Return the worst-case guarantee of the steps taken so far."""
        self._require_steps()
        return worst_case(**self._mechanism, steps=self.taken, delta=delta)

    def floor(self, *, delta: float, gamma: float | None = None) -> tuple[float, float]:
        """Return the unseen mass at this panel size, and the epsilon below which no `band` figure can go.

        Records above everything seen are charged the worst case, so epsilon is at least the one at which
        the worst-case delta times the unseen mass fits into delta.
        """
        total = _check.probability("delta", delta)
        self._require_steps()
        gamma = failure_of_each(total, gamma, uses=1, share=_BAND_SHARE)
        mass = unseen_mass(len(self.counts), gamma=gamma)
        enough = min((total - gamma) / mass, 0.999)
        return mass, self.worst_case(delta=max(enough, total)).epsilon

    def subset(self, records: ArrayLike) -> BayesianAccountant:
        """Return an accountant of some of the followed records, by their positions."""
        made = BayesianAccountant(**self._mechanism, steps=self.planned)
        made.history.counts, made.history.taken = self.counts[np.asarray(records)], self.taken
        made.sampled = self.sampled
        return made

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain data, fit for JSON; `from_state` reads it."""
        return {**self.state_without_panel(), **self.history.state()}

    def state_without_panel(self) -> dict[str, Any]:
        """Return everything but `counts`; `from_state` takes these as the entry `panel`, as the matrix they are."""
        values = {"steps": self.planned} | {name: getattr(self, name) for name in _SETTINGS if name != "steps"}
        own = {"schema": STATE_SCHEMA, **values, "budget": budget_state(self.budget)}
        sampled = {} if self.sampled is None else {"sampled": asdict(self.sampled)}
        return {**own, **sampled, **self.history.state_without_panel()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> BayesianAccountant:
        """Rebuild an accountant.

        Raises:
            PrivacyError: If the state is of another schema, or does not add up; it is never repaired.
        """
        if not isinstance(state, Mapping) or repr(state.get("schema")) != repr(STATE_SCHEMA):
            raise PrivacyError(f"state must be a state_dict of schema {STATE_SCHEMA}.")
        unknown = set(state) - {"schema", *_SETTINGS, "budget", "sampled", "taken", "panel", "histograms"}
        if unknown:
            raise PrivacyError(f"state is damaged: unknown entries {sorted(map(str, unknown))}.")
        with reading_state():
            made = cls(**{name: state[name] for name in _SETTINGS}, budget=budget_from(state["budget"]))
            made.history.restore(state)
            if "sampled" in state:
                if made.composition != "panel" or made.levels == "static" or made.budget is not None:
                    raise PrivacyError("state is damaged: such records are measured at every step.")
                made.sampled = Sampled(**state["sampled"])
        return made

    def _panel_curves(self) -> RecordCurves:
        if self._curves is None:
            self._curves = record_curves(self.counts, **self._mechanism)
        return self._curves

    def _worst_curve(self) -> RecordCurves:
        return worst_curve(self.taken, **self._mechanism)

    def _table(self, orders: tuple[int, ...]) -> Floats:
        return cost_table(self.sample_rate, self.noise_multiplier, orders)

    def _deltas_by_curves(self, epsilons: Floats) -> tuple[Floats, Floats]:
        return self._panel_curves().delta(epsilons), self._worst_curve().delta(epsilons)[:, 0]

    def _mean_delta(
        self, estimator: str, worst: Guarantee, gamma: float | None, notion: str, method: str
    ) -> PopulationFigure:
        if method == "pld" and notion == "strong":
            raise PrivacyError("Curves by PLD bound the weak notion; for the strong one pass method='moments'.")
        delta = worst.delta
        failure, hidden = failure_of_each(delta, gamma, uses=1, share=_BAND_SHARE), self._failure_before(delta)
        deltas: Deltas = self._deltas_by_curves
        target, largest = delta - failure - hidden, worst.epsilon
        if method == "moments":
            table = self._table(FIRST_ORDERS)
            own, most = products(self.counts, table.T), self.taken * table[:, TOP]
            deltas, largest = deltas_by_moments(own, most, target=target, notion=notion)
        epsilon = mean_delta_epsilon(ESTIMATORS[estimator], deltas, target=target, gamma=failure, largest=largest)
        curve = None
        if notion == "weak":
            curve = population_profile(ESTIMATORS[estimator], deltas, gamma=failure + hidden, largest=largest)
        split = ((estimator, failure), ("expected", target))
        return PopulationFigure(
            epsilon=epsilon, estimator=estimator, notion=notion, method=method, delta_split=split, profile=curve
        )

    def _certificate(self, delta: float, notion: str | None) -> Guarantee:
        if self.budget is None:
            raise PrivacyError(
                "estimator 'conformal' needs a budget, declared as budget=... when the accountant is made."
            )
        figure = conformal_figure(
            self.budget,
            self.counts,
            tolerated=self.tolerated,
            delta=delta,
            notion=notion,
            **self._mechanism,
        )
        terms = assume("certificate", followed=len(self.counts), tolerated=self.tolerated)
        rests_on = (assume("exchangeable"), terms, assume("joint-delta"))
        return self._statement(figure, self.worst_case(delta=delta), rests_on)

    @property
    def too_low(self) -> float:
        """The chance with which a followed record's own figures are too low: 0 if every step was measured."""
        return 0.0 if self.sampled is None or self.sampled.rate == 1.0 else self.sampled.failure

    def _failure_before(self, total: float) -> float:
        """Return what figures that may be too low take off a total.

        Raises:
            PrivacyError: If too little would be left of it.
        """
        if self.too_low > 0.5 * total:
            raise PrivacyError(
                f"Records' figures may be too low with probability {self.too_low:.3g}, as they were measured at some "
                f"steps only: too much for a total of {total:.3g}."
            )
        return self.too_low

    def _statement(self, figure: PopulationFigure, worst: Guarantee, assumptions: tuple[Assumption, ...]) -> Guarantee:
        static = self.levels == "static"
        return bayesian_guarantee(figure, worst, composition=self.composition, static=static, assumptions=assumptions)

    def _require_steps(self) -> None:
        if self.taken == 0:
            raise PrivacyError("No step was charged yet: call step(norms) first.")
