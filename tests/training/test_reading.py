"""Records that are read one by one: a broken one contributes zero and leaves no trace, and a dataset is known again."""

import signal
import traceback
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from tacita._check import PrivacyError
from tacita.training import PrivateTraining
from tacita.training.gradients import clipped_sum, record_norms
from tacita.training.reading import places
from tacita.training.records import Records, record_loss

SECRET = "/home/secret/31337"
loss_fn = nn.functional.cross_entropy


class Pairs(Dataset):
    """Records of two tensors, and what happens at some places instead."""

    def __init__(self, x, y, odd=None):
        self.x, self.y, self.odd = x, y, odd or {}

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if i not in self.odd:
            return self.x[i], int(self.y[i])
        value = self.odd[i](self, i) if callable(self.odd[i]) else self.odd[i]
        if isinstance(value, BaseException):
            raise value
        return value


class Rude(Exception):
    """An exception that cannot even be printed."""

    def __str__(self):
        raise ValueError(SECRET)


def warned(data, i):
    warnings.warn(SECRET, stacklevel=1)
    return OSError(SECRET)


ODD = {
    "unreadable": lambda *_: OSError(SECRET),
    "an interrupt": lambda *_: KeyboardInterrupt(SECRET),
    "an exit": lambda *_: SystemExit(SECRET),
    "out of memory": lambda *_: MemoryError(SECRET),
    "a generator's end": lambda *_: GeneratorExit(SECRET),
    "the end of an iteration": lambda *_: StopIteration(SECRET),
    "an error that cannot be printed": lambda *_: Rude(),
    "a warning": warned,
    "nothing": None,
    "empty": (),
    "ragged": lambda data, i: (data.x[i][:3], 0),
    "another type": lambda data, i: (data.x[i].double(), 0),
    "another target": lambda data, i: (data.x[i], 0.0),
    "a text": lambda data, i: (SECRET, 0),
    "one part": lambda data, i: (data.x[i],),
    "three parts": lambda data, i: (data.x[i], 0, 0),
    "a dict": lambda data, i: {"x": data.x[i], "y": 0},
    "sparse": lambda data, i: (data.x[i].to_sparse(), 0),
    "without memory": lambda data, i: (data.x[i].to("meta"), 0),
    "a number beyond all": lambda data, i: (data.x[i], 10**400),
    "within itself": lambda *_: ENDLESS,
}
ENDLESS = []
ENDLESS.append(ENDLESS)


def train(data, model=None, **settings):
    torch.manual_seed(0)
    model = nn.Linear(4, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"sample_rate": 0.1, "batch_size": 30, "steps": 6, "noise_multiplier": 1.0, "seed": 1, **settings}
    return PrivateTraining(model, loss_fn, data, optimizer=optimizer, **given)


def weights(private):
    return torch.cat([p.detach().flatten() for p in private.model.parameters()])


def with_and_without(blobs, how, place, folder=None):
    """Take steps with a record that is broken, and with one that is not a number, which contributes zero."""
    x, y = blobs
    nan = x.clone()
    nan[place] = torch.nan
    for name, data in (("odd", Pairs(x, y, {place: ODD[how]})), ("nan", Pairs(nan, y))):
        kept = {} if folder is None else {"run_dir": folder / name, "name": "same"}
        yield train(data, sample_rate=0.9, batch_size=270, individual_every=2, steps=3, **kept)


@pytest.mark.parametrize("how", ODD)
def test_f24_a_broken_record_contributes_zero_and_leaves_no_trace(blobs, capfd, caplog, how):
    """It is drawn in most steps and measured in some: the model and the bounds are those of a record of NaN."""
    odd, plain = with_and_without(blobs, how, len(how) % 3 * 17)
    while odd.advance() is not None:
        plain.advance()
    torch.testing.assert_close(weights(odd), weights(plain), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(odd.bounds, plain.bounds)
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err + caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["unreadable", "an interrupt", "ragged"])
def test_f24_a_broken_record_is_not_on_the_page(blobs, tmp_path, how):
    pages = {private.run().label().public().html() for private in with_and_without(blobs, how, 0, tmp_path)}
    assert len(pages) == 1


