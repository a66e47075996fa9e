"""One noisy sum of people with several records: what one person adds to the shipped sum, and what is said of it."""

import json

import numpy as np
import pytest
import torch

from tacita import PrivacyError, runs
from tacita._progress import quiet
from tacita.accounting import gaussian_release
from tacita.ledger import Ledger
from tacita.synthesis import embedding as E
from tacita.synthesis.features import Moments, fourier
from tacita.synthesis.jobs import start
from tacita.synthesis.labels import label_of_run
from tacita.synthesis.recipes import Recipe
from tests.synthesis.short_runs import recipe

SHAPE = (5,)
MAPS = [Moments(SHAPE), fourier(SHAPE, 20, scale=1.0), lambda records: 1e30 * records]
COLUMNS = {"age": {"type": "real", "low": 0, "high": 100}, "job": {"type": "category", "values": ["a", "b"]}}


@pytest.mark.parametrize("features", MAPS, ids=["moments", "fourier", "too long"])
def test_adding_a_person_changes_the_sum_by_at_most_one(features, rng):
    """20 random tables, everybody removed once; a person's records may all be alike, bad, or of several classes."""
    longest = 0.0
    for _ in range(20):
        persons = np.repeat(np.arange(6), rng.integers(1, 5, size=6))[rng.permutation(6)[0] :]
        values, odds = [-3e38, 0.0, 1.0, np.nan, 7.0], [0.02, 0.2, 0.48, 0.02, 0.28]
        inputs = torch.from_numpy(rng.choice(values, p=odds, size=(len(persons), 5)))
        inputs[persons == persons[0]] = 1.0
        labels = torch.from_numpy(rng.integers(-1, 3, size=len(persons)))
        labels[torch.from_numpy(persons == persons[0])] = 1
        whole = E.embedding_sum(inputs, labels, 3, features, persons=persons)
        for gone in np.unique(persons):
            left = torch.from_numpy(persons != gone)
            rest = E.embedding_sum(inputs[left], labels[left], 3, features, persons=persons[left.numpy()])
            longest = max(longest, float((whole - rest).norm()))
    assert 0.99 < longest <= 1.0


def test_records_summed_plainly_would_add_more():
    """The same people, without being told apart: the test above can fail."""
    inputs, labels = torch.ones(3, 5), torch.ones(3, dtype=torch.int64)
    assert float(E.embedding_sum(inputs, labels, 3, MAPS[0]).norm()) > 2.9
    together = E.embedding_sum(inputs, labels, 3, MAPS[0], persons=np.zeros(3, dtype=np.int64))
    assert 0.99 < float(together.norm()) <= 1.0
    alone = E.embedding_sum(inputs, labels, 3, MAPS[0], persons=np.arange(3))
    assert torch.equal(alone, E.embedding_sum(inputs, labels, 3, MAPS[0]))
    with pytest.raises(ValueError, match="one person for each record"):
        E.embedding_sum(inputs, labels, 3, MAPS[0], persons=np.zeros(2, dtype=np.int64))


def table(folder, *, people=120, longest=6, seed=0):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(people), rng.integers(1, longest, size=people))
    rows = [f"P{one},{rng.integers(20, 80)},{'ab'[i % 2]},{'yes' if i % 3 else 'no'}" for i, one in enumerate(ids)]
    (folder / "visits.csv").write_text("\n".join(["patient,age,job,ill", *rows, ""]))
    return {
        "file": str(folder / "visits.csv"),
        "target": "ill",
        "person": "patient",
        "nominal_size": 100,
        "columns": COLUMNS | {"ill": {"type": "bool"}},
    }


def asked(data, **changes):
    plain = {"data": data, "epsilon": 5.0, "samples": 40, "steps": 3, "records_per_person": 2, "seed": 1}
    return Recipe.from_dict(plain | changes)


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("visits")
    label = start(asked(table(folder)), folder / "run").run(quality=False)
    return folder / "run", label


def test_the_label_the_ledger_and_the_figures_speak_of_persons(visits):
    folder, label = visits
    noise = runs.read_json(folder, "run.json")["plan"]["noise_multiplier"]
    assert (label.worst.unit, label.worst.neighbours) == ("person", "add_remove")
    assert label.worst.epsilon == gaussian_release(noise_multiplier=noise, delta=1e-5).epsilon <= 5.0
    assert {figure.unit for figure in label.readings.typical} == {"person"}
    codes = {assumption.code for assumption in label.checks}
    assert {"person-vectors", "ids-are-people"} <= codes
    assert not {"unit-vectors", "record-is-person"} & codes
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        assert ledger.unit == "person"
    assert "mean of vectors" in label.public().html()
    assert label_of_run(folder).worst == label.worst


