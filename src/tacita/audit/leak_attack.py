"""A leak test of the accountant itself: could its reading of the records reveal who was in the training set?

The Bayesian accountant reads gradient norms, and the papers read distances between gradients. Both are measured here
for records inside and outside the training set. If a model treats the two alike, they could be exchanged, so every
p-value comes from exchanging them at random (a permutation test). That is exact for any distribution, and for
distances too, although pairs that share a record are not independent.

References:
    Triastcyn, Data-Aware Privacy-Preserving Machine Learning, 2020, section 5.5.2 and figure 5.7.
    Hoeffding, Probability inequalities for sums of bounded random variables, 1963, section 5 (two-sample statistics).
    Székely and Rizzo, Energy statistics, 2013.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils._pytree import tree_map

from tacita import _check
from tacita.audit.attack import FEWEST, Session, SkippedError
from tacita.audit.exchange import (
    EXCHANGES,
    LEVEL,
    Comparison,
    Floats,
    Pair,
    Success,
    compare_distances,
    compare_numbers,
    corrected,
)
from tacita.audit.models import record_gradients
from tacita.label import AttackState, Chart, Finding, Hue, Series
from tacita.training.gradients import Loss, Parameters, clip_factors, record_norms
from tacita.training.plan import SOFTENING
from tacita.training.records import Records, record_loss
from tacita.training.step import AUTO, check_clip_norm

Sides = tuple[ArrayLike, ArrayLike]  # inside and outside the training set
Factors = Callable[[Tensor], Tensor]

_FEWEST = 10  # records a side
_MOST_NORMS, _MOST_GRADIENTS = 2000, 500  # records a side
_MOST_WEIGHTS = 2**14  # gradients that are longer are sketched to this many numbers
_SMALL_SUCCESS = 2 / 3  # a guess that is right no more often than this is called a small leak


@dataclass(frozen=True, kw_only=True)
class Leak:
    """What was found. For the data's owner.

    Attributes:
        comparisons: One for each quantity.
        papers: p-values of the t-test and of Levene's test on all pairs, as in the papers: they treat pairs as
            independent, which they are not. None without gradients.
    """

    comparisons: tuple[Comparison, ...]
    papers: Pair | None = None

    @property
    def differs(self) -> bool:
        """Whether inside and outside differ in anything; a false alarm has a chance of at most 5%."""
        return any(c.differs for c in self.comparisons)

    @property
    def missed(self) -> float:
        """How often guessing which of two took part may be right, at most, by the 95% intervals."""
        return max(max(c.success[2], 1.0 - c.success[1]) for c in self.comparisons if c.success is not None)

    @property
    def state(self) -> AttackState:
        """`warning` for a difference; `open` if none was found, but more than two guesses of three could be right."""
        if self.differs:
            return "warning"
        return "not-refuted" if self.missed <= _SMALL_SUCCESS else "open"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"state": self.state, "differs": self.differs, "missed": self.missed, **asdict(self)}

    def finding(self) -> Finding:
        """Return the result for the owner's label."""
        return Finding(
            key="leak",
            heading="Does the reading itself reveal who took part?",
            state=self.state,
            sentence=_sentence(self),
            columns=("What", "Inside", "Outside", "Difference", "p-value"),
            rows=tuple(row for c in self.comparisons for row in _rows(c)),
            chart=_chart(self.comparisons),
            notes=_notes(self),
            tests_claim=False,
        )


