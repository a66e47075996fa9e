"""Execute a program's file, without data, and find the program in it. Every error is shown in its source."""

from __future__ import annotations

import contextlib
import linecache
import os
import runpy
import sys
from pathlib import Path

from tacita.programs.errors import Note, ProgramError
from tacita.programs.program import Program, checking
from tacita.programs.source import Span, origin

_NAME = "__tacita__"  # what a program finds in __name__ while it is checked


def load(path: Path | str) -> Program:
    """Execute a Python file and return the one program it makes, checked.

    What the file prints goes to standard error. Code under `if __name__ == "__main__":` is not executed.

    Raises:
        ProgramError: If the program is ill-typed or exceeds its budget, or the file is not valid Python.
        OSError: If there is no such file.
    """
    file, folder = str(path), os.path.dirname(os.path.abspath(path))
    linecache.checkcache(file)
    checking.append(file)
    places = sys.path[:]
    sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            names = runpy.run_path(file, run_name=_NAME)
    except ProgramError:
        raise
    except (Exception, SystemExit) as error:
        raise _explained(error, file) from None
    finally:
        checking.remove(file)
        sys.path[:] = places
    program = _only_program(names, file)
    program.check()
    return program


def _only_program(names: dict[str, object], file: str) -> Program:
    found = list({id(value): value for value in names.values() if isinstance(value, Program)}.values())
    if not found:
        raise ProgramError(
            "T023",
            "the file makes no program, or keeps none in a variable",
            "make one: p = Program(schema=dict(smoker=Bool()), n=1000, epsilon=1.0)",
            span=Span(file, 1, 0, 1, 0),
        )
    if len(found) > 1:
        others = tuple(Note(program.span, "another program") for program in found[:-1])
        raise ProgramError(
            "T024",
            f"the file makes {len(found)} programs, and their budgets would add up",
            "keep one program in a file",
            span=found[-1].span,
            notes=others,
        )
    return found[0]


def _explained(error: BaseException, file: str) -> ProgramError:
    """Return an error of Python, or of a constructor's arguments, as an error of the program."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ProgramError):
        return cause
    if isinstance(error, SyntaxError) and error.lineno is not None:
        line, start = error.lineno, max((error.offset or 1) - 1, 0)
        end_line, end = error.end_lineno or line, (error.end_offset or 0) - 1
        span = Span(
            error.filename or file, line, start, end_line, end if (end_line, end) > (line, start) else start + 1
        )
        return ProgramError("T028", f"SyntaxError: {error.msg}", span=span)
    where, ours = origin(error.__traceback__)
    reason = " ".join(str(error).split()) or type(error).__name__
    span = where or Span(file, 1, 0, 1, 0)
    if ours and isinstance(error, ValueError | TypeError):
        return ProgramError("T027", reason, span=span)
    return ProgramError("T028", f"{type(error).__name__}: {reason}", span=span)
