"""Figures of a released set, against closed forms."""

import math

import numpy as np
import pytest
import torch

from tacita.synthesis.description import describe, thinned
from tests.synthesis.releases import jobs_unknown, release, table, table_release, two_jobs


def bars(upright=True):
    """Images of one bright bar, off the middle, on black."""
    x = torch.zeros(40, 1, 12, 12)
    for i in range(40):
        x[i, 0, 2:10, 3 + i % 2] = 1.0
    return x if upright else torch.rot90(x, 1, (2, 3))


def test_figures_say_what_images_are_like():
    x, y = bars(), torch.zeros(40, dtype=torch.int64)
    told = describe(release((x, y), ["bar", "none"]))
    look = told.overall
    assert look.brightness == pytest.approx(8 / 144)
    assert look.bright == pytest.approx(8 / 144)
    assert look.background == 0.0
    assert look.centre == (pytest.approx(0.5), pytest.approx(4 / 12))
    assert look.box == (pytest.approx(2 / 12), pytest.approx(3 / 12), pytest.approx(10 / 12), pytest.approx(5 / 12))
    assert look.directions[0] == max(look.directions) > 0.6  # edges run upright
    assert describe(release((bars(False), y), ["bar"])).overall.directions[4] > 0.6  # and level when turned
    assert look.symmetry[0] < 0.1  # the mirror image's bar is elsewhere
    assert look.copies == 1.0
    assert look.diversity == pytest.approx(20 / 39 * math.sqrt(16 / 144), rel=1e-5)
    assert [(part.count, part.share) for part in told.classes] == [(40, 1.0), (0, 0.0)]
    assert told.classes[1].look is None


def test_colour_images_and_images_of_one_brightness_are_described(rng):
    x = torch.from_numpy(rng.random((30, 3, 10, 8), dtype=np.float32))
    told = describe(release((x, torch.arange(30) % 2), ["a", "b"]))
    assert told.classes[0].look.mean.shape == (3, 10, 8)
    flat = describe(release((torch.full((5, 1, 4, 4), 0.3), torch.zeros(5, dtype=torch.int64)), ["a"]))
    assert flat.overall.centre == (0.5, 0.5)
    assert flat.overall.box == (0.0, 0.0, 0.0, 0.0)
    assert all(math.isfinite(value) for value in flat.overall.directions)


def test_columns_are_those_of_the_schema(rng):
    x, y = table(rng)
    told = describe(table_release(two_jobs(*jobs_unknown(x, y))))
    assert [part.name for part in told.columns] == ["age", "paid", "job", "town"]
    age, _, job, _ = told.columns
    assert job.values == ("none", "clerk", "cook", "a=b")
    assert job.impossible == pytest.approx(30 / 1500)
    assert job.absent == pytest.approx(490 / 1500)
    assert sum(job.shares) + job.absent + job.impossible == pytest.approx(1.0)
    assert age.shares == pytest.approx(np.histogram(x[:, 0].double(), 20, (-1, 1))[0] / 1500)
    assert told.overall is None
    plain = describe(table_release((x, y), columns=()))
    assert [part.name for part in plain.columns][:2] == ["feature 1", "feature 2"]


@pytest.mark.parametrize(("shape", "classes"), [((3, 4, 4), ["a"]), ((0, 4), ["a"]), ((3, 4), [])])
def test_what_is_no_set_of_labelled_records_is_refused(shape, classes):
    with pytest.raises(ValueError, match="A released set must hold images"):
        describe(release((torch.zeros(shape), torch.zeros(shape[0], dtype=torch.int64)), classes))


def test_thinning_spreads_evenly_and_keeps_what_is_few():
    assert thinned(torch.arange(1000), 5).tolist() == [0, 250, 500, 749, 999]
    assert thinned(torch.arange(4), 5).tolist() == [0, 1, 2, 3]
