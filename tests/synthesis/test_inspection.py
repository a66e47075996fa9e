"""Faults planted in real images and tables, found in what was released; and releases without faults left alone.

Most tests use stand-ins for a private generator: held-out digits, blurred and noisy, and mixtures of Gaussians fitted
to the digits, which are real generators, drawn from and trained anew for every release, though not private ones. One
test fits private generators to faulty digits.
"""

import math
import os
import re
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from torch.nn import functional

from tacita.data import load
from tacita.synthesis import alarm as alarm_module
from tacita.synthesis.alarm import CANNOT, Expected, alarms
from tacita.synthesis.description import columns_of, describe, thinned
from tacita.synthesis.faults import fault_shares, possible_faults
from tacita.synthesis.inspection import _HEADINGS, inspection_page
from tacita.synthesis.jobs import alarms_of, start
from tacita.synthesis.recipes import Recipe

DIGITS = tuple("0123456789")
SIZE = 700


@cache
def images(name="digits"):
    data = load(name)
    return torch.from_numpy(data.inputs), torch.from_numpy(data.targets)


def blurred(x, rng):
    """Images as a generator might make them: softer, and with noise."""
    soft = functional.avg_pool2d(functional.pad(x, (1, 1, 1, 1)), 3, 1)
    noise = torch.from_numpy(rng.standard_normal(x.shape).astype(np.float32))
    return (0.5 * x + 0.5 * soft + 0.08 * noise).clamp(0.0, 1.0)


class Mixtures:
    """A generator: for each class, a mixture of Gaussians in principal components."""

    def __init__(self, data, seed):
        x, y = data
        self.shape = x.shape[1:]
        self.plane = PCA(20, random_state=seed).fit(x.flatten(1).double().numpy())
        places = self.plane.transform(x.flatten(1).double().numpy())
        self.shares = np.bincount(y, minlength=10) / len(y)
        self.parts = [
            GaussianMixture(4, reg_covar=1e-2, random_state=seed).fit(places[y.numpy() == c]) if share else None
            for c, share in enumerate(self.shares)
        ]

    def sample(self, count, rng):
        y = rng.choice(10, size=count, p=self.shares)
        x = np.zeros((count, *self.shape), dtype=np.float32)
        for c in np.unique(y):
            self.parts[c].random_state = int(rng.integers(2**31))
            drawn, _ = self.parts[c].sample(int((y == c).sum()))
            x[y == c] = self.plane.inverse_transform(drawn).reshape(-1, *self.shape)
        return torch.from_numpy(x).clamp(0.0, 1.0), torch.from_numpy(y)


def some(change, share):
    """A fault of a share of the images."""

    def plant(x, y, rng):
        hit = torch.from_numpy(rng.random(len(x)) < share)
        x = x.clone()
        x[hit] = change(x[hit])
        return x, y

    return plant


def without(c):
    return lambda x, y, rng: (x[y != c], y[y != c])


def swapped(x, y, rng):
    return x, torch.where(y == 3, 7, torch.where(y == 7, 3, y))


def skewed(x, y, rng):
    kept = torch.from_numpy(rng.random(len(x))) < torch.where(y < 4, 0.3, 1.0)
    return x[kept], y[kept]


def repeated(x, y, rng):
    x, five = x.clone(), (y == 5).nonzero()[:, 0]
    x[five] = x[five[torch.arange(len(five)) % 3]]
    return x, y


def cut(x):
    """The right 40% of the image gone: not the third that the judge knows."""
    x = x.clone()
    x[..., round(0.6 * x.shape[3]) :] = 0.0
    return x


