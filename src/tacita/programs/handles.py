"""Handles: descriptions of private values. They know what may be asked of a value, never the value itself.

A handle cannot be compared, printed, counted or used as a number, because there is nothing in it: data enter only when
a checked program runs. Every refusal says where, and what to write instead.
"""

from __future__ import annotations

import dis
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, ClassVar, NoReturn

from tacita.programs.errors import Note, ProgramError, did_you_mean
from tacita.programs.source import Span, caller, narrowed

if TYPE_CHECKING:
    from tacita.posterior.mechanisms import Mechanism
    from tacita.programs.columns import Condition
    from tacita.programs.composition import Charge
    from tacita.programs.program import Program
    from tacita.programs.queries import Query

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor")
_OPERATIONS = {
    "T015": ("__bool__",),
    "T016": ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    "T017": ("__str__", "__format__", "__bytes__", "__fspath__"),
    "T018": ("__iter__", "__next__", "__len__", "__contains__", "__getitem__", "__setitem__", "__reversed__"),
    "T019": (
        *("__float__", "__int__", "__index__", "__complex__", "__array__", "__array_ufunc__"),
        *("__round__", "__trunc__", "__floor__", "__ceil__", "__abs__", "__neg__", "__pos__", "__invert__"),
        *(f"__{side}{name}__" for name in _BINARY for side in ("", "r")),
    ),
}
_VERBS = {
    "T015": ("decides what the program does", "choose by public facts: p.where(...) counts only some records"),
    "T016": (
        "is compared",
        "choose records by p.where(column=value), compare row by row by .map(lambda v: v > 3, to=Bool()),\n"
        "or release it and compare in p.derive",
    ),
    "T017": ("is printed", "release it first: p.release(query, geometric(epsilon=0.5)), then run the program"),
    "T018": ("is taken apart", "ask for all records at once: .map(function, to=Bool()), .histogram(), p.where(...)"),
    "T019": (
        "is used as a number",
        "calculate row by row with .map(function, low=0, high=1), or after p.release in p.derive",
    ),
}


class Handle(ABC):
    """Refuses every use of a value that is private or does not exist yet."""

    origin: ClassVar[str] = "the handle was made here"
    program: Program
    span: Span

    @abstractmethod
    def _refuse(self, code: str, attribute: str = "") -> NoReturn: ...

    def _error(self, code: str, reason: str, way_out: str, span: Span | None = None) -> ProgramError:
        """Return an error about this handle, which shows where it was made, too."""
        return ProgramError(code, reason, way_out, span=span, notes=(Note(self.span, self.origin),))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # Python and its tools look for these on any object
                raise AttributeError(name)
            self._refuse("T020", name)

    __hash__ = object.__hash__


def _forbidden(code: str) -> Callable[..., NoReturn]:
    def operation(self: Handle, *_: object, **__: object) -> NoReturn:
        self._refuse(code)

    return operation


for _code, _names in _OPERATIONS.items():
    for _name in _names:
        setattr(Handle, _name, _forbidden(_code))


@dataclass(frozen=True, eq=False, repr=False)
class Private(Handle):
    """A private value: a column, some of the records, or a query that was not released.

    Attributes:
        program: What it belongs to.
        conditions: Of which records it is; all of them if empty.
        span: Where it was made.
    """

    offered: ClassVar[tuple[str, ...]] = ()  # what may be called on it
    program: Program
    conditions: tuple[Condition, ...]
    span: Span

    @property
    @abstractmethod
    def description(self) -> str:
        """What it is, in words, without any value."""

    @property
    def where_text(self) -> str:
        """Of which records it is, as people write it."""
        return f" where {', '.join(condition.text for condition in self.conditions)}" if self.conditions else ""

    def __repr__(self) -> str:
        return f"<private: {self.description}>"

    def _refuse(self, code: str, attribute: str = "") -> NoReturn:
        if code == "T020":
            way_out = did_you_mean(attribute, self.offered) if self.offered else _VERBS["T017"][1]
            raise self._error(code, f"{self.description} is private and has no {attribute!r}", way_out)
        verb, way_out = _VERBS[code]
        raise self._error(code, f"{self.description} is private, but it {verb}", way_out, narrowed(caller()))


@dataclass(frozen=True, eq=False, repr=False)
class Released(Handle):
    """A result that exists once the program runs."""

    origin: ClassVar[str] = "the result comes from here"
    program: Program
    name: str
    span: Span

    def __repr__(self) -> str:
        return f"<released: {self.name!r}, known when the program runs>"

    def _refuse(self, code: str, attribute: str = "") -> NoReturn:
        verb = f"its {attribute!r} is read" if attribute else f"it {_VERBS[code][0]}"
        way_out = f"put what follows into a function: p.derive(lambda value: ..., {self.name})"
        reason = f"{self.name!r} has no value before the program runs, but {verb}"
        raise self._error("T021", reason, way_out, narrowed(caller()))


@dataclass(frozen=True, eq=False, repr=False)
class PlannedRelease(Released):
    """A query and the mechanism that makes it public, with what that costs."""

    query: Query
    mechanism: Mechanism
    charge: Charge


@dataclass(frozen=True, eq=False, repr=False)
class Derived(Released):
    """A function of released results. It costs nothing."""

    function: Callable[..., object]
    inputs: tuple[Released, ...]


def handle_in(function: object) -> Handle | None:
    """Return a handle that a function uses by itself, without getting it as an argument."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    around = getattr(function, "__globals__", {})
    used = [around.get(name) for name in _globals_used(code)]
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # its variable has no value yet
            used.append(cell.cell_contents)
    used += getattr(function, "__defaults__", None) or ()
    return next((value for value in used if isinstance(value, Handle)), None)


def _globals_used(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_used(inner)


def of_another_program(handle: Handle) -> ProgramError:
    """Return the error of mixing the handles of two programs."""
    return ProgramError(
        "T013",
        "this handle belongs to another program",
        "make it from the program that releases it: each program keeps its own budget",
        notes=(Note(handle.span, "the handle was made here"), Note(handle.program.span, "of this program")),
    )
