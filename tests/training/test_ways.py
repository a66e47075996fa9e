"""Models that `vmap` cannot run, and those that would carry something from record to record."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tacita._check import PrivacyError
from tacita.training import PrivateTraining, clipped_sum
from tacita.training.reading import Marked
from tacita.training.records import Records, check_model, record_loss, try_one
from tacita.training.ways import tried

RECORDS = 5


class Double(torch.autograd.Function):
    """An old-style function: no rule for `vmap`."""

    @staticmethod
    def forward(ctx, x):
        return 2.0 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2.0 * gradient


class Model(nn.Module):
    """A small network with something in it."""

    def __init__(self, inside):
        super().__init__()
        self.one, self.two, self.inside = nn.Linear(6, 8), nn.Linear(8, 3), inside

    def forward(self, x):
        return self.two(self.inside(torch.tanh(self.one(x))))


class Packed(nn.Module):
    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.layer, self.out = kind(1, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        lengths = 1 + (x[:, 0] > 0).long().cpu() * 3
        packed = nn.utils.rnn.pack_padded_sequence(x[:, :, None], lengths, batch_first=True, enforce_sorted=False)
        ends = self.layer(packed)[1]
        return self.out((ends[0] if isinstance(ends, tuple) else ends)[-1])


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(20, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.bag((x.abs() * 5).long()))


ALONE = {
    "a branch": lambda: Model(lambda h: h if h.sum() > 0 else 2.0 * h),
    "an old function": lambda: Model(Double.apply),
    "a checkpoint": lambda: Model(lambda h: checkpoint(torch.tanh, h, use_reentrant=False)),
    "packed sequences": Packed,
    "packed, GRU": lambda: Packed(nn.GRU),
    "a sparse bag": Sparse,
}
TOGETHER = {
    "GRU": lambda: nn.GRU(1, 8, num_layers=2, batch_first=True, bidirectional=True),
    "RNN": lambda: nn.RNN(1, 8, nonlinearity="relu", batch_first=True, bias=False),
    "LSTM": lambda: nn.LSTM(1, 8, num_layers=2, batch_first=True, bidirectional=True, proj_size=4),
    "LSTM, float64": lambda: nn.LSTM(1, 8, batch_first=True).double(),
}


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x[:, :, None])[0].mean(1)[:, :3]


def parts(model):
    return record_loss(model, functional.cross_entropy), {n: p.detach() for n, p in model.named_parameters()}


def agrees(model, x, y):
    """Compare with an ordinary backward pass for each record on its own."""
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append(
            torch.cat(
                [(torch.zeros_like(p) if p.grad is None else p.grad.to_dense()).flatten() for p in model.parameters()]
            )
        )
    rows = torch.stack(rows).double()
    norms = rows.norm(dim=1)
    loss, parameters = parts(model)
    for bound in (1e9, float(norms.median())):
        got = clipped_sum(loss, parameters, (x, y), torch.full((len(x),), bound, dtype=torch.float64))
        wanted = ((bound / norms).clamp(max=1.0)[:, None] * rows).sum(0)
        sums = torch.cat([g.flatten() for g in got.sums.values()]).double()
        assert float((sums - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())


@pytest.mark.parametrize("name", ALONE)
def test_what_vmap_cannot_run_is_run_record_by_record(name):
    torch.manual_seed(1)
    model, x, y = ALONE[name](), torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3
    check_model(model)
    loss, parameters = parts(model)
    with pytest.warns(UserWarning, match="one after the other, at about .* ms each"):
        assert tried(loss, parameters, (x, y))[0].alone
    with pytest.warns(UserWarning, match="one after the other"):
        agrees(model, x, y)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", TOGETHER)
def test_recurrent_layers_run_for_all_records_at_once(name):
    torch.manual_seed(2)
    model = Recurrent(TOGETHER[name]())
    x = torch.randn(RECORDS, 6, dtype=next(model.parameters()).dtype)
    loss, parameters = parts(model)
    check_model(model)
    assert not tried(loss, parameters, (x, torch.arange(RECORDS) % 3))[0].alone
    agrees(model, x, torch.arange(RECORDS) % 3)


def test_convolutions_followed_by_a_view_run_without_channels_last():
    class Viewed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.out = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 6 * 6, 3)

        def forward(self, x):
            hidden = torch.relu(self.layer(x[:, None, None, :].expand(-1, -1, 6, -1)))
            return self.out(hidden.view(len(x), -1))

    model, x, y = Viewed(), torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3
    way, _ = tried(*parts(model), (x, y))
    assert not way.channels_last
    assert not way.alone
    agrees(model, x, y)


def test_a_branch_that_zeros_do_not_take_is_still_right():
    """On zeros the model skips a layer; no record is lost that takes it."""
    skipped = nn.Linear(8, 8)
    model = Model(lambda h: skipped(h) if h.abs().sum() > 1.0 else h)
    model.skipped = skipped
    x, y = 3.0 * torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3
    with pytest.warns(UserWarning, match="one after the other"):
        agrees(model, x, y)


def test_an_input_that_is_overwritten_after_a_layer_read_it_is_no_silent_error():
    """The layer's gradient needs what it was given: ordinary autograd refuses such a model, too."""

    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            hidden = torch.sin(x)
            out = self.one(hidden)
            hidden += out.detach()
            return self.two(out + hidden)

    model, x, y = Overwriting(), torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        functional.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        clipped_sum(*parts(model), (x, y), torch.ones(RECORDS, dtype=torch.float64))


