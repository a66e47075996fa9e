"""The leak test is checked against scipy, against exchangeable records, and against models that do leak."""

import json

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist, pdist

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install -e '.[torch]')")

from tacita.audit import exchange, leak, leak_attack, leak_test  # noqa: E402
from tacita.data import load  # noqa: E402
from tacita.training import clipped_sum, record_norms  # noqa: E402
from tacita.training.records import record_loss  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def rng():
    """Fixed: tests that expect no alarm would see one in up to 5 of 100 other seeds, as the test is allowed to."""
    return np.random.default_rng(0)


def norms_of(rng, size, *, scale=0.2, width=0.5):
    return np.minimum(rng.lognormal(np.log(scale), width, size=size), 1.0)


def gradients_of(rng, size, *, shift=0.0, width=0.1):
    return shift + width * rng.normal(size=(size, 12)) / np.sqrt(12)


def leak_of(inside, outside, **options):
    norms = [np.linalg.norm(side, axis=1).clip(max=1.0) for side in (inside, outside)]
    return leak(norms, gradients=(inside, outside), **options)


def checks_of(found, quantity):
    return {c.of: c for k in found.comparisons if k.quantity == quantity for c in k.checks}


@pytest.mark.stat
def test_p_values_of_numbers_are_scipys_on_normal_data(rng):
    """Errors of a share of 999 exchanges: at most 0.016 each way; 0.08 is five of them (false alarm 1e-6 each)."""
    x, y = rng.normal(0.50, 0.08, 150), rng.normal(0.51, 0.09, 190)
    checks = checks_of(leak((x, y), rng=rng), "gradient norm")
    assert checks["average"].p_value == pytest.approx(stats.ttest_ind(x, y, equal_var=False).pvalue, abs=0.08)
    assert checks["spread"].p_value == pytest.approx(stats.levene(x, y).pvalue, abs=0.08)
    assert checks["distribution"].p_value == pytest.approx(stats.ks_2samp(x, y).pvalue, abs=0.08)


def test_effects_are_what_they_are_called(rng):
    x, y = norms_of(rng, 120), norms_of(rng, 90, scale=0.3)
    found = leak((x, y), rng=rng).comparisons[0]
    average, spread, distribution = found.checks
    pooled = np.sqrt((119 * x.var(ddof=1) + 89 * y.var(ddof=1)) / 208)
    assert average.effect == pytest.approx((x.mean() - y.mean()) / pooled * (1 - 3 / (4 * 208 - 1)))
    assert spread.effect == pytest.approx(x.std(ddof=1) / y.std(ddof=1))
    assert distribution.effect == pytest.approx(stats.ks_2samp(x, y).statistic)
    smaller = stats.mannwhitneyu(y, x).statistic / (120 * 90)
    assert found.success[0] == pytest.approx(smaller)
    assert found.success[1] < smaller < found.success[2]


def test_distances_are_scipys(rng):
    """Averages, variances and the energy distance of the true split, and of an exchanged one, by brute force."""
    x, y = gradients_of(rng, 14), gradients_of(rng, 11, shift=0.02)
    everyone = np.concatenate([x, y])
    labels = np.stack([np.arange(25) < 14, rng.permuted(np.arange(25) < 14)])
    means, variances, energy = exchange._within(exchange._distances(everyone), labels)
    for row, inside in enumerate(labels):
        for side, rows in enumerate((everyone[inside], everyone[~inside])):
            assert means[side][row] == pytest.approx(pdist(rows).mean())
            assert variances[side][row] == pytest.approx(pdist(rows).var())
        a, b = everyone[inside], everyone[~inside]
        between = 2 * cdist(a, b).mean()
        assert energy[row] == pytest.approx((between - cdist(a, a).mean() - cdist(b, b).mean()) / between)
    found = leak_of(x, y, rng=rng)
    assert found.papers[0] == pytest.approx(stats.ttest_ind(pdist(x), pdist(y), equal_var=False).pvalue)
    assert found.papers[1] == pytest.approx(stats.levene(pdist(x), pdist(y)).pvalue)


