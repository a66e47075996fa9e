"""What an attack is: a protocol that every entry of `tacita.audit.ATTACKS` satisfies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from tacita.audit.target import SkippedError, Target
from tacita.label import Finding


class Result(Protocol):
    """What an attack returns."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for audit.json."""


R = TypeVar("R", bound=Result)


@dataclass(frozen=True, kw_only=True)
class Session:
    """One audit, as an attack sees it.

    Attributes:
        target: What is attacked.
        references: How many reference models an attack may train.
        base_seed: Makes the audit repeatable; None draws from the operating system.
        deadline: When the time is up, on the monotonic clock.
        progress: Called with (done, of).
        results: Plain results so far, by attack. They include the attack's own once it has run.
    """

    target: Target
    references: int = 4
    base_seed: int | None = None
    deadline: float | None = None
    progress: Callable[[int, int], None] = lambda done, of: None
    results: Mapping[str, Any] = field(default_factory=dict)

    def out_of_time(self) -> bool:
        """Return whether the time is up."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def rng(self, stream: int) -> np.random.Generator:
        """Return the generator of a stream. Every use of randomness in the package has its own stream number."""
        return np.random.default_rng(None if self.base_seed is None else [self.base_seed, stream])

    def seed(self, stream: int) -> int | None:
        """Return a seed from that stream, None if the audit has none."""
        return None if self.base_seed is None else int(self.rng(stream).integers(2**40))


class Attack(Protocol[R]):
    """One attack on a run. To add one, write a file with such a class and add an instance to `ATTACKS`.

    Attributes:
        activity: What it does, in a few words, to be shown while it runs.
    """

    activity: str

    def check(self, target: Target) -> None:
        """Raise `SkippedError` with the reason if the target lacks what the attack needs."""

    def run(self, session: Session) -> R:
        """Attack `session.target`. A ValueError says that the attack does not suit the run: it is skipped."""
        ...

    def finding(self, result: R, session: Session) -> Finding:
        """Return the result for the owner's label. Findings of the same key replace each other."""
        ...


__all__ = ["Attack", "Result", "Session", "SkippedError"]
