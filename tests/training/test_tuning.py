"""Tuning: what leaves, what it costs, what is charged, and how it goes on after a crash."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from tacita._check import PrivacyError
from tacita.accounting.tuning import NegativeBinomial, Poisson, gaussian_curve, steps_curve
from tacita.evidence import write_evidence
from tacita.ledger import BudgetExceeded, Ledger
from tacita.mechanisms.rounded import Grid
from tacita.report.registry import entry
from tacita.runs import Run, RunError, read_json
from tacita.training import label_of_run, tune
from tacita.training.labels import require_released
from tacita.training.trials import _scored
from tests.training.trainings import FALSE_ALARM, train

SPACE = {"lr": [0.01, 0.5]}
LAW = NegativeBinomial.expecting(3.0, eta=1.0)
SEED = 6  # draws four trials, of both settings


class Crash(Exception):
    """The machine went down."""


def maker(data, **fixed):
    def make_run(settings, run_dir):
        return train(
            data, lr=settings["lr"], run_dir=run_dir, **{"panel": 0, "steps": 4, "noise_multiplier": 2.0, **fixed}
        )

    return make_run


def scorer(data, calls=None, crash_at=None):
    x, y = data

    def score(model):
        if calls is not None:
            calls.append(1)
            if len(calls) == crash_at:
                raise Crash
        return float((model(x).argmax(1) == y).float().mean())

    return score


def tuned(data, folder, *, make_run=None, **settings):
    settings = {"trials": LAW, "score": scorer(data), "delta": 1e-5, "seed": SEED, **settings}
    space = settings.pop("space", SPACE)
    return tune(make_run or maker(data), space, folder=folder, **settings)


def drawn(folder):
    return read_json(folder, "tuning.sensitive.json")["drawn"]


@pytest.fixture
def several(tmp_path):
    """Where a tuning goes."""
    return tmp_path / "tuned"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A tuning that is done, its data and every training that it made."""
    torch.manual_seed(0)
    data, made = (torch.randn(300, 4), torch.randint(0, 2, (300,))), []

    def make_run(settings, run_dir):
        made.append(maker(data)(settings, run_dir))
        return made[-1]

    return tuned(data, tmp_path_factory.mktemp("one") / "tuned", make_run=make_run), data, made


def test_only_the_best_run_leaves_and_its_label_covers_the_tuning(finished):
    found, _, _ = finished
    one = steps_curve(sample_rate=0.1, noise_multiplier=2.0, steps=4)
    best = LAW.selected(one)
    worst = found.label.worst
    assert worst.epsilon == pytest.approx(best.epsilon(1e-5))
    assert worst.epsilon > one.epsilon(1e-5)
    assert label_of_run(found.run_dir, delta=1e-7).worst.epsilon == pytest.approx(best.epsilon(1e-7))
    codes = [a.code for a in found.label.checks]
    assert {"tuning-accounted", "tuning-charged", "public-score", "trials-secret"} <= set(codes)
    assert {"chosen-blindly-beside-tuning", "tuning-seed"} <= set(codes)
    assert not {"charged", "chosen-blindly", "end-from-outputs"} & set(codes)
    assert found.label.curve == found.label.ladder == found.label.comparisons == ()
    assert found.label.readings.typical == found.label.readings.percentiles == ()
    assert found.label.title == "tuned"
    assert dict(found.label.mechanism)["Tuned"].startswith(f"lr = {found.settings['lr']}")
    assert isinstance(found.model, nn.Linear)
    require_released(found.run_dir)


def test_the_other_trials_have_no_label_and_no_weights_to_give(finished):
    found, data, _ = finished
    several = found.run_dir.parent
    assert len(drawn(several)) == 4
    others = sorted(several.glob("sensitive/*/tuned"))
    assert len(others) == len(drawn(several)) - 1
    for other in others:
        for ask in (label_of_run, require_released):
            with pytest.raises(PrivacyError, match="only the best one leaves"):
                ask(other)
        assert not (other / "label.html").exists()
    assert (found.run_dir / "label.html").exists()
    with pytest.raises(RunError, match="in 'best'"):
        label_of_run(several)
    scores = read_json(several, "tuning.sensitive.json")["scores"]
    assert scorer(data)(found.model) == pytest.approx(max(scores))