def test_corrected_p_values_are_holms(rng):
    found = leak_of(gradients_of(rng, 40), gradients_of(rng, 40, width=0.12), rng=rng)
    checks = sorted((k for c in found.comparisons for k in c.checks), key=lambda k: k.p_value)
    largest = 0.0
    for place, check in enumerate(checks):
        largest = max(largest, min(1.0, (6 - place) * check.p_value))
        assert check.corrected == pytest.approx(largest)


@pytest.mark.stat
@pytest.mark.parametrize("law", ["gradients", "skewed"])
def test_exchangeable_records_raise_no_more_alarms_than_allowed(law, monkeypatch):
    """At most 5% of 200: 24 alarms or more have a chance of 2e-4 at exactly 5%.

    A t-test on skewed norms, 20 against 300 of them, and on all pairs of gradients, is wrong far more often.
    """
    monkeypatch.setattr(exchange, "EXCHANGES", 199)
    rng = np.random.default_rng(1)
    alarms, naive = 0, 0
    for _ in range(200):
        if law == "gradients":
            scale = 0.15 * np.exp(0.5 * rng.normal(size=(60, 1)))
            rows = np.minimum(scale, 0.9) * rng.normal(size=(60, 6)) / np.sqrt(20)
            found = leak_of(rows[:30], rows[30:], rng=rng)
            naive += found.papers[0] < 0.05
        else:
            rows = (rng.random(320) < 0.02) + 1e-3 * rng.random(320)
            rows = np.minimum(rows, 1.0)
            found = leak((rows[:20], rows[20:]), rng=rng)
            naive += stats.ttest_ind(rows[:20], rows[20:], equal_var=False).pvalue < 0.05
        alarms += found.differs
    assert alarms < 24
    assert naive > 60


def test_planted_difference_of_averages_is_found(rng):
    found = leak((norms_of(rng, 300, scale=0.16), norms_of(rng, 300)), rng=rng)
    checks = checks_of(found, "gradient norm")
    assert checks["average"].corrected < 0.01
    assert found.state == "warning"
    assert found.comparisons[0].success[1] > 0.5
    assert "smaller gradient norm is the one inside" in found.finding().sentence


def test_planted_difference_of_spreads_is_found(rng):
    found = leak((0.5 + 0.10 * rng.uniform(-1, 1, 300), 0.5 + 0.15 * rng.uniform(-1, 1, 300)), rng=rng)
    checks = checks_of(found, "gradient norm")
    assert checks["spread"].corrected < 0.01
    assert checks["average"].corrected > 0.05
    assert found.state == "warning"


def test_directions_that_differ_are_found_when_norms_do_not(rng):
    """Two sides that point elsewhere: equal norms, equal distances within, and yet told apart."""
    turned = rng.normal(size=(2, 200, 8)) + 2.0 * np.eye(8)[:2, None]
    turned /= np.linalg.norm(turned, axis=2, keepdims=True)
    found = leak_of(0.9 * turned[0], 0.9 * turned[1], rng=rng)
    assert checks_of(found, "distance between gradients")["distribution"].corrected < 0.01
    assert not found.comparisons[0].differs
    assert found.finding().state == "warning"


def test_own_epsilons_are_compared_too(rng):
    norms = norms_of(rng, 600)
    found = leak((norms[:300], norms[300:]), epsilons=(0.4 * norms[:300], 0.6 * norms[300:]), rng=rng)
    assert [c.quantity for c in found.comparisons if c.differs] == ["own epsilon"]
    assert "own epsilon" in found.finding().sentence
    alone = leak((norms[:300], norms[300:]), rng=rng).comparisons[0].success
    together = found.comparisons[0].success
    assert together[1] < alone[1] < alone[2] < together[2]  # 95% for both intervals takes wider ones