def test_f24_the_contribution_of_a_broken_record_is_exactly_zero_where_records_have_no_reals():
    """Whole numbers cannot be NaN: zeros stand for a broken record, and count for nothing."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    tokens = [(torch.tensor([i % 5, 1]), i % 2) for i in range(9)]
    records, loss = Records([*tokens, None]), record_loss(model, loss_fn)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    batch = records.marked([9, 3, 4])
    assert batch.readable.tolist() == [False, True, True]
    bounds = torch.ones(3, dtype=torch.float64)
    with_it, without = (clipped_sum(loss, parameters, some, bounds) for some in (batch, records.marked([3, 4])))
    for name, total in without.sums.items():
        assert torch.equal(with_it.sums[name], total)
    assert with_it.norms[0] == 0.0
    assert with_it.losses[0].isnan()
    assert record_norms(loss, parameters, batch)[0] == 0.0
    alone = clipped_sum(loss, parameters, records.marked([9]), bounds[:1])
    assert all(bool((total == 0.0).all()) for total in alone.sums.values())


def test_f24_an_odd_first_record_makes_no_other_broken(blobs):
    x, y = blobs
    for odd in ((x[0][:3], 0), {"x": x[0]}, None):
        records = Records(Pairs(x, y, {0: odd}))
        assert records.marked(range(300)).readable.tolist() == [False] + [True] * 299
        assert records.take([0]) is None
        assert torch.equal(records.take([0, 5, 7])[0], x[[5, 7]])


def test_f24_what_records_look_like_can_be_declared(blobs):
    x, y = blobs
    odd = {int(place): (x[0][:3], 0) for place in places(300)}
    declared = Records(Pairs(x, y, odd), like=(torch.zeros(4), 0))
    assert int(declared.marked(range(300)).readable.sum()) == 300 - len(odd)
    assert train(declared, panel=0).run().taken == 6


def test_f24_a_dataset_without_a_common_form_is_refused_before_anything_is_charged(blobs, tmp_path):
    x, y = blobs
    ragged = Pairs(x, y, {i: (x[i][: i % 4], 0) for i in range(300)})
    with pytest.raises(ValueError, match="no common form"):
        train(ragged, run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="No record of the dataset could be read") as caught:
        train(Pairs(x, y, dict.fromkeys(range(300), ODD["unreadable"])), run_dir=tmp_path / "run")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert not (tmp_path / "run").exists()


def test_a_dataset_may_use_the_same_memory_for_every_record(blobs):
    x, y = blobs

    class Reusing(Pairs):
        kept = torch.empty(4)

        def __getitem__(self, i):
            return self.kept.copy_(self.x[i]), int(self.y[i])

    assert torch.equal(Records(Reusing(x, y)).take([3, 9, 1])[0], x[[3, 9, 1]])


def test_records_of_arrays_numbers_and_dicts_are_as_pytorch_collates_them_with_reals_as_the_model_has_them():
    rows = [{"a": np.float32(i), "b": [np.arange(3) + i, (True, 2.5)], "y": i} for i in range(4)]
    taken, collated = Records(rows).take([1, 3]), torch.utils.data.default_collate([rows[1], rows[3]])
    assert set(taken) == set(collated)
    for mine, theirs in ((taken["a"], collated["a"]), (taken["y"], collated["y"]), (taken["b"][0], collated["b"][0])):
        torch.testing.assert_close(mine, theirs)
    for mine, theirs in zip(taken["b"][1], collated["b"][1], strict=True):
        torch.testing.assert_close(mine, theirs if theirs.dtype == torch.bool else theirs.float())


def test_a_model_that_does_not_run_on_zeros_is_tried_on_a_few_records_of_which_one_may_be_broken():
    class Table(nn.Module):
        """Looks rows up, from 3 on."""

        def __init__(self):
            super().__init__()
            self.rows = nn.Embedding(5, 2)

        def forward(self, places):
            return self.rows(places - 3)

    rows = [(torch.tensor(3 + i % 5), i % 2) for i in range(100)]
    for first in (None, (torch.tensor(0), 0)):
        train([first, *rows[1:]], Table(), sample_rate=0.3, batch_size=30, panel=0, steps=2).run()
    with pytest.raises(ValueError, match="run on no record of"):
        train([(torch.tensor(0), 0)] * 9, Table(), sample_rate=0.3, batch_size=3)


def test_ctrl_c_while_a_record_is_read_lets_the_step_finish_and_shows_nothing_of_it(blobs, tmp_path):
    x, y = blobs
    reads = []

    def presses(data, i):
        reads.append(i)
        if len(reads) == 5:  # in a step: fewer are read before
            signal.raise_signal(signal.SIGINT)
        return data.x[i], int(data.y[i])

    data = Pairs(x, y, {17: presses})
    private = train(data, run_dir=tmp_path / "run", sample_rate=0.9, batch_size=270, steps=12, panel=0)
    with pytest.raises(KeyboardInterrupt) as caught:
        private.run()
    assert 0 < private.taken < 12
    assert private.status == "interrupted"
    shown = "".join(traceback.format_exception(caught.value))
    assert "presses" not in shown
    assert "__getitem__" not in shown
    model = nn.Linear(4, 2)
    again = PrivateTraining.resume(
        tmp_path / "run", model, loss_fn, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
    )
    assert again.run().taken == 12


def test_a_second_ctrl_c_stops_reading_at_once_and_shows_nothing_of_the_record(blobs, tmp_path):
    x, y = blobs
    private = train(Pairs(x, y), run_dir=tmp_path / "run", sample_rate=0.9, batch_size=270, steps=12, panel=0)

    def presses(data, i):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    private.mechanism.records._reader._source.odd[17] = presses
    with pytest.raises(KeyboardInterrupt) as caught:
        private.run()
    assert "presses" not in "".join(traceback.format_exception(caught.value))
    assert private.status == "failed"


def test_a_loss_that_asks_for_too_much_memory_on_one_record_leaves_it_out(blobs):
    class Greedy(torch.autograd.Function):
        generate_vmap_rule = False

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return grad

        @staticmethod
        def vmap(info, in_dims, x):
            if bool((x == 31337.0).any()):
                raise MemoryError(SECRET)
            return x.clone(), 0

    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(Greedy.apply(x))

    x, y = blobs[0].clone(), blobs[1]
    model = Model(4, 2)
    loss, parameters = record_loss(model, loss_fn), {n: p.detach() for n, p in model.named_parameters()}
    whole = clipped_sum(loss, parameters, (x[:20], y[:20]), torch.ones(20, dtype=torch.float64))
    x[7] = 31337.0
    greedy = clipped_sum(loss, parameters, (x[:20], y[:20]), torch.ones(20, dtype=torch.float64))
    assert greedy.norms[7] == 0.0
    others = np.arange(20) != 7
    torch.testing.assert_close(greedy.norms[others], whole.norms[others])


# Knowing a dataset again.


def resumed(folder, data):
    model = nn.Linear(4, 2)
    return PrivateTraining.resume(folder, model, loss_fn, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def paused(folder, data):
    private = train(data, run_dir=folder, steps=20, panel=0)
    steps = iter(private)
    next(steps)
    steps.close()
    return private


class Augmented(Pairs):
    """Inputs with noise, other each time they are read."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + 0.01 * torch.randn(4), y


