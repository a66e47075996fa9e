"""Inversion is checked against models whose best picture is known, and against what a separate network recognises."""

import base64
import json
import os
from io import BytesIO

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install -e '.[torch]')")
pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install -e '.[report]')")

from PIL import Image  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tacita.audit import inversion, inversion_attack, invert, recogniser  # noqa: E402
from tacita.data import load  # noqa: E402
from tacita.training import PrivateTraining  # noqa: E402

DIGITS = tuple("0123456789")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def digits():
    """200 records to attack and, apart from them, 700 for the recogniser, which is trained once."""
    data = load("digits")
    x, y = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    judge = recogniser(x[700:], y[700:], rng=np.random.default_rng(1))
    targets = torch.stack([x[:200][y[:200] == c].mean(0) for c in range(10)])
    return (x[:200], y[:200]), (x[700:], y[700:]), targets, judge


def network(classes=10, pixels=64):
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 32), nn.Tanh(), nn.Linear(32, classes))


def train(model, records, *, steps=100, rate=0.5):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(records[0]), records[1]).backward()
        optimizer.step()
    return model


def train_privately(model, records, epsilon):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    options = {"sample_rate": 1.0, "steps": 50, "batch_size": len(records[1]), "panel": 0, "seed": 0}
    PrivateTraining(
        model, functional.cross_entropy, records, optimizer=optimizer, target=(epsilon, 1e-4), **options
    ).run()
    return model


def attack(private, plain, digits, **options):
    _, _, targets, judge = digits
    return inversion(private, plain, targets, judge, DIGITS, starts=3, rng=np.random.default_rng(2), **options)


# Whether it sees what is there, and does not see what is not.


def test_plain_model_gives_its_classes_away_and_an_untrained_one_does_not(digits):
    found = attack(network(), train(network(), digits[0]), digits)
    assert found.plain.recognised >= 6
    assert found.plain.pictures >= 0.6
    assert found.plain.above_chance
    assert not found.private.above_chance
    assert found.state == "not-refuted"
    assert "Not by this attack" in inversion_attack._sentence(found)


@pytest.mark.parametrize(("epsilon", "state"), [(0.1, "not-refuted"), (8.0, "warning")])
def test_private_model_is_judged_by_what_is_recognised(digits, epsilon, state):
    """Of 200 records, epsilon 0.1 leaves nothing of a class and 8 nearly everything."""
    found = attack(train_privately(network(), digits[0], epsilon), train(network(), digits[0]), digits)
    assert found.state == state


def test_attack_that_fails_without_privacy_too_proves_nothing(digits):
    found = attack(network(), network(), digits)
    assert found.state == "open"
    assert "cannot be judged" in inversion_attack._sentence(found)


def test_recogniser_knows_records_it_has_not_seen_at_any_contrast(digits):
    attacked, _, _, judge = digits
    for images in (attacked[0], 0.2 + 0.3 * attacked[0]):
        assert float((judge(images).argmax(1) == attacked[1]).float().mean()) > 0.9
    shuffled = attacked[1][torch.randperm(200)]
    fooled = recogniser(attacked[0], shuffled, steps=50, rng=np.random.default_rng(0))
    assert float((fooled(digits[1][0]).argmax(1) == digits[1][1]).float().mean()) < 0.3


def test_faces_are_rebuilt_from_other_photos():
    """Forty people: seven photos each to train on, three for the recogniser; then a model that learned nothing."""
    if not os.path.isdir(os.path.join(os.environ.get("TACITA_DATA", ""), "olivetti")):
        pytest.skip("olivetti is not at hand: set TACITA_DATA to a folder that holds it")
    data = load("olivetti")
    small = functional.avg_pool2d(torch.from_numpy(data.inputs), 2).view(40, 8, 1, 32, 32)
    other = functional.avg_pool2d(torch.from_numpy(data.test_inputs), 2)
    people = torch.arange(40)
    judge = recogniser(
        torch.cat([small[:, 7], other]),
        torch.cat([people, torch.from_numpy(data.test_targets)]),
        rng=np.random.default_rng(0),
    )
    attacked = small[:, :7].flatten(0, 1) - 0.5, people.repeat_interleave(7)
    plain, untrained = (nn.Sequential(nn.Flatten(), nn.Linear(1024, 40)) for _ in range(2))
    nn.init.zeros_(plain[1].weight)
    train(plain, attacked, rate=1.0)
    names = [f"person {i}" for i in people.tolist()]
    found = inversion(untrained, plain, small[:, :7].mean(1), judge, names, starts=1, rng=np.random.default_rng(0))
    assert found.plain.recognised >= 24
    assert found.state == "not-refuted"