def test_no_difference_is_never_called_proof(rng):
    many, few = (leak((norms_of(rng, n), norms_of(rng, n)), rng=rng) for n in (1500, 40))
    assert (many.state, few.state) == ("not-refuted", "open")
    assert many.missed < few.missed
    for found in (many, few):
        assert "does not prove" in found.finding().sentence
        assert f"{int(np.ceil(100 * found.missed))} of 100" in found.finding().sentence


def test_order_of_records_rotation_and_sides_do_not_matter(rng):
    x, y = gradients_of(rng, 60), gradients_of(rng, 50, width=0.2)
    turn = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    found = leak_of(x, y, rng=rng)
    turned = leak_of(x[::-1] @ turn, rng.permutation(y) @ turn, rng=rng)
    swapped = leak_of(y, x, rng=rng)
    for one, two, three in zip(found.comparisons, turned.comparisons, swapped.comparisons, strict=True):
        assert two.averages == pytest.approx(one.averages)
        assert three.averages == pytest.approx(one.averages[::-1])
        for a, b, c in zip(one.checks, two.checks, three.checks, strict=True):
            assert b.effect == pytest.approx(a.effect)
            assert abs(np.log(abs(c.effect))) == pytest.approx(abs(np.log(abs(a.effect))), rel=0.02)
    one, two = leak_of(x, y, rng=np.random.default_rng(3)), leak_of(x, y, rng=np.random.default_rng(3))
    assert one == two


def test_records_that_are_all_clipped_compare_as_equal():
    found = leak((np.ones(30), np.ones(40)), rng=np.random.default_rng(0))
    assert not found.differs
    assert found.state == "open"
    assert json.dumps(found.to_dict(), allow_nan=False)
    same = leak_of(np.tile([0.0, 1.0], (30, 1)), np.tile([0.0, 1.0], (30, 1)), rng=np.random.default_rng(0))
    assert not same.differs
    assert json.dumps(same.to_dict(), allow_nan=False)


def test_finding_is_plain_and_complete(rng):
    found = leak_of(gradients_of(rng, 50), gradients_of(rng, 50), epsilons=(rng.random(50), rng.random(50)), rng=rng)
    finding = found.finding()
    assert finding.key == "leak"
    assert all(len(row) == len(finding.columns) for row in finding.rows)
    assert len(finding.rows) == 3 * 3 + 2
    inside, outside = finding.chart.series
    assert (inside.hue, outside.hue) == ("anyone", "typical")
    for series in (inside, outside):
        x, y = np.array(series.points).T
        assert (np.diff(x) >= 0).all()
        assert y[0] == y[-1] == 0.0
        assert (y[1:-1:2] * 1.0).sum() == pytest.approx(100.0)  # every bar once
    assert any("not independent" in note or "which they are not" in note for note in finding.notes)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["state"] == found.state


def test_chart_shows_distances_where_all_norms_are_clipped(rng):
    rows = rng.normal(size=(80, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert "distance" in leak_of(rows[:40], rows[40:], rng=rng).finding().chart.heading
    assert leak((np.ones(40), np.ones(40)), rng=rng).finding().chart.y_title == "% of the records"
    assert "norm" in leak_of(rows[:40] / 2, rows[40:] * rng.random((40, 1)), rng=rng).finding().chart.heading


@pytest.mark.parametrize(
    ("inside", "options", "error", "word"),
    [
        (np.ones(3), {}, ValueError, "at least 10"),
        (np.full(30, np.nan), {}, ValueError, "finite"),
        (2 * np.ones(30), {}, ValueError, "fractions of the clip norm"),
        (["a"] * 30, {}, TypeError, "pair of arrays with a number a record"),
        (np.ones((30, 2)), {}, TypeError, "pair of arrays with a number a record"),
        (np.ones(30), {"gradients": (np.ones((30, 2)), np.ones((30, 3)))}, ValueError, "rows of one length"),
        (np.ones(30), {"epsilons": (-np.ones(30), np.ones(30))}, ValueError, "at least 0"),
    ],
)
def test_arguments_that_mislead_are_refused(inside, options, error, word):
    with pytest.raises(error, match=word):
        leak((inside, np.ones(30)), **options)


# Real gradients.


def digits():
    data = load("digits")
    x = torch.from_numpy(np.concatenate([data.inputs, data.test_inputs])).flatten(1)
    return x, torch.from_numpy(np.concatenate([data.targets, data.test_targets]))


def network(hidden=24):
    return torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 10))


