"""The training loop as users call it."""

from statistics import NormalDist

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from tacita._check import PrivacyError
from tacita._numbers import round_up_text
from tacita._progress import quiet
from tacita.accounting import Target, token_budget, token_profile
from tacita.runs import Run
from tacita.training import PrivateTraining
from tacita.training.randomness import randomness
from tests.training.trainings import loss_fn, train


@pytest.mark.parametrize("removed", [0, 150, 299])
def test_f12_divisor_rate_and_steps_do_not_depend_on_the_data(blobs, removed):
    x, y = blobs
    keep = torch.arange(300) != removed
    one, two = train((x, y)), train((x[keep], y[keep]))
    assert one.plan == two.plan
    assert (one.plan.batch_size, one.plan.sample_rate, one.plan.bare_rate) == (30, 0.1, False)


def test_f12_sizes_are_declared(blobs):
    both = {"sample_rate": 0.1, "nominal_size": 300}
    model = nn.Linear(4, 2)
    common = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "steps": 1, "noise_multiplier": 1.0}
    for given in ({"sample_rate": 0.1}, {"batch_size": 30}, {**both}, {"nominal_size": 9}, {**both, "batch_size": 30}):
        with pytest.raises(ValueError, match="Declare batch_size and nominal_size"):
            PrivateTraining(model, loss_fn, blobs, **common, **given)
    with pytest.raises(ValueError, match="batch_size=400 must be at most nominal_size=300"):
        train(blobs, batch_size=400)
    assert train(blobs, sample_rate=0.1017, batch_size=30).plan.bare_rate


def test_f4_a_chosen_seed_is_stamped_and_f5_refused_a_second_time(blobs, tmp_path):
    book = tmp_path / "budget.sqlite"
    first = train(blobs, seed=7, ledger=book)
    label = first.run().label()
    assert any("not secure" in c.text and c.state == "warning" for c in label.checks)
    with pytest.raises(PrivacyError, match="seed"):
        train(blobs, seed=7, ledger=book)
    train(blobs, seed=8, ledger=book)
    assert not any("not secure" in c.text for c in train(blobs).run().label().checks)


def test_runs_without_a_seed_differ_and_runs_with_one_agree(blobs):
    def weights(seed):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        train(blobs, model, seed=seed).run()
        return model.weight.detach().clone()

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(None), weights(None))
    assert randomness(None).fingerprint != randomness(None).fingerprint


def test_noise_for_what_an_attacker_may_achieve(blobs):
    """Steps in which every record takes part are one Gaussian release: right Φ(μ/2) of the time, μ = √steps / noise."""
    target = Target(attack_success=0.6)
    plan = train(blobs, noise_multiplier=None, target=target, steps=50, sample_rate=1.0).plan
    assert NormalDist().cdf(50**0.5 / plan.noise_multiplier / 2) == pytest.approx(0.6, abs=2e-4)


def test_target_budget_and_noise(blobs):
    calibrated = train(blobs, noise_multiplier=None, target=(2.0, 1e-5), steps=50)
    assert 1.9 < calibrated.plan.worst(50, 1e-5).epsilon <= 2.0
    capped = train(blobs, budget=(2.0, 1e-5), steps=500, panel=0)
    assert 0 < capped.plan.steps < 500
    assert (
        capped.plan.worst(capped.plan.steps, 1e-5).epsilon
        <= 2.0
        < capped.plan.worst(capped.plan.steps + 1, 1e-5).epsilon
    )
    assert sum(1 for _ in capped) == capped.plan.steps
    with pytest.raises(PrivacyError, match="does not pay for a single step"):
        train(blobs, budget=(0.01, 1e-5))
    with pytest.raises(ValueError, match="and not both"):
        train(blobs, target=(1.0, 1e-5))
    with pytest.raises(ValueError, match="and not both"):
        train(blobs, noise_multiplier=None)


def test_a_budget_needs_individual_bounds(blobs):
    with pytest.raises(ValueError, match="individual_every"):
        train(blobs, record_budget=token_budget({1.0: 5}))


def test_a_filter_lets_calibration_use_less_noise(blobs):
    profile = token_profile({1.0: 0.3, 0.2: 0.7}, steps=100)
    settings = {"noise_multiplier": None, "target": (2.0, 1e-5), "steps": 100, "panel": 0}
    plain = train(blobs, **settings)
    held = train(blobs, **settings, individual_every=10, record_budget=profile)
    assert held.plan.noise_multiplier < 0.8 * plain.plan.noise_multiplier
    assert held.plan.worst(100, 1e-5).epsilon <= 2.0


class Dicts(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"features": self.x[i], "labels": self.y[i]}


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, features):
        return self.layer(features)