FAULTS = {
    "rotated 30%": ("rotated", some(lambda x: torch.rot90(x, 1, (2, 3)), 0.3)),
    "rotated 20%": ("rotated", some(lambda x: torch.rot90(x, 3, (2, 3)), 0.2)),
    "rotated all": ("rotated", some(lambda x: x.flip(2, 3), 1.0)),
    "inverted 30%": ("inverted", some(lambda x: 1.0 - x, 0.3)),
    "inverted all": ("inverted", some(lambda x: 1.0 - x, 1.0)),
    "cropped 30%": ("cropped", some(cut, 0.3)),
    "mirrored 30%": ("mirrored", some(lambda x: x.flip(3), 0.3)),
    "missing": ("missing", without(4)),
    "swapped labels": ("unrecognised", swapped),
    "skewed": ("shares", skewed),
    "repeated": ("collapsed", repeated),
}


def halves(rng, name="digits", size=SIZE):
    x, y = images(name)
    order = torch.from_numpy(rng.permutation(len(x)))
    return (x[order[:size]], y[order[:size]]), (x[order[size : 2 * size]], y[order[size : 2 * size]])


def released(data, rng, generator):
    if generator == "mixtures":
        return Mixtures(data, int(rng.integers(2**31))).sample(SIZE, rng)
    return blurred(data[0], rng), data[1]


def rung(plant, seed, generator="held out", name="digits", size=SIZE):
    """The kinds of alarms when a fault is planted in the data of a release."""
    rng = np.random.default_rng(seed)
    before, after = halves(rng, name, size)
    trusted = released(before, rng, generator)
    found = alarms(released(plant(*after, rng), rng, generator), DIGITS, reference=trusted, rng=rng)
    return {alarm.kind for alarm in found}


def clean(x, y, rng):
    return x, y


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_named(fault):
    kind, plant = FAULTS[fault]
    assert kind in rung(plant, seed=1)


def test_releases_without_a_fault_are_left_alone():
    assert [rung(clean, seed) for seed in range(2)] == [set()] * 2


def test_a_generator_trained_on_faulty_data_gives_the_fault_away():
    assert "rotated" in rung(FAULTS["rotated 30%"][1], 0, "mixtures")
    assert rung(clean, 2, "mixtures") == set()


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
        start(recipe, where).run(lambda step, doing: None, quality=False)
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
def test_a_private_generator_gives_the_fault_of_its_data_away(private_release, fault, epsilon):
    found = alarms_of(private_release(fault, 1, epsilon), private_release("none", 1001, epsilon))
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
    found = [rung(plant, seed, generator) for seed in range(100, 120)]
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
    found = [rung(plant, seed, name="mnist", size=1500) for seed in range(20)]
    if fault == "none":
        assert sum(bool(kinds) for kinds in found) <= 2
    else:
        assert sum(kind in kinds for kinds in found) >= 19


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6])
def test_the_share_of_faulty_images_is_estimated(rng, share):
    before, after = halves(rng)
    turned = some(lambda x: torch.rot90(x, 1, (2, 3)), share)(*after, rng)
    judged = fault_shares(released(turned, rng, ""), released(before, rng, ""), chance=0.01, rng=rng)
    shares = {fault.words: found for fault, found in judged.shares}
    assert shares.pop("turned by 90° anticlockwise") == pytest.approx(share, abs=0.06)
    assert max(shares.values()) < 0.06
    assert judged.by_chance < 0.06
    assert judged.unlike < 0.2


