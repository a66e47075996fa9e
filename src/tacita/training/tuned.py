"""What a run says of the tuning that it was a trial of: kept in its run.json, and read by whoever labels it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacita import _codec
from tacita._check import PrivacyError
from tacita.accounting.tuning import RenyiCurve, tuned_worst_case
from tacita.assumptions import Assumption, assume
from tacita.guarantee import Guarantee
from tacita.label import Pairs
from tacita.runs import Run

_OF_ONE_RUN = ("charged", "charged-in-memory", "record-budget", "rungs", "chosen-blindly", "end-from-outputs")


@dataclass(frozen=True, kw_only=True)
class Tuned(_codec.Checked):
    """How the best of several trials was chosen, and what that costs.

    Attributes:
        law: The law of the number of trials, in words; never that number.
        curve: The Rényi curve of the best of them.
        settings: What was tuned and the values of this trial, as texts.
        choices: From how many settings they were drawn.
        score_noise: The noise of a private score; None for a public one.
        score_apart: Whether the records that a private score counts are never trained on.
        ledger: Where the tuning is charged, as seen from the folder of the best run.
        seeded: Whether the number of trials was drawn from a chosen seed.
        chosen: Whether this is the best trial, the only one that leaves.
    """

    law: str
    curve: RenyiCurve
    settings: Pairs
    choices: int
    score_noise: float | None = None
    score_apart: bool = False
    ledger: str = ""
    seeded: bool = False
    chosen: bool = False

    def worst(self, delta: float, *, unit: str) -> Guarantee:
        """Return the worst case of the whole tuning.

        Args:
            delta: δ in (0, 1).
            unit: What is added or removed.
        """
        return tuned_worst_case(self.curve, delta=delta, unit=unit)

    @property
    def rows(self) -> Pairs:
        """What the table of the mechanism says."""
        values = ", ".join(f"{name} = {value}" for name, value in self.settings)
        counted = "a private count of records that are not trained on" if self.score_apart else "a private count"
        score = "public" if self.score_noise is None else f"{counted}, noise {self.score_noise:g}"
        return (
            ("Tuning", f"the best of a random number of runs ({self.law})"),
            ("Tuned", f"{values} (one of {self.choices} settings, drawn at random)"),
            ("Score", score),
        )

    def rests_on(self, of_run: Sequence[Assumption], *, unit: str) -> list[Assumption]:
        """Return what the figures rest on.

        Args:
            of_run: What those of a single run rest on.
            unit: What is added or removed.
        """
        names = ", ".join(name for name, _ in self.settings)
        private = self.score_noise is not None
        return [
            *(assumption for assumption in of_run if assumption.code not in _OF_ONE_RUN),
            assume("tuning-accounted", law=self.law, settings=names),
            assume("tuning-charged"),
            assume("private-score", unit=unit) if private else assume("public-score"),
            *([assume("score-apart", unit=unit)] if self.score_apart else []),
            assume("trials-secret"),
            *([assume("tuning-seed")] if self.seeded else []),
            assume("chosen-blindly-beside-tuning"),
        ]


def tuned_of(run: Run | None) -> Tuned | None:
    """Return the tuning that a run was chosen by; None if it was no trial of any.

    Raises:
        PrivacyError: If it is a trial that was not chosen.
    """
    kept = None if run is None else run.document().get("tuned")
    if run is None or kept is None:
        return None
    with run.reading():
        found = Tuned.from_dict(kept)
    if not found.chosen:
        raise PrivacyError(
            f"The run in {str(run.folder)!r} is a trial of a tuning, of which only the best one leaves: it has no "
            "label, and its weights stay here."
        )
    return found
