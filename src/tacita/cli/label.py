"""`tacita label`: show the label of any run, say who issues it, and write the documents that institutions ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacita.cli.app import JSON, app, busy, print_json

if TYPE_CHECKING:
    from tacita.cli.kinds import Kind
    from tacita.label import Label
    from tacita.publication import Publication
    from tacita.runs import Run

_INCLUDE = Annotated[
    list[str] | None,
    typer.Option(help="A metric, such as accuracy, to put on the public page although it depends on the data."),
]
_ENDED = Annotated[
    str | None,
    typer.Option(help="Why the run was ended early, if that depended on nothing private. Final: no step can follow."),
]
_STATE = Annotated[
    list[str] | None,
    typer.Option(help="FIELD=TEXT for --registry, such as 'intended_use=Research'; may be repeated."),
]


@app.command(epilog="Example: tacita label runs/demo-digits-1 --issuer 'City Hospital' --registry entry.yaml")
def label(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    delta: Annotated[float | None, typer.Option(help="Another delta than the run's own.")] = None,
    include: _INCLUDE = None,
    ended: _ENDED = None,
    issuer: Annotated[str | None, typer.Option(help="Who publishes the result; kept with the run.")] = None,
    contact: Annotated[str | None, typer.Option(help="Where questions go; kept with the run.")] = None,
    model: Annotated[str | None, typer.Option(help="The name of what is published; kept with the run.")] = None,
    model_version: Annotated[str | None, typer.Option(help="Its version; kept with the run.")] = None,
    issued: Annotated[str | None, typer.Option(help="The day of issue, YYYY-MM-DD; today unless given.")] = None,
    registry: Annotated[Path | None, typer.Option(help="Write an entry for the DP Deployments Registry.")] = None,
    state: _STATE = None,
    model_card: Annotated[Path | None, typer.Option(help="Write a model card, such as README.md.")] = None,
    evidence: Annotated[Path | None, typer.Option(help="Write a new folder for a data-protection officer.")] = None,
    owner_label: Annotated[
        bool, typer.Option("--owner-label", help="Add the owner's label, computed from the data, to --evidence.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Print the privacy label of a run again, and rewrite its two pages.

    The public page, label.html, holds nothing that depends on the data unless it is asked for by --include. A run that
    was ended early is labelled with its plan, or the next declared stop, unless you declare by --ended that nothing
    private decided when it ended.
    """
    from tacita.cli.kinds import declare_end, kind_of, label_of
    from tacita.runs import Run

    kind, wanted, folder = kind_of(run), _Documents(registry, model_card, evidence), Run(run)
    stated = wanted.check(state or [], owner_label)
    given = {"issuer": issuer, "contact": contact, "model": model, "model_version": model_version, "issued": issued}
    issues = any(value is not None for value in given.values()) or bool(wanted.places)
    publication = _issue(folder, given) if issues else None
    if ended is not None:
        declare_end(run, ended)
    with busy("Accounting", quiet=as_json):
        made = label_of(run, delta=delta)
        if publication is not None:
            made = replace(made, publication=publication)
        made.public(include or ())  # an unknown metric is refused before anything is written
        if publication is not None:
            folder.publish(publication)
        folder.write_label(made, include=include or ())
        weights = [folder.write_weights()] if issues and kind.weights else []
        blanks = wanted.write(folder, kind, made, tuple(include or ()), stated, owner_label)
    _show(made, run, as_json, written=[*weights, *wanted.places], blanks=blanks)


@dataclass(frozen=True)
class _Documents:
    """Where to write the documents that were asked for."""

    registry: Path | None
    card: Path | None
    evidence: Path | None

    @property
    def places(self) -> list[Path]:
        """All that were asked for."""
        return [place for place in (self.registry, self.card, self.evidence) if place is not None]

    def check(self, state: list[str], owner: bool) -> dict[str, str]:
        """Refuse places that are taken and options that would be ignored; return what was stated."""
        from tacita.evidence import require_empty
        from tacita.report.registry import require_asked

        if state and self.registry is None:
            raise ValueError("--state says what a registry entry holds: pass --registry FILE too.")
        if owner and self.evidence is None:
            raise ValueError("--owner-label goes into the evidence: pass --evidence FOLDER too.")
        if len({place.resolve() for place in self.places}) < len(self.places):
            raise ValueError("--registry, --model-card and --evidence must be different places.")
        for place in (self.registry, self.card):
            if place is not None and place.exists():
                raise ValueError(f"{str(place)!r} exists already; choose another file: nothing is overwritten.")
            if place is not None and not place.absolute().parent.is_dir():
                raise ValueError(f"{str(place)!r} cannot be written: there is no such folder.")
        if self.evidence is not None:
            require_empty(self.evidence)
        pairs = [text.partition("=") for text in state]
        for name, sign, value in pairs:
            if not sign or not value.strip():
                raise ValueError(f"--state must be FIELD=TEXT, got {name!r}.")
        stated = {name.strip(): value.strip() for name, _, value in pairs}
        require_asked(stated)
        return stated

    def write(
        self, run: Run, kind: Kind, made: Label, include: tuple[str, ...], stated: dict[str, str], owner: bool
    ) -> list[str]:
        """Write them, all but the evidence from the public label alone; return what the registry entry lacks."""
        from tacita.evidence import write_evidence
        from tacita.report.card import model_card
        from tacita.report.registry import blanks, entry, yaml_text

        public, left = made.public(include), []
        if self.registry is not None:
            document = entry(public, product=kind.product, federated=kind.federated, stated=stated)
            self.registry.write_text(yaml_text(document), encoding="utf-8")
            left = blanks(document)
        if self.card is not None:
            self.card.write_text(model_card(public, tags=kind.tags), encoding="utf-8")
        if self.evidence is not None:
            write_evidence(self.evidence, run, made, include=include, owner=owner)
        return left


def _issue(run: Run, given: dict[str, str | None]) -> Publication:
    """Return what is kept of the issuer, changed by what is given now; the day of issue is today unless stated."""
    changes = {name: value.strip() for name, value in given.items() if value is not None}
    return replace(run.publication, **changes).on(datetime.now(UTC).date())


def show_label(made: Label, folder: Path, as_json: bool) -> None:
    """Print a label and where its pages are."""
    _show(made, folder, as_json)


def _show(
    made: Label, folder: Path, as_json: bool, *, written: Sequence[Path] = (), blanks: Sequence[str] = ()
) -> None:
    if as_json:
        files = {"written": [str(path) for path in written]} if written else {}
        print_json({"schema": 1, "run": str(folder), "label": made.to_dict(), **files})
        return
    typer.echo(str(made))
    typer.echo(f"\nSafe to publish: {folder / 'label.html'}\nFor the owner:   {folder / 'label-owner.html'}")
    for path in written:
        typer.echo(f"Written:         {path}")
    if blanks:
        typer.echo(f"Left to you in the registry entry, marked TO BE STATED: {', '.join(blanks)}")
