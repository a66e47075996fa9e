"""What is wrong with a private program, where, and the way out: one table of codes, spans, and their rendering."""

from __future__ import annotations

import linecache
import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from types import CodeType, FrameType, TracebackType

from tacita._check import PrivacyError

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
}

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_MOST_LINES = 6


@dataclass(frozen=True)
class Span:
    """A piece of source. Lines count from 1, columns from 0 in characters; the end column is not in it."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def holds(self, other: Span) -> bool:
        """Return whether `other` lies in this piece."""
        start = (self.line, self.column) <= (other.line, other.column)
        return (
            self.file == other.file and start and (other.end_line, other.end_column) <= (self.end_line, self.end_column)
        )

    @property
    def place(self) -> str:
        """File, line and column, as editors read them."""
        near = os.path.relpath(self.file) if os.path.isabs(self.file) else self.file
        return f"{self.file if near.startswith('..') else near}:{self.line}:{self.column + 1}"

    @property
    def text(self) -> str:
        """The source of a piece on one line; empty if it spans several or is not known."""
        return (
            linecache.getline(self.file, self.line)[self.column : self.end_column] if self.line == self.end_line else ""
        )


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
        span: Where.
        notes: Other places that belong to it.
        help: The way out.
        label: What to write beside the carets.
    """

    def __init__(
        self, code: str, reason: str, span: Span, help: str = "", notes: tuple[Note, ...] = (), label: str = ""
    ) -> None:
        super().__init__(code, reason, span, help, notes, label)
        self.code, self.reason, self.span, self.help, self.label = code, reason, span, help, label
        self.notes = tuple(note for note in notes if not span.holds(note.span))

    def __str__(self) -> str:
        return "\n".join(_render(self))

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON; columns count from 1 there."""
        spans = [(self.span, self.label, True), *((note.span, note.label, False) for note in self.notes)]
        return {
            "code": self.code,
            "title": CODES[self.code],
            "message": self.reason,
            "spans": [
                {
                    "file": span.file,
                    "line": span.line,
                    "column": span.column + 1,
                    "end_line": span.end_line,
                    "end_column": span.end_column + 1,
                    "label": label,
                    "primary": primary,
                }
                for span, label, primary in spans
            ],
            "help": self.help,
        }


def caller() -> Span:
    """Return the expression outside of tacita that is being evaluated."""
    frames = [f for f in _frames(sys._getframe(1)) if not f.f_code.co_filename.startswith(_PACKAGE)]
    own = [f for f in frames if not _is_library(f.f_code.co_filename)]
    found = (own or frames)[0]
    return _position(found.f_code, found.f_lasti)


def origin(trace: TracebackType | None) -> tuple[Span | None, bool]:
    """Return the user's innermost expression in a traceback, and whether tacita itself raised the error."""
    found, last = None, ""
    while trace is not None:
        code, last = trace.tb_frame.f_code, trace.tb_frame.f_code.co_filename
        if not last.startswith(_PACKAGE) and not _is_library(last):
            found = _position(code, trace.tb_lasti)
        trace = trace.tb_next
    return found, last.startswith(_PACKAGE)


def did_you_mean(name: object, known: Sequence[object]) -> str:
    """Return a suggestion for a misspelt name, or the names there are."""
    names = [str(k) for k in known]
    near = get_close_matches(str(name), names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = ", …" if len(names) > 12 else ""
    return f"there are: {', '.join(map(repr, names[:12]))}{more}"


def byte_column(file: str, line: int, column: int) -> int:
    """Return a column in characters for one in UTF-8 bytes, as Python's compiler counts them."""
    return len(linecache.getline(file, line).encode()[:column].decode(errors="replace"))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_library(file: str) -> bool:
    return file.startswith(("<frozen", _STANDARD)) or f"{os.sep}site-packages{os.sep}" in file


def _position(code: CodeType, instruction: int) -> Span:
    line, end_line, column, end_column = next(islice(code.co_positions(), instruction // 2, None))
    file, first = code.co_filename, line or code.co_firstlineno
    last = end_line or first
    start = 0 if column is None else byte_column(file, first, column)
    end = len(linecache.getline(file, last).rstrip("\n")) if end_column is None else byte_column(file, last, end_column)
    return Span(file, first, start, last, end)


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
