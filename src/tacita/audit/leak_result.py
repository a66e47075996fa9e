"""What the leak test found: comparisons of records inside and outside, and the words for the owner's label."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tacita.label import AttackState, Chart, Finding, Hue, Series

Pair = tuple[float, float]

LEVEL = 0.05  # the chance of a false alarm, all tests together
EXCHANGES = 999  # random exchanges that p-values are computed from
_SMALL_SUCCESS = 2 / 3  # a guess that is right no more often than this is called a small leak


@dataclass(frozen=True, kw_only=True)
class Check:
    """One way in which the two sides may differ.

    Attributes:
        of: average, spread or distribution.
        test: The statistic that is compared.
        effect: How large the difference is: Hedges' g (inside minus outside), the ratio of standard deviations
            (inside over outside), or the largest gap between distributions, from 0 to 1.
        p_value: The chance of a statistic this large if inside and outside were exchangeable.
        corrected: The p-value corrected for all tests made (Holm).
    """

    of: str
    test: str
    effect: float
    p_value: float
    corrected: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One quantity, inside against outside.

    Attributes:
        quantity: gradient norm, own epsilon, or distance between gradients.
        records: How many records (inside, outside).
        averages: Of the quantity, (inside, outside).
        spreads: Its standard deviations.
        checks: What was tested.
        success: Of two records, one inside and one outside, how often the one with the smaller number is the one
            inside, and its interval, 95% for all quantities together. None for distances, which belong to two records.
        unnoticed: For distances: a difference of the averages up to this, in standard deviations, goes unnoticed.
        bars: For a histogram: edges, share of the inside and share of the outside in each bar.
    """

    quantity: str
    records: tuple[int, int]
    averages: Pair
    spreads: Pair
    checks: tuple[Check, ...]
    success: tuple[float, float, float] | None = None
    unnoticed: float | None = None
    bars: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]

    @property
    def differs(self) -> bool:
        """Whether any check found a difference, at the level of all checks together."""
        return any(check.corrected < LEVEL for check in self.checks)


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
            heading="Does the reading itself betray who took part?",
            state=self.state,
            sentence=_sentence(self),
            columns=("What", "Inside", "Outside", "Difference", "p-value"),
            rows=tuple(row for c in self.comparisons for row in _rows(c)),
            chart=_chart(self.comparisons),
            notes=_notes(self),
            tests_claim=False,
        )


def _sentence(found: Leak) -> str:
    inside, outside = found.comparisons[0].records
    if not found.differs:
        return (
            f"No difference found between {inside:,} records inside the training set and {outside:,} outside. That "
            f"does not prove that there is none: guessing from their readings which of two records took part could "
            f"still be right in up to {_of_hundred(found.missed, up=True)} of 100 cases (with 95% confidence), where a "
            f"coin's toss is right in 50."
        )
    different = [c for c in found.comparisons if c.differs]
    kinds = "; ".join(f"{c.quantity} ({', '.join(k.of for k in c.checks if k.corrected < LEVEL)})" for c in different)
    text = f"Records inside the training set differ from records outside, by {kinds}. "
    clearest = max(different, key=lambda c: abs(c.success[0] - 0.5) if c.success else -1.0)
    if clearest.success is not None:
        which, (share, low, high) = _pointed(clearest)
        text += (
            f"Of two records, one inside and one outside, the one with the {which} {clearest.quantity} is the one "
            f"inside in {_of_hundred(share)} of 100 cases (95% interval: {_of_hundred(low)} to "
            f"{_of_hundred(high, up=True)}; a coin's toss is right in 50). "
        )
    return text + "Figures read from single records must stay with the owner."


def _pointed(c: Comparison) -> tuple[str, tuple[float, float, float]]:
    share, low, high = c.success or (0.5, 0.0, 1.0)
    return ("smaller", (share, low, high)) if share >= 0.5 else ("larger", (1.0 - share, 1.0 - high, 1.0 - low))


def _of_hundred(share: float, *, up: bool = False) -> str:
    return f"{math.ceil(100.0 * share - 1e-9) if up else math.floor(100.0 * share + 1e-9)}"


def _rows(c: Comparison) -> Iterator[tuple[str, ...]]:
    average, spread, distribution = c.checks
    name = c.quantity[0].upper() + c.quantity[1:]
    yield (f"{name}: average", *map(_short, c.averages), f"{average.effect:+.2f} sd", _p(average))
    yield (f"{name}: spread", *map(_short, c.spreads), f"ratio {spread.effect:.3g}", _p(spread))
    yield (f"{name}: distribution", "", "", f"gap {distribution.effect:.2g}", _p(distribution))
    if c.success is not None:
        which, (share, low, high) = _pointed(c)
        yield (f"The {which} of two is the one inside", "", "", f"{share:.0%} ({low:.0%} to {high:.0%})", "")


def _short(value: float) -> str:
    return f"{value:.3g}"


def _p(check: Check) -> str:
    return f"{check.corrected:.2g}" if check.corrected >= 0.01 else "< 0.01"


def _notes(found: Leak) -> tuple[str, ...]:
    notes = [
        "Inside: records the model was trained on. Outside: records like them that it never saw. Gradient norms and "
        "distances are in units of the clip norm, after clipping: what the accountant reads.",
        "This is more than an outsider sees. The limit for anyone does not depend on the data and betrays nobody; "
        "only figures read from the data, which are on the owner's page alone, are in question.",
        f"p-values come from exchanging records between the two sides at random, {EXCHANGES} times, and are corrected "
        f"for being many (Holm): the chance of any false alarm is at most {LEVEL:.0%}.",
        "Of two records, one from each side, the share in which the number tells the inside one has an interval: 95% "
        "for all shares together, for any distribution, if the records of a side are independent draws (Hoeffding's "
        "bound). A gap is 0 for equal distributions and 1 for separate ones.",
    ]
    distances = found.comparisons[-1]
    if found.papers is not None and distances.unnoticed is not None:
        notes.append(
            "The test takes a difference between average distances for real from about "
            f"{distances.unnoticed:.2g} standard deviations (sd) up; smaller ones go unnoticed."
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
            f"Two histograms of the {shown.quantity}. Inside: average {_short(shown.averages[0])}, standard deviation "
            f"{_short(shown.spreads[0])}. Outside: average {_short(shown.averages[1])}, standard deviation "
            f"{_short(shown.spreads[1])}."
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
