"""Runs whose unit is the person: what is drawn, charged, followed, published and kept."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

from tacita._check import PrivacyError
from tacita.accounting import NORM_LEVELS
from tacita.ledger import Ledger
from tacita.training import Plan, label_of_run, record_norms
from tests.training.trainings import again, start, train

IDS = np.arange(300) % 60  # five records each
K = {"records_per_person": 2, "nominal_size": 60, "batch_size": 20}


def several(blobs, **settings):
    return train(blobs, **{"person": IDS, **K, "panel": 0, **settings})


def test_a_step_draws_whole_persons_by_one_coin_each(blobs):
    private = several(blobs, steps=60, seed=1)
    counts, sizes = np.zeros(60), []
    for _ in private:
        drawn = private.mechanism.drawn
        counts[drawn] += 1
        sizes.append(len(drawn))
    assert counts.max() < 60 * (1 / 3) + 5.5 * np.sqrt(60 * 2 / 9)
    assert abs(np.mean(sizes) - 20.0) < 5.5 * np.sqrt(60 * 2 / 9 / 60)
    assert np.std(sizes) > 1.5  # Poisson, not a fixed size


def test_f20_a_person_of_any_number_of_records_moves_the_sum_by_at_most_c(blobs):
    x, y = blobs
    private = several((1e3 * x, 1 - y), clip_norm=0.5)
    mechanism, plan, rng = private.mechanism, private.plan, np.random.default_rng(0)
    everybody = np.arange(60)
    state = rng.bit_generator.state

    def total(persons):
        rng.bit_generator.state = state
        sums = mechanism.clipped(persons, np.full(len(persons), 0.5), plan=plan, rng=np.random.default_rng(7)).sums
        return torch.cat([g.flatten() for g in sums.values()]).double()

    for person in (0, 59):  # the last one takes no other's fresh subset along
        alone = total(everybody[[person]])
        assert 0.4999 < float(alone.norm()) <= 0.5 * (1 + 1e-6)
    assert float((total(everybody) - total(everybody[:-1])).norm()) <= 0.5 * (1 + 1e-5)


def test_a_persons_bound_is_that_of_the_largest_norm_of_all_records(blobs):
    private = several(blobs, individual_every=1, steps=4)
    step = private.advance()
    model = nn.Linear(4, 2)
    model.load_state_dict(private.remake()[0].state_dict())  # as the step found it
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    own = record_norms(private.mechanism.loss, parameters, blobs).numpy().clip(max=1.0)
    largest = own.reshape(5, 60).max(0)
    levels = private._stepper.state.panels["training"].levels
    assert len(levels) == 60
    assert (NORM_LEVELS[levels] >= largest * (1 - 1e-6)).all()
    assert (NORM_LEVELS[levels - 1] < largest * (1 + 1e-6)).all()
    assert step.spent.unit == "person"


def test_f23_the_public_page_is_the_same_whoever_takes_part_with_however_many_records(blobs, tmp_path):
    x, y = blobs
    rows = np.arange(300)
    kept = [rows, rows[IDS != 3], np.concatenate([rows[:299], rows[IDS == 3]])]
    pages, owners = set(), set()
    for i, some in enumerate(kept):
        private = several(
            (x[some], y[some]), person=IDS[some], run_dir=tmp_path / str(i), name="a run", steps=2, individual_every=2
        )
        private.run().label()
        pages.add((tmp_path / str(i) / "label.html").read_bytes())
        owners.add((tmp_path / str(i) / "label-owner.html").read_text())
    assert len(pages) == 1
    assert len(owners) == len(kept)
    page = pages.pop().decode()
    assert "60 persons" in page  # the nominal size
    assert "at most 2, drawn afresh" in page
    assert "One record is one person" not in page
    assert "ids in the data tell people apart" in page


def test_a_label_speaks_of_persons_and_every_figure_is_theirs(blobs):
    held = np.repeat(np.arange(100, 140), 3)[:100]
    groups = {"class": blobs[1].numpy(), "shift": IDS % 2}
    private = several(
        blobs, holdout=(blobs[0][:100], blobs[1][:100]), holdout_person=held, groups=groups, individual_every=2
    )
    label = private.run().label()
    own = label.readings
    assert {g.unit for g in (label.worst, *label.comparisons, *own.typical)} == {"person"}
    assert dict(own.facts)["Training persons"] == "60"
    assert dict(own.facts)["Held-out persons"] == "34"
    assert sum(row.records for row in own.groups if row.column == "shift") == 60
    assert {row.value for row in own.groups if row.column == "shift"} == {"0", "1"}
    assert "(several)" in {row.value for row in own.groups if row.column == "class"}
    codes = {a.code for a in label.worst.assumptions}
    assert {"person-coins", "person-clipped", "persons-apart", "person-rungs", "ids-are-people"} <= codes
    said = {a.code for g in own.typical for a in g.assumptions} | {a.code for a in own.checks} | codes
    assert not {"record-coins", "clipped", "record-is-person", "representative", "observed-norms", "no-trend"} & said


def test_without_ids_the_label_says_that_one_record_is_one_person(blobs):
    codes = {a.code for a in train(blobs, panel=0, steps=3).run().label().worst.assumptions}
    assert "record-is-person" in codes
    assert "ids-are-people" not in codes


def test_training_and_held_out_people_are_apart(blobs):
    held = {"holdout": (blobs[0][:3], blobs[1][:3]), "panel": 8}
    with pytest.raises(PrivacyError, match="split the data by person"):
        several(blobs, **held, holdout_person=[100, 59, 101])
    with pytest.raises(PrivacyError, match="need ids too"):
        several(blobs, **held)
    with pytest.raises(ValueError, match="texts and others"):
        several(blobs, **held, holdout_person=["100", "59", "101"])
    declared = several(blobs, **held, holdout_person=[None] * 3, missing_person="own")
    assert len(declared.mechanism.parts["held-out"]) == 3
    with pytest.raises(ValueError, match="holdout_person=… needs person"):
        train(blobs, **held, holdout_person=[1, 2, 3])


def test_ids_and_plan_must_speak_of_the_same_unit(blobs):
    with pytest.raises(ValueError, match="needs records_per_person"):
        train(blobs, person=IDS)
    with pytest.raises(ValueError, match="pass person="):
        train(blobs, records_per_person=2)
    with pytest.raises(PrivacyError, match="exact' is for records"):
        several(blobs, noise="exact")
    for count in (0, 1.5, "2"):
        with pytest.raises((TypeError, ValueError), match="records_per_person"):
            several(blobs, records_per_person=count)


def test_a_ledger_of_records_takes_no_persons_and_the_other_way_round(blobs):
    with Ledger.create(":memory:") as records, Ledger.create(":memory:", unit="person") as persons:
        with pytest.raises(PrivacyError, match="protects one record, got costs for one person"):
            several(blobs, ledger=records).advance()
        with pytest.raises(PrivacyError, match="protects one person, got costs for one record"):
            train(blobs, ledger=persons, panel=0).advance()
        several(blobs, ledger=persons).advance()
        assert persons.spent(1e-5).unit == "person"


def test_a_resumed_run_keeps_its_persons(blobs, tmp_path):
    with pytest.raises(ValueError, match="pass person="):
        start(tmp_path / "run", blobs, **K, panel=0)
    private, _ = start(tmp_path / "run", blobs, person=IDS, **K, panel=0, seed=None)
    private.advance()
    private.pause()
    for other, words in ((None, "pass person="), (np.arange(300) // 5, "other persons"), (IDS // 2, "other persons")):
        with pytest.raises(ValueError, match=words):
            again(tmp_path / "run", blobs, person=other)
    resumed, _ = again(tmp_path / "run", blobs, person=IDS)
    assert (resumed.plan.unit, resumed.plan.records_per_person) == ("person", 2)
    resumed.advance()
    resumed.pause()
    assert label_of_run(tmp_path / "run").worst.unit == "person"


def test_a_plan_for_persons_is_kept_as_declared():
    plan = Plan.declare(steps=3, batch_size=2, nominal_size=10, noise_multiplier=1.0, records_per_person=4)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert plan.frozen()["unit"] == '"person"'
    plain = Plan.declare(steps=3, batch_size=2, nominal_size=10, noise_multiplier=1.0)
    assert "records_per_person" not in plain.to_dict()  # ledgers froze plans without it


def test_one_record_each_is_the_same_as_no_ids(blobs):
    """The unit is called otherwise; what is computed is the same, number by number."""
    found = []
    for settings in ({}, {"person": np.arange(300), "records_per_person": 3}):
        torch.manual_seed(0)
        private = train(blobs, panel=0, seed=5, steps=5, **settings).run()
        found.append(private.model.weight.detach().clone())
    assert torch.equal(*found)


TWO = """
    import sys, numpy as np, torch, torch.distributed as dist
    from torch import nn
    from tacita.training import PrivateTraining
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if len(sys.argv) > 2:
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=int(sys.argv[2]), world_size=2)
    model, y = nn.Linear(4, 2), torch.arange(300) % 2
    private = PrivateTraining(
        model, nn.functional.cross_entropy, (torch.randn(300, 4) + y[:, None], y), steps=4, batch_size=20,
        nominal_size=60, noise_multiplier=1.0, person=np.arange(300) % 60, records_per_person=5, individual_every=2,
        seed=3, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), ledger=":memory:",
    ).run()
    print(model.weight.flatten().tolist())
    sys.stdout.flush()
    __import__("os")._exit(0)
"""


@pytest.mark.slow
def test_two_processes_split_a_step_by_person_and_find_the_same_model(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(TWO), str(tmp_path)]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    team = [
        subprocess.Popen([*command, rank], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in "01"
    ]
    ended = [process.communicate(timeout=300) for process in team]
    found = [json.loads(out.splitlines()[-1]) for out, _ in ended]
    assert found[0] == found[1], ended
    np.testing.assert_allclose(found[0], json.loads(alone.stdout.splitlines()[-1]), rtol=1e-5)
