"""Per-record gradients: right, clipped, isolated."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from tacita._check import PrivacyError
from tacita.training import clipped_sum, private_gradient, record_norms
from tacita.training.records import check_model, record_loss
from tacita.training.ways import tried

HUGE = 1e12


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.encode = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.encode(self.embed(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.attend(x, x, x)[0].mean(1))


class Tied(nn.Module):
    """One weight used by two layers: its gradient is not a single outer product."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.out(torch.tanh(self.two(torch.tanh(self.one(x)))).mean(1))


IMAGE, TOKENS, SEQUENCE = (3, 8, 8), "tokens", (7, 8)
LAYERS = {
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(56, 3)), SEQUENCE),
    "linear over positions": (
        lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Flatten(), nn.Linear(42, 3)),
        SEQUENCE,
    ),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
        ),
        IMAGE,
    ),
    "odd convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, (1, 2), (1, 2), 2), nn.Flatten(), nn.Linear(96, 3)),
        IMAGE,
    ),
    "grouped, same": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, groups=3, padding="same", bias=False), nn.Flatten(), nn.Linear(384, 3)
        ),
        IMAGE,
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3)),
        IMAGE,
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Flatten(), nn.Linear(56, 3)),
        SEQUENCE,
    ),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv1d(7, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.Flatten(), nn.Linear(24, 3)),
        SEQUENCE,
    ),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 2, 3), nn.PReLU(), nn.Flatten(), nn.Linear(200, 3)),
        IMAGE,
    ),
    "transformer": (Transformer, TOKENS),
    "lstm": (Recurrent, TOKENS),
    "attention": (Attention, SEQUENCE),
    "tied weights": (Tied, SEQUENCE),
}


def make(name, records=5, dtype=torch.float32):
    torch.manual_seed(1)
    build, shape = LAYERS[name]
    model = build().to(dtype)
    x = torch.randint(0, 20, (records, 7)) if shape == TOKENS else torch.randn(records, *shape, dtype=dtype)
    return model, x, torch.arange(records) % 3


def parts(model):
    return record_loss(model, nn.functional.cross_entropy), {n: p.detach() for n, p in model.named_parameters()}


def bounds(records, value=HUGE):
    return torch.full((records,), float(value), dtype=torch.float64)


def by_loop(model, x, y):
    """The oracle: an ordinary backward pass for each record on its own."""
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return torch.stack(rows)


