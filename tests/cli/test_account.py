"""`tacita account` and `tacita calibrate`, with wrong input too."""

import json

import numpy as np
import pytest

from tacita import BayesianAccountant, Guarantee
from tacita.accounting.shares import certified_shares
from tests.cli.command import tacita

RUN = ["account", "--noise-multiplier", "1", "--sample-rate", "0.01"]
STEPS = ["--steps", "2000"]


@pytest.fixture
def norms_file(tmp_path, rng):
    path = tmp_path / "norms.npy"
    np.save(path, np.minimum(rng.lognormal(np.log(0.2), 0.5, (60, 200)), 1.0))
    return path


def test_worst_case_prints_both_methods_and_a_sentence():
    result = tacita(*RUN, *STEPS, "--delta", "1e-5")
    assert result.returncode == 0
    for words in ("2.584", "PLD", "2.867", "RDP", "any record whatsoever", "Assumed:"):
        assert words in result.stdout
    assert result.stderr == ""


def test_two_declared_sizes_are_a_rate():
    sizes = ("account", "--noise-multiplier", "1", "--batch-size", "600", "--nominal-size", "60000", *STEPS)
    assert tacita(*sizes).stdout == tacita(*RUN, *STEPS).stdout


def test_shares_and_successes_are_those_of_a_label(norms_file):
    document = json.loads(tacita(*RUN, "--norms", norms_file, "--json").stdout)
    accountant = BayesianAccountant(sample_rate=0.01, noise_multiplier=1.0)
    for row in np.load(norms_file):
        accountant.step(row)
    worst = accountant.worst_case(delta=1e-5)
    found, shown = certified_shares(accountant, worst), document["shares"]
    assert shown["gamma"] == found.gamma
    assert [(float(p), value) for p, value in shown["epsilons"].items()] == list(found.epsilons)
    assert [(float(p), value) for p, value in shown["successes"].items()] == list(found.successes)
    assert [tuple((float(a), b) for a, b in points.items()) for points in shown["tests"].values()] == [
        points for _, points in found.tests
    ]
    assert document["attack_success"]["worst_case"] == worst.attack_success


def test_json_is_one_stable_document(norms_file):
    result = tacita(*RUN, "--norms", norms_file, "--json")
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    kinds = [(g["kind"], g["method"]) for g in document["guarantees"]]
    assert kinds[:2] == [("worst_case", "pld"), ("worst_case", "rdp")]
    assert document["guarantees"][2]["estimator"] == "band"
    assert document["guarantees"][2]["scope"] == "reading"
    assert list(document["percentiles"]) == ["50", "75", "90", "95", "99"]
    assert set(document["attack_success"]) == {"worst_case", "bayesian"}
    assert document["band"]["followed"] == 200
    assert result.stderr == ""


def test_a_static_panel_may_be_a_guarantee(tmp_path, rng):
    path = tmp_path / "norms.npy"
    np.save(path, rng.random(500) * 0.5)
    document = json.loads(tacita(*RUN, *STEPS, "--norms", path, "--static", "--json").stdout)
    assert document["guarantees"][2]["scope"] == "guarantee"
    reading = json.loads(tacita(*RUN, *STEPS, "--norms", path, "--json").stdout)
    assert reading["guarantees"][2]["scope"] == "reading"


def test_the_papers_modes_can_be_asked_for(norms_file):
    result = tacita(*RUN, "--norms", norms_file, "--composition", "hoelder", "--estimator", "student", "--json")
    statement = json.loads(result.stdout)["guarantees"][2]
    assert (statement["composition"], statement["notion"], statement["model"]) == ("hoelder", "strong", "model-based")
    text = tacita(*RUN, "--norms", norms_file, "--composition", "independent").stdout
    assert "NOT a bound" in text


def test_the_figure_is_written_and_the_same_every_time(tmp_path):
    for name in ("a.svg", "b.svg"):
        result = tacita(*RUN, "--steps", "100", "--example", "--figure", name, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    assert b"<svg" in first
    assert b"http" not in first.replace(b"http://www.w3.org", b"").replace(b"http://purl.org", b"").replace(
        b"http://creativecommons.org", b""
    )


def test_calibrate_stays_within_its_target():
    arguments = ["calibrate", "--epsilon", "2", "--delta", "1e-5", "--sample-rate", "0.01", *STEPS]
    document = json.loads(tacita(*arguments, "--json").stdout)
    assert document["guarantees"][0]["epsilon"] <= 2.0
    assert document["noise_multiplier"] == pytest.approx(1.149, abs=2e-3)
    assert "noise multiplier 1.149" in tacita(*arguments).stdout


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        (["--attack-success", "0.55"], lambda curve: 0.549 < curve.attack_success() <= 0.55),
        (["--tpr", "0.02", "--fpr", "0.01"], lambda curve: 0.0199 < curve.tpr(0.01) <= 0.02),
        (["--secret", "0.10:0.15"], lambda curve: 0.149 < curve.secret_guess(0.10) <= 0.15),
        (["--mu", "0.5"], lambda curve: 0.49 < curve.mu(floor=1e-5) <= 0.5),
    ],
)
def test_calibrate_to_what_an_attacker_may_achieve(target, kept):
    done = tacita("calibrate", *target, "--sample-rate", "0.1", "--steps", "50", "--json")
    assert done.returncode == 0, done.stderr
    assert kept(Guarantee.from_dict(json.loads(done.stdout)["guarantees"][0]).curve)


