"""Charts: drawn by matplotlib from numbers alone, in the page's colours, the same every time."""

import math
import re
from dataclasses import replace

import matplotlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacita._numbers import tick_text
from tacita.label import Chart, Finding, Readings, Series, Shares
from tacita.profile import Profile
from tacita.report import charts
from tacita.report.charts import LEFT, PLOT, RIGHT, TOP, draw, spread_figure, steps_chart

LINE = ((0.001, 0.01), (0.1, 0.1), (1.0, 1.0))


def chart(*lines, log=False):
    series = tuple(Series(hue="anyone", name="n", points=tuple(points)) for points in lines)
    return Chart(heading="h", caption="c", description="d", x_title="x", y_title="y", series=series, log=log)


def paths(figure, hue="anyone"):
    """Return the corners of every line of a hue."""
    found = re.findall(rf'<g class="{hue}">\s*<path d="([^"]*)"', figure.drawing)
    return [[tuple(map(float, corner.split()[1:])) for corner in path.strip().splitlines()] for path in found]


def texts(figure):
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.drawing)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2), max_size=6),
    st.lists(st.tuples(*[st.floats(-1e4, 1e4)] * 2), max_size=6),
    st.booleans(),
)
def test_every_line_stays_inside_its_frame(first, second, log):
    figure = draw("k", chart(first, second, log=log))
    if figure is None:
        return
    for x, y in (corner for path in paths(figure) for corner in path):
        assert LEFT - 0.1 <= x <= RIGHT + 0.1
        assert TOP - 0.1 <= y <= TOP + PLOT + 0.1


def test_axes_are_linear_or_logarithmic_as_asked():
    log, linear = draw("k", chart(LINE, log=True)), draw("k", chart(LINE))
    assert texts(log)[:4] == ["0.001", "0.01", "0.1", "1"]
    assert texts(linear)[:6] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    (corners,) = paths(linear)
    assert corners[-1] == pytest.approx((RIGHT, TOP))
    assert paths(log)[0][1][0] == pytest.approx(LEFT + 2 / 3 * (RIGHT - LEFT))
    assert draw("k", chart(((0.0, 0.0), (1.0, 1.0)), log=True)) is None
    assert draw("k", None) is None


def test_a_histogram_keeps_its_corners_and_a_long_curve_stays_small():
    corners = ((0.0, 0.0), (0.0, 2.0), (1.0, 2.0), (1.0, 1.0), (2.0, 1.0), (2.0, 0.0))
    middle, half, bottom = (LEFT + RIGHT) / 2, TOP + PLOT / 2, TOP + PLOT
    expected = [(LEFT, bottom), (LEFT, TOP), (middle, TOP), (middle, half), (RIGHT, half), (RIGHT, bottom)]
    assert paths(draw("k", chart(corners)))[0] == [pytest.approx(corner) for corner in expected]
    long = draw("k", chart(tuple((i / 1e5, (i / 1e5) ** 0.5) for i in range(100_001))))
    assert len(long.drawing) < 20_000


def test_a_drawing_holds_nothing_but_numbers_and_the_pages_colours(make_label):
    label = make_label("<script>")
    for figure in (spread_figure(label), draw("steps", steps_chart(label))):
        assert not re.search(r"script|http|url\(| id=\"(?!m[0-9a-f])|#[0-9a-f]{6}|<style|<!--", figure.drawing)
        assert set(re.findall(r"var\(--(\w+)\)", figure.drawing)) <= {"ink", "soft", "rule", "paper"} | set(
            ("anyone", "typical", "spread")
        )
        assert all(re.search(r"\d", text) for text in texts(figure))


def test_a_drawing_does_not_depend_on_the_users_settings(make_label):
    before = draw("k", chart(LINE)).drawing
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path", "axes.grid": True}):
        from tacita.report.charts import _drawing

        _drawing.cache_clear()
        assert draw("k", chart(LINE)).drawing == before
        assert matplotlib.rcParams["font.size"] == 30


def test_charts_describe_themselves_and_the_public_page_has_no_spread(make_label):
    label = make_label("x")
    label = replace(label, worst=replace(label.worst, unit="record"))
    long = replace(label, curve=tuple((step, step**0.5) for step in range(1, 100_001)))
    assert "After 100,000 steps" in steps_chart(long).description
    spread = spread_figure(label)
    assert "50% stay under 58.1%" in spread.chart.description  # (e^0.325 + 1e-5) / (1 + e^0.325) = 0.58054
    assert "half: 58.1" in texts(spread)
    assert spread_figure(label.public()) is None
    endless = replace(label, curve=((1, math.inf), (2, math.inf)), readings=Readings())
    assert draw("steps", steps_chart(endless)) is None


def test_what_tests_find_is_drawn_for_anyone_for_shares_and_for_the_attack(make_label):
    label = make_label("x")
    curve = Profile.gaussian(1.0)
    worst = replace(label.worst, unit="record", epsilon=curve.epsilon(1e-5), profile=curve, estimator=None)
    label = replace(label, worst=worst)
    assert [s.name for s in charts.tests_chart(label.public()).series] == ["Anyone", "Guessing"]
    half, most = ((0.001, 0.002), (0.01, 0.02), (1.0, 1.0)), ((0.001, 0.004), (0.01, 0.9), (1.0, 1.0))
    shares = Shares(
        epsilons=((50.0, 0.5), (90.0, 1.0)),
        successes=((50.0, 0.55), (90.0, 0.6)),
        gamma=1e-6,
        followed=1000,
        tests=((50.0, half), (90.0, most)),
    )
    measured = ((0.001, 0.003), (0.1, 0.2), (1.0, 1.0))
    attack = Finding(key="canaries", heading="h", state="not-refuted", sentence="s", measured=measured)
    look = replace(attack, key="look", tests_claim=False, measured=((0.001, 0.9), (1.0, 1.0)))
    own = replace(label.readings, shares=shares, audit=(look, attack))
    series = {s.name: s for s in charts.tests_chart(replace(label, readings=own)).series}
    assert list(series) == ["Anyone", "90% of people", "50% of people", "Strongest attack that was tried", "Guessing"]
    assert series["50% of people"].points == tuple((100 * a, 100 * b) for a, b in half)
    assert series["90% of people"].points[1][1] == pytest.approx(100 * curve.tpr(0.01))  # never above anyone
    assert series["Strongest attack that was tried"].points == tuple((100 * a, 100 * b) for a, b in measured)
    assert len({s.hue for s in series.values()}) == 5
    assert draw("tests", charts.tests_chart(replace(label, readings=own))) is not None


def test_ticks_are_short():
    assert [tick_text(v) for v in (0.0, 0.001, 2.5e-4, 1e12)] == ["0", "0.001", "2.5·10⁻⁴", "10¹²"]