def test_a_trial_that_is_still_at_hand_is_refused_a_label_and_its_weights(finished, tmp_path):
    trained = [training for training in finished[2] if training.taken]
    assert len(trained) == len(drawn(finished[0].run_dir.parent)) == 4
    for training in trained:
        for leak in (training.label, lambda one=training: one.export(tmp_path / "leak.safetensors")):
            with pytest.raises((PrivacyError, RunError)):
                leak()


def test_the_public_page_does_not_tell_how_many_trials_there_were(tmp_path, blobs):
    pages, numbers = set(), set()
    for seed in (0, 1):
        found = tuned(blobs, tmp_path / str(seed) / "tuned", seed=seed, space={"lr": [0.5]})
        numbers.add(len(drawn(tmp_path / str(seed) / "tuned")))
        pages.add((found.run_dir / "label.html").read_bytes())
    assert len(numbers) > 1
    assert len(pages) == 1


def test_no_file_that_leaves_tells_by_its_time_how_long_it_took(finished):
    """The label is written at the end, and the weights when the best trial was done: the gap counts the others."""
    best = finished[0].run_dir
    public = [best / "label.html", best / "model.safetensors", best / "guarantee.json"]
    begun = read_json(best.parent, "tuning.sensitive.json")["begun"]
    assert {file.stat().st_mtime for file in public} == {begun}
    assert begun <= (best.parent / "ledger.sqlite").stat().st_mtime + 1.0


def test_what_is_filed_of_it_is_the_charge_of_the_tuning(finished, tmp_path):
    run = Run(finished[0].run_dir)
    write_evidence(tmp_path / "filed", run, finished[0].label)
    (ledger,) = read_json(tmp_path / "filed" / "confidential", "ledger.json")["ledgers"]
    assert [row["kind"] for row in ledger["rows"] if row["run"]] == ["release"]
    assert "tuned" in read_json(tmp_path / "filed" / "confidential", "plan.json")
    texts = "".join(file.read_text() for file in (tmp_path / "filed").rglob("*") if file.is_file())
    assert "sensitive" not in texts


def test_the_tuning_is_one_entry_charged_before_the_first_run(several, blobs):
    make = maker(blobs)
    with Ledger.create(several.parent / "shared.sqlite") as ledger:

        def make_run(settings, run_dir):
            assert run_dir is None or len(ledger.releases()) == 1
            return make(settings, run_dir)

        tuned(blobs, several, make_run=make_run, ledger=ledger)
        assert [row["name"] for row in ledger.releases()] == ["tuned"]
        assert ledger.runs() == {}
        one = steps_curve(sample_rate=0.1, noise_multiplier=2.0, steps=4)
        assert ledger.spent(1e-5).epsilon > LAW.selected(one).epsilon(1e-5) > one.epsilon(1e-5)
        tuned(blobs, several, ledger=ledger)  # again: nothing is left to do
        assert len(ledger.releases()) == 1


def test_a_budget_that_does_not_pay_starts_no_run_and_keeps_the_number(several, blobs):
    with Ledger.create(":memory:", epsilon=0.1, delta=1e-5) as memory, pytest.raises(PrivacyError, match="on disk"):
        tuned(blobs, several, ledger=memory)
    number = drawn(several)
    with Ledger.create(several.parent / "small.sqlite", epsilon=0.1, delta=1e-5) as ledger:
        with pytest.raises(BudgetExceeded):
            tuned(blobs, several, ledger=ledger, seed=99)
        assert not (several / "sensitive").exists()
        ledger.set_budget(50.0, 1e-5, allow_increase=True)
        tuned(blobs, several, ledger=ledger, seed=99)
    assert drawn(several) == number