def leak(
    norms: Sides,
    *,
    gradients: Sides | None = None,
    epsilons: Sides | None = None,
    rng: np.random.Generator | None = None,
) -> Leak:
    """Compare records inside the training set with records outside.

    Args:
        norms: Norms of clipped gradients over the clip norm, (inside, outside).
        gradients: Such gradients, of as many or of fewer records, a row each.
        epsilons: Followed records' own epsilons, from `BayesianAccountant.epsilons`.
        rng: Chooses whom to compare if there are many, and the exchanges. None is seeded by the operating system.

    Returns:
        What differs, how large the difference is, and how large a difference may have been missed.

    Guarantee:
        If inside and outside are exchangeable, `differs` is true with probability at most 5%, whatever the
        distributions. The intervals of `success` cover, all together, with at least 95% if the records of a side are
        independent. Finding no difference proves nothing: `missed` says how large one may still be.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> found = leak((0.5 * rng.random(400), rng.random(400)), rng=rng)
        >>> found.differs, found.state
        (True, 'warning')
    """
    rng = rng or np.random.default_rng()
    numbers = {"gradient norm": [_check.norms("norms", side) for side in _sides("norms", norms, 1)]}
    if epsilons is not None:
        numbers["own epsilon"] = _sides("epsilons", epsilons, 1)
    made = [
        compare_numbers(quantity, [_some(side, _MOST_NORMS, rng) for side in sides], LEVEL / len(numbers), rng)
        for quantity, sides in numbers.items()
    ]
    if gradients is None:
        return Leak(comparisons=corrected(made))
    rows = _sides("gradients", gradients, 2)
    few = [_some(side, _MOST_GRADIENTS, rng) if len(side) > _MOST_GRADIENTS else side for side in rows]
    distances, papers = compare_distances(few, LEVEL / (3 * len(made) + 3), rng)
    return Leak(comparisons=corrected([*made, distances]), papers=papers)


def leak_test(
    loss: Loss,
    parameters: Mapping[str, Tensor],
    inside: Any,
    outside: Any,
    *,
    clip_norm: float | str,
    epsilons: Sides | None = None,
    rng: np.random.Generator | None = None,
) -> Leak:
    """Measure gradients of records at the given parameters and compare inside with outside, as `leak` does.

    Norms are measured on at most 2000 records a side, distances on at most 500. Gradients of more than 16,384 weights
    are sketched: every weight goes to one of 16,384 sums with a random sign, the same for all records, which keeps
    distances to about 1% and the p-values exact.

    Args:
        loss: Of the parameters and one record, such as `tacita.training.records.record_loss` makes.
        parameters: Where to differentiate, usually the trained model's.
        inside: Records that were trained on; any dataset that `PrivateTraining` takes.
        outside: Records like them that were not.
        clip_norm: The training's; a number, or "auto".
        epsilons: As in `leak`.
        rng: As in `leak`.

    Returns:
        As `leak`.
    """
    rng, factors = rng or np.random.default_rng(), _factors(clip_norm)
    fixed = {name: p.detach() for name, p in parameters.items()}
    device = next(iter(fixed.values())).device
    sketch = _sketch(sum(p.numel() for p in fixed.values()), rng)
    norms, gradients = [], []
    for dataset in (inside, outside):
        records = Records(dataset, device)
        batch = records.take(_some(np.arange(len(records)), _MOST_NORMS, rng))
        lengths = record_norms(loss, fixed, batch)
        norms.append((lengths * factors(lengths)).clamp_max(1.0).numpy())
        few = tree_map(lambda t: t[:_MOST_GRADIENTS], batch)
        gradients.append(np.concatenate([sketch(g) for g in _clipped_gradients(loss, fixed, few, factors)]))
    return leak((norms[0], norms[1]), gradients=(gradients[0], gradients[1]), epsilons=epsilons, rng=rng)


def attack_readings(session: Session) -> tuple[dict[str, Any], Finding]:
    """Compare gradients at the trained model's parameters: does the accountant's reading reveal who took part?"""
    target = session.target
    (model, loss_fn), sides = target.trained(), target.records()
    if min(len(side[-1]) for side in sides) < FEWEST:
        raise SkippedError(f"it compares at least {FEWEST} records a side")
    found = leak_test(
        record_loss(model, loss_fn),
        {name: p for name, p in model.named_parameters() if p.requires_grad},
        *sides,
        clip_norm=target.plan.clipping,
        epsilons=target.record_epsilons,
        rng=session.rng(5),
    )
    return found.to_dict(), found.finding()


