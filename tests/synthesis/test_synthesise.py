"""From a recipe to a release: what is charged, kept, resumed, written and refused, through the command itself."""

import json
import math
import re
import tomllib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from typer.main import get_command

from tacita import runs, worst_case
from tacita.accounting import composed, gaussian_release
from tacita.cli import app
from tacita.label import Label
from tacita.ledger import Ledger
from tacita.synthesis import quality
from tacita.synthesis.jobs import restart, start, write_inspection
from tacita.synthesis.labels import label_of_run
from tacita.synthesis.recipes import Recipe, prepare
from tacita.synthesis.release import released_dataset


def recipe(**changes):
    return Recipe.from_dict({"data": {"name": "digits"}, "samples": 60, "seed": 1, **changes})


def run(folder, *, measure=False, **changes):
    return start(recipe(**changes), folder).run(lambda step, doing: None, quality=measure)


def tacita(*words):
    return CliRunner().invoke(get_command(app), [str(word) for word in words])


@pytest.fixture(scope="module")
def embedding_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "embedding"
    return folder, run(folder, epsilon=2.0)


def test_the_embedding_is_one_gaussian_release_within_its_target(embedding_run):
    folder, label = embedding_run
    noise = runs.read_json(folder, "run.json")["plan"]["noise_multiplier"]
    assert label.worst.epsilon == gaussian_release(noise_multiplier=noise, delta=1e-5).epsilon <= 2.0
    assert label.worst.publishable
    assert label.readings.typical[0].epsilon <= label.worst.epsilon


def test_the_release_is_charged_once(embedding_run):
    folder, _ = embedding_run
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        (name,) = ledger.runs()
        assert ledger.charged(name) == 1


def test_a_finished_run_can_be_taken_up_and_charges_nothing_more(embedding_run, tmp_path):
    folder, label = embedding_run
    before = (folder / "released" / "samples.npz").read_bytes()
    again = tacita("synthesise", "--resume", folder, "--no-quality", "--json")
    line, document = again.output.split("\n", 1)
    assert "is finished" in line
    assert f"tacita label {folder}" in line
    assert json.loads(document)["label"]["worst"] == label.to_dict()["worst"]
    assert len(before) > 0
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        assert ledger.charged(next(iter(ledger.runs()))) == 1


def test_the_released_set_reads_back_by_its_own_schema(embedding_run):
    folder, _ = embedding_run
    found = released_dataset(folder)
    assert found.inputs.shape == (60, 1, 8, 8)
    assert found.classes == tuple("0123456789")
    assert 0.0 <= found.inputs.min() <= found.inputs.max() <= 1.0
    schema = tomllib.loads((folder / "released" / "schema.toml").read_text())
    assert schema["data"]["nominal_size"] == 60
    assert (folder / "released" / "samples.png").read_bytes().startswith(b"\x89PNG")


def test_public_label_and_released_files_are_there_and_the_folder_is_the_owners(embedding_run):
    folder, label = embedding_run
    assert Label.from_dict(json.loads((folder / "guarantee.json").read_text())) == label
    for name in ("label.html", "label-owner.html", "inspect.html", "run.json"):
        assert (folder / name).is_file()
    assert folder.stat().st_mode & 0o077 == 0
    assert "1437" not in (folder / "label.html").read_text()


def test_b1_the_public_label_is_the_same_without_one_record(tmp_path, monkeypatch):
    pages = []
    for name in ("with", "without"):
        task = prepare(recipe(epsilon=2.0))
        if name == "without":
            fewer = tuple(t[1:] for t in task.train)
            monkeypatch.setattr("tacita.synthesis.jobs.prepare", lambda r, f=fewer, t=task: _with_train(t, f))
        run(tmp_path / name, epsilon=2.0)
        pages.append((tmp_path / name / "label.html").read_bytes())
    assert pages[0] == pages[1]


def _with_train(task, train):
    return replace(task, train=train)


def test_a_charged_release_that_was_lost_is_not_repeated(tmp_path):
    job = start(recipe(epsilon=2.0, seed=None), tmp_path / "run")
    maker = job.maker
    maker._keep = lambda step: (_ for _ in ()).throw(OSError("no space left"))
    with pytest.raises(OSError, match="no space"):
        maker.run(lambda step, doing: None)
    with pytest.raises(ValueError, match="in use"):  # L13: one owner of a run folder
        restart(tmp_path / "run")
    del job  # the process has died
    with pytest.raises(ValueError, match="charged, and lost"):
        restart(tmp_path / "run").run(lambda step, doing: None, quality=False)