def flat(sums):
    return torch.cat([g.flatten() for g in sums.values()])


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_matches_a_loop_over_records(name):
    model, x, y = make(name)
    loss, parameters = parts(model)
    rows = by_loop(model, x, y)
    got = clipped_sum(loss, parameters, (x, y), bounds(5))
    torch.testing.assert_close(flat(got.sums), rows.sum(0), rtol=1e-4, atol=2e-6)
    torch.testing.assert_close(got.norms, rows.double().norm(dim=1), rtol=1e-5, atol=1e-6)
    norms = record_norms(loss, parameters, (x, y))
    torch.testing.assert_close(norms, rows.double().norm(dim=1), rtol=1e-5, atol=1e-6)
    limit = float(norms.median())
    clipped = clipped_sum(loss, parameters, (x, y), bounds(5, limit))
    scale = (limit / rows.norm(dim=1)).clamp(max=1.0)
    torch.testing.assert_close(flat(clipped.sums), (scale[:, None] * rows).sum(0), rtol=1e-4, atol=4e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_f15_another_record_changes_nothing(name):
    model, x, y = make(name)
    loss, parameters = parts(model)
    one = torch.zeros(5, dtype=torch.float64)
    one[0] = HUGE  # only the first record contributes
    before = clipped_sum(loss, parameters, (x, y), one)
    other = x.clone()
    other[1:] = x[1:].flip(0) if x.dtype == torch.long else 50.0 * torch.randn_like(x[1:])
    after = clipped_sum(loss, parameters, (other, y), one)
    assert torch.equal(flat(before.sums), flat(after.sums))
    assert before.norms[0] == after.norms[0]


@pytest.mark.parametrize("name", LAYERS)
def test_f20_one_record_moves_the_sum_by_at_most_its_bound(name):
    torch.manual_seed(3)
    exact = name != "lstm"  # which has no float64 form; there round-off of the sums is seen
    model, x, y = make(name, dtype=torch.float64 if exact else torch.float32)
    loss, parameters = parts(model)
    for trial in range(8):
        if x.dtype != torch.long:
            x = torch.randn_like(x) * 10.0 ** (trial - 3)
        whole = flat(clipped_sum(loss, parameters, (x, y), bounds(5, 0.3)).sums)
        less = flat(clipped_sum(loss, parameters, (x[1:], y[1:]), bounds(4, 0.3)).sums)
        assert float((whole - less).norm()) <= 0.3 * (1 + (1e-6 if exact else 1e-5))


@pytest.mark.parametrize("name", ["linear", "convolution", "group norm", "lstm"])
def test_f13_chunks_change_nothing_but_round_off(name):
    model, x, y = make(name, records=12)
    loss, parameters = parts(model)
    whole = clipped_sum(loss, parameters, (x, y), bounds(12, 0.5), chunk=12)
    for chunk in (1, 7):
        got = clipped_sum(loss, parameters, (x, y), bounds(12, 0.5), chunk=chunk)
        assert float((flat(got.sums) - flat(whole.sums)).abs().max()) <= 1e-6
        torch.testing.assert_close(got.norms, whole.norms, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [3, 1000, 100_000])
def test_f2_a_clipped_norm_never_exceeds_its_bound(dtype, size):
    """Records whose gradient is the record itself, in low precision too."""
    torch.manual_seed(4)
    trials = 20 if size > 10_000 else 500
    x = (torch.randn(trials, size) * 10.0 ** torch.empty(trials, 1).uniform_(-3, 3)).to(dtype)
    parameters = {"w": torch.zeros(size, dtype=dtype)}
    for row in x:
        got = clipped_sum(lambda p, r: (p["w"] * r).sum(), parameters, row[None], bounds(1, 0.7))
        assert float(got.sums["w"].double().norm()) <= 0.7 * (1 + 1e-6)
        assert got.sums["w"].dtype == torch.float32


@pytest.mark.slow
def test_f2_ten_thousand_vectors():
    torch.manual_seed(5)
    x = torch.randn(10_000, 4000) * 10.0 ** torch.empty(10_000, 1).uniform_(-4, 4)
    parameters = {"w": torch.zeros(4000)}
    for row in x:
        got = clipped_sum(lambda p, r: (p["w"] * r).sum(), parameters, row[None], bounds(1, 1.0))
        assert float(got.sums["w"].double().norm()) <= 1.0 + 1e-6


@pytest.mark.parametrize("name", ["linear", "linear over positions", "convolution", "group norm", "attention"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e38])
def test_f9_a_record_that_is_not_finite_contributes_exactly_zero(name, poison):
    model, x, y = make(name)
    loss, parameters = parts(model)
    bad = x.clone()
    bad[2] = poison
    keep = torch.tensor([0, 1, 3, 4])
    limits = bounds(5, 0.5)
    got = clipped_sum(loss, parameters, (bad, y), limits)
    assert torch.isfinite(flat(got.sums)).all()
    clean = clipped_sum(loss, parameters, (x[keep], y[keep]), limits[keep])
    if got.norms[2] == 0.0:
        torch.testing.assert_close(flat(got.sums), flat(clean.sums), rtol=0, atol=1e-6)
    else:  # a layer that squashes 1e38 to something ordinary has an ordinary gradient
        assert poison == 1e38
        assert float((flat(got.sums) - flat(clean.sums)).norm()) <= 0.5 * (1 + 1e-5)
    rng = np.random.default_rng
    settings = {"clip_norm": 0.5, "noise_multiplier": 1.0, "divisor": 5.0}
    noisy, _ = private_gradient(loss, parameters, (bad, y), rng=rng(0), **settings)
    assert torch.isfinite(flat(noisy)).all()


@pytest.mark.parametrize("chunk", [None, 3, 1])
@pytest.mark.parametrize("places", [(0,), (4,), (2, 3, 10), range(11)])
def test_f9_a_record_on_which_the_model_raises_contributes_exactly_zero(places, chunk):
    """A word outside of the vocabulary: its error would tell that the record is there, and what it says."""
    model = Recurrent()
    loss, parameters = parts(model)
    x, y = torch.randint(0, 20, (11, 4)), torch.randint(0, 3, (11,))
    bad, places = x.clone(), list(places)
    bad[places, 1] = 999
    good = [i for i in range(11) if i not in places]
    got = clipped_sum(loss, parameters, (bad, y), bounds(11, 0.5), chunk=chunk)
    assert (got.norms[places] == 0.0).all()
    assert got.losses[places].isnan().all()
    assert (got.norms[good] > 0.0).all()
    assert (record_norms(loss, parameters, (bad, y), chunk=chunk)[places] == 0.0).all()
    assert got.losses[good].isfinite().all()
    clean = clipped_sum(loss, parameters, (x[good], y[good]), bounds(len(good), 0.5)) if good else None
    torch.testing.assert_close(
        flat(got.sums), flat(clean.sums) if clean else torch.zeros(1).expand(flat(got.sums).shape)
    )


def test_a_loss_that_never_works_raises():
    """Whatever the records hold: it is tried on zeros."""
    model = nn.Linear(3, 2)
    _, parameters = parts(model)
    with pytest.raises(RuntimeError):
        clipped_sum(
            lambda p, record: (p["weight"] @ record[0][:2]).sum(), parameters, (torch.ones(4, 3),), bounds(4, 1.0)
        )


def test_a_loss_that_does_not_run_on_zeros_runs_on_its_records():
    def loss(parameters, record):
        return (parameters["weight"] * torch.linalg.cholesky(record)).sum()

    parameters = {"weight": torch.ones(2, 2)}
    records = torch.eye(2).repeat(5, 1, 1)
    records[3] = -1.0
    norms = clipped_sum(loss, parameters, records, bounds(5, 10.0)).norms
    assert (norms > 0.0).tolist() == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("size", "clip", "scale"), [(784, 0.001, 1e-24), (3072, 0.01, 1e-24), (1000, 1.0, 1e-22), (784, 1e-5, 1e10)]
)
def test_f2_tiny_inputs_with_huge_errors_are_clipped_too(size, clip, scale):
    """A linear layer without bias: squares of the input underflow in float32, the output's gradient is enormous."""
    x, y = torch.full((1, size), scale), torch.full((1, 1), 9e17)
    model = nn.Linear(size, 1, bias=False)
    loss = record_loss(model, nn.functional.mse_loss)
    parameters = {"weight": model.weight.detach()}
    got = clipped_sum(loss, parameters, (x, y), bounds(1, clip))
    assert float(got.sums["weight"].double().norm()) <= clip * (1 + 1e-6)
    assert float(got.norms[0]) <= clip