# The attack itself, against known best pictures.


def test_picture_of_a_linear_model_is_the_difference_of_its_weights():
    """Log-odds of two classes rise along the weights' difference: the best picture is grey moved that way."""
    smooth = torch.sin(torch.arange(16.0) / 3)[:, None] * torch.cos(torch.arange(16.0) / 4)
    smooth = (smooth - smooth.mean()) / smooth.std()
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.stack([smooth.flatten(), -smooth.flatten()]))
    first, second = invert(model, (1, 16, 16), 2, rng=np.random.default_rng(0))
    for picture, direction in ((first, smooth), (second, -smooth)):
        moved = (picture[0] - 0.5).flatten()
        assert float(torch.corrcoef(torch.stack([moved, direction.flatten()]))[0, 1]) > 0.97
        assert float(moved.square().mean().sqrt()) == pytest.approx(0.25, abs=0.02)


def test_best_picture_is_found_and_kept():
    """The first class's log-odds are highest at a known picture, and steps overshoot: the nearest one is returned."""
    hidden = torch.linspace(0.2, 0.8, 12)[:, None].expand(12, 12)[None]
    seen = []

    def model(images):
        logits = -40.0 * (images - hidden).square().mean(dim=(1, 2, 3))
        seen.append(-float(logits[0].detach()))
        return torch.stack([logits, torch.zeros(2)], dim=1)

    found = invert(model, (1, 12, 12), 2, rng=np.random.default_rng(0))[0]
    assert float((found - hidden).square().mean().sqrt()) < 0.03
    assert 40.0 * float((found - hidden).square().mean()) == pytest.approx(min(seen))
    assert min(seen) < seen[-1]


def test_costs_are_minus_log_odds_and_do_not_saturate():
    images = torch.rand(3, 1, 4, 4, dtype=torch.float64)
    weights = torch.randn(16, 3, dtype=torch.float64)
    costs, gradient = inversion_attack._costs(lambda x: x.flatten(1) @ weights, images)
    confidence = torch.softmax(images.flatten(1) @ weights, dim=1).diagonal()
    assert costs.numpy() == pytest.approx(-torch.logit(confidence).numpy())
    sure = 1000.0 * torch.eye(3, dtype=torch.float64)
    _, steep = inversion_attack._costs(lambda x: x.flatten(1)[:, :3] * 0.1 + sure, images)
    assert (gradient.abs().amax(dim=(1, 2, 3)) > 0).all()
    assert (steep.abs().amax(dim=(1, 2, 3)) > 0.01).all()


def test_attack_stops_when_nothing_gets_better():
    calls = []

    def indifferent(images):
        calls.append(1)
        return images.sum() * 0.0 + torch.zeros(4, 4)

    invert(indifferent, (1, 8, 8), 4, steps=1000)
    assert len(calls) == 1 + inversion_attack._PATIENCE


def test_attack_leaves_no_trace():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    model[2].eval()
    before = torch.get_rng_state()
    one, two = (invert(model, (1, 8, 8), 10, steps=10, rng=np.random.default_rng(5)) for _ in range(2))
    other = invert(model, (1, 8, 8), 10, steps=10, rng=np.random.default_rng(6))
    recogniser(torch.rand(20, 1, 8, 8, generator=torch.Generator()), torch.arange(20) % 2, steps=2)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert one.shape == (10, 1, 8, 8)
    assert 0.0 <= float(one.min()) <= float(one.max()) <= 1.0
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert [m.training for m in model] == [True, True, False]