def test_a_killed_fit_is_begun_again_from_the_kept_release(tmp_path):
    job = start(recipe(epsilon=2.0, seed=None), tmp_path / "run")
    job.maker._release(lambda step, doing: None)
    sums = job.maker._released.sums.clone()
    del job  # the process was killed
    again = restart(tmp_path / "run")
    assert torch.equal(again.maker._released.sums, sums)
    assert again.run(lambda step, doing: None, quality=False).worst.epsilon <= 2.0


def test_a_budget_that_is_used_up_refuses_before_anything_is_released(tmp_path):
    with Ledger.create(tmp_path / "shared.sqlite", epsilon=3.0, delta=1e-5):
        pass
    run(tmp_path / "first", epsilon=2.0, ledger=str(tmp_path / "shared.sqlite"))
    with pytest.raises(ValueError, match="budget"):
        run(tmp_path / "second", epsilon=2.0, seed=2, ledger=str(tmp_path / "shared.sqlite"))
    assert not (tmp_path / "second" / "released").exists()


GAN = {"generator": "private-wgan", "noise_multiplier": 1.5, "steps": 4, "panel": 8, "batch_size": 64}


@pytest.fixture(scope="module")
def gan_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "gan"
    return folder, run(folder, **GAN)


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

    def stop(step, doing):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(stop, quality=False)
    again = restart(tmp_path / "run")
    assert again.maker.critic.taken == 2
    again.run(lambda step, doing: None, quality=False)
    assert again.maker.critic.taken == 4


@pytest.mark.slow
def test_a_private_gan_with_an_annotator_is_calibrated_within_its_target(tmp_path):
    label = run(tmp_path / "run", **{**GAN, "noise_multiplier": None, "epsilon": 8.0}, annotator=True)
    assert 7.5 < label.worst.epsilon <= 8.0


def test_an_annotators_budget_composes_with_the_critics(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tacita.synthesis.generators.private_wgan.ANNOTATOR", {"steps": 3, "batch_size": 100, "learning_rate": 0.1}
    )
    label = run(tmp_path / "run", **GAN, annotator=True)
    plans = [runs.read_json(tmp_path / "run" / part, "run.json")["plan"] for part in ("critic", "annotator")]
    parts = [(plan["sample_rate"], plan["noise_multiplier"], plan["steps"]) for plan in plans]
    assert label.worst.epsilon == composed(parts, delta=1e-5).epsilon
    alone = [worst_case(sample_rate=q, noise_multiplier=s, steps=t, delta=1e-5).epsilon for q, s, t in parts]
    assert max(alone) < label.worst.epsilon < sum(alone)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert len(ledger.runs()) == 2


def test_a_budget_that_pays_for_the_annotator_alone_is_refused_before_anything_is_spent(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tacita.synthesis.generators.private_wgan.ANNOTATOR", {"steps": 3, "batch_size": 100, "learning_rate": 0.1}
    )
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


@pytest.mark.parametrize("dp_critic", [False, True])
def test_a_plain_gan_promises_nothing(tmp_path, dp_critic):
    label = run(tmp_path / "run", generator="wgan-gp", steps=6, dp_critic=dp_critic)
    assert math.isinf(label.worst.epsilon)
    assert "Nothing is promised" in str(label)
    assert any("regulariser" in text for text in label.declared) == dp_critic


def test_the_papers_mode_prints_its_true_worst_case(tmp_path):
    label = run(tmp_path / "run", generator="papers-wgan", steps=6)
    assert label.worst.epsilon > 1e4
    assert dict(label.mechanism)["Sensitivity"].startswith("2C")


