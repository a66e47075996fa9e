"""Every Python example in the documentation runs, and every `tacita` command shown works."""

import os
import re
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest
from typer.main import get_command

import tacita
from tacita.cli import app, main
from tacita.cli.kinds import KINDS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name)
def test_python_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    with mock.patch.dict("tacita.audit.ATTACKS"):  # an example adds one
        for block in blocks(page, "python"):
            exec(compile(block, str(page), "exec"), names)


@pytest.mark.slow
def test_the_tutorial_on_adult_runs(tmp_path, monkeypatch, capsys):
    if not os.path.isdir(os.path.join(os.environ.get("TACITA_DATA", ""), "adult")):
        pytest.skip("adult is not at hand: set TACITA_DATA to a folder that holds it")
    monkeypatch.chdir(tmp_path)
    page, names = ROOT / "docs" / "tutorials" / "adult-posterior.md", {}
    for _, _, _, text in FENCE.findall(page.read_text()):
        exec(compile(text.replace("worlds=12", "worlds=2"), str(page), "exec"), names)
    assert names["result"].guarantee.epsilon <= 0.5
    assert abs(float(names["result"].posterior.sample()["weights"].mean(0)[1]) - 2.86) < 0.5
    assert "simulated worlds" in capsys.readouterr().out


def commands(page):
    lines = "\n".join(blocks(page, "console") + blocks(page, "bash")).replace("\\\n", " ").splitlines()
    cleaned = [line.removeprefix("$ ").split(" #")[0].strip() for line in lines]
    return [line for line in cleaned if line.startswith(("tacita ", "python -c "))]


def first_page_with(command):
    return next(page for page in PAGES if command in commands(page))


SAME_EVERYWHERE = ("tacita account", "tacita audit", "tacita calibrate")  # run once: they take long
FENCE = re.compile(
    r'^```(?:\w+ title="([^"]+)"| \{ \.\w+ title="([^"]+)" data-repeat="(\d+)" \})\n(.*?)^```', re.DOTALL | re.MULTILINE
)


def write_files(page, folder):
    """Write the files that a page shows under a title; data-repeat="100" repeats all lines but the first."""
    for plain, repeated, times, text in FENCE.findall(page.read_text()):
        first, rest = text.split("\n", 1)
        (folder / (plain or repeated)).write_text(first + "\n" + rest * int(times or 1))


def test_every_fence_is_one_that_the_site_understands():
    """With an option it does not know, a block is shown as running text."""
    for page in PAGES:
        for line in page.read_text().splitlines():
            if line.startswith("```"):
                assert re.fullmatch(r'```(\w+( title="[^"]+")?)?|``` \{ \.\w+( [\w-]+="[^"]*")* \}', line), (page, line)


def _minutes_long(page):
    """The audit's page repeats what tests/audit/test_runner.py does; the first tutorial what the README does."""
    return name(page) in ("docs/how-to/audit.md", "docs/tutorials/first-label.md")


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] * _minutes_long(p)) for p in PAGES if commands(p)],
    ids=lambda page: name(page),
)
def test_commands_run(page, tmp_path, monkeypatch, capfd):
    """The commands of one page, in order, in one folder, in this process: starting Python takes longer than most."""
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for command in commands(page):
        if command.startswith(SAME_EVERYWHERE) and page != first_page_with(command):
            continue
        if command.startswith("python -c "):
            exec(shlex.split(command)[2], {})
            continue
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0, f"{command}: {capfd.readouterr().err}"


def test_the_reference_has_every_command_and_option():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()

    def walk(command, name):
        for option in command.params:
            for spelling in (*option.opts, *option.secondary_opts):
                assert not spelling.startswith("--") or f"`{spelling}" in page, (name, spelling)
        for part, child in getattr(command, "commands", {}).items():
            assert f"`tacita{name} {part}" in page
            walk(child, f"{name} {part}")

    for part, child in get_command(app).commands.items():
        assert f"`tacita {part}`" in page
        walk(child, f" {part}")


def test_every_page_is_a_tutorial_a_guide_a_reference_or_an_explanation():
    folders = {name(page).split("/")[1] for page in PAGES[1:]}
    assert folders == {"index.md", "tutorials", "how-to", "reference", "explanation"}


def test_the_reference_has_every_name_of_the_front_door_and_every_kind_of_run():
    front = (ROOT / "docs" / "reference" / "api" / "index.md").read_text()
    assert [n for n in tacita.__all__ if n not in ("__version__", "report") and n not in front] == []
    kinds = (ROOT / "docs" / "reference" / "run-directory.md").read_text()
    assert [n for n in KINDS if f"| `{n}` |" not in kinds] == []


def test_pages_name_no_machine_paths():
    for page in PAGES:
        assert not re.search(r"(?<![\w./])/(work|root|tmp|farm)/", page.read_text()), page