class Lookup(nn.Module):
    """An embedding whose weight is stored transposed, as peft's is: each record then has a weight of its own."""

    def __init__(self, padding):
        super().__init__()
        self.weight, self.out, self.padding = nn.Parameter(torch.randn(8, 4)), nn.Linear(8, 3), padding

    def forward(self, x):
        return self.out(functional.embedding((x * 2).long().clamp(0, 3), self.weight.T, self.padding).sum(1))


@pytest.mark.parametrize("padding", [0, 1, -1])
def test_padding_has_no_gradient_where_each_record_has_an_embedding_of_its_own(padding):
    """`vmap` forgets it for all records but the first."""
    torch.manual_seed(4)
    model, x, y = Lookup(padding), torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3
    assert not tried(*parts(model), (x, y))[0].alone
    agrees(model, x, y)


class Losing(torch.autograd.Function):
    """A function whose rule for `vmap` loses the gradient, as torch's for `select_scatter` does."""

    @staticmethod
    def forward(x):
        return 2.0 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 2.0 * gradient

    @staticmethod
    def vmap(info, in_dims, x):
        return 2.0 * x.detach(), in_dims[0]


@pytest.mark.parametrize("marked", [False, True])  # as records of a map-style dataset are, broken or not
def test_what_vmap_differentiates_wrongly_is_run_record_by_record(marked):
    torch.manual_seed(4)
    model, x, y = Model(Losing.apply), torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3
    loss, parameters = parts(model)
    records = Marked((x, y), torch.ones(RECORDS, dtype=torch.bool)) if marked else (x, y)
    with pytest.warns(UserWarning, match="one after the other.*not those of an ordinary backward pass"):
        assert tried(loss, parameters, records)[0].alone
    with pytest.warns(UserWarning, match="one after the other"):
        agrees(model, x, y)


