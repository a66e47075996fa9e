"""Datasets of all shapes reach the private step: loaders, rows of `datasets`, pandas, arrays of any type, lists."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from tacita.training import PrivateTraining
from tacita.training.records import Records

pandas = pytest.importorskip("pandas")


class Rows(Dataset):
    """Made of a list."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return self.rows[place]


def steps(data, inputs=4, steps=2, model=None):
    """Train with a seed, and return the parameters; every record is in every step."""
    torch.manual_seed(0)
    model = nn.Linear(inputs, 2) if model is None else model
    private = PrivateTraining(
        model,
        nn.functional.cross_entropy,
        data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=300,
        sample_rate=1.0,
        noise_multiplier=0.01,
        steps=steps,
        panel=0,
        seed=3,
    )
    private.run()
    return torch.cat([p.detach().flatten().float() for p in model.parameters()])


def loaded(dataset, **settings):
    with pytest.warns(UserWarning, match="batches are replaced"):
        return Records(DataLoader(dataset, **settings))


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", ">f8", "float32", "longdouble", "int8", "uint16", "uint32", "uint64", ">i4", "bool"]
)
def test_arrays_of_any_type_train_as_tensors_do(blobs, dtype):
    x, y = (torch.randn(300, 4).round() > 0, blobs[1]) if dtype == "bool" else (blobs[0].round().abs(), blobs[1])
    array = x.numpy().astype(dtype)
    model = None
    torch.manual_seed(0)
    if np.dtype(dtype).kind != "f":  # whole numbers and truth values are not made reals: a model takes them as it likes
        model = nn.Sequential(nn.Linear(4, 2))
        model.register_forward_pre_hook(lambda _, given: (given[0].float(),))
    expected = steps((x.float(), y))
    torch.testing.assert_close(steps((array, y.numpy().astype("uint8")), model=model), expected, rtol=1e-3, atol=1e-4)


def test_reals_become_what_the_model_has_and_views_of_any_kind_are_taken(blobs):
    x, y = blobs
    model = nn.Linear(4, 2).double()
    records = Records.of((x.double().numpy()[::-1, ::-1], y.numpy()), "cpu", model.weight.dtype)
    assert torch.equal(records.take([0])[0], x[-1:].double().flip(1))
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(Records((frozen, y)).take([3])[0], x[3:4])
    images = np.zeros((5, 2, 2), dtype="uint8")
    assert Records((images, np.arange(5))).take([1])[0].dtype == torch.uint8  # an eighth of the memory
    top = Records((np.array([2**64 - 1, 3], dtype="uint64"), np.arange(2))).take([0, 1])
    assert top[0].tolist() == [2**63 - 1, 3]


def test_what_is_no_number_is_refused_by_its_name_and_type(blobs):
    _, y = blobs
    for array, kind in (("a", "<U1"), (None, "object"), (np.datetime64("2020-01-01"), "datetime64")):
        with pytest.raises(TypeError, match=f"dataset\\['x'\\] holds {kind}"):
            Records({"x": np.array([array] * 300), "y": y})
    with pytest.raises(TypeError, match=r"dataset\[0\] is a list of which there is no array: pad"):
        Records(([[1], [2, 3]], [0, 1]))
    assert torch.equal(Records(([[1.0, 2.0], [3.0, 4.0]], [0, 1])).take([1])[0], torch.tensor([[3.0, 4.0]]))


def test_tables_and_columns_of_pandas_are_inputs_and_targets(blobs):
    x, y = blobs
    frame = pandas.DataFrame({"a": x[:, 0].double(), "b": x[:, 1], "c": x[:, 2], "d": x[:, 3], "y": y})
    expected = steps((x, y))
    torch.testing.assert_close(steps((frame.drop(columns="y"), frame["y"])), expected, rtol=1e-4, atol=1e-5)
    taken = Records({name: frame[name] for name in frame}).take([4])
    assert taken["a"].dtype == torch.float32
    assert torch.equal(taken["y"], y[4:5])
    mixed = pandas.DataFrame({"flag": [True, False], "size": [1, 2], "share": [0.5, 1.5]})
    assert Records((mixed, [0, 1])).take([0])[0].tolist() == [[1.0, 1.0, 0.5]]


