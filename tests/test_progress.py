"""Progress has one signature and is drawn in one place."""

import io
import sys

import pytest

from tacita import _progress
from tacita._progress import ProgressBar, quiet, shown


def test_elsewhere_there_is_a_line_for_every_tenth(capsys):
    asked = []
    with ProgressBar(lambda: f"asked {len(asked) + 1} times" if not asked.append(1) else "") as bar:
        for done in range(1, 41):
            bar(done, 40, "step")
        bar(0, 0, "measuring")
    lines = capsys.readouterr().err.splitlines()
    assert len(asked) == 10
    assert (lines[0], len(lines)) == ("step 4/40: asked 2 times", 11)
    assert lines[-1] == "measuring"


def test_a_terminal_gets_a_bar_which_an_error_closes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)

    def interrupted():
        with shown(None) as progress:
            progress(1, 2, "step")
            progress(0, 0, "measuring")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    drawn = terminal.getvalue()
    assert "step" in drawn
    assert drawn.rstrip().endswith("\x1b[?25h")  # the cursor is back
    with shown(None) as progress:  # and the next bar can be drawn
        progress(2, 2, "step")


def test_ones_own_function_comes_first_and_nobody_is_bothered_without_a_terminal():
    seen = []
    with shown(lambda *now: seen.append(now)) as progress:
        progress(1, 3, "round")
    assert seen == [(1, 3, "round")]
    with shown(None) as progress:
        assert progress is quiet
    assert _progress.quiet(1, 2, "x") is None
