"""What all commands share."""

import re

import pytest
import typer

from tacita.cli.app import app
from tests.cli.command import tacita

_ALL = typer.main.get_command(app).commands
COMMANDS = sorted([*_ALL, "synthesise inspect", *(f"ledger {name}" for name in _ALL["ledger"].commands)])


def test_help_and_version():
    assert tacita("--version").stdout.startswith("tacita 0.")
    assert "account" in tacita().stdout


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "ledger"])
def test_every_command_has_help_with_an_example_and_json(command):
    result = tacita(*command.split(), "--help")
    text = re.sub(r"[\s│]+", " ", result.stdout)
    assert result.returncode == 0
    assert f"Example: tacita {command}" in text
    assert "--json" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_one_line_and_exit_code_two(command, tmp_path):
    result = tacita(*command.split(), "--colour", "red", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "--colour" in result.stderr


def test_an_old_name_of_an_option_is_refused_with_the_new_one(tmp_path):
    for old, new in (("--dir", "--run-dir"), ("--dataset", "--data"), ("--rng", "--seed")):
        result = tacita("demo", old, "x", cwd=tmp_path)
        assert result.returncode == 2
        assert f"{old} is called {new} now" in result.stderr
    assert list(tmp_path.iterdir()) == []
