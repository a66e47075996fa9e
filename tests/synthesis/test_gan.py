"""The game of critic and generator: a record's loss, the private step, resuming, and the papers' own clipping."""

import numpy as np
import pytest
import torch
from torch import nn

from tacita.audit import canaries
from tacita.synthesis.gan import (
    PENALTY,
    Game,
    Wgan,
    WganTraining,
    adam,
    game_records,
    sample,
    tags_of,
)
from tacita.synthesis.networks import Critic, make_critic, make_generator
from tacita.training import PrivateTraining, private_gradient
from tacita.training.records import record_loss

KINDS = [((1, 16, 16), 3, ()), ((1, 8, 8), 0, ()), ((7,), 2, (1, 4, 2))]


def make_game(shape, classes, blocks=(), width=4, seed=0, **options):
    torch.manual_seed(seed)
    generator = make_generator(shape, classes, blocks=blocks, latent=8, width=4)
    critic = make_critic(shape, classes, width=width, features=8)
    return Game(critic, generator, adam(generator.parameters(), 1e-3), pool=16, batch=16, **options)


def some_records(shape, classes, count=24, seed=1):
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.rand(count, *shape, generator=draws)
    return inputs, torch.randint(max(1, classes), (count,), generator=draws)


def step(game, records, *, chunk=None, noise=0.5, seed=3, divisor=10.0):
    """One private step of the critic, as the training loop takes it."""
    parameters = {n: p.detach() for n, p in game.named_parameters() if n.startswith("critic.")}
    gradient, clipped = private_gradient(
        record_loss(game, None),
        parameters,
        records,
        clip_norm=1.0,
        noise_multiplier=noise,
        divisor=divisor,
        rng=np.random.default_rng(seed),
        chunk=chunk,
    )
    return torch.cat([g.flatten() for g in gradient.values()]) * divisor, clipped


def without(records, place):
    keep = torch.arange(len(records[0])) != place
    return tuple(t[keep] for t in records)


@pytest.mark.parametrize(("shape", "classes", "blocks"), KINDS)
def test_a_records_loss_is_the_papers_by_an_ordinary_double_backward_pass(shape, classes, blocks):
    game = make_game(shape, classes, blocks)
    inputs, labels, tags = game_records(*some_records(shape, classes))
    ours = game(inputs, labels, tags)
    row = (tags + game._shift) % 16
    made = game._made[labels if classes else torch.zeros_like(labels), row]
    place = game._places[row].reshape(-1, *(1,) * len(shape))
    between = (place * inputs + (1 - place) * made).requires_grad_()
    (slope,) = torch.autograd.grad(game.critic(between, labels).sum(), between)
    penalty = (slope.flatten(1).norm(dim=1) - 1.0) ** 2
    theirs = game.critic(made, labels) - game.critic(inputs, labels) + PENALTY * penalty
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_without_a_penalty_a_records_loss_is_the_critics_gap_alone():
    game = make_game((1, 16, 16), 0, penalty=0.0)
    inputs, labels, tags = game_records(*some_records((1, 16, 16), 0))
    made = game._made[0, (tags + game._shift) % 16]
    assert torch.allclose(game(inputs, labels, tags), game.critic(made, labels) - game.critic(inputs, labels))


@pytest.mark.parametrize(("shape", "classes", "blocks"), KINDS)
def test_f20_one_record_moves_the_step_by_at_most_the_clip_norm(shape, classes, blocks):
    game = make_game(shape, classes, blocks)
    records = game_records(*some_records(shape, classes, count=12))
    whole, _ = step(game, records)
    for place in range(12):
        fewer, _ = step(game, without(records, place))
        assert float((whole - fewer).double().norm()) <= 1.0 + 1e-5
    assert float((whole - fewer).norm()) > 0.5  # the bound is met: gradients are longer than it


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_f9_a_record_that_is_not_finite_contributes_nothing(value):
    game = make_game((1, 8, 8), 3)
    inputs, labels = some_records((1, 8, 8), 3)
    clean = game_records(inputs, labels)
    bad = tuple(torch.cat([t, t[:1]]) for t in clean)
    bad[0][-1] = value
    spoiled, clipped = step(game, bad)
    plain, _ = step(game, clean)
    assert torch.isfinite(spoiled).all()
    if value != 1e38:
        assert float(clipped.norms[-1]) == 0.0
        assert torch.allclose(spoiled, plain, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 7, 24])