def test_datasets_of_all_kinds(blobs):
    x, y = blobs
    for data in (blobs, TensorDataset(x, y), (x.numpy(), y.numpy()), list(zip(x, y, strict=True))):
        train(data, steps=2).run()
    train(Dicts(x, y), Named(), steps=2).run()
    train({"features": x, "labels": y}, Named(), steps=2).run()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_any_optimiser_groups_and_schedulers(blobs, name):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model[0].bias.requires_grad_(False)
    before = model[0].bias.clone()
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters(), "lr": 0.1}]
    optimizer = getattr(torch.optim, name)(groups)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    train(blobs, model, optimizer=optimizer, scheduler=scheduler, steps=4).run()
    assert torch.equal(model[0].bias, before)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.025)


def test_regression_and_training_really_learns(blobs):
    x, y = blobs
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    def squared(output, target):
        return nn.functional.mse_loss(output[:, 0], target)

    PrivateTraining(
        model,
        squared,
        (x, x.sum(1) / 4),
        optimizer=optimizer,
        batch_size=60,
        nominal_size=300,
        steps=60,
        noise_multiplier=0.5,
        panel=0,
    ).run()
    assert torch.corrcoef(torch.stack([model(x)[:, 0].detach(), x.sum(1)]))[0, 1] > 0.95
    classifier = nn.Linear(4, 2)
    train((x, y), classifier, lr=0.5, steps=60, panel=0).run()
    assert (classifier(x).argmax(1) == y).float().mean() > 0.95


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": [1, 2, 3]}, "could not be read|do not fit|must be a tuple"),
        ({"data": (torch.zeros(30, 5), torch.zeros(30, dtype=torch.long))}, "run on no record of"),
        ({"data": (torch.zeros(30, 4), torch.zeros(29, dtype=torch.long))}, "must have one length"),
        ({"data": (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))}, "at least one record"),
        ({"data": iter([])}, "map-style"),
        ({"sample_rate": 1.2}, "not a probability"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be in"),
        ({"seed": "seven"}, "seed must be a whole number"),
        ({"rng": 7}, "rng is called seed now"),
        ({"panel": -1}, "panel must be a whole number"),
        ({"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1)}, "not the model's"),
        ({"model": nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))}, "BatchNorm1d at '1' mixes records"),
    ],
)
def test_wrong_input_gets_one_clear_line(blobs, change, words):
    arguments = {"data": blobs, **change}
    with pytest.raises((ValueError, TypeError), match=words) as error:
        train(arguments.pop("data"), **arguments)
    assert "\n" not in str(error.value)


def test_s5_errors_do_not_quote_records():
    x, y = torch.full((30, 5), 4242.0), torch.full((30,), 77)
    with pytest.raises(ValueError, match="run on no record") as error:
        train((x, y))
    assert "4242" not in str(error.value)
    assert "77" not in str(error.value)


def test_a_buffer_that_remembers_records_is_refused(blobs):
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen = self.seen + x.detach().sum(0)
            return self.layer(x)

    class InPlace(Remembers):
        def forward(self, x):
            self.seen += x.detach().sum(0)
            return self.layer(x)

    for kind in (Remembers, InPlace):
        with pytest.raises(PrivacyError, match=r"[Bb]uffer"):
            train(blobs, kind())


def test_parameters_that_stop_being_finite_stop_the_run(blobs):
    with pytest.raises(ValueError, match="not finite after step"):
        train(blobs, lr=1e38, noise_multiplier=1e4, steps=5, panel=0).run()


def test_scalars_and_unfit_optimisers(blobs):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(4, 2), nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.scale * self.layer(x)

    train(blobs, Scaled(), steps=2).run()
    model = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="LBFGS"):
        train(blobs, model, optimizer=torch.optim.LBFGS(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ValueError, match="looks at the loss"):
        train(blobs, model, optimizer=optimizer, scheduler=plateau)
    with pytest.raises(ValueError, match="noise_multiplier must be in"):
        train(blobs, noise_multiplier=1e5)
    silent = train(blobs, individual_every=5, record_budget=token_budget({1.0: 0}), steps=10).run()
    assert silent.label().worst.epsilon == 1e-6


def test_run_shows_a_line_for_every_tenth_where_nobody_sees_a_bar(blobs, capsys):
    private = train(blobs, steps=20, panel=0).run()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[-1] == f"step 20/20: epsilon {round_up_text(private.label().worst.epsilon)} at delta 0.00001"
    seen = []
    train(blobs, steps=3, panel=0).run(lambda *now: seen.append(now))
    assert seen == [(1, 3, "step"), (2, 3, "step"), (3, 3, "step")]
    assert capsys.readouterr().err == ""


def test_a_training_and_its_run_say_in_a_line_how_they_stand(blobs, tmp_path):
    private = train(blobs, run_dir=tmp_path / "<b>", steps=3, panel=0)
    assert repr(private).startswith("<PrivateTraining '<b>': step 0 of 3, running; epsilon ")
    private.run(quiet)
    epsilon = round_up_text(private.label().worst.epsilon)
    assert f"step 3 of 3, done; epsilon {epsilon} at delta 0.00001, in " in repr(private)
    shown = Run.open(tmp_path / "<b>")._repr_html_()
    assert "(training, done)" in shown
    assert "label.html" in shown
    assert "<b>" not in shown
