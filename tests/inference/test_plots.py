"""Figures of a fit: every unknown in its place, names that fit, and a warning on what is not private."""

import builtins
import io

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from tacita.inference import fit
from tacita.inference.plots import elbo_plot, posterior_plot

pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install -e '.[report]')")


def model_of(size):
    def regression(x, y):
        weights = pyro.sample(
            "a_long_name_for_the_weights_of_characteristics", dist.Normal(torch.zeros(size), 1.0).to_event(1)
        )
        bias = pyro.sample("bias", dist.Normal(0.0, 1.0))
        far = pyro.sample("far", dist.Normal(1000.0, 1.0))
        with pyro.plate("people", len(x)):
            pyro.sample("y", dist.Normal(x @ weights + bias + 0.001 * far, 1.0), obs=y)

    return regression


def fitted(size, **options):
    x = torch.randn(100, size)
    given = {"noise_multiplier": 8.0, "steps": 10, "panel": 0, "seed": 0} if "method" not in options else {"steps": 10}
    return fit(model_of(size), (x, x.sum(1)), **given, **options)


@pytest.fixture(scope="module")
def result():
    return fitted(4)


def shown_in(axis):
    """(low, high) of the thin and of the thick lines, by row, and the dots."""
    thin, thick = ([tuple(line[:, 0]) for line in lines.get_segments()] for lines in axis.collections)
    return thin, thick, axis.get_lines()[0].get_xydata().tolist()


def png(figure):
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)
    return file.getvalue()


def test_every_unknown_has_its_mean_and_two_intervals(result):
    figure = posterior_plot(result)
    near, far = figure.axes  # a number around 1000 gets an axis of its own
    assert [t.get_text() for t in far.get_yticklabels()] == ["far"]
    names = [t.get_text() for t in near.get_yticklabels()]
    assert (len(names), names[-1]) == (5, "bias")
    assert all(len(name) <= 32 for name in names)
    assert [name[-3:] for name in names[:4]] == ["[0]", "[1]", "[2]", "[3]"]
    wide, half = result.summary().rows, result.summary(level=0.5).rows
    thin, thick, dots = shown_in(near)
    for place in range(5):
        assert thin[place] == pytest.approx((wide[place].low, wide[place].high))
        assert thick[place] == pytest.approx((half[place].low, half[place].high))
        assert dots[place] == [pytest.approx(wide[place].mean), place]
    assert near.get_ylim()[0] > near.get_ylim()[1]  # the first one is on top
    assert "epsilon" in far.get_xlabel()
    assert png(figure).startswith(b"\x89PNG")


def test_many_unknowns_get_a_taller_figure_and_too_many_are_refused(result):
    large = fitted(58)
    assert posterior_plot(large).get_size_inches()[1] > 3 * posterior_plot(result).get_size_inches()[1]
    assert [t.get_text() for t in posterior_plot(large, sites=["bias"]).axes[0].get_yticklabels()] == ["bias"]
    with pytest.raises(ValueError, match="too many for one figure"):
        posterior_plot(fitted(130))
    with pytest.raises(ValueError, match="no site 'slope'; there are 'a_long"):
        posterior_plot(large, sites=["slope"])


def test_a_fit_without_privacy_is_drawn_as_such():
    assert "without a privacy guarantee" in posterior_plot(fitted(2, method="plain")).axes[-1].get_xlabel()


def test_the_evidence_bound_is_for_the_owner(result):
    figure = elbo_plot(result)
    (axis,) = figure.axes
    assert "for the owner: not private" in axis.get_title(loc="right")
    raw, smooth = axis.get_lines()
    assert np.array_equal(raw.get_ydata(), result.elbo)
    assert raw.get_xdata().tolist() == list(range(1, 11))
    assert smooth.get_ydata()[5] == pytest.approx(np.mean(result.elbo[4:7]))
    assert png(figure).startswith(b"\x89PNG")


def test_steps_without_records_are_left_out_and_nothing_at_all_is_refused(result):
    holes = type(result)(result.posterior, "noisy", result.label(), (1.0, float("nan"), 3.0), settings={"steps": 5})
    assert elbo_plot(holes).axes[0].get_lines()[0].get_xdata().tolist() == [3, 5]
    with pytest.raises(ValueError, match="no evidence bound"):
        elbo_plot(type(result)(result.posterior, "noisy", result.label()))


def test_without_matplotlib_the_message_says_what_to_install(result, monkeypatch):
    before = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return before(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    for plot in (posterior_plot, elbo_plot):
        with pytest.raises(ImportError, match=r"pip install -e .\.\[report\]"):
            plot(result)