def test_f13_chunks_change_nothing_but_round_off(chunk):
    game = make_game((1, 16, 16), 3)
    records = game_records(*some_records((1, 16, 16), 3))
    assert torch.allclose(step(game, records)[0], step(game, records, chunk=chunk)[0], atol=1e-5)


def test_f12_the_divisor_and_the_noise_do_not_depend_on_the_records():
    game = make_game((1, 8, 8), 3)
    records = game_records(*some_records((1, 8, 8), 3))
    nobody = tuple(t[:0] for t in records)
    assert torch.equal(step(game, nobody, divisor=10.0)[0], step(game, nobody, divisor=10.0)[0])
    one, other = step(game, records)[0], step(game, nobody)[0]
    exact, _ = step(game, records, noise=0.0)
    assert torch.allclose(one - other, exact, atol=1e-5)  # the same noise, undivided, with and without everyone


def test_a_records_partner_depends_on_the_record_alone():
    inputs, _ = some_records((1, 8, 8), 3)
    assert torch.equal(tags_of(inputs)[5:], tags_of(inputs[5:]))
    assert len(set(tags_of(inputs).tolist())) == len(inputs)


def test_partners_are_spread_over_the_pool():
    inputs, _ = some_records((1, 8, 8), 3, count=1600)
    counts = torch.bincount(tags_of(inputs) % 16, minlength=16)
    assert counts.min() > 60
    assert counts.max() < 150


class Linear(Critic):
    """A critic whose gradient is the record itself, so that records can be made to be found."""

    def __init__(self, size):
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, inputs, labels=None):
        return inputs.flatten(1) @ self.weight


class Silent(nn.Module):
    """A generator of nothing but zeros."""

    latent, classes = 1, 0

    def __init__(self, size):
        super().__init__()
        self.size, self.unused = size, nn.Parameter(torch.zeros(1))

    def forward(self, z, labels=None):
        return torch.zeros(len(z), self.size)


def critics_step(present, *, size, actual, rate):
    """The training loop's own step on canaries: one coordinate each, ten times the clip norm."""
    game = Game(Linear(size), Silent(size), torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0), pool=4)
    inputs = torch.eye(size)[torch.from_numpy(present)] * 10.0
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    return PrivateTraining(
        game,
        None,
        game_records(inputs, labels),
        optimizer=torch.optim.SGD(game.critic.parameters(), lr=0.0),  # moved, its penalty would point the same for all
        sample_rate=rate,
        steps=10,
        noise_multiplier=actual,
        batch_size=1.0,
        panel=0,
        seed=7,
    )


@pytest.mark.parametrize(("actual", "verdict"), [(2.0, "not refuted"), (1.0, "claim broken")])
def test_the_canary_audit_of_the_critics_step(actual, verdict):
    runs = {}

    def seen(present):
        if "run" not in runs:
            runs["run"] = critics_step(present, size=2000, actual=actual, rate=1.0)
        runs["run"].advance()
        return -runs["run"].model.critic.weight.grad.numpy().astype(float)

    found = canaries(seen, sample_rate=1.0, noise_multiplier=2.0, steps=2, delta=1e-5, count=2000, seed=5)
    assert found.verdict == verdict
    assert found.lower[0.9995] > 0.0


def private(game, records, where, **more):
    return PrivateTraining(
        game,
        None,
        records,
        optimizer=adam(game.critic.parameters(), 1e-3),
        sample_rate=0.25,
        steps=6,
        noise_multiplier=1.0,
        batch_size=6,
        panel=4,
        companions={"generator": game.companion()},
        run_dir=where,
        **more,
    )


def test_a_stopped_game_goes_on_with_its_generators_optimiser(tmp_path):
    game, records = make_game((1, 8, 8), 3), game_records(*some_records((1, 8, 8), 3))
    training, draws = private(game, records, tmp_path / "run"), torch.Generator().manual_seed(0)
    for taken in training:
        game.improve(draws=draws)
        game.refresh(draws=draws)
        if taken.number == 3:
            break
    again = make_game((1, 8, 8), 3, seed=9)
    resumed = PrivateTraining.resume(
        tmp_path / "run",
        again,
        None,
        records,
        optimizer=adam(again.critic.parameters(), 1e-3),
        companions={"generator": again.companion()},
    )
    assert resumed.taken == 3
    for ours, theirs in zip(again.averaged, game.averaged, strict=True):
        assert torch.equal(ours, theirs)
    moments = [state["exp_avg_sq"] for state in again._optimizer.state.values()]
    assert moments
    assert all(float(m.abs().max()) > 0 for m in moments)
    for _ in resumed:
        again.improve(draws=draws)
    assert resumed.taken == 6