def loss_of(model):
    return record_loss(model, torch.nn.functional.cross_entropy), dict(model.named_parameters())


@pytest.mark.parametrize(("clip_norm", "softening"), [(0.5, None), ("auto", 0.01)])
def test_gradients_are_those_of_training(clip_norm, softening):
    """Against the training's own clipping, one record at a time; a record that is not finite gives zero."""
    x, y = digits()
    x = x[:13].clone()
    x[4, 0] = float("nan")
    loss, parameters = loss_of(network())
    parameters = {name: p.detach() for name, p in parameters.items()}
    factors, c = leak_attack._factors(clip_norm), 0.5 if softening is None else 1.0
    (rows,) = leak_attack._clipped_gradients(loss, parameters, (x, y[:13]), factors)
    for i, row in enumerate(rows):
        bound = torch.full((1,), c, dtype=torch.float64)
        sums = clipped_sum(loss, parameters, (x[[i]], y[[i]]), bound, softening=softening).sums
        alone = torch.cat([sums[name].flatten() for name in parameters]).numpy() / c
        assert row == pytest.approx(alone, abs=2e-6)
    assert not rows[4].any()
    norms = record_norms(loss, parameters, (x, y[:13])).numpy()
    wanted = np.minimum(norms / 0.5, 1.0) if softening is None else norms / (norms + softening)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(wanted, abs=2e-6)


def test_sketch_keeps_distances(rng):
    rows = rng.normal(size=(40, 60_000))
    sketched = leak_attack._sketch(60_000, rng)(rows)
    assert sketched.shape == (40, 2**14)
    assert pdist(sketched) == pytest.approx(pdist(rows), rel=0.05)
    assert leak_attack._sketch(100, rng)(rows) is rows


def test_overfitted_model_betrays_its_records_and_an_untrained_one_does_not(rng):
    x, y = digits()
    inside, outside = (x[900:1000], y[900:1000]), (x[1000:1400], y[1000:1400])  # 19 of 20 splits raise no alarm
    model = network()
    loss, parameters = loss_of(model)
    before = leak_test(loss, parameters, inside, outside, clip_norm=1.0, rng=rng)
    assert not before.differs
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inside[0]), inside[1]).backward()
        optimizer.step()
    after = leak_test(loss, parameters, inside, outside, clip_norm=1.0, rng=rng)
    norms = after.comparisons[0]
    assert norms.averages[0] < norms.averages[1]
    assert norms.success[1] > 0.55
    assert all(c.differs for c in after.comparisons)
    assert after.finding().state == "warning"


def test_large_models_are_sketched_in_little_memory(rng):
    x, y = digits()
    loss, parameters = loss_of(network(hidden=400))
    found = leak_test(loss, parameters, (x[:60], y[:60]), (x[60:120], y[60:120]), clip_norm=0.1, rng=rng)
    assert [c.quantity for c in found.comparisons] == ["gradient norm", "distance between gradients"]
    with pytest.raises(ValueError, match="at least 10"):
        leak_test(loss, parameters, (x[:5], y[:5]), (x[60:120], y[60:120]), clip_norm=0.1, rng=rng)


def test_f24_records_that_cannot_be_read_are_left_out(rng):
    x, y = digits()
    loss, parameters = loss_of(network())
    inside, outside = ([*zip(x[some], y[some], strict=True)] for some in (slice(60), slice(60, 120)))
    whole = leak_test(loss, parameters, inside, outside, clip_norm=0.1, rng=np.random.default_rng(1))
    broken = leak_test(loss, parameters, [None, *inside, (x[0],)], outside, clip_norm=0.1, rng=np.random.default_rng(1))
    assert broken.comparisons[0].averages == pytest.approx(whole.comparisons[0].averages)