@pytest.mark.parametrize("use", ["keyword", "nested"])
def test_a_second_use_of_a_tapped_weight_is_noticed_wherever_it_hides(use):
    parameters = {"w": torch.randn(4, 4, dtype=torch.float64)}
    x = torch.randn(5, 1, 4, dtype=torch.float64)
    mood = {"extra": False}

    def loss(p, r):
        out = nn.functional.linear(r, p["w"]).square().sum()
        if mood["extra"] and use == "keyword":
            out = out + nn.functional.linear(r, weight=p["w"]).sum()
        elif mood["extra"]:
            out = out + torch.cat([p["w"], p["w"]]).sum()
        return out

    clipped_sum(loss, parameters, x, bounds(5))
    mood["extra"] = True
    got = clipped_sum(loss, parameters, x, bounds(5))
    w = parameters["w"].clone().requires_grad_()
    sum(loss({"w": w}, r) for r in x).backward()
    torch.testing.assert_close(got.sums["w"], w.grad)


def test_mixed_precision_vectors_and_derivatives_inside_the_loss():
    mixed = nn.Sequential(nn.Linear(4, 8).double(), nn.Linear(8, 2))
    model = nn.Sequential(mixed[0], nn.Tanh(), mixed[1])

    def loss(p, r):
        hidden = functional_call(model[0], {"weight": p["0.weight"], "bias": p["0.bias"]}, (r.double(),))
        return (
            functional_call(model[2], {"weight": p["2.weight"], "bias": p["2.bias"]}, (hidden.float(),)).square().sum()
        )

    parameters = {n: p.detach() for n, p in model.named_parameters()}
    x = torch.randn(5, 4)  # records without a batch dimension
    got = clipped_sum(loss, parameters, x, bounds(5))
    sum(loss(dict(model.named_parameters()), r) for r in x).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(got.sums[name], p.grad, rtol=1e-5, atol=1e-5)

    def slope(p, r):
        return torch.func.grad(lambda z: nn.functional.linear(z[None], p["w"]).square().sum())(r).square().sum()

    w = {"w": torch.randn(3, 4, dtype=torch.float64)}
    z = torch.randn(5, 4, dtype=torch.float64)
    got = clipped_sum(slope, w, z, bounds(5))
    leaf = w["w"].clone().requires_grad_()
    sum((2 * leaf.T @ (leaf @ r)).square().sum() for r in z).backward()
    torch.testing.assert_close(got.sums["w"], leaf.grad)


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-38, 1e-30])
def test_f10_zero_and_subnormal_gradients_do_not_divide_by_zero(scale):
    x = torch.full((3, 4), scale)
    got = clipped_sum(lambda p, r: (p["w"] * r).sum(), {"w": torch.zeros(4)}, x, bounds(3, 1.0))
    assert torch.isfinite(got.sums["w"]).all()
    torch.testing.assert_close(got.sums["w"], x.sum(0))
    assert float(got.norms.max()) <= 1.0


