"""Every Python example in the documentation runs, and every `tacita` command shown works."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)


def commands(page):
    lines = "\n".join(blocks(page, "console") + blocks(page, "bash")).replace("\\\n", " ").splitlines()
    cleaned = [line.removeprefix("$ ").split(" #")[0].strip() for line in lines]
    return [line for line in cleaned if line.startswith("tacita ")]


@pytest.mark.parametrize("command", sorted({c for p in PAGES for c in commands(p)}))
def test_commands_run(command, tmp_path):
    make = "import numpy as np; rng = np.random.default_rng(0); np.save('norms.npy', rng.random((50, 100)) * 0.4)"
    subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True)
    program = [sys.executable, "-c", "from tacita.cli import main; main()"]
    environment = {**os.environ, "COLUMNS": "100"}
    result = subprocess.run(
        [*program, *shlex.split(command)[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert result.returncode == 0, result.stderr


def test_pages_name_no_machine_paths():
    for page in PAGES:
        assert not re.search(r"(?<![\w./])/(work|root|tmp|farm)/", page.read_text()), page