def test_ids_are_not_synthesised(visits):
    folder, _ = visits
    assert (folder / "released" / "samples.csv").read_text().splitlines()[0] == "age,job,ill"
    assert "patient" not in (folder / "released" / "schema.toml").read_text()


@pytest.mark.slow
def test_quality_is_measured_on_one_record_of_each_person(tmp_path):
    job = start(asked(table(tmp_path), holdout_rate=0.4), tmp_path / "run")
    label = job.run(quality=True)
    found = json.loads((tmp_path / "run" / "quality.json").read_text())
    assert found["holdout"]["records"] == min(len(set(whose)) for whose in job.maker.task.persons)
    assert label.readings.audit[0].state == "not-refuted"
    assert (tmp_path / "run" / "quality.html").exists()


def test_followed_people_count_with_their_longest_record_not_the_one_that_was_drawn(tmp_path):
    job = start(asked(table(tmp_path), epsilon=None, noise_multiplier=2.0), tmp_path / "run")
    maker = job.maker
    inputs, persons = maker.task.train[0], maker.task.persons[0]
    panel = maker._followed(inputs, persons)
    norms = E.contribution_norms(inputs, maker.features).numpy()
    for person, level in zip(panel.indices, panel.mean_norms, strict=True):
        assert level == pytest.approx(norms[persons == person].max())
    assert len(panel.indices) == len(set(persons))


def test_at_most_so_many_records_of_a_person_count(tmp_path, monkeypatch):
    maker = start(asked(table(tmp_path)), tmp_path / "run").maker
    seen = []
    whole = E.embedding_sum

    def noted(inputs, labels, classes, features, *, persons):
        seen.append(np.bincount(persons))
        return whole(inputs, labels, classes, features, persons=persons)

    monkeypatch.setattr(E, "embedding_sum", noted)
    maker.run(quiet)
    assert len(seen) == 1
    assert seen[0].max() == 2
    assert (seen[0] > 0).sum() == len(set(maker.task.persons[0]))
    assert (maker.facts.trained, maker.facts.held_out) == tuple(len(set(whose)) for whose in maker.task.persons)
    each = maker.task.one_each(np.random.default_rng(0))
    assert [len(part[1]) for part in (each.train, each.held)] == [len(set(w)) for w in maker.task.persons]
    assert each.persons is None


def test_the_public_page_does_not_depend_on_how_many_there_are(tmp_path):
    pages = []
    for name, people, longest in (("few", 60, 3), ("many", 150, 9)):
        (tmp_path / name).mkdir()
        data = table(tmp_path / name, people=people, longest=longest)
        label = start(asked(data), tmp_path / name / "run").run(quality=False)
        pages.append(json.dumps(label.public().to_dict()))
    assert pages[0] == pages[1]


@pytest.mark.parametrize("generator", ["private-wgan", "wgan-gp", "papers-wgan"])
def test_other_generators_refuse_people_by_name(generator, tmp_path):
    own = {"epsilon": None} if generator != "private-wgan" else {}
    with pytest.raises(ValueError, match="records_per_person is for mean-embedding, not"):
        asked(table(tmp_path), generator=generator, **own)
    with pytest.raises(ValueError, match=f"person is for mean-embedding: {generator} protects one record"):
        asked(table(tmp_path), generator=generator, records_per_person=None, **own)


def test_the_column_and_the_number_of_records_go_together(tmp_path):
    with pytest.raises(ValueError, match="go together"):
        asked(table(tmp_path), records_per_person=None)
    with pytest.raises(ValueError, match="go together"):
        recipe(epsilon=2.0, records_per_person=2)
    with pytest.raises(ValueError, match="records_per_person must be"):
        asked(table(tmp_path), records_per_person=0)


def test_a_ledger_for_records_is_refused(tmp_path):
    place = tmp_path / "shared.sqlite"
    Ledger.create(place).close()
    with pytest.raises(PrivacyError, match="one record"):
        start(asked(table(tmp_path), ledger=str(place)), tmp_path / "run")
