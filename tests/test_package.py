"""The wheel: built, unpacked, run."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import tacita

ROOT = Path(__file__).parents[1]


def test_the_wheel_carries_the_package_and_runs(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("tacita-*.whl")
    assert tacita.__version__ in wheel.name
    unpacked = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(unpacked)
    assert "tacita/py.typed" in names
    assert not [n for n in names if n.startswith(("tests", "docs"))]
    code = "import tacita; print(tacita.__file__); from tacita.cli import main; main()"
    arguments = ["account", "--noise-multiplier", "1", "--sample-rate", "0.01", "--steps", "10"]
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
    )
    assert result.stdout.startswith(str(unpacked))
    assert "anyone" in result.stdout


def test_there_is_one_source_of_the_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {tacita.__version__}" in citation
    assert f"## [{tacita.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_torch_is_pinned_without_a_local_suffix():
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()
