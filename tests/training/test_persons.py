"""Persons with several records: what one of them can change, and what is said of them."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from tacita.training import Whose, clipped_sum, record_norms
from tacita.training.contributions import Several
from tacita.training.persons import parted
from tacita.training.records import Records
from tests.training.test_gradients import IMAGE, LAYERS, SEQUENCE, TOKENS, by_loop, flat, parts

COUNTS = torch.tensor([1, 3, 2, 5, 1])  # records of each person
TOTAL, MOST = int(COUNTS.sum()), int(COUNTS.max())
FIRST = COUNTS.cumsum(0) - COUNTS


class TiedWords(nn.Module):
    """Words looked up in the matrix that also tells them apart in the end."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 8)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(torch.tanh(self.mix(self.embed(x)))).mean(1)[:, :3]


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


class Alone(nn.Module):
    """Does not run under vmap: its records run one by one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(56, 3)

    def forward(self, x):
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            raise TypeError("One record at a time.")
        return self.layer(x.flatten(1))


MODELS = {
    **LAYERS,
    "wide convolution": (lambda: nn.Sequential(nn.Conv2d(3, 180, 3), nn.Flatten(), nn.Linear(180 * 36, 3)), IMAGE),
    "convolution over time": (lambda: nn.Sequential(nn.Conv1d(7, 300, 3), nn.Flatten(), nn.Linear(1800, 3)), SEQUENCE),
    "wide linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(56, 300), nn.Tanh(), nn.Linear(300, 3)), SEQUENCE),
    "wide over positions": (
        lambda: nn.Sequential(nn.Linear(8, 700), nn.Tanh(), nn.Flatten(), nn.Linear(4900, 3)),
        SEQUENCE,
    ),
    "tied words": (TiedWords, TOKENS),
    "gated": (Gated, SEQUENCE),
    "one by one": (Alone, SEQUENCE),
}


def zoo(name):
    """A model, records of five persons, and whether each mean gradient is long enough to be clipped to a bound."""
    torch.manual_seed(2)
    build, shape = MODELS[name]
    model = build()
    x = torch.randint(0, 20, (TOTAL, 7)) if shape == TOKENS else torch.randn(TOTAL, *shape)
    return model, x, torch.arange(TOTAL) % 3


def of(x, y, counts=COUNTS):
    return Several((x, y), counts, MOST)


def means(model, x, y, counts=COUNTS):
    """The oracle: ordinary backward passes, and their means over each person's records."""
    return torch.stack([rows.mean(0) for rows in by_loop(model, x, y).split(counts.tolist())])


def without(person, x, y):
    kept = torch.ones(TOTAL, dtype=torch.bool)
    kept[FIRST[person] : FIRST[person] + COUNTS[person]] = False
    return of(x[kept], y[kept], torch.cat([COUNTS[:person], COUNTS[person + 1 :]]))


def caps(persons, value=1e12):
    return torch.full((persons,), float(value), dtype=torch.float64)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:The records run one after the other")
def test_a_person_moves_the_sum_by_the_clipped_mean_of_their_records_on_20_models(name):
    model, x, y = zoo(name)
    loss, parameters = parts(model)
    rows = means(model, x, y).double()
    norms = rows.norm(dim=1)
    plain = clipped_sum(loss, parameters, of(x, y), caps(5))
    wanted = rows.sum(0)
    assert float((flat(plain.sums) - wanted).abs().max()) <= 2e-5 * float(wanted.abs().max())
    torch.testing.assert_close(plain.norms, norms, rtol=1e-4, atol=1e-9)
    bound = 0.7 * float(norms.min())  # everybody is clipped
    whole = flat(clipped_sum(loss, parameters, of(x, y), caps(5, bound)).sums)
    for person in (0, 3):  # of one record, and of five
        rest = flat(clipped_sum(loss, parameters, without(person, x, y), caps(4, bound)).sums)
        moved = (whole - rest).double()
        torch.testing.assert_close(moved, bound / norms[person] * rows[person], rtol=0.0, atol=2e-5 * bound)
        assert bound * 0.999 < float(moved.norm()) <= bound * (1.0 + 1e-5)  # the difference of two rounded sums