class Flipped(Pairs):
    """Inputs that change sign now and then."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return (-x if torch.rand(()) < 0.02 else x), y


@pytest.mark.parametrize("kind", [Pairs, Augmented, Flipped])
def test_a_run_is_resumed_on_its_own_dataset_and_not_on_another_of_equal_length(blobs, tmp_path, kind):
    x, y = blobs
    own = {5: ODD["unreadable"], 6: None}
    paused(tmp_path / "run", kind(x, y, own))
    for other in (kind(x.flip(0), y.flip(0), own), kind(x, 1 - y, own), kind(x[:299], y[:299], own)):
        with pytest.raises(PrivacyError, match="it is another dataset") as caught:
            resumed(tmp_path / "run", other)
        assert "\n" not in str(caught.value)
    assert resumed(tmp_path / "run", kind(x, y, own)).run().taken == 20


def test_other_inputs_with_the_same_targets_are_another_dataset(blobs, tmp_path):
    x, y = blobs
    paused(tmp_path / "run", Pairs(x, y))
    with pytest.raises(PrivacyError, match="another dataset"):
        resumed(tmp_path / "run", Pairs(x + 1e-6, y))
    with pytest.raises(PrivacyError, match="another dataset"):
        resumed(tmp_path / "run", Pairs(x, y, dict.fromkeys(range(20, 300), ODD["unreadable"])))


def test_a_dataset_of_which_nothing_stays_the_same_is_known_by_its_number_alone_and_that_is_said(tmp_path):
    class Drawn(Dataset):
        def __init__(self, size):
            self.size = size

        def __len__(self):
            return self.size

        def __getitem__(self, i):
            return torch.randn(4), torch.randn(2).softmax(0)

    with pytest.warns(UserWarning, match="only compare how many"):
        paused(tmp_path / "run", Drawn(300))
    with pytest.raises(PrivacyError, match="another dataset"):
        resumed(tmp_path / "run", Drawn(299))
    assert resumed(tmp_path / "run", Drawn(300)).taken == 1


def test_one_record_that_changes_from_reading_to_reading_is_left_out_and_all_others_are_compared(blobs):
    class Restless(Pairs):
        def __getitem__(self, i):
            inputs, target = super().__getitem__(i)
            return (torch.randn_like(inputs), torch.randint(0, 1 << 40, ())) if i == 3 else (inputs, target)

    few = [t[:40] for t in blobs]
    records, others = Records(Restless(*few)), Records(Pairs(few[0] + 1.0, few[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one record may not say a word
        mark = records.fingerprint()
    assert records.matches(mark)
    assert not others.matches(mark)
    assert mark.split(" ")[2] == "11"
    assert mark.split(" ")[3].split(",").count("") == 1


def test_a_fingerprint_is_another_each_time_and_that_of_other_kinds_matches_nothing(blobs):
    records = Records(Pairs(*blobs))
    marks = {records.fingerprint() for _ in range(3)}
    assert len(marks) == 3
    assert all(records.matches(mark) for mark in marks)
    for other in ("", "x", "0 300 11 ", "0 300 11 a,b", Records(blobs).fingerprint()):
        assert not records.matches(other)
    assert not Records(blobs).matches(next(iter(marks)))
