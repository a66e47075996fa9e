"""Faults planted in real images and tables, found in what was released; and releases without faults left alone."""

import math
import os

import numpy as np
import pytest
import torch

from tacita.data import Bool, Category, Real
from tacita.data.schema import Field
from tacita.synthesis.alarm import CANNOT, Expected, _moved, alarms
from tacita.synthesis.inspection import write_inspection
from tacita.synthesis.jobs import start
from tacita.synthesis.recipes import Recipe
from tests.synthesis.releases import (
    COLUMNS,
    DIGITS,
    FAULTS,
    SIZE,
    TABLE_FAULTS,
    clean,
    halves,
    images,
    one_town,
    raised,
    release,
    released,
    repeated,
    skewed,
    some,
    table,
    table_release,
    without,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_named(fault):
    kind, plant = FAULTS[fault]
    assert kind in raised(plant, seed=1)


def test_releases_without_a_fault_are_left_alone():
    assert [raised(clean, seed) for seed in range(2)] == [set()] * 2


def test_a_generator_trained_on_faulty_data_gives_the_fault_away():
    assert "rotated" in raised(FAULTS["rotated 30%"][1], 0, "mixtures")
    assert raised(clean, 2, "mixtures") == set()


@pytest.fixture(scope="module")
def private_release(tmp_path_factory):
    """Return a function that fits a private generator to digits with a fault, and returns its run's folder."""
    folder = tmp_path_factory.mktemp("private")

    def make(fault, seed, epsilon=10.0):
        where = folder / f"{fault} {epsilon} {seed}"
        if where.exists():
            return where
        _, plant = FAULTS.get(fault, ("", clean))
        inputs, targets = plant(*images(), np.random.default_rng(seed))
        np.savez(folder / f"{where.name}.npz", inputs=inputs, targets=targets)
        data = {
            "file": str(folder / f"{where.name}.npz"),
            "nominal_size": 1437,
            "inputs": {"low": 0, "high": 1, "shape": [1, 8, 8]},
            "targets": {"classes": list(DIGITS)},
        }
        recipe = Recipe.from_dict({"data": data, "epsilon": epsilon, "samples": 3000, "seed": seed})
        start(recipe, where).run(quality=False)
        return where

    return make


@pytest.mark.parametrize(
    ("fault", "epsilon"),
    [
        ("none", 10.0),
        ("rotated 30%", 10.0),
        *(
            pytest.param(fault, epsilon, marks=pytest.mark.slow)
            for epsilon in (10.0, 2.0)
            for fault in ("none", "rotated 30%", "inverted 30%", "cropped 30%", "missing")
            if (fault, epsilon) not in (("none", 10.0), ("rotated 30%", 10.0))
        ),
    ],
)
def test_a_private_generator_gives_the_fault_of_its_data_away(private_release, fault, epsilon, tmp_path):
    found = write_inspection(
        private_release(fault, 1, epsilon),
        tmp_path / "page.html",
        title="t",
        reference=private_release("none", 1001, epsilon),
    )
    kinds = {alarm.kind for alarm in found}
    if fault == "inverted 30%":
        assert kinds & {"inverted", "cropped"}  # a Gaussian of both kinds is grey at its rim, which may look cropped
    else:
        assert FAULTS[fault][0] in kinds if fault != "none" else not kinds


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("generator", ["held out", "mixtures"])
@pytest.mark.parametrize("fault", [*FAULTS, "none"])
def test_nineteen_of_twenty_faults_are_found_and_few_alarms_are_false(fault, generator):
    """At a false-alarm rate of 5%, 4 or more of 20 have a chance of 1.6%; seeds are fixed."""
    if (fault, generator) == ("repeated", "mixtures"):
        pytest.skip("a mixture of four parts cannot be fitted to three images")
    kind, plant = FAULTS.get(fault, ("", clean))
    found = [raised(plant, seed, generator) for seed in range(100, 120)]
    if fault == "none":
        assert sum(bool(kinds) for kinds in found) <= 2
    else:
        assert sum(kind in kinds for kinds in found) >= 19


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["rotated 30%", "inverted 30%", "cropped 30%", "missing", "none"])
def test_on_mnist_too(fault):
    if not os.path.isdir(os.path.join(os.environ.get("TACITA_DATA", ""), "mnist")):
        pytest.skip("mnist is not at hand: set TACITA_DATA to a folder that holds it")
    kind, plant = FAULTS.get(fault, ("", clean))
    found = [raised(plant, seed, name="mnist", size=1500) for seed in range(20)]
    if fault == "none":
        assert sum(bool(kinds) for kinds in found) <= 2
    else:
        assert sum(kind in kinds for kinds in found) >= 19


def test_releases_that_cannot_be_compared_are_said_to_be_so(rng):
    before, _ = halves(rng)
    noise = torch.from_numpy(rng.random((SIZE, 1, 8, 8), dtype=np.float32)), before[1]
    found = alarms(release(noise), reference=release(released(before, rng, "")), rng=rng)
    assert "unlike" in {alarm.kind for alarm in found}
    assert not {"rotated", "mirrored", "cropped"} & {alarm.kind for alarm in found}


def test_a_set_of_one_class_is_compared_with_itself(rng):
    images, labels = halves(rng)[0]
    only = release((images, torch.zeros_like(labels)), ["only"])
    assert alarms(only, reference=only) == ()


