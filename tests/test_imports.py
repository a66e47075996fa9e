"""`import tacita` and `tacita --help` stay light; every public name resolves."""

import json
import subprocess
import sys

import pytest

import tacita

HEAVY = ("scipy", "dp_accounting", "opendp", "torch", "matplotlib", "flwr", "pyro")


def modules_after(code):
    out = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return set(json.loads(out.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import tacita; dir(tacita)",
        "import tacita.guarantee",
        "from tacita.cli import app\ntry: app(['--help'], standalone_mode=False)\nexcept SystemExit: pass",
        "from tacita.cli import app\ntry: app(['account', '--help'], standalone_mode=False)\nexcept SystemExit: pass",
    ],
)
def test_nothing_heavy_is_loaded(code):
    assert not modules_after(code) & set(HEAVY)


def test_accounting_does_not_load_figures():
    assert "matplotlib" not in modules_after("from tacita import BayesianAccountant")


def test_every_public_name_resolves():
    for name in tacita.__all__:
        assert getattr(tacita, name) is not None
    assert set(dir(tacita)) == set(tacita.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tacita.nothing


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("matplotlib", "account --noise-multiplier 1 --sample-rate 0.1 --steps 3 --example --figure x.svg", "report"),
        ("torch", "demo", "torch"),
        ("safetensors", "label runs/x", "torch"),
        ("sklearn", "demo", "torch"),
        ("jinja2", "demo --steps 1", "report"),
        ("opendp", "run survey.py --data people.csv", "posterior"),
    ],
)
def test_a_missing_extra_names_the_install_command(missing, command, extra, tmp_path):
    (tmp_path / "people.csv").write_text("smoker\nyes\n")
    (tmp_path / "survey.py").write_text(
        "from tacita.posterior import *\np = Program(schema=dict(smoker=Bool()), n=1, epsilon=1)\n"
        "x = p.release(p.column('smoker').count(), geometric(epsilon=1))\n"
    )
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = 'tacita {command}'.split()\n"
        "from tacita.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 2
    assert f"pip install 'tacita[{extra}]'" in result.stderr
    assert result.stderr.strip().count("\n") == 0
