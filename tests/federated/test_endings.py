"""When a federation ends may depend on its data: its label speaks of declared ends alone."""

import numpy as np
import pytest
import torch
from torch import nn

from tacita import PrivacyError
from tacita.federated import Federation, federation_plan
from tacita.federated.labels import figures
from tacita.federated.participation import hidden_participation
from tacita.federated.storage import declare_end, label_of_run
from tacita.ledger import Ledger

LEVELS = {
    "client": {"noise_multiplier": 2.0},
    "parallel": {"record_clip_norm": 1.0, "record_noise_multiplier": 2.0, "local_batch": 5, "local_size": 10},
    "sequential": {"record_clip_norm": 1.0, "record_noise_multiplier": 2.0, "local_batch": 5, "local_size": 10},
    "joint": {"noise_multiplier": 2.0, "record_clip_norm": 1.0, "local_batch": 5, "local_size": 10},
}


def federation(level="client", *, run_dir=None, ledger=None, seed=None, clients=6, **declared):
    rate = 1.0 if level == "sequential" else 0.5
    plan = federation_plan(
        **{"level": level, "clients": clients, "client_rate": rate, "rounds": 6, **LEVELS[level], **declared}
    )
    draws = torch.Generator().manual_seed(1)
    data = [(torch.randn(10, 3, generator=draws), torch.arange(10) % 2) for _ in range(clients)]
    options = {"panel": 0, "record_panel": 0, "run_dir": run_dir, "ledger": ledger, "seed": seed, "name": "the same"}
    return Federation(nn.Linear(3, 2), nn.functional.cross_entropy, data, plan, **options)


def take(made, rounds):
    for now in made:
        if now.number == rounds:
            break
    return made


@pytest.mark.parametrize("level", LEVELS)
def test_f21_a_federation_stopped_early_is_labelled_with_its_plan(level, tmp_path):
    pages = set()
    for rounds in (2, 4):
        made = take(federation(level, run_dir=tmp_path / str(rounds)), rounds)
        label = made.label()
        pages.add(label.public().html())
        assert label_of_run(tmp_path / str(rounds)).worst == label.worst
        assert figures(made.server)[label.worst.unit] == label.worst.epsilon
        assert dict(label.readings.facts)["Rounds taken"].startswith(f"{rounds} of 6")
    assert len(pages) == 1
    plan = made.plan
    steps = plan.rounds * plan.steps_a_round
    whole = plan.client_worst(6, plan.delta) if plan.of_clients else plan.record_worst(steps, plan.delta)
    assert label.worst.epsilon == whole.epsilon


@pytest.mark.parametrize(
    "level", ["client", *(pytest.param(x, marks=pytest.mark.slow) for x in ("joint", "sequential"))]
)
def test_an_end_is_labelled_with_what_attacks_on_the_whole_federation_achieve(level):
    made = federation(level, stops=(2,))
    plan, early, late = made.plan, take(made, 1).label().worst, made.run().label().worst
    whole = plan.client_worst(6, 1e-5) if plan.of_clients else plan.record_worst(6 * plan.steps_a_round, 1e-5)
    assert early.epsilon < late.epsilon
    assert early.attack_success == late.attack_success == whole.attack_success
    assert early.curve == whole.curve


def test_who_took_part_so_far_says_nothing_of_the_rounds_to_come():
    """At level parallel the busiest client counts, for the rounds taken alone."""
    made = take(federation("parallel", stops=(2,), seed=3), 2)
    said, plan = made.label().worst, made.plan
    assert said.attack_success == plan.record_worst(6 * plan.steps_a_round, 1e-5).attack_success


def test_f21_the_busiest_client_counts_once_all_rounds_were_taken():
    made = take(federation("parallel", seed=3), 5)
    early = made.label().worst.epsilon
    busiest = made.run().label().worst.epsilon
    assert busiest == made.plan.record_worst(made.server.most_steps, made.plan.delta).epsilon < early


def test_f21_declared_stops_of_a_federation():
    made = federation(stops=(2, 4), delta=3e-5)
    for rounds, end in ((1, 2), (2, 2), (3, 4), (5, 6), (6, 6)):
        label = take(made, rounds).label()
        assert label.worst.epsilon == pytest.approx(made.plan.client_worst(end, 1e-5).epsilon, rel=1e-9)
        assert label.worst.delta == 3e-5
        assert label.end_shown
        assert all(figure.delta == 3e-5 and figure.epsilon >= label.worst.epsilon for figure in label.comparisons)
        assert label.worst.attack_success == made.plan.client_worst(6, 3e-5).attack_success


@pytest.mark.parametrize("level", ["parallel", "sequential", "joint"])
def test_f21_at_any_end_attacks_on_records_are_bounded_by_all_rounds(level):
    """By all rounds, also where coins have shown how often the busiest client took part so far."""
    made = take(federation(level, stops=(2, 4), delta=3e-5), 2)
    label = made.label()
    found = next(figure for figure in (label.worst, *label.comparisons) if figure.unit == "record")
    whole = hidden_participation(made.plan, 6, 3e-5) if level == "joint" else made.plan.record_worst(6, 3e-5)
    assert found.one_end
    assert found.attack_success == whole.attack_success


def test_a_label_shows_records_figures_that_clients_reported_below_the_worst_case():
    made = federation("parallel").run()
    made.server.measured.typical, made.server.measured.unreported = np.array([0.05, 0.04]), set()
    label = made.label()
    assert [figure.epsilon for figure in label.readings.typical] == [0.05, 0.04]
    assert all(0.5 < figure.attack_success <= label.worst.attack_success for figure in label.readings.typical)


def test_f21_an_end_that_the_owner_declares_is_final(tmp_path):
    made = take(federation("joint", run_dir=tmp_path / "run"), 2)
    declare_end(tmp_path / "run", "the machine was needed elsewhere")
    label = made.label()
    assert label.worst.epsilon == made.plan.client_worst(2, made.plan.delta).epsilon
    assert [c.state for c in label.checks if "needed elsewhere" in c.text] == ["open"]
    assert label.end_shown
    with pytest.raises(PrivacyError, match="ended by its owner"):
        made.advance()


def test_f21_a_ledgers_budget_is_the_label_of_a_federation_that_it_ended(tmp_path):
    Ledger.create(tmp_path / "b.sqlite", unit="client", epsilon=4.0, delta=1e-5).close()
    made = federation(ledger=tmp_path / "b.sqlite", rounds=200).run()
    assert 0 < made.server.taken < 200
    assert made.label().worst.epsilon == 4.0
    assert not made.label().end_shown
    assert made.plan.client_worst(made.server.taken, 1e-5).epsilon < 4.0 < made.plan.client_worst(200, 1e-5).epsilon


def test_f23_a_bare_record_rate_is_an_open_assumption():
    declared = {"local_size": None, "record_rate": 5 / 11}
    label = take(federation("parallel", **declared), 1).label()
    assert [c.state for c in label.checks if "chosen without counting these data" in c.text] == ["open"]
    assert "Nothing on this page was computed" not in label.public().html()
    assert "Nothing on this page was computed" in take(federation("parallel"), 1).label().public().html()