def test_a_crash_repeats_no_finished_trial_and_draws_nothing_again(several, blobs):
    calls = []
    with pytest.raises(Crash):
        tuned(blobs, several, score=scorer(blobs, calls, crash_at=2))
    number, first = drawn(several), Run(several / "sensitive/0001/tuned").document()["id"]
    steps = (several / "sensitive/0001/tuned/metrics.jsonl").read_text()
    found = tuned(blobs, several, score=scorer(blobs, calls), seed=8)
    assert drawn(several) == number
    assert len(calls) == len(number) + 1
    kept = {Run(place).document()["id"]: place for place in (found.run_dir, *several.glob("sensitive/*/tuned"))}
    assert (kept[first] / "metrics.jsonl").read_text() == steps
    with Ledger.open(several / "ledger.sqlite") as ledger:
        assert len(ledger.releases()) == 1


def test_an_unfinished_trial_is_resumed(several, blobs):
    make, interrupted = maker(blobs, steps=20), []

    def make_run(settings, run_dir):
        training = make(settings, run_dir)
        if run_dir is not None and not interrupted:
            interrupted.append(run_dir)
            for step in training:
                if step.number == 8:
                    raise Crash
        return training

    with pytest.raises(Crash):
        tuned(blobs, several, make_run=make_run)
    assert Run(interrupted[0]).facts.status == "interrupted"
    before = Run(interrupted[0]).document()["id"]
    found = tuned(blobs, several, make_run=make_run)
    places = (found.run_dir, *several.glob("sensitive/*/tuned"))
    (same,) = (place for place in places if Run(place).document()["id"] == before)
    numbers = [json.loads(line)["step"] for line in (same / "metrics.jsonl").read_text().splitlines()]
    assert numbers == list(range(1, 21))
    assert Run(same).facts.status == "done"


def test_a_folder_that_died_before_its_first_step_is_made_anew(several, blobs):
    with pytest.raises(Crash):
        tuned(blobs, several, score=scorer(blobs, [], crash_at=1))
    torn = several / "sensitive/0002/tuned"
    torn.mkdir(parents=True)
    (torn / "lock").touch()
    assert tuned(blobs, several).run_dir == several / "best"


def test_no_trial_at_all_releases_nothing_and_costs_the_same(several, blobs):
    with pytest.warns(UserWarning, match="nothing is released"):
        assert tuned(blobs, several, trials=Poisson(1e-6)) is None
    assert not (several / "sensitive").exists()
    with Ledger.open(several / "ledger.sqlite") as ledger:
        assert len(ledger.releases()) == 1


@pytest.mark.parametrize(
    ("fixed", "reason"),
    [({"seed": 1}, "fresh noise"), ({"ledger": "own.sqlite"}, "leave ledger"), ({"run_dir": "elsewhere"}, "folder")],
)
def test_trials_that_would_not_be_covered_are_refused(several, blobs, fixed, reason, monkeypatch):
    monkeypatch.chdir(several.parent)

    def make_run(settings, run_dir):
        return train(
            blobs, lr=settings["lr"], **{"run_dir": run_dir, "panel": 0, "steps": 4, **(fixed if run_dir else {})}
        )

    with pytest.raises(PrivacyError, match=reason):
        tuned(blobs, several, make_run=make_run)


def test_a_plan_that_costs_more_than_it_said_is_refused(several, blobs):
    def make_run(settings, run_dir):
        return maker(blobs, noise_multiplier=2.0 if run_dir is None else 1.9)(settings, run_dir)

    with pytest.raises(PrivacyError, match="declared plan"):
        tuned(blobs, several, make_run=make_run)


def test_the_charge_is_that_of_the_most_expensive_setting(several, blobs):
    def make_run(settings, run_dir):
        return maker(blobs, noise_multiplier=settings["noise"])({"lr": 0.1}, run_dir)

    found = tuned(blobs, several, make_run=make_run, space=[{"noise": 4.0}, {"noise": 1.0}], score=lambda model: 0.0)
    one = steps_curve(sample_rate=0.1, noise_multiplier=1.0, steps=4)
    assert found.label.worst.epsilon == pytest.approx(LAW.selected(one).epsilon(1e-5))


