"""A private critic, and an annotator whose budget composes with it."""

import pytest

from tacita import runs, worst_case
from tacita.accounting import composed
from tacita.ledger import Ledger
from tacita.synthesis.jobs import restart, start
from tacita.synthesis.labels import label_of_run
from tests.synthesis.short_runs import GAN, edit, recipe, run


@pytest.fixture
def _short_annotator(monkeypatch):
    short = {"steps": 2, "batch_size": 100, "learning_rate": 0.1}
    monkeypatch.setattr("tacita.synthesis.generators.private_wgan.ANNOTATOR", short)


def test_a_private_gan_keeps_its_target_and_follows_records(gan_run):
    folder, label = gan_run
    plan = runs.read_json(folder / "critic", "run.json")["plan"]
    expected = worst_case(
        sample_rate=plan["sample_rate"], noise_multiplier=plan["noise_multiplier"], steps=plan["steps"], delta=1e-5
    )
    assert label.worst.epsilon == expected.epsilon
    assert plan["noise_multiplier"] == 1.5
    assert label.readings.typical
    assert dict(label.mechanism)["Released records"] == "60"


def test_an_interrupted_gan_goes_on(tmp_path):
    job = start(recipe(**GAN | {"seed": None}), tmp_path / "run")

    def stop(step, *_):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(stop, quality=False)
    again = restart(tmp_path / "run")
    assert again.maker.critic.taken == 2
    again.run(quality=False)
    assert again.maker.critic.taken == 4


@pytest.mark.slow
def test_a_private_gan_with_an_annotator_is_calibrated_within_its_target(tmp_path):
    label = run(tmp_path / "run", **{**GAN, "noise_multiplier": None, "epsilon": 8.0}, annotator=True)
    assert 7.5 < label.worst.epsilon <= 8.0


@pytest.mark.usefixtures("_short_annotator")
def test_an_annotators_budget_composes_with_the_critics(tmp_path):
    label = run(tmp_path / "run", **GAN, annotator=True)
    plans = [runs.read_json(tmp_path / "run" / part, "run.json")["plan"] for part in ("critic", "annotator")]
    parts = [(plan["sample_rate"], plan["noise_multiplier"], plan["steps"]) for plan in plans]
    assert label.worst.epsilon == composed(parts, delta=1e-5).epsilon
    alone = [worst_case(sample_rate=q, noise_multiplier=s, steps=t, delta=1e-5).epsilon for q, s, t in parts]
    assert max(alone) < label.worst.epsilon < sum(alone)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert len(ledger.runs()) == 2


@pytest.mark.usefixtures("_short_annotator")
def test_a_budget_that_pays_for_the_annotator_alone_is_refused_before_anything_is_spent(tmp_path):
    asked = {**GAN, "annotator": True}
    run(tmp_path / "free", **asked)
    with Ledger.open(tmp_path / "free" / "ledger.sqlite") as ledger:  # what it does cost, as the ledger counts
        cost = ledger.spent(1e-5).epsilon
    shared = tmp_path / "shared.sqlite"
    with Ledger.create(shared, epsilon=0.999 * cost, delta=1e-5) as ledger:
        with pytest.raises(ValueError, match="Critic and annotator together would bring") as caught:
            start(recipe(**asked, ledger=str(shared)), tmp_path / "refused")
        assert len(str(caught.value).splitlines()) == 1
        assert ledger.spent() is None
        assert not ledger.runs()  # so its seed is not used up either
        ledger.set_budget(1.001 * cost, 1e-5, allow_increase=True)
        assert run(tmp_path / "paid", **asked, ledger=str(shared)).worst.epsilon <= cost
        assert ledger.spent().epsilon == pytest.approx(cost, rel=1e-9)
        with pytest.raises(ValueError, match="budget"):
            start(recipe(**asked | {"seed": 2}, ledger=str(shared)), tmp_path / "again")


@pytest.mark.usefixtures("_short_annotator")
def test_a_label_does_not_forget_the_annotator(tmp_path):
    run(tmp_path / "run", **GAN, annotator=True)
    edit(tmp_path / "run", "run.json", recipe__annotator=False)
    with pytest.raises(ValueError, match="annotator"):
        label_of_run(tmp_path / "run")
    document = runs.read_json(tmp_path / "run", "run.json")
    edit(tmp_path / "run", "run.json", parts=document["parts"][:1])
    (tmp_path / "run" / "annotator").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="ledger holds"):
        label_of_run(tmp_path / "run")


@pytest.mark.usefixtures("_short_annotator")
def test_parts_are_not_shown_as_the_worst_case(tmp_path):
    label = run(tmp_path / "run", **GAN | {"panel": 0}, annotator=True)
    assert all(g.epsilon >= label.worst.epsilon for g in label.comparisons)
    assert any(name == "Annotator alone" for name, _ in label.mechanism)
    assert "No records were followed" in label.readings.panels


def test_neighbouring_seeds_share_no_noise():
    from tacita.synthesis.generators.private_wgan import second_seed

    assert second_seed(7) not in (7, 8)
    assert second_seed(None) is None