# Counting.


def test_class_counts_if_more_than_half_of_its_pictures_do():
    """Right in 3, 2, 1 and 0 of 3 starts: two classes of four, with the exact interval of two in four."""
    told = torch.tensor([[0, 1, 2, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    rate = inversion_attack._rate(
        torch.zeros(3, 4, 1, 2, 2), lambda x: functional.one_hot(told.flatten(), 4).double(), accuracy=0.5
    )
    assert (rate.recognised, rate.classes, rate.pictures) == (2, 4, pytest.approx(0.5))
    assert rate.low == pytest.approx(stats.beta.ppf(0.025, 2, 3))
    assert rate.high == pytest.approx(stats.beta.ppf(0.975, 3, 2))
    assert not rate.above_chance


@pytest.mark.parametrize(("recognised", "above"), [(0, False), (3, False), (4, True), (10, True)])
def test_ten_classes_need_four_to_be_above_chance(recognised, above):
    """By enumeration: 4 or more of 10 guesses at 1 in 10 have a chance of 1.3%, 3 or more of 7%."""
    guesses = torch.where(torch.arange(10) < recognised, torch.arange(10), (torch.arange(10) + 1) % 10)
    rate = inversion_attack._rate(
        torch.zeros(1, 10, 1, 2, 2), lambda x: functional.one_hot(guesses, 10).double(), accuracy=None
    )
    assert rate.above_chance is above
    assert bool(stats.binom.sf(recognised - 1, 10, 0.1) < 0.025) is above


# What is shown.


@pytest.fixture(scope="module")
def found(digits):
    torch.manual_seed(0)
    return attack(network(), train(network(), digits[0]), digits, private_accuracy=0.1, plain_accuracy=0.9)


def test_finding_is_plain_and_complete(found):
    finding = found.finding()
    assert finding.key == "inversion"
    assert all(len(row) == len(finding.columns) for row in finding.rows)
    assert finding.picture_text
    assert "owner only" in finding.notes[0]
    assert any("k times" in note for note in finding.notes)
    assert any("independent" in note for note in finding.notes)
    assert any("learned little" in note for note in finding.notes)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["private"]["accuracy"] == 0.1
    assert document["chance"] == 0.1
    assert "images" not in document


def test_picture_is_a_small_png_of_three_rows(found):
    head, _, body = found.finding().picture.partition(",")
    assert head == "data:image/png;base64"
    content = base64.b64decode(body)
    assert content == found.png()
    assert len(content) < 60_000
    picture = Image.open(BytesIO(content))
    assert picture.mode == "L"
    assert picture.width == 630
    pixels = np.asarray(picture) / 255.0
    assert 0.1 < (pixels < 0.9).mean() < 0.9


def test_long_names_get_wide_columns_and_colours_stay():
    red = torch.zeros(12, 3, 40, 40)
    red[:, 0] = 1.0
    picture = Image.open(BytesIO(inversion_attack._drawn((red, red, red), [f"person {i}" for i in range(12)])))
    pixels = np.asarray(picture)
    reds = (pixels[..., 0] > 200) & (pixels[..., 1] < 50)
    across = reds[reds.sum(axis=1).argmax()]
    assert (np.diff(across.astype(int)) == 1).sum() + across[0] == 5


# Arguments.


def test_arguments_that_do_not_fit_are_refused(digits):
    _, _, targets, judge = digits
    model = network()
    with pytest.raises(ValueError, match="one image for each of 3 classes"):
        inversion(model, model, targets, judge, ["a", "b", "c"])
    with pytest.raises(ValueError, match="inversion is for images"):
        invert(model, (64,), 10)
    with pytest.raises(ValueError, match="a logit for each of 4 classes"):
        invert(model, (1, 8, 8), 4)
    with pytest.raises(ValueError, match="accuracy"):
        inversion(model, model, targets, judge, DIGITS, starts=1, steps=1, plain_accuracy=2.0)