def _factors(clip_norm: float | str) -> Factors:
    """Return what makes clipped gradients over the clip norm of gradients, as a function of their norms."""
    softening = SOFTENING if clip_norm == AUTO else None
    c = 1.0 if softening is not None else check_clip_norm(clip_norm)
    return lambda norms: clip_factors(norms.double(), torch.tensor(c, dtype=torch.float64), softening) / c


def _clipped_gradients(loss: Loss, parameters: Parameters, records: Any, factors: Factors) -> Iterator[Floats]:
    """Yield clipped gradients over the clip norm, some records at a time; zero for one that is not finite."""
    for rows in record_gradients(loss, parameters, records):
        yield (rows.nan_to_num(0.0, 0.0, 0.0) * factors(rows.norm(dim=1))[:, None]).cpu().numpy()


def _sketch(weights: int, rng: np.random.Generator) -> Any:
    if weights <= _MOST_WEIGHTS:
        return lambda gradients: gradients
    place = torch.from_numpy(rng.integers(_MOST_WEIGHTS, size=weights))
    sign = torch.from_numpy(rng.choice([-1.0, 1.0], size=weights))

    def sketch(gradients: Floats) -> Floats:
        sums = torch.zeros(len(gradients), _MOST_WEIGHTS, dtype=torch.float64)
        return np.asarray(sums.index_add_(1, place, torch.from_numpy(gradients) * sign))

    return sketch


def _sides(name: str, sides: Sides, dimensions: int) -> list[Floats]:
    """Return both sides as arrays, checked: a number of at least 0, or a row, for each of enough records."""
    inside, outside = (np.asarray(side) for side in sides)
    if any(side.dtype.kind not in "fiu" or side.ndim != dimensions for side in (inside, outside)):
        raise TypeError(f"{name} must be a pair of arrays with {'a number' if dimensions == 1 else 'a row'} a record.")
    if inside.shape[1:] != outside.shape[1:]:
        raise ValueError(f"{name} must have rows of one length, got shapes {inside.shape} and {outside.shape}.")
    if min(len(inside), len(outside)) < _FEWEST:
        raise ValueError(f"{name} must hold at least {_FEWEST} records a side; fewer show no difference.")
    if not all(np.isfinite(side).all() and (dimensions == 2 or side.min() >= 0.0) for side in (inside, outside)):
        raise ValueError(f"{name} must be finite, and numbers at least 0; a broken record contributes zero.")
    return [inside.astype(np.float64), outside.astype(np.float64)]


def _some(rows: Any, most: int, rng: np.random.Generator) -> Any:
    """Return at most `most` rows, in random order."""
    return rows[rng.permutation(len(rows))[:most]]


def _sentence(found: Leak) -> str:
    inside, outside = found.comparisons[0].records
    if not found.differs:
        return (
            f"No difference found between {inside:,} records inside the training set and {outside:,} outside. That "
            f"does not prove that there is none: guessing from their readings which of two records took part could "
            f"still be right in up to {_of_hundred(found.missed, up=True)} of 100 cases (with 95% confidence), where a "
            f"coin flip is right in 50."
        )
    different = [c for c in found.comparisons if c.differs]
    kinds = "; ".join(f"{c.quantity} ({', '.join(k.of for k in c.checks if k.corrected < LEVEL)})" for c in different)
    text = f"Records inside the training set differ from records outside, by {kinds}. "
    clearest = max(different, key=lambda c: abs(c.success[0] - 0.5) if c.success else -1.0)
    if clearest.success is not None:
        which, (share, low, high) = _pointed(clearest.success)
        text += (
            f"Of two records, one inside and one outside, the one with the {which} {clearest.quantity} is the one "
            f"inside in {_of_hundred(share)} of 100 cases (95% interval: {_of_hundred(low)} to "
            f"{_of_hundred(high, up=True)}; a coin flip is right in 50). "
        )
    return text + "Figures read from single records must stay with the owner."


def _pointed(success: Success) -> tuple[str, Success]:
    """Return which of two numbers points to the one inside, and how often, with its interval."""
    share, low, high = success
    return ("smaller", success) if share >= 0.5 else ("larger", (1.0 - share, 1.0 - high, 1.0 - low))