@pytest.mark.parametrize("name", ["linear", "wide convolution", "one by one"])
@pytest.mark.filterwarnings("ignore:The records run one after the other")
def test_a_sum_over_all_records_is_estimated_by_the_mean_of_those_taken(name):
    model, x, y = zoo(name)
    loss, parameters = parts(model)
    all_of_them = torch.tensor([4.0, 3.0, 7.0, 5.0, 1.0], dtype=torch.float64)
    rows = means(model, x, y).double() * all_of_them[:, None]
    several = Several((x, y), COUNTS, MOST, all_of_them)
    for chunk in (1, 100):
        found = clipped_sum(loss, parameters, several, caps(5), chunk=chunk)
        torch.testing.assert_close(flat(found.sums).double(), rows.sum(0), rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(found.norms, rows.norm(dim=1), rtol=1e-4, atol=1e-9)


def test_there_are_20_models():
    assert len(MODELS) == 20


@pytest.mark.parametrize("name", ["convolution", "wide convolution", "wide linear", "tied words"])
def test_chunks_change_nothing_but_round_off(name):
    model, x, y = zoo(name)
    loss, parameters = parts(model)
    found = [flat(clipped_sum(loss, parameters, of(x, y), caps(5, 0.01), chunk=c).sums) for c in (1, 2 * MOST, 100)]
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=0.0, atol=1e-7)