def test_a_private_score_is_noised_and_paid(several, blobs):
    x, y = blobs
    found = tuned(blobs, several, score=lambda model: int((model(x).argmax(1) == y).sum()), score_noise=20.0)
    one = steps_curve(sample_rate=0.1, noise_multiplier=2.0, steps=4)
    paid = LAW.selected(one.after(gaussian_curve(20.0))).epsilon(1e-5)
    assert found.label.worst.epsilon == pytest.approx(paid)
    assert paid > LAW.selected(one).epsilon(1e-5)
    assert {"private-score"} == {a.code for a in found.label.checks} & {"private-score", "public-score"}
    assert all(score != int(score) for score in read_json(several, "tuning.sensitive.json")["scores"])
    with pytest.raises(ValueError, match="whole number"):
        tuned(blobs, several.parent / "other", score=lambda model: 0.5, score_noise=20.0)


def test_a_score_that_is_no_number_never_wins(several, blobs):
    bad = []

    def score(model):
        bad.append(float(model.weight.detach().sum()))
        return float("nan") if len(bad) == 1 else 0.0

    found = tuned(blobs, several, score=score)
    assert float(found.model.weight.detach().sum()) == bad[1]


def test_other_records_are_refused_when_it_goes_on(several, blobs):
    x, y = blobs
    with pytest.raises(Crash):
        tuned(blobs, several, score=scorer(blobs, [], crash_at=2))
    for other in ((x[1:], y[1:]), (x + 1.0, y)):
        with pytest.raises(PrivacyError, match="not the records"):
            tuned(other, several)
    assert tuned(blobs, several).run_dir == several / "best"


def test_other_arguments_are_refused_when_it_goes_on(several, blobs):
    tuned(blobs, several)
    for changed in ({"space": {"lr": [0.1]}}, {"trials": NegativeBinomial.expecting(4.0)}, {"score_noise": 3.0}):
        with pytest.raises(PrivacyError, match="started with another"):
            tuned(blobs, several, **changed)
    with pytest.raises(TypeError, match="NegativeBinomial or a Poisson"):
        tuned(blobs, several, trials=3)
    (several.parent / "full").mkdir()
    (several.parent / "full" / "file").touch()
    with pytest.raises(RunError, match="not empty"):
        tuned(blobs, several.parent / "full")


@pytest.mark.parametrize("space", [{}, [], {"lr": []}, [{}], {"lr": [object()]}, {"lr": [float("nan")]}])
def test_a_space_that_is_none_is_refused(several, blobs, space):
    with pytest.raises((ValueError, TypeError), match="space"):
        tuned(blobs, several, space=space)
    with pytest.raises(TypeError, match="PrivateTraining"):
        tune(lambda settings, run_dir: torch.zeros(1), SPACE, trials=LAW, score=float, delta=1e-5, folder=several)


def test_the_registry_says_what_was_accounted(finished):
    label = finished[0].label.public()
    text = str(entry(label, product="Machine learning model", federated=False, stated={}))
    assert "Tuning: accounted" in text
    assert "Other tuning and looking at the data beforehand are not accounted" in text


def test_a_target_that_the_tuning_does_not_keep_to_starts_nothing(several, blobs):
    one = steps_curve(sample_rate=0.1, noise_multiplier=2.0, steps=4)
    epsilon = LAW.selected(one).epsilon(1e-5)
    with pytest.raises(PrivacyError, match="exceeds its target"):
        tuned(blobs, several, target=(0.999 * epsilon, 1e-5))
    assert not several.exists()
    assert tuned(blobs, several, target=(1.001 * epsilon, 1e-5)).label.worst.epsilon <= 1.001 * epsilon


