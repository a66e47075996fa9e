"""When a run ends may depend on the data: what its label says then, and what it never tells."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

import tacita
from tacita import PrivacyError
from tacita.accounting import moments_budget, token_budget
from tacita.guarantee import Guarantee, attack_success
from tacita.ledger import Ledger
from tacita.training import PrivateTraining, label_of_run
from tacita.training.labels import declare_end
from tacita.training.plan import Plan, declared_stops

loss_fn = nn.functional.cross_entropy
MECHANISM = {"sample_rate": 0.1, "noise_multiplier": 1.0}


@pytest.fixture
def blobs():
    y = torch.arange(300) % 2
    return torch.randn(300, 4, generator=torch.Generator().manual_seed(0)) + 2.0 * y[:, None], y


def train(data, *, model=None, **settings):
    model = model if model is not None else nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes = {"batch_size": 30, **({} if "sample_rate" in settings else {"nominal_size": 300})}
    settings = {**sizes, "steps": 40, "noise_multiplier": 1.0, "panel": 4, **settings}
    return PrivateTraining(model, loss_fn, data, optimizer=optimizer, **settings)


def take(private, steps):
    for step in private:
        if step.number == steps:
            break
    return private


def worst(steps, delta=1e-5):
    return tacita.worst_case(steps=steps, delta=delta, **MECHANISM).epsilon


def test_f21_a_run_stopped_early_is_labelled_with_its_plan(blobs, tmp_path):
    private = take(train(blobs, run_dir=tmp_path / "run"), 7)
    label = private.label()
    assert label.worst.epsilon == worst(40)
    assert label_of_run(tmp_path / "run").worst == label.worst
    assert label.curve[-1] == (40, label.worst.epsilon)
    assert any("chosen from released outputs" in c.text and c.state == "open" for c in label.checks)
    assert dict(label.readings.facts)["Steps taken"].startswith("7 of 40")


@pytest.mark.parametrize("seed", range(3))
def test_f21_a_data_dependent_break_leaves_equal_public_pages(blobs, tmp_path, seed):
    """A record that raises the loss ends the loop when it is drawn: at another step in every run, or never."""
    x, y = blobs
    odd = torch.full((1, 4), 1e4 * (1 + seed))
    pages, taken = set(), set()
    for number, data in enumerate(((x, y), (torch.cat([x, odd]), torch.cat([y, torch.tensor([0])])))):
        model = nn.Linear(4, 2)
        nn.init.zeros_(model.bias)
        model.weight.data = torch.tensor([[-1.0] * 4, [1.0] * 4])  # the odd record's class is 0: its loss is huge
        private = train(data, model=model, run_dir=tmp_path / str(number), name="the same", steps=60, seed=seed)
        for step in private:
            if step.loss > 50:
                break
        taken.add(private.taken)
        private.label()
        pages.add((tmp_path / str(number) / "label.html").read_bytes())
    assert len(pages) == 1
    assert len(taken) == 2, "the break must depend on the record, or the test shows nothing"


def test_f21_declared_stops_are_labelled_each_at_its_share_of_delta(blobs):
    private = train(blobs, stops=(10, 20), delta=3e-5)
    assert private.plan.stops == ((10, 1 / 3), (20, 1 / 3), (40, 1 / 3))
    seen = {}
    for step in private:
        seen[step.number] = step.spent.epsilon
        if step.number in (5, 10, 11, 20):
            label = private.label()
            assert label.worst.epsilon == step.spent.epsilon
            assert label.worst.delta == 3e-5
    for taken, end in ((1, 10), (5, 10), (10, 10), (11, 20), (20, 20), (21, 40), (40, 40)):
        assert seen[taken] == pytest.approx(worst(end, 1e-5), rel=1e-12)
    assert sum(value for _, value in private.label().worst.delta_split) == pytest.approx(3e-5)


def test_f21_stops_may_have_shares_of_their_own(blobs):
    private = take(train(blobs, stops={10: 0.1, 40: 0.9}), 3)
    assert private.label().worst.epsilon == pytest.approx(worst(10, 1e-6), rel=1e-12)
    for stops, words in (
        ({10: 0.5}, "must end at steps=40"),
        ({10: 0.6, 40: 0.6}, "add up to at most 1"),
        ((50,), "at most steps=40"),
        ((0,), "a stop must be a whole number"),
    ):
        with pytest.raises(ValueError, match=words):
            train(blobs, stops=stops)
    with pytest.raises(ValueError, match="give one of them"):
        train(blobs, stops=(10,), budget=(3.0, 1e-5))


def test_f21_at_any_end_attacks_are_bounded_by_the_whole_plan():
    """A run may be one that hardly ever ends early, and its label that of the first end all the same.

    Without sampling T steps are one Gaussian release: the best attack is right Φ(√T / 2σ) of the time, whatever the
    label says. The first end's pair would allow less than that.
    """
    plan = Plan.declare(steps=64, sample_rate=1.0, batch_size=1, noise_multiplier=16.0, stops=(1, 8), delta=3e-6)
    exact, rates = norm.cdf(8.0 / 32.0), (1e-3, 0.01, 0.1)
    for taken in (1, 5, 64):
        found = plan.headline(taken, 3e-6)
        assert exact <= found.attack_success <= exact + 1e-3
        for rate in rates:
            best = norm.cdf(norm.ppf(rate) + 0.5)
            assert best <= found.curve.tpr(rate) <= best + 1e-3
    first = plan.headline(1, 3e-6)
    assert attack_success(first.epsilon, first.delta) < exact - 0.03
    assert "whichever of its declared ends" in first.claim
    assert Guarantee.from_dict(json.loads(json.dumps(first.to_dict()))) == first


def test_a_record_budget_has_the_curve_of_its_tokens():
    """Without sampling, 16 tokens at half of the clip norm are one Gaussian release of distance √16 / 2σ."""
    declared = {"steps": 40, "sample_rate": 1.0, "batch_size": 1, "noise_multiplier": 8.0, "individual_every": 1}
    by_tokens = Plan.declare(**declared, record_budget=token_budget({0.5: 16})).headline(40, 1e-5)
    exact = norm.cdf(0.25 / 2.0)
    assert exact <= by_tokens.attack_success <= exact + 1e-3
    kept = moments_budget(steps=16, sample_rate=1.0, noise_multiplier=8.0, level=0.5)
    by_moments = Plan.declare(**declared, record_budget=kept).headline(40, 1e-5)
    assert by_moments.method == "moments filter"
    assert exact <= by_moments.attack_success < norm.cdf(math.sqrt(40) / 16.0)


def test_f21_a_target_is_kept_at_the_last_stop(blobs):
    private = train(blobs, noise_multiplier=None, target=(2.0, 1e-5), stops=(10, 20), panel=0).run()
    assert 1.9 < private.label().worst.epsilon <= 2.0


def test_f21_the_owner_may_declare_an_end(blobs, tmp_path):
    private = take(train(blobs, run_dir=tmp_path / "run"), 7)
    private.end("the machine was needed elsewhere")
    label = private.label()
    assert label.worst.epsilon == worst(7)
    assert label_of_run(tmp_path / "run").worst == label.worst
    assert [c.state for c in label.checks if "the machine was needed elsewhere" in c.text] == ["open"]
    assert label.end_shown
    assert ("Steps", "7 of 40 planned; ended early by its owner") in label.mechanism
    with pytest.raises(PrivacyError, match="ended by its owner"):
        private.run()
    with pytest.raises(PrivacyError, match="ended already"):
        declare_end(tmp_path / "run", "again")


def test_f21_a_run_that_its_owner_ended_cannot_be_resumed(blobs, tmp_path):
    model = nn.Linear(4, 2)
    take(train(blobs, model=model, run_dir=tmp_path / "run"), 7)
    declare_end(tmp_path / "run", "time was up")
    with pytest.raises(PrivacyError, match="ended by its owner"):
        PrivateTraining.resume(
            tmp_path / "run", model, loss_fn, blobs, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
        )
    assert label_of_run(tmp_path / "run").worst.epsilon == worst(7)


def test_f21_no_step_follows_a_declared_end_within_a_charged_block(blobs, tmp_path):
    private = train(blobs, steps=2000, panel=0, run_dir=tmp_path / "run")  # blocks of twenty steps
    for _ in range(3):
        private.advance()
    private.end("the clock")
    with pytest.raises(PrivacyError, match="ended by its owner"):
        private.advance()
    assert private.label().worst.epsilon == worst(3)
    alone = train(blobs, steps=2000, panel=0)  # without a run directory
    alone.advance()
    alone.end("the clock")
    with pytest.raises(PrivacyError, match="ended by its owner"):
        alone.advance()
    running = train(blobs, steps=2000, panel=0, run_dir=tmp_path / "other")
    running.advance()
    with pytest.raises(PrivacyError, match="in use"):
        declare_end(tmp_path / "other", "from elsewhere")


def test_a_second_step_inside_a_step_is_refused(blobs):
    private = train(blobs, steps=1000, panel=0)
    private.optimizer.register_step_post_hook(lambda *_: private.advance())
    with pytest.raises(PrivacyError, match="under way"):
        private.advance()
    assert private.taken == 1 <= private._stepper.keeper.charges.charged


def test_f21_stops_and_a_ledgers_budget_do_not_both_take_the_whole_delta(blobs, tmp_path):
    Ledger.create(tmp_path / "b.sqlite", epsilon=4.0, delta=1e-5).close()
    private = train(blobs, ledger=tmp_path / "b.sqlite", steps=300, stops=(3,), panel=0).run()
    assert private.taken < 300
    assert private.label().worst.epsilon == worst(300, 5e-6)


def test_f21_a_ledgers_budget_is_the_label_of_a_run_that_it_ended(blobs, tmp_path):
    Ledger.create(tmp_path / "b.sqlite", epsilon=6.0, delta=1e-5).close()
    private = train(blobs, ledger=tmp_path / "b.sqlite", steps=300, panel=0).run()
    assert private.taken < 300
    label = private.label()
    assert label.worst.epsilon == 6.0  # the budget: neither the steps taken nor the plan's
    assert worst(private.taken) < 6.0 < worst(300)
    whole = private.plan.worst(300, 1e-5)  # its curve holds as well, and says more about attacks than the pair
    assert label.worst.attack_success == pytest.approx(min(whole.attack_success, attack_success(6.0, 1e-5)))
    assert private.label(delta=1e-6).worst.epsilon == worst(300, 1e-6)  # the budget says nothing at a smaller delta


def test_f21_a_budget_that_was_set_or_raised_later_promises_no_more_than_it_held(blobs, tmp_path):
    Ledger.create(tmp_path / "late.sqlite").close()
    late = take(train(blobs, ledger=tmp_path / "late.sqlite", steps=300, panel=0), 5)
    with Ledger.open(tmp_path / "late.sqlite") as ledger:
        ledger.set_budget(4.0, 1e-5)
    late.run()
    assert late.taken < 300
    assert late.label().worst.epsilon == worst(300)
    Ledger.create(tmp_path / "raised.sqlite", epsilon=4.0, delta=1e-5).close()
    raised = take(train(blobs, ledger=tmp_path / "raised.sqlite", steps=300, panel=0), 5)
    assert raised.label().worst.epsilon == 4.0
    with Ledger.open(tmp_path / "raised.sqlite") as ledger:
        ledger.set_budget(6.0, 1e-5, allow_increase=True)
        ledger.set_budget(5.0, 1e-5)
    assert raised.label().worst.epsilon == 4.0  # nothing was released under the raised budget yet
    assert raised.run().label().worst.epsilon == worst(300)


def delta_of(ratios, epsilons):
    """Return E_P (1 - e^(ε_end - L))_+ of runs that stop once their loss L stands above the label ε of that step.

    It is the largest excess of P(S) over Σ_k e^ε_k Q(S, ended at k), which a label must keep at or below delta.
    """
    above = ratios > epsilons
    ends = np.where(above.any(axis=1), above.argmax(axis=1), ratios.shape[1] - 1)
    loss = ratios[np.arange(len(ratios)), ends]
    return float(np.mean(np.maximum(0.0, 1.0 - np.exp(np.minimum(0.0, epsilons[ends] - loss)))))


@pytest.mark.stat
def test_f21_a_stop_that_looks_at_the_outputs_breaks_the_steps_taken_and_not_the_declared_stops():
    """Stop once the loss stands above the label: by the steps taken delta is passed several times, by stops it is not.

    100,000 runs of 32 Gaussian steps, delta 1e-2; the estimates' standard errors are below 3e-4.
    """
    steps, noise, delta = 32, 6.0, 1e-2
    shifts = np.random.default_rng(5).normal(1.0 / noise, 1.0, size=(100_000, steps)) / noise
    ratios = np.cumsum(shifts - 0.5 / noise**2, axis=1)  # log P/Q, drawn with the record

    def label(count, share):  # so many steps are one release with less noise
        return tacita.accounting.gaussian_release(noise_multiplier=noise / math.sqrt(count), delta=share).epsilon

    taken = np.array([label(t, delta) for t in range(1, steps + 1)])
    assert delta_of(ratios, taken) > 2.0 * delta
    ends = declared_stops((4, 8, 16), steps)
    stops = np.array([next(label(stop, delta * share) for stop, share in ends if stop > t) for t in range(steps)])
    assert delta_of(ratios, stops) <= delta
    assert delta_of(ratios, np.full(steps, label(steps, delta))) <= 1.1 * delta


def test_f23_neighbours_in_size_get_the_same_page_and_the_same_errors(blobs, tmp_path):
    x, y = blobs
    pages, errors = set(), []
    for size in (300, 299, 203, 202, 31):
        data = (x[:size], y[:size])
        private = train(data, run_dir=tmp_path / str(size), name="the same", steps=3, seed=size)
        private.run().label()
        pages.add((tmp_path / str(size) / "label.html").read_text())
        with pytest.raises(ValueError, match="Declare batch_size") as error:
            train(data, sample_rate=100 / 1001, batch_size=None)
        errors.append(str(error.value))
    assert len(pages) == len(set(errors)) == 1
    assert "Nothing on this page was computed from the data" in pages.pop()


def test_f23_a_bare_rate_is_an_open_assumption_and_ends_the_claim_of_the_page(blobs):
    label = train(blobs, sample_rate=100 / 1001, batch_size=100, panel=0, steps=2).run().label()
    assert [c.state for c in label.checks if "chosen without counting these data" in c.text] == ["open"]
    page = label.public().html()
    assert "Nothing on this page was computed from the data" not in page
    assert not label.end_shown
    assert "reveals how many records there are" in page
    everybody = train(blobs, sample_rate=1.0, batch_size=300, panel=0, steps=2).run().label()
    assert "Nothing on this page was computed from the data" in everybody.public().html()


def test_running_figures_are_what_the_label_will_say(blobs):
    private = train(blobs, noise_multiplier=None, target=(3.0, 1e-5), panel=0)
    figures = {step.spent.epsilon for step in private}
    label = private.label()
    assert figures == {label.worst.epsilon}
    assert max(epsilon for _, epsilon in label.curve) == label.worst.epsilon <= 3.0
    assert not math.isnan(label.worst.epsilon)
