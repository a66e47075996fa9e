"""Release a posterior, or a few whole numbers, with exact noise and a certificate of what it costs.

A plan is made first, from public facts only: which noise, how much, and what is proved about it. Then it is drawn once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita._guard import attempt, held, number_in
from tacita.data.ids import MOST_RECORDS, capped, numbered
from tacita.guarantee import Guarantee
from tacita.ledger import Ledger
from tacita.posterior.mechanisms import MECHANISMS, Mechanism, Statistic
from tacita.posterior.mixtures import Mixture, Shares
from tacita.posterior.models import LARGEST_NUMBER, Beta, Dirichlet, Normal
from tacita.posterior.noise_aware import Grid, cells_posterior, total_posterior
from tacita.posterior.plans import Candidate, Certificate, ReleasePlan, charge, plan_release

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from tacita._check import Counts, Floats

LARGEST_SIZE = 10**9
_Book = Ledger | str | os.PathLike[str] | None


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """A released posterior with everything that is known about it. `print` it.

    Attributes:
        posterior: The posterior of the share, the shares or the mean, the noise taken into account.
        output: The whole numbers that were released: noisy counts, or a noisy sum in steps.
        plan: How they were drawn, and what is proved about it.
        model: The prior.
        n: The public number of records; None inside a part, whose size is private.
        labels: The categories, if they are known: texts, or True and False.
    """

    posterior: Mixture | Shares
    output: tuple[int, ...]
    plan: ReleasePlan
    model: Dirichlet | Normal
    n: int | None
    labels: tuple[object, ...] = ()

    @cached_property
    def guarantee(self) -> Guarantee:
        """What is promised to every record."""
        return self.plan.guarantee()

    @property
    def certificate(self) -> Certificate:
        """The exact privacy curve."""
        return self.plan.certificate

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that was used."""
        return self.plan.used

    @property
    def compared(self) -> tuple[Candidate, ...]:
        """What `best` compared, the nearest first."""
        return self.plan.compared

    def __repr__(self) -> str:
        return f"<Release under {self.model}: {_summary(self.posterior)}>"

    def __str__(self) -> str:
        lines = [f"posterior under {self.model}: {_summary(self.posterior)}", f"mechanism: {self.mechanism}"]
        if len(self.compared) > 1:
            lines[-1] += f", {self.compared[0].measure} {self.compared[0].distance:.3g}; chosen over"
        lines += [f"  {c.mechanism}: {c.measure} {c.distance:.3g}" for c in self.compared[1:]]
        return "\n".join([*lines, f"released: {list(self.output)}", str(self.guarantee)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without the curve's table."""
        intervals = np.atleast_2d(np.array(self.posterior.interval(0.95)))
        return {
            "model": str(self.model),
            "labels": list(map(str, self.labels)),
            "mean": np.atleast_1d(self.posterior.mean).tolist(),
            "sd": np.atleast_1d(self.posterior.sd).tolist(),
            "interval_95": intervals.tolist(),
            "output": list(self.output),
            "mechanism": str(self.mechanism),
            "compared": [{"mechanism": str(c.mechanism), "distance": c.distance} for c in self.compared],
            "guarantee": self.guarantee.to_dict(),
            "certificate": self.certificate.to_dict(),
        }


def release(
    model: Dirichlet | Normal,
    *,
    counts: Sequence[int] | None = None,
    column: ArrayLike | None = None,
    epsilon: float | None = None,
    delta: float = 0.0,
    mechanism: str | Mechanism = "best",
    clamp: tuple[float, float] | None = None,
    step: float | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    name: str = "posterior",
    person: Sequence[Any] | None = None,
    records_per_person: int | None = None,
    missing_person: str = "refuse",
) -> Release:
    """Release the posterior of a conjugate model, with the noise taken into account and a certificate of its privacy.

    Args:
        model: `beta(...)`, `dirichlet(...)` or `normal(...)`.
        counts: The number of records in each category: (true, false) for a Beta prior. Or pass `column`.
        column: The records: true or false, whole numbers from 0 for categories, or real numbers for a normal model,
            also as texts. One that is none of these counts as false, as the first category or as the lower bound, in
            silence.
        epsilon: The privacy loss it may have.
        delta: Its failure probability; 0 by default.
        mechanism: `best`, `geometric`, `gaussian`, `laplace`, `exponential`, or what the functions of these names
            return (then without `epsilon` and `delta`).
        clamp: For a normal model: public bounds. Records outside are moved to them.
        step: For a normal model: the grid that records are rounded to; a thousandth of the bounds' width by default.
        ledger: A ledger for replace_one, or with `person` for add_remove and the unit person, or its file or URL, that
            is charged before anything is drawn.
        name: What the release is called in the ledger.
        person: Whose each record of `column` is, where people have several: ids of any kind that can be compared.
        records_per_person: How many records of a person count; with more, some by chance.
        missing_person: What no id means: `refuse`, or `own`, that the record is the only one of a person of its own.

    Guarantee:
        (epsilon, delta)-differential privacy for replacing one record, as the certificate shows. The number of records
        is public. With `person`, for adding or removing a person with all records, and their number is private. The
        posterior is computed from what was released alone.

    Examples:
        >>> from tacita.posterior import beta
        >>> made = release(beta(1, 1), counts=(37, 63), epsilon=0.5)
        >>> made.guarantee.epsilon, made.mechanism.name
        (0.5, 'geometric')
    """
    chosen = _mechanism(mechanism, epsilon, delta)
    if isinstance(model, Dirichlet) and (clamp is not None or step is not None):
        raise TypeError("clamp and step are for a normal model; counts need no bounds.")
    if person is not None or records_per_person is not None or missing_person != "refuse":
        whose = _whose(person, records_per_person, missing_person)
        return _release_of_people(model, counts, column, whose, chosen, ledger, name)
    if isinstance(model, Normal):
        if column is None or counts is not None:
            raise TypeError("A normal model needs column, the records themselves, so that they can be clamped.")
        return _release_mean(model, _records(column), _grid(clamp, step), chosen, ledger, name)
    if not isinstance(model, Dirichlet):
        raise TypeError(f"model must be what beta, dirichlet or normal returns, got {model!r}.")
    values = _counts(model, counts, column)
    n, statistic = sum(values), Statistic(model.cells, sum(values), prior=model)
    plan, output = _drawn(chosen, statistic, values, ledger, name, f"posterior under {model} of {n} records")
    return Release(cells_posterior(plan, model, output, n, n), output, plan, model, n)


_Whose = tuple["Counts", int]  # whose each record is, and how many of a person count


def _whose(person: Sequence[Any] | None, most: int | None, missing: str) -> _Whose:
    if person is None or most is None:
        raise TypeError("person, an id for each record, and records_per_person go together.")
    count = _check.count("records_per_person", most, high=MOST_RECORDS)
    return numbered(person, missing=missing, name="person"), count


def _release_of_people(
    model: Dirichlet | Normal,
    counts: Sequence[int] | None,
    column: ArrayLike | None,
    whose: _Whose,
    mechanism: Mechanism,
    ledger: _Book,
    name: str,
) -> Release:
    """Release the posterior of some records of each person."""
    if not isinstance(model, Dirichlet):
        raise TypeError(
            "With person the number of records is private, and a mean divides by it: release a sum and a count in a "
            "program, Program(..., person=..., rows_per_person=...)."
        )
    if counts is not None or column is None:
        raise TypeError("With person, pass column: counts do not tell whose records they count.")
    persons, most = whose
    records = _records(column)
    if len(records) != len(persons):
        raise ValueError("person must hold one id for each record of column.")
    values = _counts(model, None, records[capped(persons, most)])
    statistic = Statistic(model.cells, None, step=most, prior=model, rows=most)
    description = f"posterior under {model} of at most {most} records of a person"
    plan, output = _drawn(mechanism, statistic, values, ledger, name, description)
    return Release(cells_posterior(plan, model, output, None, None), output, plan, model, None)


def _release_mean(
    model: Normal, records: Floats, grid: Grid, mechanism: Mechanism, ledger: _Book, name: str
) -> Release:
    n, bounds = len(records), f"[{grid.base:g}, {grid.value(grid.high):g}]"
    description = f"posterior under {model} of {n} records in {bounds}"
    statistic = Statistic(n=n, step=grid.high, summed=True)
    plan, output = _drawn(mechanism, statistic, (grid.total(records),), ledger, name, description)
    return Release(total_posterior(plan, model, output[0], n, grid), output, plan, model, n)


def _drawn(
    mechanism: Mechanism, statistic: Statistic, values: tuple[int, ...], ledger: _Book, name: str, description: str
) -> tuple[ReleasePlan, tuple[int, ...]]:
    """Plan a release, charge it, and only then draw it."""
    plan = plan_release(mechanism, statistic)
    plan.prepare()
    promised = plan.guarantee()
    about = {"neighbours": promised.neighbours, "unit": promised.unit}
    charge(ledger, name, f"{description}, {plan.used}", plan.cost, **about)
    return plan, plan.draw(values[: statistic.numbers])


def _mechanism(mechanism: str | Mechanism, epsilon: float | None, delta: float) -> Mechanism:
    if isinstance(mechanism, Mechanism):
        if epsilon is not None or delta:
            raise TypeError(f"epsilon and delta are in {mechanism} already; leave them out.")
        return mechanism
    _check.one_of("mechanism", mechanism, tuple(MECHANISMS))
    if epsilon is None:
        raise TypeError(f"epsilon is needed for {mechanism!r}.")
    return MECHANISMS[mechanism].within(epsilon, delta)


def _counts(prior: Dirichlet, counts: Sequence[int] | None, column: ArrayLike | None) -> tuple[int, ...]:
    if (counts is None) == (column is None):
        raise TypeError("Pass either counts or column.")
    if counts is not None:
        if not hasattr(counts, "__len__") or len(counts) != prior.cells:
            raise ValueError(f"counts must have one number for each of {prior.cells} categories, got {counts!r}.")
        values = tuple(_check.count("counts", c, low=0, high=LARGEST_SIZE) for c in counts)
    else:
        records = _records(column)
        known = np.isin(records, np.arange(prior.cells))
        found = np.bincount(np.where(known, records, 0.0).astype(np.int64), minlength=prior.cells)
        values = tuple(int(c) for c in (found[::-1] if isinstance(prior, Beta) else found))
    if sum(values) == 0:
        raise ValueError("There must be at least one record.")
    return values


def _records(column: Any) -> Floats:
    """Return a number for each record, NaN where it is not one. Each is read separately, so none can change another."""
    array = None
    if hasattr(column, "__array__"):
        array = np.asarray(column)
        if array.ndim != 1 or array.dtype.kind not in "biufOSU":
            raise ValueError(f"column must be one column of numbers, got shape {array.shape} of {array.dtype}.")
    cells = column if array is None else array
    if isinstance(cells, Mapping | str) or not (hasattr(cells, "__len__") and hasattr(cells, "__getitem__")):
        raise TypeError(f"column must be one column, such as a list or an array, got {type(column).__name__}.")
    if len(cells) == 0:
        raise ValueError("There must be at least one record: column is empty.")
    if array is not None and array.dtype.kind in "biuf":
        return array.astype(np.float64)
    with held():
        numbers = [attempt(lambda place: number_in(cells[place]), place) for place in range(len(cells))]
        numbers = [None if number is None else attempt(float, number) for number in numbers]  # a whole one may be huge
    return np.array([np.nan if number is None else number for number in numbers], dtype=np.float64)


def _grid(clamp: tuple[float, float] | None, step: float | None) -> Grid:
    if clamp is None:
        raise PrivacyError(
            "A normal model needs clamp=(low, high): without public bounds no noise can hide one record."
        )
    low, high = (_check.in_range("clamp", bound, -LARGEST_NUMBER, LARGEST_NUMBER) for bound in clamp)
    if not high - low >= 1.0 / LARGEST_NUMBER:
        raise ValueError(f"clamp must be (low, high) with low < high, got ({low:g}, {high:g}).")
    width = (high - low) / 1000 if step is None else _check.in_range("step", step, (high - low) / 1e6, high - low)
    steps = round((high - low) / width)
    if abs((high - low) / width - steps) > 1e-6:
        raise ValueError(f"step must divide the width of clamp, {high - low:g}, got {width:g}.")
    return Grid(0, steps, width, low)


def _summary(posterior: Mixture | Shares) -> str:
    means, intervals = np.atleast_1d(posterior.mean), np.atleast_2d(np.array(posterior.interval(0.95)))
    parts = [f"{m:.4g} ({low:.4g} to {high:.4g})" for m, (low, high) in zip(means, intervals, strict=True)]
    return f"mean and 95% interval {', '.join(parts)}"
