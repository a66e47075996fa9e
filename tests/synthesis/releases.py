"""Releases with and without faults, for the tests of alarms, figures and pages.

Most are stand-ins for a private generator: held-out digits, blurred and noisy, and mixtures of Gaussians fitted to the
digits, which are real generators, drawn from and trained anew for every release, though not private ones.
"""

from functools import cache

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from torch.nn import functional

from tacita.data import Bool, Category, Dataset, Real, load
from tacita.data.schema import Field, Schema
from tacita.synthesis.alarm import alarms

DIGITS = tuple("0123456789")
SIZE = 700


def release(data, classes=DIGITS, columns=()):
    """A released set, as it is read back from its files."""
    inputs, labels = data
    schema = Schema(Field("class", Bool()), tuple(columns)) if inputs.ndim == 2 else None
    arrays = {"inputs": inputs.numpy(), "targets": labels.numpy()}
    empty = {"test_inputs": arrays["inputs"][:0], "test_targets": arrays["targets"][:0]}
    return Dataset(name="a release", **arrays, **empty, classes=tuple(classes), source="a test", schema=schema)


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


def raised(plant, seed, generator="held out", name="digits", size=SIZE):
    """The kinds of alarms when a fault is planted in the data of a release."""
    rng = np.random.default_rng(seed)
    before, after = halves(rng, name, size)
    trusted = released(before, rng, generator)
    found = alarms(release(released(plant(*after, rng), rng, generator)), reference=release(trusted), rng=rng)
    return {alarm.kind for alarm in found}


def clean(x, y, rng):
    return x, y


COLUMNS = (
    Field("age", Real(0.0, 100.0)),
    Field("paid", Bool()),
    Field("job", Category("none", "clerk", "cook", "a=b")),
    Field("town", Category("x", "y")),
)


def table_release(data, classes=("no", "yes"), columns=COLUMNS):
    return release(data, classes, columns)


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