def test_a_bound_of_zero_silences_a_record(blobs):
    x, y = blobs
    loss, parameters = parts(nn.Linear(4, 2))
    got = clipped_sum(loss, parameters, (x[:4], y[:4]), bounds(4, 0.0))
    assert not flat(got.sums).any()
    assert not got.norms.any()


def test_a_contribution_never_exceeds_the_level_declared_for_the_record(blobs):
    """Brute force: every record alone, random levels, any parameters."""
    x, y = blobs
    rng = np.random.default_rng(2)
    for _ in range(5):
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        loss, parameters = parts(model)
        levels = torch.from_numpy(rng.uniform(0, 1.5, 40))
        for i in range(40):
            one = clipped_sum(loss, parameters, (x[i : i + 1].double(), y[i : i + 1]), levels[i : i + 1])
            assert float(flat(one.sums).norm()) <= float(levels[i]) * (1 + 1e-6)


def test_no_records_give_noise_alone():
    loss, parameters = parts(nn.Linear(4, 2))
    noisy, clipped = private_gradient(
        loss, parameters, None, clip_norm=1.0, noise_multiplier=2.0, divisor=4.0, rng=np.random.default_rng(0)
    )
    assert len(clipped.norms) == 0
    assert 0.2 < float(flat(noisy).std()) < 1.0


