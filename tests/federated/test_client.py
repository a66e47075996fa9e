"""A client's update: clipped, noisy, answered once; what one record can do to it; what the client tells of costs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chi2
from torch import nn

import tacita
from tacita._check import PrivacyError
from tacita.accounting import NORM_LEVELS
from tacita.federated import Client, Local, Task, federation_plan, summed
from tacita.federated.client import Part, epsilon_levels
from tacita.federated.updates import clipped, norm_of
from tacita.training import private_gradient
from tacita.training.records import Records
from tacita.training.step import noisy_mean, poisson_sample

pytestmark = pytest.mark.filterwarnings("ignore:The gradient is exactly zero")  # noise is looked at alone

loss_fn = nn.functional.cross_entropy


class Noise(nn.Module):
    """A model whose loss is zero for every record: what a client sends is noise alone."""

    def __init__(self, size=1000):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return torch.zeros(len(x), 2) + 0.0 * self.w.sum()


def with_noise(update, scale, rng):
    return noisy_mean(update, clip_norm=scale, noise_multiplier=1.0, divisor=1.0, rng=rng)


def blobs(records=40, seed=7, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (records,), generator=generator)
    return scale * torch.randn(records, 4, generator=generator) + 2.0 * (2 * y[:, None] - 1), y


def make_plan(level, **settings):
    given = {"clients": 5, "client_rate": 1.0, "rounds": 50}
    if level != "client":
        given |= {"record_clip_norm": 1.0, "record_rate": 0.3, "local_batch": 12}
    noise = "noise_multiplier" if level in ("client", "joint") else "record_noise_multiplier"
    return federation_plan(level=level, **{**given, noise: 1.0, **settings})


def make_client(plan, data=None, *, model=None, name="a", local=None, **settings):
    task = Task(model if model is not None else nn.Linear(4, 2), loss_fn, local)
    return Client(name, task, blobs() if data is None else data, plan, **{"seed": 3, **settings})


def flat(update):
    return torch.cat([value.double().flatten() for value in update.values()]).numpy()


# Clipping.


@given(
    exponents=st.lists(st.floats(-330, 300), min_size=1, max_size=6),
    bound=st.floats(1e-6, 1e6),
    signs=st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=6, max_size=6),
)
def test_f10_clipping_never_scales_up_and_never_divides_by_nothing(exponents, bound, signs):
    values = torch.tensor([s * 10.0**e for s, e in zip(signs, exponents, strict=False)], dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        update = {"w": values.to(dtype)}
        found = clipped(update, bound)["w"]
        assert bool(torch.isfinite(found).all())
        assert norm_of({"w": found}) <= bound * (1 + 1e-6)
        assert bool((found.abs() <= update["w"].abs()).all())
        if norm_of(update) <= bound * (1 - 1e-5):
            assert torch.equal(found, update["w"])


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-40, 9e14])
def test_f10_the_smallest_and_the_largest_numbers(value):
    update = {"w": torch.full((1_000_000,), value)}
    found = norm_of(clipped(update, 1.0))
    assert found <= 1 + 1e-6
    assert found == pytest.approx(min(1.0, norm_of(update)), rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2e18, 3e38])
def test_f9_an_update_that_is_not_finite_or_huge_is_exactly_zero(value):
    found = clipped({"w": torch.tensor([1.0, value]), "b": torch.ones(3)}, 1.0)
    assert not flat(found).any()


def test_the_projection_brings_updates_nearer(rng):
    for _ in range(300):
        one = rng.standard_normal(8) * 10 ** rng.uniform(-2, 2)
        other = one + rng.standard_normal(8) * 10 ** rng.uniform(-4, 1)
        projected = [clipped({"w": torch.from_numpy(v)}, 1.0)["w"].numpy() for v in (one, other)]
        assert np.linalg.norm(projected[0] - projected[1]) <= np.linalg.norm(one - other) * (1 + 1e-12) + 1e-15


# One record.


@pytest.mark.parametrize("level", ["joint", "sequential"])
@pytest.mark.parametrize("clip_norm", [10.0, 0.3])
def test_f20_one_record_moves_a_client_by_no_more_than_its_clip_norm(level, clip_norm):
    """Same coins and noise with and without the record; in a ball that holds everything, and in a tight one."""
    x, y = blobs(scale=5.0)
    plan, parameters = make_plan(level, clip_norm=clip_norm, record_rate=1.0), nn.Linear(4, 2).state_dict()
    full = flat(make_client(plan, (x, y)).update(parameters, 1))
    moved = []
    for removed in range(40):
        without = x.clone()
        without[removed] = math.nan  # such a record contributes exactly nothing
        moved.append(np.linalg.norm(full - flat(make_client(plan, (without, y)).update(parameters, 1))))
    assert max(moved) <= 1.0 / 12 * (1 + 1e-5)
    assert max(moved) > (0.9 if clip_norm == 10.0 else 0.1) / 12


@pytest.mark.parametrize("level", ["joint", "sequential"])
def test_before_the_noise_a_client_is_within_its_ball(level):
    plan, parameters = make_plan(level, clip_norm=0.3, record_rate=1.0), nn.Linear(4, 2).state_dict()
    client = make_client(plan)
    random = np.random.Generator(np.random.PCG64DXSM(client._entropy(1)))
    random.random(40)
    noise = with_noise({n: torch.zeros_like(p) for n, p in parameters.items()}, plan.share_noise, random)
    reached = np.linalg.norm(flat(client.update(parameters, 1)) - flat(noise))
    assert 0.29 < reached <= 0.3 * (1 + 1e-5)


@pytest.mark.parametrize("level", ["parallel", "joint", "sequential"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e38])
def test_f9_a_record_that_is_not_finite_changes_nothing(level, poison):
    x, y = blobs()
    spoiled = torch.cat([x, torch.full((1, 4), poison)]), torch.cat([y, y[:1]])
    plan, parameters = make_plan(level, record_rate=1.0), {n: p.detach() for n, p in nn.Linear(4, 2).named_parameters()}
    local = Local(learning_rate=0.1)
    clean, other = (make_client(plan, data, local=local).update(parameters, 1) for data in ((x, y), spoiled))
    # One more coin is tossed for it, so the noise differs: it is taken out.
    noises = []
    for size in (40, 41):
        random = np.random.Generator(np.random.PCG64DXSM(make_client(plan, (x, y))._entropy(1)))
        random.random(size)
        noises.append(with_noise({n: torch.zeros_like(p) for n, p in parameters.items()}, _scale(plan), random))
    ours, theirs = (flat(u) - flat(n) for u, n in zip((clean, other), noises, strict=True))
    assert np.isfinite(theirs).all()
    assert theirs == pytest.approx(ours, abs=1e-6)


def _scale(plan):
    return plan.share_noise if plan.shares else -0.1 * plan.record_noise_multiplier * plan.record_clip_norm / 12


def test_one_parallel_step_is_dp_sgd():
    plan = make_plan("parallel")
    data, model = blobs(), nn.Linear(4, 2)
    client = make_client(plan, data, model=model, local=Local(learning_rate=0.25))
    parameters = {n: p.detach().clone() for n, p in model.named_parameters()}
    random = np.random.Generator(np.random.PCG64DXSM(client._entropy(7)))
    sample = poisson_sample(40, 0.3, rng=random)
    gradient, _ = private_gradient(
        client.task.loss,
        parameters,
        tuple(t[sample] for t in data),
        clip_norm=1.0,
        noise_multiplier=1.0,
        divisor=12,
        rng=random,
    )
    update = client.update(parameters, 7)
    for name, value in update.items():
        assert torch.allclose(value, -0.25 * gradient[name], atol=1e-7)


def test_local_steps_go_on_from_where_the_last_one_ended():
    data, parameters = blobs(), {n: p.detach() for n, p in nn.Linear(4, 2).named_parameters()}
    local = Local(learning_rate=0.1)
    twice = make_client(make_plan("parallel", local_steps=2), data, local=local)
    random = np.random.Generator(np.random.PCG64DXSM(twice._entropy(1)))
    now = parameters
    for _ in range(2):
        sample = poisson_sample(40, 0.3, rng=random)
        batch = tuple(t[sample] for t in data)
        gradient, _ = private_gradient(
            twice.task.loss, now, batch, clip_norm=1.0, noise_multiplier=1.0, divisor=12, rng=random
        )
        now = {n: p - 0.1 * gradient[n] for n, p in now.items()}
    update = twice.update(parameters, 1)
    for name, value in update.items():
        assert torch.allclose(value, now[name] - parameters[name], atol=1e-6)


@pytest.mark.stat
@pytest.mark.parametrize("level", ["parallel", "joint", "sequential"])
def test_f7_records_enter_by_their_own_coins(level):
    plan = make_plan(level)
    client = make_client(plan, blobs(30))
    sizes, take = [], client.records.marked
    client.records.marked = lambda places: (sizes.append(len(places)), take(places))[1]
    parameters = client.task.parameters
    for number in range(1, 51):
        client.update(parameters, number)
    assert len(sizes) == 50
    assert binomtest(sum(sizes), 50 * 30, 0.3).pvalue > 1e-6
    spread = np.sum((np.array(sizes) - 9.0) ** 2) / (30 * 0.3 * 0.7)
    assert 1e-6 < chi2.cdf(spread, 50) < 1 - 1e-6
    assert chi2.cdf(0.0, 50) < 1e-6  # batches of one size would be seen


@pytest.mark.stat
@pytest.mark.parametrize("level", ["parallel", "joint", "sequential"])
def test_the_noise_is_the_planned_one_and_never_used_twice(level):
    """Over rounds and over clients of one seed; the scale is that of the declared multiplier."""
    plan = make_plan(level, clip_norm=2.0)
    zeros = torch.zeros(3, 1), torch.zeros(3, dtype=torch.long)
    clients = [make_client(plan, zeros, model=Noise(), name=name) for name in "ab"]
    rows = [flat(c.update({"w": torch.zeros(1000)}, number)) for c in clients for number in range(1, 11)]
    planned = {"parallel": 1.0 / 12, "joint": 2.0 / math.sqrt(5), "sequential": 1.0 / 12 / math.sqrt(5)}[level]
    noise = np.stack(rows) / planned
    assert 1e-6 < chi2.cdf((noise**2).sum(), noise.size) < 1 - 1e-6
    alike = np.corrcoef(noise)[np.triu_indices(20, 1)]
    assert np.abs(alike).max() < 6 / math.sqrt(1000)


def test_f4_without_a_seed_two_clients_never_agree():
    plan, zeros = make_plan("joint"), (torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))
    one, other = (make_client(plan, zeros, model=Noise(), seed=None) for _ in range(2))
    assert not np.array_equal(*(flat(c.update({"w": torch.zeros(1000)}, 1)) for c in (one, other)))


# A round is answered once.


@pytest.mark.parametrize("level", ["client", "parallel", "sequential", "joint"])
def test_a_round_is_answered_once_even_if_it_failed(level):
    client = make_client(make_plan(level))
    parameters = client.task.parameters
    client.update(parameters, 2)
    for number in (1, 2, 51, 0, -1):
        with pytest.raises(PrivacyError, match="answered once"):
            client.update(parameters, number)
    with pytest.raises((KeyError, RuntimeError)):
        client.update({}, 3)
    with pytest.raises(PrivacyError, match="answered once"):
        client.update(parameters, 3)


def test_fedsgd_at_client_level_sends_the_gradient():
    data, model = blobs(), nn.Linear(4, 2)
    client = make_client(make_plan("client"), data, model=model)
    parameters = client.task.parameters
    loss = loss_fn(model(data[0]), data[1])
    expected = torch.autograd.grad(loss, list(model.parameters()))
    for value, gradient in zip(client.update(parameters, 1).values(), expected, strict=True):
        assert torch.allclose(value, -gradient, atol=1e-6)


def test_epochs_and_batches_cover_every_record():
    client = make_client(make_plan("client"), blobs(10), local=Local(epochs=2, batch_size=3, learning_rate=0.1))
    client.task.settle(client.records)
    seen, take = [], client.records.marked
    client.records.marked = lambda places: (seen.extend(np.asarray(places).tolist()), take(places))[1]
    client.update(client.task.parameters, 1)
    assert sorted(seen) == sorted([*range(10)] * 2)


def test_parts_of_a_dataset_are_the_records_at_their_positions():
    x, y = blobs()
    part = Part(Records((x, y)), np.array([5, 2, 9]))
    assert len(part) == 3
    assert torch.equal(part.take([0, 2])[0], x[[5, 9]])
    assert part.take([]) is None
    assert len(Part(Records((x, y)), np.array([], dtype=int))) == 0


# What it tells of costs.


def exchange_of(clients, *, what, steps):
    keys = {c.name: c.key("one exchange") for c in clients}
    return {c.name: c.costs(keys, what=what, steps=steps) for c in clients}, keys


def test_costs_need_a_key_and_followed_records():
    client = make_client(make_plan("parallel"))
    with pytest.raises(PrivacyError, match="No exchange was begun"):
        client.costs({}, what="records", steps=1)
    client.key("x")
    with pytest.raises(PrivacyError, match="follows no records"):
        client.costs({}, what="records", steps=1)


def test_steps_that_a_client_does_not_remember_count_at_the_clip_bound():
    plan = make_plan("parallel", record_noise_multiplier=2.0)
    client = make_client(plan, panel=8)
    client.update(client.task.parameters, 1)
    client.account.epsilons(6)
    counts = client.account.accountant.counts
    assert counts.sum(axis=1).tolist() == [6] * 8
    assert (counts[:, -1] >= 5).all()


def test_a_client_tells_no_less_than_its_own_band_and_no_more_than_the_worst_case():
    plan = make_plan("parallel", record_noise_multiplier=2.0, clients=4, record_rate=0.05)
    client = make_client(plan, panel=40)
    client.account.accountant.step(np.full(40, 0.05))
    band, student = client.account.epsilons(10)
    worst = plan.record_worst(10, plan.delta).epsilon
    own = client.account.accountant
    gamma = plan.delta / 20 / 4
    assert band == own.guarantee(delta=plan.delta * 19 / 20 + gamma, gamma=gamma).epsilon
    assert band >= own.guarantee(delta=plan.delta, gamma=gamma).epsilon
    assert student <= worst
    levels = epsilon_levels(plan)
    assert levels[-1] == plan.record_worst(50, plan.delta).epsilon
    assert (np.diff(levels) > 0).all()


@pytest.mark.parametrize(("level", "panel"), [("joint", 0), ("sequential", 7)])
def test_counts_of_norms_are_those_of_the_round_rounded_up(level, panel):
    plan = make_plan(level, clip_norm=0.4, record_rate=1.0)
    clients = [make_client(plan, blobs(seed=i), name=name, panel=panel) for i, name in enumerate("abc")]
    parameters = {n: torch.zeros_like(p) for n, p in nn.Linear(4, 2).named_parameters()}
    for client in clients:
        client.update(parameters, 1)
    counts = np.rint(summed(*exchange_of(clients, what="norms", steps=1))).astype(int)
    if level == "sequential":
        norms = np.concatenate([_record_norms(c, parameters)[c.account.followed] for c in clients])
    else:
        sums = [np.array([_clipped_sum(c, parameters)]) / 12 for c in clients]
        norms = np.minimum(np.concatenate(sums) / 0.4, 1.0)
    assert counts.sum() == len(norms)
    told = np.sort(np.repeat(NORM_LEVELS, counts))
    assert (told >= np.sort(norms) - 1e-5).all()
    assert told == pytest.approx(np.sort(norms), abs=0.01)


def _gradients(client, parameters):
    x, y = client.records.take(np.arange(len(client.records)))
    model = nn.Linear(4, 2)
    model.load_state_dict(parameters)
    for one, target in zip(x, y, strict=True):
        gradients = torch.autograd.grad(loss_fn(model(one[None]), target[None]), list(model.parameters()))
        yield torch.cat([g.flatten() for g in gradients]).double().numpy()


def _record_norms(client, parameters):
    return np.minimum([np.linalg.norm(g) for g in _gradients(client, parameters)], 1.0)


def _clipped_sum(client, parameters):
    return np.linalg.norm(sum(g / max(1.0, np.linalg.norm(g)) for g in _gradients(client, parameters)))


def test_followed_records_of_a_small_client_are_all_of_them():
    assert make_client(make_plan("parallel"), blobs(5), panel=64).account.followed.tolist() == [0, 1, 2, 3, 4]
    one, other = (make_client(make_plan("parallel"), blobs(40), panel=9).account.followed for _ in range(2))
    assert one.tolist() == other.tolist()
    assert len(set(one)) == 9
    assert tacita.accounting.level_of(np.array([1.0]))[0] == len(NORM_LEVELS) - 1


# Records that are read one by one.


class OneByOne(torch.utils.data.Dataset):
    """Records of which one cannot be read and one is ragged."""

    def __init__(self, x, y, broken):
        self.x, self.y, self.broken = x, y, broken

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if self.broken and i == 0:
            raise KeyboardInterrupt("/secret/path")
        return (self.x[i][:2] if self.broken and i == 5 else self.x[i]), int(self.y[i])


@pytest.mark.parametrize("level", ["parallel", "sequential", "joint"])
def test_f24_a_broken_record_of_a_client_contributes_zero(level):
    x, y = blobs()
    nan = x.clone()
    nan[[0, 5]] = torch.nan
    settings = {"panel": 8} if level != "joint" else {}
    plan = make_plan(level, record_rate=0.9, **({"clip_norm": 1.0} if level == "joint" else {}))
    sent = []
    for data in (OneByOne(x, y, broken=True), OneByOne(nan, y, broken=False)):
        torch.manual_seed(0)
        client = make_client(plan, data, **settings)
        sent.append(flat(client.update(client.task.parameters, 1)))
    np.testing.assert_allclose(*sent, rtol=0, atol=1e-6)


def test_f24_a_client_that_is_protected_as_a_whole_trains_without_its_broken_records():
    x, y = blobs()
    keep = [i for i in range(40) if i not in (0, 5)]
    sent = []
    for data in (OneByOne(x, y, broken=True), (x[keep], y[keep])):
        torch.manual_seed(0)
        client = make_client(make_plan("client", clip_norm=1.0), data)
        sent.append(flat(client.update(client.task.parameters, 1)))
    np.testing.assert_allclose(*sent, rtol=0, atol=1e-6)
    part = Part(Records(OneByOne(x, y, broken=True)), np.array([5, 0]))
    assert part.take([0, 1]) is None
    assert part.marked([0, 1]).readable.tolist() == [False, False]
    client = make_client(make_plan("client", clip_norm=1.0), part)
    assert not flat(client.update(client.task.parameters, 1)).any()