def test_without_a_trusted_release_the_set_must_agree_with_itself_and_with_what_is_known(rng):
    _, after = halves(rng)
    dark = Expected(background="dark")
    assert alarms(release(after), expected=dark) == ()
    (alarm,) = alarms(release(without(4)(*after, rng)))
    assert (alarm.kind, alarm.about, alarm.value) == ("missing", "4", 0.0)
    assert "70" in alarm.text or "63" in alarm.text
    (alarm,) = alarms(release(repeated(*after, rng)))
    assert (alarm.kind, alarm.about) == ("collapsed", "5")
    inverted = some(lambda x: 1.0 - x, 0.3)(*after, rng)
    assert alarms(release(inverted)) == ()  # nothing was declared
    (alarm,) = alarms(release(inverted), expected=dark)
    assert alarm.kind == "inverted"
    assert alarm.value == pytest.approx(0.3, abs=0.06)
    assert alarms(release(after), expected=Expected(background="light"))[0].value > 0.9


def test_declared_shares_come_before_those_of_the_reference(rng):
    before, after = halves(rng)
    few = skewed(*after, rng)
    expected = Expected(shares=tuple(float((few[1] == c).float().mean()) for c in range(10)))
    assert "shares" in {alarm.kind for alarm in alarms(release(few), reference=release(before))}
    assert alarms(release(few), reference=release(before), expected=expected) == ()
    assert "shares" in {alarm.kind for alarm in alarms(release(few), expected=Expected(shares=(0.1,) * 10))}
    with pytest.raises(ValueError, match=r"expected\.shares must give 10 shares"):
        alarms(release(few), expected=Expected(shares=(0.5, 0.5)))


@pytest.mark.stat
@pytest.mark.parametrize("sizes", [(300,), (300, 900)])
def test_shares_of_sets_drawn_alike_rarely_exceed_the_limit(rng, sizes):
    """2,000 pairs at a level of 5%: the limit is proved, so more than 5% plus 5 standard errors is a fault."""
    shares = np.array([0.4, 0.3, 0.2, 0.05, 0.05])
    drawn = [rng.multinomial(size, shares, 2000) / size for size in sizes]
    moved = drawn[0] - (drawn[1] if len(sizes) > 1 else shares)
    found = np.array([_moved(shares + some, shares, sizes, 0.05) for some in moved])
    assert (found[:, 0] > found[:, 1]).mean() < 0.05 + 5 * math.sqrt(0.05 * 0.95 / 2000)
    assert np.median(found[:, 0]) > 0.2 * found[0, 1]  # and is not out of reach


def test_impossible_pixels_ring(rng):
    x, y = halves(rng)[1]
    x = x.clone()
    x[0, 0, 0, 0] = math.nan
    x[1, 0, 0, 0] = 3.0
    (alarm,) = alarms(release((x, y)))
    assert alarm.kind == "impossible"
    assert alarm.value == pytest.approx(2 / SIZE)


@pytest.mark.stat
@pytest.mark.parametrize("fault", TABLE_FAULTS)
def test_faults_of_tables_are_found_twenty_times_of_twenty(fault):
    plant, told = TABLE_FAULTS[fault]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = alarms(table_release(plant(*table(rng))), reference=table_release(table(rng)))
        assert told in [(alarm.kind, alarm.about) for alarm in found]


@pytest.mark.stat
def test_tables_without_a_fault_are_left_alone():
    """At most one false alarm of 40, at a rate of 5%: the limits are bounds and mostly wider than needed."""
    false = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        false += bool(alarms(table_release(table(rng)), reference=table_release(table(rng))))
    assert false <= 1
    assert alarms(table_release(table(rng))) == ()
    assert alarms(table_release(one_town(*table(rng))))[0].about == "town"


def test_every_alarm_has_words_for_what_it_cannot_show():
    assert all(text.endswith(".") for text in CANNOT.values())


@pytest.mark.parametrize(
    ("new", "old", "message"),
    [
        ((["cat", "dog"], (1, 8, 8)), (["cat", "fox"], (1, 8, 8)), "classes differ, 'dog' in the new one and 'fox' in"),
        ((["cat", "dog"], (1, 8, 8)), (["dog", "cat"], (1, 8, 8)), "classes differ, 'cat' in the new one and 'dog' in"),
        ((["a"], (1, 8, 8)), (["a", "b"], (1, 8, 8)), "classes differ, nothing in the new one and 'b'"),
        ((["a"], (1, 8, 8)), (["a"], (1, 12, 8)), r"shapes of a record differ, \(1, 8, 8\) in .* and \(1, 12, 8\)"),
        ((["a"], (1, 8, 8)), (["a"], (8,)), "shapes of a record differ"),
    ],
)
def test_releases_of_other_things_are_not_compared(new, old, message):
    sets = [release((torch.rand(40, *shape), torch.arange(40) % len(names)), names) for names, shape in (new, old)]
    with pytest.raises(ValueError, match=message):
        alarms(sets[0], reference=sets[1])


@pytest.mark.parametrize(
    "other",
    [Field("age", Real(0.0, 120.0)), Field("years", Real(0.0, 100.0)), Field("age", Bool())],
)
def test_tables_of_other_columns_are_not_compared(rng, other):
    columns = (other, *COLUMNS[1:])
    with pytest.raises(ValueError, match=r"their columns differ, \('age', Real\(low=0.0, high=100.0"):
        alarms(table_release(table(rng)), reference=table_release(table(rng), columns=columns))
    swapped = (*COLUMNS[:3], Field("town", Category("y", "x")))
    with pytest.raises(ValueError, match=r"their columns differ, \('town'"):
        alarms(table_release(table(rng)), reference=table_release(table(rng), columns=swapped))