def test_the_type_of_a_column_does_not_hang_on_whether_one_value_is_missing():
    for last in (3, None):
        column = pandas.Series([1, 2, last], dtype="Int64")
        taken = Records((column, [0, 1, 0])).take([0, 1])
        assert taken[0].dtype == torch.int64
        assert taken[0].tolist() == [1, 2]
    table = pandas.DataFrame({"a": pandas.Series([0.5, None], dtype="Float64"), "b": [1, 2]})
    assert Records((table, [0, 1])).take([1])[0].isnan().any()


def test_tables_that_do_not_fit_say_what_to_do():
    frame = pandas.DataFrame({"job": ["cook", "clerk"], "y": [0, 1]})
    with pytest.raises(TypeError, match=r"say what is predicted, by \(frame\.drop"):
        Records(frame)
    with pytest.raises(TypeError, match=r"Column 'job' holds str.*list of values that you declare"):
        Records((frame[["job"]], frame["y"]))
    with pytest.raises(TypeError, match=r"dataset\[1\] holds category"):
        Records((frame[["y"]], frame["job"].astype("category")))


def test_a_list_of_pairs_trains_as_tensors_do(blobs):
    x, y = blobs
    expected = steps((x, y))
    for pairs in (
        [(a, int(b)) for a, b in zip(x, y, strict=True)],
        [[a.tolist(), int(b)] for a, b in zip(x, y, strict=True)],
        [(a.double().numpy(), np.uint8(b)) for a, b in zip(x, y, strict=True)],
    ):
        torch.testing.assert_close(steps(pairs), expected, rtol=1e-4, atol=1e-5)


def test_rows_of_datasets_train_without_a_format(blobs):
    datasets = pytest.importorskip("datasets")
    x, y = blobs
    rows = datasets.Dataset.from_dict({"input": x.tolist(), "labels": y.tolist()})
    torch.testing.assert_close(steps(rows), steps({"input": x, "labels": y}), rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="holds several datasets, train: pass one of them"):
        Records(datasets.DatasetDict(train=rows))
    with pytest.raises(TypeError, match="a stream will not do"):
        Records(rows.to_iterable_dataset())
    texts = rows.add_column("text", ["a secret"] * 300)
    with pytest.raises(
        ValueError, match=r"\['text'\] is a str, of which there is no tensor: drop or encode it"
    ) as told:
        _ = Records(texts).take([0])
    assert "secret" not in str(told.value)