def test_every_fault_changes_images_as_its_words_say():
    x = torch.arange(36.0).reshape(1, 1, 6, 6) / 36.0
    made = {fault.words: fault.make(x)[0, 0] for fault in possible_faults(x)}
    grid = x[0, 0].numpy()
    assert np.array_equal(made["turned by 90° anticlockwise"], np.rot90(grid))
    assert np.array_equal(made["turned by 90° clockwise"], np.rot90(grid, -1))
    assert np.array_equal(made["turned upside down"], np.rot90(grid, 2))
    assert np.array_equal(made["mirrored left to right"], np.fliplr(grid))
    assert np.array_equal(made["mirrored top to bottom"], np.flipud(grid))
    assert np.array_equal(made["mirrored along the diagonal, rows and columns swapped"], grid.T)
    assert np.allclose(made["inverted, dark and light swapped"], 1.0 - grid)
    background = float(np.sort(grid[0])[2])  # torch's median of six is the third
    for words, gone in {"left": np.s_[:, :2], "right": np.s_[:, 4:], "upper": np.s_[:2], "lower": np.s_[4:]}.items():
        expected = grid.copy()
        expected[gone] = background
        assert np.array_equal(made[f"blank in their {words} third"], expected)
    assert made["cropped and enlarged"].shape == (6, 6)
    assert grid[1, 1] <= float(made["cropped and enlarged"].min())
    assert "turned by 90° clockwise" not in [fault.words for fault in possible_faults(torch.zeros(1, 1, 4, 6))]


def test_releases_that_cannot_be_compared_are_said_to_be_so(rng):
    before, _ = halves(rng)
    noise = torch.from_numpy(rng.random((SIZE, 1, 8, 8), dtype=np.float32)), before[1]
    found = alarms(noise, DIGITS, reference=released(before, rng, ""), rng=rng)
    assert "unlike" in {alarm.kind for alarm in found}
    assert not {"rotated", "mirrored", "cropped"} & {alarm.kind for alarm in found}


def test_too_few_trusted_images_give_no_verdict_on_faults(rng):
    before, after = halves(rng)
    few = before[0][:40], before[1][:40]
    assert fault_shares(after, few, chance=0.01, rng=rng) is None
    small = before[0][:200], before[1][:200]  # no class is large enough alone, all together are
    turned = some(lambda x: 1.0 - x, 0.5)(*after, rng)
    judged = dict(fault_shares(turned, small, chance=0.01, rng=rng).shares)
    assert {fault.words: share for fault, share in judged.items()}["inverted, dark and light swapped"] > 0.4
    one_class = before[0], torch.zeros_like(before[1])
    assert alarms(one_class, ["only"], reference=one_class) == ()


def test_without_a_trusted_release_the_set_must_agree_with_itself_and_with_what_is_known(rng):
    _, after = halves(rng)
    dark = Expected(background="dark")
    assert alarms(after, DIGITS, expected=dark) == ()
    (alarm,) = alarms(without(4)(*after, rng), DIGITS)
    assert (alarm.kind, alarm.about, alarm.value) == ("missing", "4", 0.0)
    assert "70" in alarm.text or "63" in alarm.text
    (alarm,) = alarms(repeated(*after, rng), DIGITS)
    assert (alarm.kind, alarm.about) == ("collapsed", "5")
    inverted = some(lambda x: 1.0 - x, 0.3)(*after, rng)
    assert alarms(inverted, DIGITS) == ()  # nothing was declared
    (alarm,) = alarms(inverted, DIGITS, expected=dark)
    assert alarm.kind == "inverted"
    assert alarm.value == pytest.approx(0.3, abs=0.06)
    assert alarms(after, DIGITS, expected=Expected(background="light"))[0].value > 0.9


def test_declared_shares_come_before_those_of_the_reference(rng):
    before, after = halves(rng)
    few = skewed(*after, rng)
    expected = Expected(shares=tuple(float((few[1] == c).float().mean()) for c in range(10)))
    assert "shares" in {alarm.kind for alarm in alarms(few, DIGITS, reference=before)}
    assert alarms(few, DIGITS, reference=before, expected=expected) == ()
    assert "shares" in {alarm.kind for alarm in alarms(few, DIGITS, expected=Expected(shares=(0.1,) * 10))}
    with pytest.raises(ValueError, match=r"expected\.shares must give 10 shares"):
        alarms(few, DIGITS, expected=Expected(shares=(0.5, 0.5)))