@pytest.mark.parametrize(("affine", "places"), [(True, (2, 3)), (False, (2, 3)), (True, (1, 1))])
def test_groups_are_normalised_with_their_channels_last(affine, places):
    """As after attention over places; by itself vmap says that it does not know this order of memory."""

    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.norm, self.two = nn.Linear(1, 4), nn.GroupNorm(1, 4, affine=affine), nn.Linear(4, 3)

        def forward(self, x):
            turned = self.one(x[:, : math.prod(places), None]).view(len(x), *places, 4).permute(0, 3, 1, 2)
            return self.two(torch.tanh(self.norm(turned)).mean((2, 3)))

    torch.manual_seed(4)
    model, x, y = Turned(), torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3
    with pytest.raises(RuntimeError, match="NYI"):
        torch.func.vmap(model)(x[:, None])
    assert not tried(*parts(model), (x, y))[0].alone
    agrees(model, x, y)


class Single(Losing):
    """A function whose rule for `vmap` is right for one record, and fails for several."""

    @staticmethod
    def vmap(info, in_dims, x):
        if info.batch_size > 1:
            raise RuntimeError("one at a time")
        return Single.apply(x), in_dims[0]


def test_a_way_that_runs_for_single_records_alone_is_not_taken():
    """It would fail on every chunk, which would be halved again and again."""
    torch.manual_seed(4)
    model, x, y = Model(Single.apply), torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3
    loss, parameters = parts(model)
    with pytest.warns(UserWarning, match="one after the other.*one at a time"):
        assert tried(loss, parameters, (x, y))[0].alone
    with pytest.warns(UserWarning, match="one after the other"):
        agrees(model, x, y)


def test_a_loss_that_compares_records_with_each_other_is_warned_of():
    """It is constant for a batch of one, so that only noise would move the model."""

    def contrasted(out, y):
        return functional.cross_entropy(out @ out.T, torch.arange(len(out)))

    model = nn.Linear(6, 3)
    loss, parameters = record_loss(model, contrasted), {n: p.detach() for n, p in model.named_parameters()}
    with pytest.warns(UserWarning, match="exactly zero on every made-up record.*compares the records"):
        tried(loss, parameters, (torch.randn(RECORDS, 6), torch.zeros(RECORDS)))


def test_no_gradient_on_zeros_alone_is_no_reason_to_warn():
    model = nn.Linear(6, 3, bias=False)
    loss, parameters = parts(model)
    assert not tried(loss, parameters, (torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3))[0].alone


@pytest.mark.parametrize("drawn", [lambda h: functional.dropout(h, 0.5), lambda h: h + torch.randn_like(h)])
def test_a_loss_that_draws_is_not_taken_for_a_wrong_one(drawn):
    loss, parameters = parts(Model(drawn))
    assert not tried(loss, parameters, (torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3))[0].alone


def test_activations_in_place_are_fine():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    agrees(model, torch.randn(RECORDS, 6), torch.arange(RECORDS) % 3)


def test_a_record_that_fails_alone_contributes_zero():
    loss, parameters = parts(Sparse())
    x = torch.rand(RECORDS, 6)
    x[2, 1] = 99.0
    with pytest.warns(UserWarning, match="one after the other"):
        got = clipped_sum(loss, parameters, (x, torch.arange(RECORDS) % 3), torch.ones(RECORDS, dtype=torch.float64))
    assert (got.norms > 0.0).tolist() == [True, True, False, True, True]


class Remembering(nn.Module):
    """Keeps a running mean of what it saw, which is zero after a record of zeros."""

    def __init__(self, *, always):
        super().__init__()
        self.out, self.always = nn.Linear(6, 3), always
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        with torch.no_grad():
            if self.always or x.sum() > 0:
                self.mean.mul_(0.9).add_(0.1 * x[0])
        return self.out(x - self.mean)


def test_a_buffer_that_remembers_is_refused_even_where_zeros_leave_it_as_it_was():
    model = Remembering(always=True)
    loss, parameters = parts(model)
    with pytest.raises(PrivacyError, match="'mean' changes"):
        try_one(model, loss, parameters, Records((torch.randn(RECORDS, 6), torch.zeros(RECORDS, dtype=torch.long))))
    model = Remembering(always=False)
    loss, parameters = parts(model)
    x, y = torch.ones(RECORDS, 6), torch.zeros(RECORDS, dtype=torch.long)
    with pytest.warns(UserWarning, match="one after the other"), pytest.raises(PrivacyError, match="'mean' changes"):
        clipped_sum(loss, parameters, (x, y), torch.ones(RECORDS, dtype=torch.float64))


