"""`import tacita` and `tacita --help` stay light; every public name resolves."""

import json
import re
import subprocess
import sys
from pathlib import Path

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


def test_training_loads_no_adapters():
    loaded = modules_after("import tacita.training")
    assert "torch" in loaded
    assert not loaded & {"transformers", "accelerate", "lightning", "opacus", "datasets", "pandas"}


def test_every_public_name_resolves():
    for name in tacita.__all__:
        assert getattr(tacita, name) is not None
    assert set(dir(tacita)) == set(tacita.__all__)
    assert {"PrivateTraining", "Federation", "fit", "Program", "Ledger", "training", "programs"} <= set(dir(tacita))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tacita.nothing


WITHOUT = (
    ("matplotlib", "account --noise-multiplier 1 --sample-rate 0.1 --steps 3 --example --figure x.svg", "report"),
    ("opendp", "run survey.py --data people.csv", "posterior"),
    ("torch", "demo", "torch"),
    ("torch", "train --config x.toml", "torch"),
    ("torch", "label runs/x", "torch"),
    ("torch", "audit runs/x", "torch"),
    ("torch", "federate --demo", "federated"),
    ("torch", "synthesise --data digits", "torch"),
    ("safetensors", "label runs/x", "torch"),
    ("safetensors", "federate --demo", "federated"),
    ("sklearn", "demo", "torch"),
    ("jinja2", "demo --steps 1", "report"),
)


def test_a_missing_extra_names_the_install_command(tmp_path):
    """In one process, from the lightest on: what fails to be imported leaves nothing behind."""
    (tmp_path / "people.csv").write_text("smoker\nyes\n")
    (tmp_path / "survey.py").write_text(
        "from tacita.programs import *\np = Program(schema=dict(smoker=Bool()), n=1, epsilon=1)\n"
        "x = p.release(p.column('smoker').count(), geometric(epsilon=1))\n"
    )
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "run.json").write_text('{"schema": 2, "kind": "training", "family": "training"}')
    code = (
        f"import sys\nfrom tacita.cli import main\nfor missing, line, _ in {WITHOUT}:\n"
        "    before = sys.modules.pop(missing, None)\n"
        "    sys.modules[missing], sys.argv = None, ['tacita', *line.split()]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert end.code == 2, (missing, line, end.code)\n"
        "    del sys.modules[missing]\n"
        "    if before: sys.modules[missing] = before"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for said, (missing, line, extra) in zip(result.stderr.splitlines(), WITHOUT, strict=True):
        hint = f": pip install -e '.[{extra}]' in the checkout of tacita"
        assert said.startswith("tacita: "), (missing, line)
        assert said.endswith(hint), (missing, line)


@pytest.mark.parametrize("missing", ["pyro", "torch"])
def test_models_without_pyro_name_the_install_command(missing):
    code = (
        f"import sys, importlib; sys.modules[{missing!r}] = None\n"
        "for name in ('tacita.posterior.pyro_model', 'tacita.inference'):\n"
        "    try: importlib.import_module(name)\n"
        "    except ImportError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.endswith(": pip install -e '.[bayes]' in the checkout of tacita") for line in lines)


def test_no_hint_and_no_page_installs_a_package_that_is_not_published():
    """The name on the public index is not ours: only the checkout gives the extras."""
    root = Path(__file__).parents[1]
    named = re.compile(r"pip install\b[^\n]*?\btacita\b(?!\.)")
    texts = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "src").rglob("*.py")]
    found = [path.name for path in texts if named.search(re.sub(r"in the checkout of tacita", "", path.read_text()))]
    assert found == []


def test_the_package_runs_as_a_module_too():
    result = subprocess.run([sys.executable, "-m", "tacita", "--version"], capture_output=True, text=True, check=False)
    assert result.stdout == f"tacita {tacita.__version__}\n", result.stderr