def test_the_generator_is_moved_by_improving_only():
    game, records = make_game((1, 8, 8), 3), game_records(*some_records((1, 8, 8), 3))
    before = [p.detach().clone() for p in game.generator.parameters()]
    training = private(game, records, None)
    training.advance()
    assert all(torch.equal(a, b) for a, b in zip(before, game.generator.parameters(), strict=True))
    game.improve(draws=torch.Generator().manual_seed(0))
    assert any(not torch.equal(a, b) for a, b in zip(before, game.generator.parameters(), strict=True))


def plain(game, shape=(1, 8, 8), **plan):
    inputs, labels = some_records(shape, game.generator.classes, count=60)
    chosen = Wgan(**{"steps": 6, "batch_size": 20, "size": 60, "critic_steps": 2, **plan})
    return WganTraining(chosen, game, inputs, labels, rng=np.random.default_rng(0))


def test_a_plain_training_moves_critic_and_generator_and_can_go_on(tmp_path):
    game = make_game((1, 8, 8), 3)
    training = plain(game)
    training._folder = tmp_path
    (tmp_path / "checkpoints").mkdir()
    for taken in training:
        if taken == 4:
            break
    training.save()
    again = plain(make_game((1, 8, 8), 3, seed=5))
    again._folder = tmp_path
    again.restore()
    assert again.taken == 4
    for name, value in game.state_dict().items():
        assert torch.equal(again.game.state_dict()[name], value)
    assert list(again)[-1] == 6


def test_the_papers_clipping_bounds_the_whole_update_and_adds_its_noise():
    training = plain(make_game((1, 8, 8), 3), clip_norm=0.5, noise_multiplier=1e-4)
    gradients = [100.0 * torch.ones_like(p) for p in training.game.critic.parameters()]
    hidden = torch.cat([g.flatten() for g in training._hidden(gradients)])
    assert float(hidden.norm()) == pytest.approx(0.5, rel=1e-2)
    training = plain(make_game((1, 8, 8), 3), clip_norm=0.5, noise_multiplier=2.0)
    silent = [torch.zeros_like(p) for p in training.game.critic.parameters()]
    noise = torch.cat([g.flatten() for g in training._hidden(silent)])
    assert float(noise.std()) == pytest.approx(1.0, rel=0.1)


def test_one_record_can_turn_a_whole_update_around():
    """Why the papers' clipping has sensitivity 2C: the batch's gradient with and without one loud record."""
    training = plain(make_game((1, 8, 8), 3), clip_norm=0.5, noise_multiplier=1e-4)
    quiet = [0.1 * torch.ones_like(p) for p in training.game.critic.parameters()]
    loud = [g - 100.0 for g in quiet]
    first, second = (torch.cat([g.flatten() for g in training._hidden(each)]) for each in (quiet, loud))
    assert float((first - second).norm()) > 0.9  # nearly 2C, not C


def test_noise_without_clipping_is_refused():
    with pytest.raises(ValueError, match="noise_multiplier without clip_norm"):
        Wgan(steps=1, size=10, noise_multiplier=1.0)


def test_a_noisy_critic_layer_bounds_the_features_and_changes_at_every_look():
    critic = make_critic((1, 8, 8), 3, width=4, features=8, layer_noise=1.5)
    critic.draws = torch.Generator().manual_seed(0)
    inputs, labels = some_records((1, 8, 8), 3)
    assert not torch.equal(critic(inputs, labels), critic(inputs, labels))


@pytest.mark.parametrize(("shape", "classes", "blocks"), KINDS)
def test_samples_have_the_shape_of_the_data(shape, classes, blocks):
    generator = make_game(shape, classes, blocks).generator
    annotate = None if classes else (lambda x: torch.ones(len(x), dtype=torch.int64))
    inputs, labels = sample(generator, 30, rng=np.random.default_rng(0), annotate=annotate)
    assert inputs.shape == (30, *shape)
    assert labels.shape == (30,)
    if blocks:
        assert torch.allclose(inputs[:, 1:5].sum(1), torch.ones(30))
        assert set(inputs[:, 1:5].unique().tolist()) <= {0.0, 1.0}
    shares = np.eye(max(1, classes))[0]
    _, only = sample(generator, 5, rng=np.random.default_rng(0), shares=shares)
    assert (only == 0).all()