@pytest.mark.stat
@pytest.mark.parametrize("sizes", [(300,), (300, 900)])
def test_shares_of_sets_drawn_alike_rarely_exceed_the_limit(rng, sizes):
    """2,000 pairs at a level of 5%: the limit is proved, so more than 5% plus 5 standard errors is a fault."""
    shares = np.array([0.4, 0.3, 0.2, 0.05, 0.05])
    drawn = [rng.multinomial(size, shares, 2000) / size for size in sizes]
    moved = drawn[0] - (drawn[1] if len(sizes) > 1 else shares)
    limit = alarm_module._by_chance(shares, sizes, 0.05)
    assert (0.5 * np.abs(moved).sum(1) > limit).mean() < 0.05 + 5 * math.sqrt(0.05 * 0.95 / 2000)
    assert np.median(0.5 * np.abs(moved).sum(1)) > 0.2 * limit  # and is not out of reach


def bars(upright=True):
    """Images of one bright bar, off the middle, on black."""
    x = torch.zeros(40, 1, 12, 12)
    for i in range(40):
        x[i, 0, 2:10, 3 + i % 2] = 1.0
    return x if upright else torch.rot90(x, 1, (2, 3))


def test_figures_say_what_images_are_like():
    x, y = bars(), torch.zeros(40, dtype=torch.int64)
    told = describe((x, y), ["bar", "none"])
    look = told.overall
    assert look.brightness == pytest.approx(8 / 144)
    assert look.bright == pytest.approx(8 / 144)
    assert look.background == 0.0
    assert look.centre == (pytest.approx(0.5), pytest.approx(4 / 12))
    assert look.box == (pytest.approx(2 / 12), pytest.approx(3 / 12), pytest.approx(10 / 12), pytest.approx(5 / 12))
    assert look.directions[0] == max(look.directions) > 0.6  # edges run upright
    assert describe((bars(False), y), ["bar"]).overall.directions[4] > 0.6  # and level when turned
    assert look.symmetry[0] < 0.1  # the mirror image's bar is elsewhere
    assert look.copies == 1.0
    assert look.diversity == pytest.approx(20 / 39 * math.sqrt(16 / 144), rel=1e-5)
    assert told.missing == ("none",)
    assert [(part.count, part.share) for part in told.classes] == [(40, 1.0), (0, 0.0)]
    assert told.classes[1].look is None


def test_colour_images_and_images_of_one_brightness_are_described(rng):
    x = torch.from_numpy(rng.random((30, 3, 10, 8), dtype=np.float32))
    told = describe((x, torch.arange(30) % 2), ["a", "b"])
    assert told.classes[0].look.mean.shape == (3, 10, 8)
    flat = describe((torch.full((5, 1, 4, 4), 0.3), torch.zeros(5, dtype=torch.int64)), ["a"])
    assert flat.overall.centre == (0.5, 0.5)
    assert flat.overall.box == (0.0, 0.0, 0.0, 0.0)
    assert all(math.isfinite(value) for value in flat.overall.directions)


def test_impossible_pixels_ring(rng):
    x, y = halves(rng)[1]
    x = x.clone()
    x[0, 0, 0, 0] = math.nan
    x[1, 0, 0, 0] = 3.0
    (alarm,) = alarms((x, y), DIGITS)
    assert alarm.kind == "impossible"
    assert alarm.value == pytest.approx(2 / SIZE)


FEATURES = ("age", "paid", "job=none", "job=clerk", "job=cook", "job=a=b", "town=x", "town=y")


def table(rng, count=1500):
    """Records with a number, a truth value and two categories, and classes that depend on them."""
    age = np.clip(rng.normal(-0.2, 0.4, count), -1.0, 1.0)
    job = rng.choice(4, size=count, p=[0.3, 0.4, 0.25, 0.05])
    town = rng.choice(2, size=count, p=[0.6, 0.4])
    paid = np.where(job > 0, 1.0, -1.0)
    rows = np.column_stack([age, paid, np.eye(4)[job], np.eye(2)[town]]).astype(np.float32)
    return torch.from_numpy(rows), torch.from_numpy(
        (age + 0.3 * job + rng.normal(0, 0.3, count) > 0.2).astype(np.int64)
    )


