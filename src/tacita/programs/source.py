"""Where in a program's source something happens: exact expressions, and the variables they are assigned to."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType, TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_HEADED = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.IfExp, ast.Assert)


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


def caller() -> Span:
    """Return the expression outside of tacita that is being evaluated."""
    outside = [frame for frame, _ in traceback.walk_stack(sys._getframe(1)) if not _is_ours(frame)]
    found = next((frame for frame in outside if not _is_library(frame.f_code.co_filename)), outside[0])
    return _position(found.f_code, found.f_lasti)


def origin(trace: TracebackType | None) -> tuple[Span | None, bool]:
    """Return the user's innermost expression in a traceback, and whether tacita itself raised the error."""
    found, ours = None, False
    while trace is not None:
        code, ours = trace.tb_frame.f_code, _is_ours(trace.tb_frame)
        if not ours and not _is_library(code.co_filename):
            found = _position(code, trace.tb_lasti)
        trace = trace.tb_next
    return found, ours


def narrowed(span: Span) -> Span:
    """Return the expression that an if, a while or a for looks at, where Python only names the whole statement."""
    for node in ast.walk(_tree(_source(span.file))):
        if isinstance(node, _HEADED) and _span_of(node, span.file) == span:
            return _span_of(node.iter if isinstance(node, ast.For | ast.AsyncFor) else node.test, span.file)
    return span


def assigned_name(span: Span) -> str:
    """Return the variable to which an expression is assigned, unless it is in a loop; empty if there is none."""
    return _assignments(span.file, _source(span.file)).get(span, "")


def _source(file: str) -> str:
    return "".join(linecache.getlines(file))


def _tree(source: str) -> ast.AST:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=8)
def _assignments(file: str, source: str) -> dict[Span, str]:
    found = {}
    for node in _outside_loops(_tree(source)):
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            found[_span_of(value, file)] = target.id
    return found


def _outside_loops(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _LOOPS):
            yield child
            yield from _outside_loops(child)


def _span_of(node: ast.expr | ast.stmt, file: str) -> Span:
    last = node.end_lineno or node.lineno
    start = _characters(linecache.getline(file, node.lineno), node.col_offset)
    return Span(file, node.lineno, start, last, _characters(linecache.getline(file, last), node.end_col_offset or 0))


def _is_ours(frame: FrameType) -> bool:
    """Return whether code belongs to tacita; the methods that dataclasses write have no file of their own."""
    return str(frame.f_globals.get("__file__", frame.f_code.co_filename)).startswith(_PACKAGE)


def _is_library(file: str) -> bool:
    return file.startswith(("<frozen", _STANDARD)) or f"{os.sep}site-packages{os.sep}" in file


def _position(code: CodeType, instruction: int) -> Span:
    line, end_line, column, end_column = _positions(code)[instruction // 2]
    file, first = code.co_filename, line or code.co_firstlineno
    last = end_line or first
    above, below = linecache.getline(file, first), linecache.getline(file, last).rstrip("\n")
    start = 0 if column is None else _characters(above, column)
    return Span(file, first, start, last, len(below) if end_column is None else _characters(below, end_column))


@lru_cache(maxsize=64)
def _positions(code: CodeType) -> tuple[tuple[int | None, int | None, int | None, int | None], ...]:
    return tuple(code.co_positions())


def _characters(line: str, bytes_: int) -> int:
    """Return a column in characters for one in UTF-8 bytes, as Python's compiler counts them."""
    return len(line.encode()[:bytes_].decode(errors="replace"))