def _of_hundred(share: float, *, up: bool = False) -> str:
    return f"{math.ceil(100.0 * share - 1e-9) if up else math.floor(100.0 * share + 1e-9)}"


def _rows(c: Comparison) -> Iterator[tuple[str, ...]]:
    name = c.quantity[0].upper() + c.quantity[1:]
    sides = ([f"{side:.3g}" for side in c.averages], [f"{side:.3g}" for side in c.spreads], ("", ""))
    effects = ("{:+.2f} sd", "ratio {:.3g}", "gap {:.2g}")
    for check, (inside, outside), effect in zip(c.checks, sides, effects, strict=True):
        p = f"{check.corrected:.2g}" if check.corrected >= 0.01 else "< 0.01"
        yield f"{name}: {check.of}", inside, outside, effect.format(check.effect), p
    if c.success is not None:
        which, (share, low, high) = _pointed(c.success)
        yield f"The {which} of two is the one inside", "", "", f"{share:.0%} ({low:.0%} to {high:.0%})", ""


def _notes(found: Leak) -> tuple[str, ...]:
    notes = [
        "Inside: records the model was trained on. Outside: records like them that it never saw. Gradient norms and "
        "distances are in units of the clip norm, after clipping: what the accountant reads.",
        "This is more than an outsider sees. The limit for anyone does not depend on the data and reveals nobody; "
        "only figures read from the data, which are on the owner's page alone, are in question.",
        f"p-values come from exchanging records between the two sides at random, {EXCHANGES} times, and are corrected "
        f"for multiple testing (Holm): the chance of any false alarm is at most {LEVEL:.0%}.",
        "Of two records, one from each side, the share in which the number tells the inside one has an interval: 95% "
        "for all shares together, for any distribution, if the records of a side are independent draws (Hoeffding's "
        "bound). A gap is 0 for equal distributions and 1 for separate ones.",
    ]
    distances = found.comparisons[-1]
    if found.papers is not None and distances.unnoticed is not None:
        notes.append(
            "The test detects differences between average distances of about "
            f"{distances.unnoticed:.2g} standard deviations (sd) or more; smaller ones go unnoticed."
        )
        notes.append(
            f"As in the papers, on all pairs: t-test p = {found.papers[0]:.2g}, Levene's p = {found.papers[1]:.2g}. "
            "These treat pairs as independent, which they are not, so they decide nothing here."
        )
    return tuple(notes)


def _chart(comparisons: tuple[Comparison, ...]) -> Chart:
    """Draw the norms, or the distances where most norms are at the clip norm and the picture would be one bar."""
    norms, last = comparisons[0], comparisons[-1]
    clipped = min(norms.bars[1][-1], norms.bars[2][-1]) > 0.5
    shown = last if clipped and last.unnoticed is not None else norms
    edges, inside, outside = shown.bars
    each = "records" if shown.unnoticed is None else "pairs of records"
    return Chart(
        heading=f"Inside and outside the training set: {shown.quantity}",
        caption="The more the two lines differ, the more a reading tells about who took part.",
        description=(
            f"Two histograms of the {shown.quantity}. Inside: average {shown.averages[0]:.3g}, standard deviation "
            f"{shown.spreads[0]:.3g}. Outside: average {shown.averages[1]:.3g}, standard deviation "
            f"{shown.spreads[1]:.3g}."
        ),
        x_title=f"{shown.quantity}, over the clip norm",
        y_title=f"% of the {each}",
        series=(_steps("anyone", "Inside", edges, inside), _steps("typical", "Outside", edges, outside)),
    )


def _steps(hue: Hue, name: str, edges: tuple[float, ...], shares: tuple[float, ...]) -> Series:
    """Return a histogram as a line with corners."""
    heights = [0.0, *(100.0 * share for share in shares), 0.0]
    corners = [(x, y) for i, x in enumerate(edges) for y in heights[i : i + 2]]
    return Series(hue=hue, name=name, points=tuple(corners))