def test_quality_is_measured_and_shown_to_the_owner_only(tmp_path, monkeypatch):
    quick = partial(quality.measure_utility, steps=5, sizes=(100, 200), learning_rates=(0.01, 0.1))
    monkeypatch.setattr(quality, "measure_utility", quick)
    label = run(tmp_path / "run", measure=True, epsilon=8.0, samples=300)
    names = [name for name, _ in label.readings.metrics]
    assert names[0] == "accuracy of a student"
    assert label.readings.audit[0].key == "membership"
    page = (tmp_path / "run" / "quality.html").read_text()
    assert "For the data" in page
    for word in ("Control: uniform noise", "not a guarantee", "nearer to", "Fréchet"):
        assert word in page
    assert "student" not in (tmp_path / "run" / "label.html").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generator": "vae", "epsilon": 1.0}, "generator must be one of"),
        ({}, "needs epsilon"),
        ({"epsilon": 0.0}, "epsilon must be in"),
        ({"generator": "wgan-gp", "epsilon": 1.0}, "gives no guarantee, so epsilon does not apply"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "and not both"),
        (
            {"generator": "wgan-gp", "noise_multiplier": 1.0},
            "noise_multiplier is for mean-embedding or private-wgan or",
        ),
        ({"noise": 1.0}, "'noise' is called 'noise_multiplier' now"),
        ({"epsilon": 1.0, "batch_size": 5}, "batch_size is for private-wgan"),
        ({"generator": "wgan-gp", "ledger": "x.sqlite"}, "gives no guarantee, so ledger does not apply"),
        ({"epsilon": 1.0, "dp_critic": True}, "dp_critic is for wgan-gp"),
        ({"epsilon": 1.0, "annotator": True}, "annotator is for private-wgan"),
        ({"epsilon": 1.0, "samples": 0}, "samples must be a whole number"),
        ({"epsilon": 1.0, "sampels": 5}, "did you mean 'samples'"),
    ],
)
def test_recipes_that_do_not_fit_are_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message):
        Recipe.from_dict({"data": {"name": "digits"}, **changes})


def test_a_range_to_predict_is_refused(tmp_path):
    (tmp_path / "people.csv").write_text(CSV)
    columns = {"age": {"type": "real", "low": 0, "high": 100}, "happy": {"type": "bool"}}
    data = {"file": str(tmp_path / "people.csv"), "target": "age", "columns": columns}
    with pytest.raises(ValueError, match="records of classes"):
        prepare(Recipe.from_dict({"data": data, "epsilon": 1.0}))


CSV = "age,job,happy\n" + "".join(f"{20 + i % 50},{'ab'[i % 2]},{'yes' if i % 3 else 'no'}\n" for i in range(400))
TOML = """
epsilon = 2.0
samples = 50
nominal_size = 400
steps = 5
[data]
file = "people.csv"
target = "happy"
[data.columns.age]
type = "real"
low = 0
high = 100
whole = true
[data.columns.job]
type = "category"
values = ["a", "b", "c"]
[data.columns.happy]
type = "bool"
"""


def test_a_table_of_ones_own_is_released_as_csv(tmp_path):
    (tmp_path / "people.csv").write_text(CSV)
    (tmp_path / "people.toml").write_text(TOML)
    done = tacita("synthesise", "--config", tmp_path / "people.toml", "--run-dir", tmp_path / "run", "--no-quality")
    assert done.exit_code == 0, done.output
    lines = (tmp_path / "run" / "released" / "samples.csv").read_text().splitlines()
    assert lines[0] == "age,job,happy"
    assert len(lines) == 51
    ages = [float(line.split(",")[0]) for line in lines[1:]]
    assert all(0 <= age <= 100 and age == int(age) for age in ages)
    found = released_dataset(tmp_path / "run")
    assert found.feature_names == ("age", "job=a", "job=b", "job=c")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Pass one of --data"),
        (("--data", "digits", "--resume", "x"), "Pass one of --data"),
        (("--data", "numbers"), "name must be one of"),
        (("--data", "digits", "--epsilon", "-1"), "epsilon must be in"),
        (("--resume", "nowhere"), "no such folder"),
        (("inspect", "nowhere"), "holds no released set"),
    ],
)
def test_bad_commands_end_in_one_line(words, message):
    done = tacita("synthesise", *words)
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
    assert len(str(done.exception).splitlines()) == 1


def test_label_and_inspect_read_a_run_again(embedding_run, tmp_path):
    folder, label = embedding_run
    done = tacita("label", folder, "--json")
    assert json.loads(done.output)["label"]["worst"]["epsilon"] == label.worst.epsilon
    done = tacita("synthesise", "inspect", folder, "--page", tmp_path / "look.html")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "look.html").is_file()


def images_of(classes, shape):
    """A released set of noise, of these classes and this shape."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (80, *shape)).astype(np.uint8)
    targets = np.arange(80) % len(classes)
    schema = f"""