def no_cooks(x, y):
    kept = x[:, 4] == 0.0
    return x[kept], y[kept]


def turned_around(x, y):
    x = x.clone()
    x[:, 0] = -x[:, 0]
    return x, y


def two_jobs(x, y):
    x = x.clone()
    x[:30, 2:4] = 1.0
    return x, y


def one_town(x, y):
    x = x.clone()
    x[:, 6:] = torch.tensor([1.0, 0.0])
    return x, y


def jobs_unknown(x, y):
    x = x.clone()
    x[::3, 2:6] = 0.0
    return x, y


TABLE_FAULTS = {
    "a value is lost": (no_cooks, ("missing", "job")),
    "a number is turned around": (turned_around, ("column", "age")),
    "two values at once": (two_jobs, ("impossible", "")),
    "one value only": (one_town, ("collapsed", "town")),
    "values go missing": (jobs_unknown, ("column", "job")),
}


@pytest.mark.stat
@pytest.mark.parametrize("fault", TABLE_FAULTS)
def test_faults_of_tables_are_found_twenty_times_of_twenty(fault):
    plant, told = TABLE_FAULTS[fault]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = alarms(plant(*table(rng)), ["no", "yes"], features=FEATURES, reference=table(rng))
        assert told in [(alarm.kind, alarm.about) for alarm in found]


@pytest.mark.stat
def test_tables_without_a_fault_are_left_alone():
    """At most one false alarm of 40, at a rate of 5%: the limits are bounds and mostly wider than needed."""
    false = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        false += bool(alarms(table(rng), ["no", "yes"], features=FEATURES, reference=table(rng)))
    assert false <= 1
    assert alarms(table(rng), ["no", "yes"], features=FEATURES) == ()
    assert alarms(one_town(*table(rng)), ["no", "yes"], features=FEATURES)[0].about == "town"


def test_columns_are_told_from_their_features(rng):
    x, y = table(rng)
    names = [name for name, _, _ in columns_of(FEATURES, x)]
    assert names == ["age", "paid", "job", "town"]
    told = describe(two_jobs(*jobs_unknown(x, y)), ["no", "yes"], features=FEATURES)
    age, _, job, _ = told.columns
    assert job.values == ("none", "clerk", "cook", "a=b")
    assert job.impossible == pytest.approx(30 / 1500)
    assert job.absent == pytest.approx(490 / 1500)
    assert sum(job.shares) + job.absent + job.impossible == pytest.approx(1.0)
    assert age.shares == pytest.approx(np.histogram(x[:, 0].double(), 20, (-1, 1))[0] / 1500)
    assert told.overall is None
    plain = describe((x, y), ["no", "yes"])
    assert [part.name for part in plain.columns][:2] == ["feature 1", "feature 2"]


@pytest.mark.parametrize(
    ("samples", "classes", "words"),
    [
        ((torch.zeros(3, 4, 4), torch.zeros(3, dtype=torch.int64)), ["a"], "samples must be images"),
        ((torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)), ["a"], "samples must be images"),
        ((torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64)), ["a"], "labels must be 3 whole numbers"),
        ((torch.zeros(3, 4), torch.zeros(3)), ["a"], "labels must be 3 whole numbers"),
        ((torch.zeros(3, 4), torch.tensor([0, 1, 2])), ["a", "b"], "positions in the 2 classes"),
        ((torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)), [], "positions in the 0 classes"),
    ],
)
def test_samples_that_do_not_fit_are_refused(samples, classes, words):
    with pytest.raises(ValueError, match=words):
        alarms(samples, classes)


