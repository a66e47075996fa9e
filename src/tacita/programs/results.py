"""What a program released: noisy numbers, posteriors, and what was calculated from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita.posterior.releases import Release

if TYPE_CHECKING:
    from tacita.guarantee import Guarantee
    from tacita.posterior.plans import ReleasePlan


@dataclass(frozen=True, repr=False)
class Noisy:
    """Released numbers: counts, sums or a mean, with noise whose distribution is known.

    Attributes:
        values: The numbers, in the query's unit.
        labels: What each number is about; empty for a single one.
        plan: How they were made.
        unit: What one step of the noise is worth.
    """

    values: tuple[float, ...]
    labels: tuple[str, ...]
    plan: ReleasePlan
    unit: float

    @property
    def value(self) -> float:
        """The number, if there is only one."""
        if len(self.values) != 1:
            raise ValueError(f"There are {len(self.values)} numbers; use values.")
        return self.values[0]

    @property
    def sd(self) -> float:
        """The standard deviation of the noise on each number."""
        return self.plan.source.sd * self.unit

    def interval(self, level: float = 0.95) -> tuple[tuple[float, float], ...]:
        """Return, for each number, where the one without noise lies with at least this probability."""
        half = self.plan.source.half_width(level) * self.unit
        return tuple((value - half, value + half) for value in self.values)

    def __repr__(self) -> str:
        return f"<Noisy: {self}>"

    def __str__(self) -> str:
        parts = [
            f"{v:.6g} ({low:.6g} to {high:.6g})" for v, (low, high) in zip(self.values, self.interval(), strict=True)
        ]
        named = [f"{label}: {part}" for label, part in zip(self.labels, parts, strict=True)] if self.labels else parts
        return f"{', '.join(named)}; 95% intervals of the noise; {self.plan.used}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "values": list(self.values),
            "labels": list(self.labels),
            "sd": self.sd,
            "interval_95": [list(ends) for ends in self.interval(0.95)],
            "mechanism": str(self.plan.used),
            "certificate": self.plan.certificate.to_dict(),
        }


@dataclass(frozen=True)
class Failed:
    """A calculation on released results that raised. The releases it was made from are not lost."""

    reason: str

    def __str__(self) -> str:
        return f"failed: {self.reason}"


def calculated(function: Callable[..., object], inputs: Sequence[Any]) -> Any:
    """Return what a function makes of released results; `Failed` if it raises, or an input did."""
    for value in inputs:
        if isinstance(value, Failed):
            return value
    try:
        return function(*inputs)
    except (Exception, SystemExit) as error:
        return Failed(f"{type(error).__name__}: {' '.join(str(error).split())}")


@dataclass(frozen=True, repr=False)
class Results(Mapping[str, Any]):
    """What a program released, by name: `Release` for posteriors, `Noisy` for numbers, and what was derived.

    Attributes:
        guarantee: What is promised for everything together.
        charged: Whether a ledger was charged for it.
    """

    released: Mapping[str, Any]
    guarantee: Guarantee
    charged: bool

    def __getitem__(self, name: str) -> Any:
        return self.released[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.released)

    def __len__(self) -> int:
        return len(self.released)

    def __str__(self) -> str:
        from tacita.programs.show import text_table

        unpaid = "" if self.charged else "\nNot charged to any ledger: pass ledger=, so that what is spent is kept."
        return f"{text_table(self)}\n\n{self.guarantee}{unpaid}"

    def __repr__(self) -> str:
        return f"<Results: {', '.join(self.released)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what was derived and is not plain is given as text."""
        plain = {name: _plain(value) for name, value in self.released.items()}
        return {"schema": 1, "results": plain, "guarantee": self.guarantee.to_dict(), "charged": self.charged}


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, Release | Noisy):
        return value.to_dict()
    if isinstance(value, Failed):
        return {"error": value.reason}
    listed = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    try:
        json.dumps(listed, allow_nan=False)
    except (TypeError, ValueError):
        return {"text": str(value)}
    return {"value": listed}