def test_records_that_are_counted_and_never_trained_on_pay_once(several, blobs):
    x, y = blobs
    found = tuned(
        blobs, several, score=lambda model: int((model(x).argmax(1) == y).sum()), score_noise=20.0, score_apart=True
    )
    one, score = steps_curve(sample_rate=0.1, noise_multiplier=2.0, steps=4), gaussian_curve(20.0)
    apart = LAW.selected(one | score).epsilon(1e-5)
    assert found.label.worst.epsilon == pytest.approx(apart)
    assert LAW.selected(one).epsilon(1e-5) <= apart < LAW.selected(one.after(score)).epsilon(1e-5)
    assert {"private-score", "score-apart"} <= {a.code for a in found.label.checks}
    with pytest.raises(ValueError, match="score_noise"):
        tuned(blobs, several.parent / "other", score_apart=True)


BLANK = (None, None)  # processes make their own data


@dataclass(frozen=True)
class Makes:
    """Makes trainings in any process; one of these dies, once, if a file says so."""

    dies: str = ""

    def __call__(self, settings, run_dir):
        if run_dir is not None and self.dies and Path(self.dies).exists():
            Path(self.dies).unlink()
            os._exit(9)
        rng = torch.Generator().manual_seed(0)
        data = torch.randn(300, 4, generator=rng), torch.randint(0, 2, (300,), generator=rng)
        return maker(data)(settings, run_dir)


def length(model):
    """A score that tells the learning rates apart, and nothing else."""
    return round(float(model.weight.detach().norm()) / 3.0)


@pytest.mark.slow
def test_processes_share_the_trials_and_one_that_dies_loses_nothing(several, tmp_path):
    dies = tmp_path / "dies"
    dies.touch()
    make_run = Makes(str(dies))
    settings = {"make_run": make_run, "score": length, "space": {"lr": [0.01, 30.0]}, "processes": 2}
    with pytest.raises(RunError, match="died"):
        tuned(BLANK, several, **settings)
    before = read_json(several, "tuning.sensitive.json")
    assert None in before["scores"]
    found = tuned(BLANK, several, **settings)
    after = read_json(several, "tuning.sensitive.json")
    assert after["drawn"] == before["drawn"]
    assert all(old in (None, new) for old, new in zip(before["scores"], after["scores"], strict=True))
    best = max(range(4), key=lambda number: (after["scores"][number], -number))
    assert found.settings == {"lr": 30.0}
    assert not (several / "sensitive" / f"{best + 1:04d}" / "tuned").exists()
    with Ledger.open(several / "ledger.sqlite") as ledger:
        assert len(ledger.releases()) == 1
    alone = tuned(BLANK, tmp_path / "alone" / "tuned", make_run=Makes(), score=length, space={"lr": [0.01, 30.0]})
    pages = [(one.run_dir / "label.html").read_bytes() for one in (found, alone)]
    assert pages[0] == pages[1]


def test_what_other_processes_cannot_import_is_refused_before_anything_is_trained(several, blobs):
    with pytest.raises(TypeError, match="functions of a module"):
        tuned(blobs, several, processes=2)
    assert not (several / "sensitive").exists()


@pytest.mark.stat
def test_private_scores_are_on_a_grid_with_their_noise():
    found = np.array([_scored(7, 3.0) for _ in range(600)])
    steps = found / Grid.of(1.0, 3.0).step
    assert (steps == np.round(steps)).all()
    assert kstest(found, norm(7.0, 3.0).cdf).pvalue > FALSE_ALARM
    assert kstest(found, norm(7.0, 6.0).cdf).pvalue < FALSE_ALARM


def test_settings_that_draw_noise_in_different_ways_are_refused(blobs, tmp_path):
    def make_run(settings, run_dir):
        return train(blobs, noise=settings["noise"], run_dir=run_dir, panel=0, steps=2)

    with pytest.raises(PrivacyError, match="alike"):
        tune(make_run, {"noise": ["float", "exact"]}, trials=LAW, score=lambda model: 0.5, delta=1e-5, folder=tmp_path)