[data]
file = "samples.npz"
nominal_size = 80
inputs = {{low = 0, high = 255, shape = {list(shape)}}}
targets = {{classes = {json.dumps(classes)}}}
"""
    return schema, lambda where: np.savez(where / "samples.npz", inputs=inputs, targets=targets)


def rows_of(*, high=100, job="job", values=("a", "b")):
    """A released table of a number and a category."""
    lines = "".join(f"{i % 50},{values[i % 2]},{'yes' if i % 3 else 'no'}\n" for i in range(80))
    schema = f"""
[data]
file = "samples.csv"
nominal_size = 80
target = "happy"
[data.columns]
age = {{type = "real", low = 0, high = {high}}}
{job} = {{type = "category", values = {json.dumps(values)}}}
happy = {{type = "bool"}}
"""
    return schema, lambda where: (where / "samples.csv").write_text(f"age,{job},happy\n{lines}")


CATS = images_of(["cat", "dog"], (1, 8, 8))


@pytest.mark.parametrize(
    ("new", "old", "message"),
    [
        (CATS, images_of(["cat", "fox"], (1, 8, 8)), "names of the classes differ, 'dog' in '.*new' and 'fox' in"),
        (CATS, images_of(["dog", "cat"], (1, 8, 8)), "names of the classes differ, 'cat' in '.*new' and 'dog' in"),
        (CATS, images_of(["cat", "dog", "fox"], (1, 8, 8)), "classes differ, nothing in '.*new' and 'fox'"),
        (CATS, images_of(["cat", "dog"], (1, 12, 8)), r"shapes of a record differ, \(1, 8, 8\) in .* and \(1, 12, 8\)"),
        (CATS, rows_of(), "shapes of a record differ"),
        (rows_of(), rows_of(job="work"), "columns differ, 'job=a' in '.*new' and 'work=a' in"),
        (rows_of(), rows_of(values=("b", "a")), "columns differ, 'job=a' in '.*new' and 'job=b' in"),
        (rows_of(), rows_of(high=120), r"columns differ, 'age' from 0 to 100 \(linear\) in .* and 'age' from 0 to 120"),
    ],
)
def test_releases_of_other_things_are_not_compared(new, old, message, tmp_path):
    for name, (schema, write) in (("new", new), ("old", old)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schema.toml").write_text(schema)
        write(tmp_path / name)
        assert tacita("synthesise", "inspect", tmp_path / name).exit_code == 0
    done = tacita("synthesise", "inspect", tmp_path / "new", "--reference", tmp_path / "old")
    assert isinstance(done.exception, ValueError)
    assert re.search(message, str(done.exception))
    assert len(str(done.exception).splitlines()) == 1
    with pytest.raises(ValueError, match=message):
        write_inspection(tmp_path / "new", tmp_path / "page.html", title="t", reference=tmp_path / "old")
    assert not (tmp_path / "page.html").exists()
    assert tacita("synthesise", "inspect", tmp_path / "new", "--reference", tmp_path / "new").exit_code == 0


def test_a_generators_run_is_not_trained_or_attacked(embedding_run):
    folder, _ = embedding_run
    for words in (("train", "--resume", folder), ("audit", folder)):
        done = tacita(*words)
        assert "is a generator" in str(done.exception)


def test_a_label_without_attacks_names_the_command_that_makes_them(embedding_run):
    _, label = embedding_run
    assert "tacita synthesise --resume RUN" in str(label)
    assert "tacita audit" not in str(label)


def test_label_of_a_run_at_another_delta(embedding_run):
    folder, label = embedding_run
    other = label_of_run(folder, delta=1e-7)
    assert other.worst.epsilon > label.worst.epsilon
    assert np.isclose(other.worst.delta, 1e-7)


def edit(folder, name, **changes):
    """Change a JSON file of a run by hand; dotted names reach inside."""
    document = runs.read_json(folder, name)
    for path, value in changes.items():
        *where, last = path.split("__")
        part = document
        for step in where:
            part = part[step]
        part[last] = value
    runs.write_json(folder, name, document)


def test_a_release_that_was_refused_cannot_be_had_from_another_place(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Ledger.create(tmp_path / "a" / "shared.sqlite", epsilon=0.01, delta=1e-5):
        pass
    monkeypatch.chdir(tmp_path / "a")
    with pytest.raises(ValueError, match="budget"):
        run(tmp_path / "run", epsilon=5.0, ledger="shared.sqlite")
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(ValueError, match="budget"):
        restart(tmp_path / "run").run(lambda step, doing: None, quality=False)
    assert not (tmp_path / "b" / "shared.sqlite").exists()


def test_a_deleted_ledger_is_not_made_anew(tmp_path):
    job = start(recipe(epsilon=2.0, seed=None), tmp_path / "run")
    job.maker._keep = lambda step: (_ for _ in ()).throw(OSError("no space left"))
    with pytest.raises(OSError, match="no space"):
        job.maker.run(lambda step, doing: None)
    (tmp_path / "run" / "ledger.sqlite").unlink()
    with pytest.raises((OSError, ValueError), match=r"ledger"):
        restart(tmp_path / "run").run(lambda step, doing: None, quality=False)


def test_a_ledger_put_in_the_place_of_another_is_refused(tmp_path):
    run(tmp_path / "run", epsilon=2.0)
    (tmp_path / "run" / "ledger.sqlite").unlink()
    with Ledger.create(tmp_path / "run" / "ledger.sqlite"):
        pass
    with pytest.raises(ValueError, match="ledger"):
        label_of_run(tmp_path / "run")


def test_a_label_does_not_forget_the_annotator(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tacita.synthesis.generators.private_wgan.ANNOTATOR", {"steps": 2, "batch_size": 100, "learning_rate": 0.1}
    )
    run(tmp_path / "run", **GAN, annotator=True)
    edit(tmp_path / "run", "run.json", recipe__annotator=False)
    with pytest.raises(ValueError, match="annotator"):
        label_of_run(tmp_path / "run")
    document = runs.read_json(tmp_path / "run", "run.json")
    edit(tmp_path / "run", "run.json", parts=document["parts"][:1])
    (tmp_path / "run" / "annotator").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="ledger holds"):
        label_of_run(tmp_path / "run")


def test_a_papers_label_is_that_of_what_was_run(tmp_path):
    run(tmp_path / "run", generator="papers-wgan", steps=6)
    edit(tmp_path / "run", "run.json", plan__noise_multiplier=20.0)
    with pytest.raises(ValueError, match="not the one"):
        label_of_run(tmp_path / "run")
    edit(tmp_path / "run", "run.json", recipe__noise_multiplier=20.0)
    with pytest.raises(ValueError, match="not the one"):
        restart(tmp_path / "run")


def test_a_generator_is_not_taken_for_another(tmp_path):
    run(tmp_path / "run", generator="wgan-gp", steps=6)
    edit(tmp_path / "run", "run.json", generator="papers-wgan", plan__clip_norm=1.0, plan__noise_multiplier=20.0)
    with pytest.raises(ValueError, match="another generator"):
        label_of_run(tmp_path / "run")


def test_another_runs_id_and_plan_are_refused(tmp_path):
    shared = str(tmp_path / "shared.sqlite")
    run(tmp_path / "dear", epsilon=8.0, ledger=shared)
    run(tmp_path / "cheap", epsilon=0.1, ledger=shared, seed=5)
    other = runs.read_json(tmp_path / "cheap", "run.json")
    edit(tmp_path / "dear", "run.json", id=other["id"], plan=other["plan"])
    with pytest.raises(ValueError, match="another run"):
        label_of_run(tmp_path / "dear")


def test_parts_are_not_shown_as_the_worst_case(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tacita.synthesis.generators.private_wgan.ANNOTATOR", {"steps": 2, "batch_size": 100, "learning_rate": 0.1}
    )
    label = run(tmp_path / "run", **GAN | {"panel": 0}, annotator=True)
    assert all(g.epsilon >= label.worst.epsilon for g in label.comparisons)
    assert any(name == "Annotator alone" for name, _ in label.mechanism)
    assert "Nobody was followed" in label.readings.panels


def test_a_moved_run_can_still_be_labelled(gan_run, tmp_path):
    import shutil

    folder, label = gan_run
    shutil.copytree(folder, tmp_path / "moved")
    assert dict(label.mechanism)["Ledger"] == "the run's own"
    hidden = folder.parent / "hidden"
    folder.rename(hidden)
    try:
        assert label_of_run(tmp_path / "moved").worst == label.worst
    finally:
        hidden.rename(folder)


def test_neighbouring_seeds_share_no_noise():
    from tacita.synthesis.generators.private_wgan import second_seed

    assert second_seed(7) not in (7, 8)
    assert second_seed(None) is None


def test_rows_of_an_array_are_released_as_they_came(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", inputs=rng.random((200, 6)), targets=rng.integers(0, 2, 200))
    data = {
        "file": str(tmp_path / "rows.npz"),
        "nominal_size": 200,
        "inputs": {"low": 0, "high": 1, "shape": [6]},
        "targets": {"classes": ["a", "b"]},
    }
    made = Recipe.from_dict({"data": data, "epsilon": 2.0, "samples": 30, "steps": 2})
    start(made, tmp_path / "run").run(lambda step, doing: None, quality=False)
    found = released_dataset(tmp_path / "run")
    assert found.inputs.shape == (30, 6)
    assert found.inputs.min() >= 0.0


# What a careless user meets.


@pytest.mark.parametrize("generator", ["mean-embedding", "private-wgan"])
def test_a_budget_that_leaves_nothing_but_noise_is_refused_in_a_line(generator, tmp_path):
    asked = ("--data", "digits", "--generator", generator, "--epsilon", 0.001, "--run-dir", tmp_path / "run")
    done = tacita("synthesise", *asked)
    assert isinstance(done.exception, ValueError)
    assert "larger epsilon" in str(done.exception)
    assert not (tmp_path / "run").exists()  # and there is nothing to go on with


UNMEASURED = "measuring: it ends here, as these records do not allow more"


def test_too_few_records_to_measure_end_with_the_same_label_and_a_line_without_their_number(tmp_path, monkeypatch):
    monkeypatch.setattr(quality, "measure_utility", lambda *_, **__: None)  # slow, and it measures nine records too
    told, pages = [], []
    for held in (9, 10):
        task = prepare(recipe(epsilon=2.0))
        few = replace(task, train=tuple(t[:99] for t in task.train), held=tuple(t[:held] for t in task.held))
        monkeypatch.setattr("tacita.synthesis.jobs.prepare", lambda _, t=few: t)
        folder = tmp_path / str(held)
        job = start(recipe(epsilon=2.0), folder)
        measured = {"quality": held == 9, "report": lambda said: told.append(f"measuring: {said}")}
        label = job.run(lambda step, doing: None, **measured)
        assert not (folder / "quality.html").exists()
        assert label == Label.from_dict(json.loads((folder / "guarantee.json").read_text()))
        pages.append((folder / "label.html").read_bytes())
    assert pages[0] == pages[1]
    assert sum(said.startswith(UNMEASURED) for said in told) == 1
    why = (tmp_path / "9" / "quality.txt").read_text()
    assert "held_out must hold at least 10 records" in why
    assert "9" not in why


def test_data_of_one_class_end_with_a_label_and_a_line_instead_of_a_quality_page(tmp_path):
    """The budget is of the command, as the recipe has none."""
    (tmp_path / "people.csv").write_text(CSV.replace(",no\n", ",yes\n"))
    (tmp_path / "people.toml").write_text(TOML.replace("epsilon = 2.0\n", ""))
    asked = ("--config", tmp_path / "people.toml", "--epsilon", 3, "--run-dir", tmp_path / "run")
    done = tacita("synthesise", *asked, "--ledger", tmp_path / "new.sqlite")
    assert done.exit_code == 0, done.exception
    assert UNMEASURED in done.output
    assert "one class" not in done.output
    assert "new ledger, without a budget" in done.output
    assert "Their quality" not in done.output
    folder = tmp_path / "run"
    assert 2.9 < label_of_run(folder).worst.epsilon <= 3.0
    assert (folder / "label.html").is_file()
    assert not (folder / "quality.html").exists()


def test_records_without_a_promise_are_not_called_safe(tmp_path):
    asked = ("--data", "digits", "--generator", "wgan-gp", "--steps", 3, "--samples", 20, "--no-quality")
    done = tacita("synthesise", *asked, "--run-dir", tmp_path / "run")
    assert "released (not protected" in done.output


def test_where_the_worst_case_leaves_no_outlier_any_number_may_be_released(embedding_run):
    _, label = embedding_run
    far = quality.outlier_control(lambda delta: 2.7)
    assert quality._how_many(far, label).startswith("As many as you like")
    near = quality.outlier_control(lambda delta: 1.5)
    assert quality._how_many(near, label) == near.sentence