def test_records_that_cancel_within_a_person_keep_to_the_bound():
    """Their gradients are a million times longer than the mean, which is what is clipped, and must be what is added."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 300, bias=False), nn.Linear(300, 1, bias=False))
    x = torch.randn(1, 7, 8).expand(2, 7, 8) * 1e3
    x = x + 1e-3 * torch.randn(2, 7, 8)

    def loss(parameters, record):
        inputs, sign = record
        return sign * torch.func.functional_call(model, parameters, inputs).mean()

    parameters = {n: p.detach() for n, p in model.named_parameters()}
    several = Several((x, torch.tensor([1.0, -1.0])), torch.tensor([2]), 2)
    found = clipped_sum(loss, parameters, several, caps(1, 1.0))
    assert float(flat(found.sums).double().norm()) <= 1.0 + 1e-6


@pytest.mark.parametrize("name", ["linear", "wide convolution", "tied words"])
def test_a_record_that_is_not_finite_is_zero_in_its_persons_mean_and_changes_nobody_else(name):
    model, x, y = zoo(name)
    loss, parameters = parts(model)
    if name == "tied words":
        model, x = nn.Sequential(nn.Flatten(), nn.Linear(7, 3)), x.float()
        loss, parameters = parts(model)
    rows = by_loop(model, x, y)
    rows[2] = 0.0  # of person 1
    wanted = torch.stack([own.mean(0) for own in rows.split(COUNTS.tolist())]).sum(0)
    x[2] = float("nan")
    found = clipped_sum(loss, parameters, of(x, y), caps(5))
    torch.testing.assert_close(flat(found.sums), wanted, rtol=1e-4, atol=1e-5)
    assert bool(torch.isfinite(found.losses).all())


def test_a_record_on_which_the_loss_raises_is_zero_in_its_persons_mean():
    model = nn.Linear(4, 3)
    x, y = torch.randn(TOTAL, 4), torch.arange(TOTAL) % 3
    loss, parameters = parts(model)

    def fussy(parameters, record):
        value = loss(parameters, record)
        return value + nn.functional.embedding(record[1], torch.zeros(3, 1)).sum()

    fussy.model = model
    rows = by_loop(model, x, y)
    rows[[2, 8]] = 0.0
    wanted = torch.stack([own.mean(0) for own in rows.split(COUNTS.tolist())]).sum(0)
    y[[2, 8]] = 9  # an index that the loss lacks
    found = clipped_sum(fussy, parameters, of(x, y), caps(5))
    torch.testing.assert_close(flat(found.sums), wanted, rtol=1e-4, atol=1e-6)


def people(ids, missing="refuse"):
    records = {"training": Records(torch.arange(len(ids)).float())}
    return parted(records, Whose(person=ids, missing_person=missing))["training"]


def test_at_most_k_records_are_drawn_afresh_and_alike_for_all_of_them():
    ids = [0] * 5 + [1] * 2 + [2]
    rng, seen = np.random.default_rng(0), np.zeros(8)
    for _ in range(400):
        some = people(ids).several([0, 1, 2], 2, rng=rng)
        assert some.counts.tolist() == [2, 2, 1]
        own = some.records.long()
        assert len(set(own.tolist())) == 5
        seen[own] += 1
    assert (seen[5:] == 400).all()
    assert (abs(seen[:5] - 160) < 5 * np.sqrt(400 * 0.24)).all()


@pytest.mark.parametrize(
    "ids",
    [
        np.array([3, 1, 3, 7]),
        torch.tensor([3, 1, 3, 7]),
        [torch.tensor(3), torch.tensor(1), torch.tensor(3), torch.tensor(7)],
        ["c", "a", "c", "g"],
        [("x", 3), ("x", 1), ("x", 3), ("y", 3)],
        np.array([3.0, 1.0, 3.0, 7.0]),
        np.array(["2020-03-01", "2020-01-01", "2020-03-01", "2020-07-01"], dtype="datetime64[ns]"),
    ],
)
def test_ids_of_any_kind_tell_the_same_people_apart(ids):
    found = people(ids)
    assert [found.rows(i).tolist() for i in range(len(found))] == [[0, 2], [1], [3]]
    assert found.matches(people([3, 1, 3, 7]).fingerprint())
    assert not found.matches(people([3, 1, 7, 7]).fingerprint())


def test_ids_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": ["a", "b", "a", None], "code": pandas.array([1, 2, 1, None], dtype="Int64")})
    for column in (frame["id"], frame["code"], frame["id"].astype("category")):
        with pytest.raises(ValueError, match="has no id"):
            people(column)
        assert len(people(column, missing="own")) == 3


@pytest.mark.parametrize("gap", [None, float("nan"), "", "  ", (1, None), np.datetime64("NaT")])
def test_a_missing_id_is_refused_or_its_own_person(gap):
    ids = ["a", gap, gap, "a"] if isinstance(gap, str) else [(1, 2), gap, gap, (1, 2)]
    with pytest.raises(ValueError, match="has no id"):
        people(ids)
    found = people(ids, missing="own")
    assert sorted(found.counts.tolist()) == [1, 1, 2]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, 2], "got 2 for 3 records"),
        ("abc", "an array or a list"),
        ([1, "1", 2], "texts and others"),
        ([[1], [2], [3]], "hashable and comparable"),
        ([object(), object(), object()], "hashable and comparable"),
    ],
)
def test_ids_that_cannot_tell_people_apart_are_refused(ids, words):
    with pytest.raises((TypeError, ValueError), match=words):
        parted({"training": Records(torch.zeros(3))}, Whose(person=ids))


def test_the_largest_norm_is_over_all_records_of_a_person():
    found = people([0, 1, 0, 1, 1])
    assert found.largest(np.array([1, 0]), lambda rows: rows.astype(float)).tolist() == [4.0, 2.0]
    x, y = torch.randn(TOTAL, 4), torch.arange(TOTAL) % 3
    model = nn.Linear(4, 3)
    loss, parameters = parts(model)
    own = record_norms(loss, parameters, (x, y)).numpy()
    most = [own[f : f + c].max() for f, c in zip(FIRST.tolist(), COUNTS.tolist(), strict=True)]
    summed = found.largest(np.array([1, 0]), lambda rows: rows.astype(float), summed=True)
    assert summed.tolist() == [12.0, 4.0]  # three records, and two
    mean = clipped_sum(loss, parameters, of(x, y), caps(5)).norms.numpy()
    assert (mean <= np.array(most) * (1.0 + 1e-6)).all()
    assert mean[3] < 0.99 * most[3]


def test_the_order_of_people_does_not_tell_how_many_records_they_have():
    counts = np.random.default_rng(0).geometric(0.1, 2000)
    ids = np.random.default_rng(1).permutation(np.repeat(np.arange(2000), counts))
    assert spearmanr(np.arange(2000), people(ids).counts).pvalue > 1e-3
    assert spearmanr(counts[in_order(ids)], np.arange(2000)).pvalue < 1e-9  # that of who comes first does


def in_order(ids):
    return np.array(list(dict.fromkeys(ids.tolist())))


def test_what_is_drawn_outside_of_torch_is_each_records_own_also_where_a_person_is_alone():
    """Else it would hang on others whether a person's records share it."""
    seen, late = [], []

    def loss(parameters, record):
        seen.append(float(np.random.random()) if late else 1.0)  # noqa: NPY002
        return parameters["w"] * record * seen[-1]

    several = Several(torch.ones(2), torch.tensor([2]), 2)
    clipped_sum(loss, {"w": torch.zeros(())}, several, caps(1))  # how it runs is found out
    late.append(True)
    found = clipped_sum(loss, {"w": torch.zeros(())}, several, caps(1))
    assert seen[-1] != seen[-2]
    assert float(found.sums["w"]) == pytest.approx((seen[-1] + seen[-2]) / 2)