def test_a_model_that_changes_its_mind_is_still_right():
    """Layers skipped, repeated or used otherwise after the first call: gradients as by a loop."""

    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.out, self.mood = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3), "calm"

        def forward(self, x):
            x = self.one(x.mean(1))
            x = x if self.mood == "skips" else self.two(torch.tanh(x))
            x = self.two(torch.tanh(x)) if self.mood == "repeats" else x
            return self.out(x) + (self.two.weight.square().sum() if self.mood == "weighs" else 0.0)

    torch.manual_seed(2)
    model = Moody()
    x, y = torch.randn(5, 7, 8), torch.arange(5) % 3
    loss, parameters = parts(model)
    for mood in ("calm", "skips", "repeats", "weighs", "calm"):
        model.mood = mood
        got = clipped_sum(loss, parameters, (x, y), bounds(5))
        rows = []
        for i in range(5):
            model.zero_grad(set_to_none=False)
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
            rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        torch.testing.assert_close(flat(got.sums), torch.stack(rows).sum(0), rtol=1e-4, atol=2e-6)


def test_weights_of_layers_are_tapped_and_others_are_not():
    cases = {"convolution": 4, "tied weights": 5, "grouped, same": 2, "attention": 2, "group norm": 6, "lstm": 7}
    for name, tapped in cases.items():
        assert len(tried(*_site_args(name))[0].tapped) == tapped


def _site_args(name):
    model, x, y = make(name)
    loss, parameters = parts(model)
    return loss, parameters, (x, y)


def test_a_gradient_penalty_inside_the_loss_is_differentiated(blobs):
    """A critic's loss with the norm of its own input gradient in it, against autograd, record by record."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x = blobs[0][:6].double()

    def loss(parameters, record):
        def critic(z):
            return functional_call(model, parameters, (z[None],)).sum()

        slope = torch.func.grad(critic)(record)
        return critic(record) + (slope.norm() - 1.0).square()

    parameters = {n: p.detach() for n, p in model.named_parameters()}
    got = clipped_sum(loss, parameters, x, bounds(6))
    rows = []
    for record in x:
        z = record.clone().requires_grad_()
        value = model(z[None]).sum()
        (slope,) = torch.autograd.grad(value, z, create_graph=True)
        model.zero_grad()
        (value + (slope.norm() - 1.0).square()).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(flat(got.sums), torch.stack(rows).sum(0), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm2d(4), "BatchNorm2d at '1' mixes records.*GroupNorm"),
        (nn.InstanceNorm2d(4, track_running_stats=True), "running statistics"),
        (nn.LazyLinear(4), "no shape yet"),
    ],
)
def test_f15_layers_that_mix_or_remember_records_are_refused_by_name(layer, words):
    with pytest.raises(ValueError, match=words):
        check_model(nn.Sequential(nn.Conv2d(3, 4, 3), layer))


def test_batch_norm_with_fixed_statistics_is_fine():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model[1].eval()
    check_model(model)


def test_bounds_above_the_clip_norm_are_refused(blobs):
    loss, parameters = parts(nn.Linear(4, 2))
    settings = {"clip_norm": 1.0, "noise_multiplier": 1.0, "divisor": 1.0, "rng": np.random.default_rng(0)}
    with pytest.raises(PrivacyError, match="bounds must hold one value"):
        private_gradient(loss, parameters, (blobs[0][:2], blobs[1][:2]), bounds=bounds(2, 1.1), **settings)
    with pytest.raises(PrivacyError, match="clip_norm must be positive and finite"):
        private_gradient(loss, parameters, None, **{**settings, "clip_norm": float("inf")})


def test_a_copy_of_the_model_is_not_changed():
    model, x, y = make("group norm")
    before = copy.deepcopy(model.state_dict())
    loss, parameters = parts(model)
    clipped_sum(loss, parameters, (x, y), bounds(5))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_dropped_record_is_left_as_it_was():
    model = nn.Linear(4, 2)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    x, y = torch.randn(5, 4), torch.randint(0, 2, (5,))
    x[2, 1] = float("nan")
    before = x.clone()
    clipped_sum(record_loss(model, nn.functional.cross_entropy), parameters, (x, y), torch.ones(5, dtype=torch.float64))
    assert torch.equal(x.nan_to_num(7.0), before.nan_to_num(7.0))
    assert x[2, 1].isnan()