def test_more_that_does_not_fit_is_refused(rng):
    before, after = halves(rng)
    with pytest.raises(ValueError, match=r"of one shape, got \(1, 8, 8\) and \(1, 8, 7\)"):
        alarms(after, DIGITS, reference=(before[0][..., :7], before[1]))
    x, y = table(rng)
    with pytest.raises(ValueError, match=r"of one shape, got \(8,\) and \(7,\)"):
        alarms((x, y), ["no", "yes"], reference=(x[:, :7], y))
    with pytest.raises(ValueError, match="features must name 8 features, got 1"):
        describe(table(rng), ["no", "yes"], features=["age"])
    for name in ("false_alarms", "tolerance"):
        with pytest.raises(ValueError, match=f"{name} must be in"):
            alarms(after, DIGITS, **{name: 0.0})


def test_the_same_release_gives_the_same_alarms_and_page(rng):
    before, after = halves(rng, size=200)
    turned = FAULTS["inverted 30%"][1](*after, rng)
    first, second = (inspection_page(turned, DIGITS, reference=before, title="t") for _ in range(2))
    assert first == second
    assert "look inverted" in first


def test_thinning_spreads_evenly_and_keeps_what_is_few():
    assert thinned(torch.arange(1000), 5).tolist() == [0, 250, 500, 749, 999]
    assert thinned(torch.arange(4), 5).tolist() == [0, 1, 2, 3]


def test_every_alarm_has_words_for_what_it_cannot_show():
    assert set(CANNOT) == set(_HEADINGS)
    assert all(text.endswith(".") for text in CANNOT.values())


def words(document):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", document.split("</style>")[1]))


def test_the_page_shows_samples_alarms_and_their_limits(rng):
    before, after = halves(rng)
    x, y = FAULTS["rotated 30%"][1](*without(4)(*after, rng), rng)
    document = inspection_page((x, y), DIGITS, reference=before, title="Week 3")
    seen = words(document)
    assert "Made from the released set alone." in seen
    assert "turned by 90° anticlockwise, compared with the trusted release" in seen
    assert CANNOT["rotated"] in seen
    assert "Missing: 4" in seen
    assert "4: none" in seen
    assert "may invent a fault" in seen
    assert document.count("<img ") == 2 * 10 + 9  # samples of both releases, mean images of the classes that are there
    calm = words(inspection_page(after, DIGITS, reference=before, title="Week 2"))
    assert "No alarm: nothing stands out beside the trusted release." in calm
    alone = words(inspection_page(after, DIGITS, title="Week 1"))
    assert "no trusted release to compare with" in alone
    assert "Trusted" not in alone


def test_the_page_of_a_table_shows_every_column_and_lost_values(rng):
    trusted = table(rng)
    x, y = no_cooks(*two_jobs(*table(rng)))
    document = inspection_page((x, y), ["no", "yes"], features=FEATURES, reference=trusted, title="People")
    seen = words(document)
    for text in ("age", "job", "town", "job: no record has cook", "job: impossible values", "Column job lost what"):
        assert text in seen
    assert document.count("<svg ") == 2
    assert "<img" not in document
    many = tuple(f"country={i}" for i in range(30))
    wide = torch.eye(30)[torch.from_numpy(rng.integers(30, size=600))], torch.zeros(600, dtype=torch.int64)
    assert "18 more" in words(inspection_page(wide, ["all"], features=many, title="Countries"))
    assert "and a column that never changes. Everything else" in words(
        inspection_page(trusted, ["no", "yes"], title="Alone")
    )


def test_s4_names_and_titles_are_escaped(rng):
    bad = '"><script>alert(1)</script>'
    before, after = halves(rng, size=200)
    names = [f"{c}{bad}" for c in DIGITS]
    document = inspection_page(without(4)(*after, rng), names, reference=before, title=bad)
    document += inspection_page(one_town(*table(rng)), [bad, "b"], features=[f"{n}{bad}" for n in FEATURES], title=bad)
    assert "<script" not in document
    assert document.count("&lt;script&gt;") > 40