def test_a_loader_is_its_dataset_and_collates_each_record_alone(blobs):
    x, y = blobs
    assert torch.equal(loaded(TensorDataset(x, y), batch_size=7, shuffle=True).take([5])[0], x[5:6])
    seen = []

    def padded(batch):
        seen.append(len(batch))
        longest = max(len(row["ids"]) for row in batch)
        rows = [row["ids"] + [0] * (-(-longest // 4) * 4 - len(row["ids"])) for row in batch]
        return {"ids": torch.tensor(rows), "labels": torch.tensor([row["label"] for row in batch])}

    rows = [{"ids": [1] * (1 + i % 3), "label": i % 2} for i in range(30)]
    taken = loaded(Rows(rows), collate_fn=padded).take([0, 2])
    assert set(seen) == {1}
    assert taken["ids"].tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]
    assert taken["labels"].tolist() == [0, 0]


def test_loaders_that_would_change_who_is_trained_on_are_refused(blobs):
    data = TensorDataset(*blobs)
    weighed = WeightedRandomSampler([1.0] * 300, 10)
    for settings in ({"sampler": weighed}, {"batch_sampler": BatchSampler(weighed, 5, drop_last=False)}):
        with pytest.raises(TypeError, match=r"WeightedRandomSampler may choose or weigh records.*Subset"):
            Records(DataLoader(data, **settings))
    with pytest.raises(TypeError, match="The DataLoader's list may choose or weigh records"):
        Records(DataLoader(data, batch_sampler=[[0, 1], [2, 3]]))
    assert len(loaded(data, batch_size=None)) == 300

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(TypeError, match="reads a stream"):
        Records(DataLoader(Stream()))


def test_a_collate_function_that_packs_records_or_leaves_text_is_refused_with_the_reason():
    rows = Rows([{"ids": [1, 2], "text": "a secret"}] * 20)
    with pytest.raises(ValueError, match=r"returned a tensor of shape \(2,\).*first dimension must be 1"):
        _ = loaded(rows, collate_fn=lambda batch: torch.tensor(batch[0]["ids"])).take([0])
    with pytest.raises(ValueError, match=r"\['text'\] is a list|\['text'\]\[0\] is a str") as told:
        _ = loaded(rows, collate_fn=lambda batch: {"text": [row["text"] for row in batch]}).take([0])
    assert "secret" not in str(told.value)


def test_records_of_different_lengths_say_how_to_pad():
    ragged = Rows([{"ids": [1] * (1 + i), "labels": 0} for i in range(20)])
    with pytest.raises(ValueError, match=r"padding='max_length'.*pad_to_multiple_of"):
        _ = Records(ragged).take([0])


class Jittered(Rows):
    """Draws from all three global generators at every reading."""

    def __getitem__(self, place):
        return torch.rand(()) + np.random.rand() + random.random(), self.rows[place]  # noqa: NPY002


def test_f15_what_is_drawn_for_a_record_does_not_hang_on_others_by_a_seed_that_is_known():
    """With the script's own seed one record more would shift the draws of all that are read after it."""
    records, drawn = Records(Jittered([0, 1, 0, 1])), []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        drawn.append(records.marked([1, 2]).record[0])
        left = torch.rand(()), np.random.rand(), random.random()  # noqa: NPY002
        fresh = torch.rand((), generator=torch.Generator().manual_seed(0)), np.random.RandomState(0).rand()
        assert left == (*fresh, random.Random(0).random())  # all three are as they were
    assert not torch.equal(*drawn)
    again = [records.marked([1, 2], rng=np.random.default_rng(5)).record[0] for _ in range(2)]
    assert torch.equal(*again)  # a run with a seed can be repeated


GENERATOR = np.random.default_rng(0)
OWNERS = {
    "torch": lambda: torch.Generator().manual_seed(0),
    "numpy": lambda: np.random.default_rng(0),
    "legacy": lambda: np.random.RandomState(0),
    "python": lambda: random.Random(0),
}


class Owns(Rows):
    """Draws from a generator of its own at every reading, which is made at the first one, as collators do."""

    def __init__(self, rows, kind):
        super().__init__(rows)
        self.kind, self.transforms = kind, []

    def __getitem__(self, place):
        if not self.transforms:
            self.transforms.append(OWNERS[self.kind]())
        (own,) = self.transforms
        drawn = torch.rand((), generator=own) if self.kind == "torch" else own.random()
        return float(drawn), self.rows[place]


class Names(Rows):
    """Draws from a generator of its module."""

    def __getitem__(self, place):
        return GENERATOR.random(), self.rows[place]


def collate(batch):
    return torch.tensor([[GENERATOR.random(), y] for _, y in batch])


@pytest.mark.parametrize("kind", [*OWNERS, "module", "collate", "like"])
def test_what_a_dataset_draws_from_its_own_generator_does_not_hang_on_others_either(kind):
    """As DataCollatorForLanguageModeling(seed=…) does: all later records' masks would shift, in a known way."""
    drawn = []
    for _ in range(2):
        rows = Owns([0, 1, 0, 1], kind) if kind in OWNERS else Names([0, 1, 0, 1])
        if kind == "like":
            rows = Owns([0, 1, 0, 1], "numpy")
        source = DataLoader(rows, collate_fn=collate) if kind == "collate" else rows
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            records = Records(source, like=(0.0, 0) if kind == "like" else None)
        records.take([0])  # looks for generators once
        GENERATOR.bit_generator.state = np.random.default_rng(0).bit_generator.state
        drawn.append(torch.as_tensor(records.marked([1, 2]).record[0]))
        assert GENERATOR.random() == np.random.default_rng(0).random()  # as it was
    assert not torch.equal(*drawn)
    again = [records.marked([1, 2], rng=np.random.default_rng(5)).record[0] for _ in range(2)]
    assert torch.equal(*again)  # a run with a seed can be repeated
