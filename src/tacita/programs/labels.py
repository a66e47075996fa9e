"""From a program's run to its privacy label."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacita import _check
from tacita._check import PrivacyError
from tacita.assumptions import Assumption, assume
from tacita.facts import RunFacts
from tacita.guarantee import Guarantee
from tacita.label import Label, Pairs, Readings, build, run_rows, status_rows
from tacita.ledger import Ledger
from tacita.runs import Run

if TYPE_CHECKING:
    from tacita.programs.program import Program

KIND = "program"
_HARDENED = ("Timing: how long a release takes depends on the data.",)
_RESTS_ON = ("program-charged", "exact-noise")
_CHOSEN = ("program-chosen-blindly", "nothing-else")


def write_run(run: Run, program: Program, *, title: str, ledger: Ledger) -> None:
    """Write the document of a program's run, after its release.

    Args:
        run: Its folder.
        program: What was released.
        title: Of its label.
        ledger: Where it was charged.
    """
    facts = RunFacts(title, "Results of a private program about a table.", seeded=False, status="done")
    run.write(
        kind=KIND,
        family=KIND,
        facts=facts.with_ledger(ledger.name, shared=True, fresh=ledger.fresh).to_dict(),
        ledgers=[run.place(ledger.place)],
        head=ledger.head,
        plan={"n": program.n, "epsilon": program.epsilon, "delta": program.delta, **_people_of(program)},
        guarantee=program.guarantee().to_dict(),
        releases=[[f"Release {r.name}", f"{r.query.title}, by {r.mechanism}"] for r in program.releases],
    )


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a program's run directory; neither the program nor the data are needed.

    Args:
        folder: The run directory.
        delta: Must be the program's own: it was declared with the budget.

    Guarantee:
        The program's own, for replacing one record of a public number of records, or for a person who comes or goes.
    """
    run = Run.open(folder, KIND)
    document, facts = run.document(), run.facts
    with run.reading():
        worst = Guarantee.from_dict(document["guarantee"])
        with Ledger.open(run.ledgers[0]) as ledger:
            if not ledger.contains(str(document["head"])):
                raise PrivacyError("This is not the ledger that the program was charged to, or it was rolled back.")
        rows: Pairs = tuple((str(name), str(value)) for name, value in document["releases"])
        plan = document["plan"]
        n = None if plan["n"] is None else int(plan["n"])
        (who, about), units = _protected(plan, n)
    if delta is not None and _check.in_range("delta", delta, 0.0, 1.0) != worst.delta:
        raise ValueError(f"A program's delta is declared in it: this one's is {worst.delta:g}, got {delta:g}.")
    return build(
        facts,
        worst,
        rests_on=[*map(assume, _RESTS_ON), *worst.assumptions, *units, *map(assume, _CHOSEN)],
        mechanism=(*rows, (who, about), *run_rows(facts)),
        not_hardened=_HARDENED,
        nominal_size=n,
        readings=Readings(
            panels="No records were followed: a program's guarantee covers any record.",
            facts=status_rows(facts),
        ),
    )


def _people_of(program: Program) -> dict[str, Any]:
    people = program.people
    if people is None:
        return {}
    return {"person": people.column, "rows_per_person": people.rows, "missing_person": people.missing}


def _protected(plan: Mapping[str, Any], n: int | None) -> tuple[tuple[str, str], list[Assumption]]:
    """Return who is protected, for the table, and what that rests on."""
    if n is not None:
        return ("Records", f"{n}, public; one of them may be replaced by another"), [assume("record-is-person")]
    alone = [assume("rows-alone")] if plan["missing_person"] == "own" else []
    about = f"at most {int(plan['rows_per_person'])} rows of each count; one of them comes or goes with all rows"
    return ("People", about), [assume("ids-are-people"), *alone]
