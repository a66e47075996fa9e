"""The `tacita` command as a person would type it."""

import contextlib
import io
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

from tacita.cli import main


def tacita(*arguments, cwd="."):
    """Run the command in this process (the wheel and documentation tests run it as a program)."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        mock.patch.object(sys, "argv", ["tacita", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return SimpleNamespace(returncode=end.value.code, stdout=out.getvalue(), stderr=err.getvalue())
