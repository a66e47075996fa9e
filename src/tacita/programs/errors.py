"""What is wrong with a private program, where, and the way out: one table of codes, spans, and their rendering."""

from __future__ import annotations

import linecache
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from tacita import _codec
from tacita._check import PrivacyError
from tacita.programs.source import Span, caller

CODES = {
    "T001": "unknown column",
    "T002": "unknown value in a condition",
    "T003": "condition on a column without public values",
    "T004": "sum or mean without a bound",
    "T005": "missing clamp",
    "T006": "bad bounds",
    "T007": "model does not fit the column",
    "T008": "unsupported model",
    "T009": "private size",
    "T010": "records cannot be released",
    "T011": "mechanism does not fit the query",
    "T012": "budget exceeded",
    "T013": "handle of another program",
    "T014": "name used twice",
    "T015": "private value decides what the program does",
    "T016": "private value compared",
    "T017": "private value printed",
    "T018": "private value taken apart",
    "T019": "private value used as a number",
    "T020": "private value read",
    "T021": "result used before the program runs",
    "T022": "operation does not fit the column",
    "T023": "no program",
    "T024": "several programs",
    "T025": "nothing released",
    "T026": "data read while the program is checked",
    "T027": "bad argument",
    "T028": "Python error",
    "T029": "function fails",
    "T030": "function keeps something",
}

_MOST_LINES = 6


@dataclass(frozen=True)
class Note:
    """A second place that belongs to an error, and what happened there."""

    span: Span
    label: str


class ProgramError(PrivacyError):
    """A program that is ill-typed: it was refused before any data were read.

    Attributes:
        code: A key of `CODES`.
        reason: What is wrong, in one line.
        help: The way out.
        span: Where; the expression that called tacita unless given.
        notes: Other places that belong to it.
        label: What to write beside the carets.
    """

    def __init__(
        self,
        code: str,
        reason: str,
        help: str = "",
        *,
        span: Span | None = None,
        notes: tuple[Note, ...] = (),
        label: str = "",
    ) -> None:
        super().__init__(code, reason, help)
        self.code, self.reason, self.help, self.label = code, reason, help, label
        self.span = caller() if span is None else span
        self.notes = tuple(note for note in notes if not self.span.holds(note.span))

    def __str__(self) -> str:
        return "\n".join(_render(self))

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON; columns count from 1 there."""
        marks = [(self.span, self.label, True), *((note.span, note.label, False) for note in self.notes)]
        spans = [
            _codec.to_plain(replace(span, column=span.column + 1, end_column=span.end_column + 1))
            | {"label": label, "primary": primary}
            for span, label, primary in marks
        ]
        return {
            "code": self.code,
            "title": CODES[self.code],
            "message": self.reason,
            "spans": spans,
            "help": self.help,
        }


def did_you_mean(name: object, known: Sequence[object]) -> str:
    """Return a suggestion for a misspelt name, or the names there are."""
    names = [str(k) for k in known]
    near = get_close_matches(str(name), names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = ", …" if len(names) > 12 else ""
    return f"there are: {', '.join(map(repr, names[:12]))}{more}"


def _render(error: ProgramError) -> Iterator[str]:
    width = max(len(str(span.end_line)) for span in (error.span, *(note.span for note in error.notes)))
    gutter = f" {'':{width}} |"
    yield f"error[{error.code}]: {error.reason}"
    yield f" {'':{width}}--> {error.span.place}"
    yield gutter
    yield from _excerpt(error.span, error.label, "^", width)
    for note in error.notes:
        yield gutter if note.span.file == error.span.file else f" {'':{width}}::: {note.span.place}"
        yield from _excerpt(note.span, note.label, "-", width)
    if error.help:
        first, *rest = error.help.splitlines()
        yield gutter
        yield f" {'':{width}} = help: {first}"
        yield from (f" {'':{width}}         {line}" for line in rest)


def _excerpt(span: Span, label: str, mark: str, width: int) -> Iterator[str]:
    lines = range(span.line, span.end_line + 1)
    for number in lines[:_MOST_LINES]:
        text = linecache.getline(span.file, number).rstrip("\n").replace("\t", " ")
        if not text:
            continue
        start = span.column if number == span.line else len(text) - len(text.lstrip())
        end = span.end_column if number == span.end_line else len(text.rstrip())
        last = number == lines[:_MOST_LINES][-1]
        marks = " " * _cells(text[:start]) + mark * max(1, _cells(text[start:end]))
        yield f" {number:>{width}} | {text}"
        yield f" {'':{width}} | {marks}{' ' + label if label and last else ''}"
    if len(lines) > _MOST_LINES:
        yield f" {'':{width}} | …"


def _cells(text: str) -> int:
    """How many places a text takes on a terminal."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)