BAD = {
    "delta of zero": ([*RUN, *STEPS, "--delta", "0"], "delta must be in (0, 1), got 0."),
    "delta of nan": ([*RUN, *STEPS, "--delta", "nan"], "delta must be in (0, 1), got nan."),
    "negative noise": (["account", "--noise-multiplier", "-1", "--sample-rate", "0.1", *STEPS], "noise_multiplier"),
    "rate above one": (["account", "--noise-multiplier", "1", "--sample-rate", "3", *STEPS], "not a probability"),
    "half a rate": (["account", "--noise-multiplier", "1", "--batch-size", "3", *STEPS], "Give --batch-size with"),
    "no steps": (RUN, "--steps is missing"),
    "zero steps": ([*RUN, "--steps", "0"], "steps must be a whole number"),
    "steps in words": ([*RUN, "--steps", "many"], "'many' is not a valid"),
    "steps without end": ([*RUN, "--steps", "9" * 400], "steps must be"),
    "unknown option": ([*RUN, *STEPS, "--sigma", "1"], "No such option"),
    "missing option": (["account", "--steps", "3"], "Missing option"),
    "unknown command": (["acount"], "No such command"),
    "missing file": ([*RUN, *STEPS, "--norms", "nowhere.npy"], "does not exist"),
    "both sources": ([*RUN, *STEPS, "--norms", "x.npy", "--example"], "not both"),
    "figure without norms": ([*RUN, *STEPS, "--figure", "x.svg"], "need --norms or --example"),
    "odd figure": ([*RUN, *STEPS, "--example", "--figure", "x.bmp"], "must end in"),
    "figure nowhere": ([*RUN, *STEPS, "--example", "--figure", "no/x.svg"], "does not exist"),
    "odd estimator": ([*RUN, *STEPS, "--example", "--estimator", "mean"], "estimator must be one of"),
    "estimator of Python": ([*RUN, *STEPS, "--example", "--estimator", "conformal"], "--estimator must be one of"),
    "odd composition": ([*RUN, *STEPS, "--example", "--composition", "sum"], "composition must be one of"),
    "large gamma": ([*RUN, *STEPS, "--example", "--gamma", "0.1"], "reaches delta"),
    "no target": (["calibrate", "--sample-rate", "0.1", *STEPS], "Give one target"),
    "two targets": (["calibrate", "--mu", "1", "--epsilon", "2", "--sample-rate", "0.1", *STEPS], "Give one target"),
    "half a target": (["calibrate", "--tpr", "0.1", "--sample-rate", "0.1", *STEPS], "go together"),
    "odd secret": (["calibrate", "--secret", "often", "--sample-rate", "0.1", *STEPS], "--secret must be two chances"),
    "less than guessing": (
        ["calibrate", "--attack-success", "0.5", "--sample-rate", "0.1", *STEPS],
        "above what guessing achieves",
    ),
    "epsilon of zero": (
        ["calibrate", "--epsilon", "0", "--sample-rate", "0.1", "--steps", "3"],
        "epsilon must be in",
    ),
}


@pytest.mark.parametrize("case", sorted(BAD))
@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_bad_input_is_one_line_and_exit_code_two(case, flag, tmp_path):
    arguments, message = BAD[case]
    result = tacita(*arguments, *(flag if arguments[0] != "acount" else []), cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("tacita: ")
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([0.1, np.nan]), "finite"),
        (np.array([-0.1]), "non-negative"),
        (np.array([1.5]), "fractions of the clip norm"),
        (np.zeros((0,)), "at least one record"),
        (np.zeros((2, 2, 2)), "shape (m,) or (T, m)"),
        (np.array(["a"]), "array of real numbers"),
        (np.zeros((3, 4)), "does not match the 3 rows"),
    ],
)
def test_bad_norms_files_are_refused(array, message, tmp_path):
    np.save(tmp_path / "n.npy", array)
    result = tacita(*RUN, *STEPS, "--norms", tmp_path / "n.npy")
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("content", [b"", b"not numpy", b"\x93NUMPY\x01\x00"])
def test_files_that_are_not_arrays_are_refused(content, tmp_path):
    (tmp_path / "n.npy").write_bytes(content)
    result = tacita(*RUN, *STEPS, "--norms", tmp_path / "n.npy")
    assert result.returncode == 2
    assert "is not a .npy array" in result.stderr


def test_pickles_and_archives_are_refused(tmp_path):
    np.save(tmp_path / "n.npy", np.array([{"a": 1}]), allow_pickle=True)
    assert "is not a .npy array" in tacita(*RUN, *STEPS, "--norms", tmp_path / "n.npy").stderr
    np.savez(tmp_path / "n.npz", np.ones(3))
    assert "is not a .npy array" in tacita(*RUN, *STEPS, "--norms", tmp_path / "n.npz").stderr
    assert tacita(*RUN, *STEPS, "--norms", tmp_path).returncode == 2