def test_parameters_that_change_as_the_model_runs_are_refused():
    model = nn.Linear(6, 3)

    def loss(parameters, record):
        with torch.no_grad():
            parameters["weight"].mul_(0.9)
        return functional.linear(record, parameters["weight"]).sum()

    with pytest.raises(PrivacyError, match="'weight' changes"):
        clipped_sum(loss, {"weight": model.weight.detach()}, torch.ones(2, 6), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Embedding(9, 4, max_norm=1.0), "max_norm"),
        (nn.EmbeddingBag(9, 4, max_norm=1.0), "max_norm"),
        (nn.BatchNorm2d(48), r"nn\.GroupNorm\(16, 48\) in its place"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), "spectral norm"),
        (nn.utils.spectral_norm(nn.Linear(3, 3)), "spectral norm"),
    ],
)
def test_layers_that_cannot_be_private_are_refused_by_name(layer, words):
    with pytest.raises(PrivacyError, match=words):
        check_model(nn.Sequential(layer))


def trained(model, loss_fn, data, optimizer=torch.optim.SGD):
    return PrivateTraining(
        model, loss_fn, data, optimizer=optimizer(model.parameters(), lr=0.1), batch_size=2, nominal_size=4, steps=1,
        noise_multiplier=1.0, panel=0,
    )  # fmt: skip


def test_an_error_tells_torch_s_own_reason_with_shapes_and_types():
    data = torch.zeros(4, 5), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"\(5,\) float32.*\(\) int64.*mat1 and mat2 shapes cannot be multiplied"):
        trained(nn.Linear(6, 3), functional.cross_entropy, data)
    with pytest.raises(ValueError, match="does not depend on any parameter"):
        trained(nn.Linear(5, 3), lambda out, y: functional.cross_entropy(out.detach(), y), data)
    with pytest.raises(ValueError, match=r"float64.*same dtype"):
        trained(nn.Linear(5, 3), functional.cross_entropy, (data[0].double(), data[1]))


def test_rows_are_never_moved_one_by_one():
    with pytest.raises(ValueError, match="SparseAdam moves only the rows"):
        trained(
            nn.Linear(5, 3), functional.cross_entropy, (torch.zeros(4, 5), torch.zeros(4, dtype=torch.long)),
            lambda p, lr: torch.optim.SparseAdam(list(p), lr=lr),
        )  # fmt: skip


def test_a_step_with_sparse_gradients_puts_noise_on_every_row():
    torch.manual_seed(5)
    model = Sparse()
    before = model.bag.weight.detach().clone()
    with pytest.warns(UserWarning, match="one after the other"):
        training = trained(model, functional.cross_entropy, (torch.zeros(4, 6), torch.zeros(4, dtype=torch.long)))
    training.run()
    assert (model.bag.weight != before).any(1).all()


@pytest.mark.parametrize("where", ["inside", "around"])
def test_autocast_gives_finite_gradients_near_those_without(where):
    torch.manual_seed(6)
    model, x, y = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(5, 6), torch.arange(5) % 3
    loss, parameters = parts(model)

    def lowered(p, record):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(p, record)

    limits = torch.ones(5, dtype=torch.float64)
    plain = clipped_sum(loss, parameters, (x, y), limits).sums
    if where == "inside":
        low = clipped_sum(lowered, parameters, (x, y), limits).sums
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = clipped_sum(record_loss(model, functional.cross_entropy), parameters, (x, y), limits).sums
    for name, total in plain.items():
        assert low[name].dtype == torch.float32
        torch.testing.assert_close(low[name], total, rtol=0.1, atol=0.05)
