"""The thesis's GANs in the experiments: layers as stated, weights clipped, tables that bear missing rows."""

import pytest
import torch

from experiments import rows as measured
from experiments.gans import page, published

TINY = torch.rand(70, 1, 28, 28), torch.arange(70) % 10


@pytest.mark.parametrize(("classes", "layers"), [(10, 4), (0, 3)])
def test_the_networks_have_the_layers_that_the_thesis_gives(classes, layers):
    critic, generator = published.critic(classes, layers=layers, appended=classes > 0), published.generator(classes)
    kinds = [type(part) for part in critic.modules()]
    assert kinds.count(torch.nn.Conv2d) == kinds.count(torch.nn.SELU) == layers
    assert critic.describe.out_features == 64
    assert [type(part) for part in generator.modules()].count(torch.nn.ConvTranspose2d) == 3
    made, labels = published.images(generator, 20, seed=0)
    assert made.shape == (20, 1, 28, 28)
    assert float(made.min()) >= 0.0
    assert float(made.max()) <= 1.0
    scores = critic(made, labels)
    assert scores.shape == (20,)
    assert bool((critic(made, (labels + 1) % 10) != scores).any()) == bool(classes), "labels matter where there are any"


def test_weights_are_clipped_after_every_step_and_the_noise_is_on_the_whole_update():
    run = published.training(
        TINY, seed=0, steps=3, classes=0, layers=3, clipped=True, clip_norm=0.5, noise_multiplier=0.01
    )
    for _ in run:
        weights = torch.cat([p.detach().flatten() for p in run.game.critic.parameters()])
        assert float(weights.abs().max()) <= published.WEIGHTS


def test_every_table_can_be_made_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(measured, "load", lambda folder, file="results.jsonl": {})
    texts = {name: make() for name, make in page.TABLES.items()}
    assert texts["table 7.1 accounts"] == page.NOTHING
    assert texts["picture figure 7.2"] == ""


def test_large_figures_are_rounded_up():
    assert page.scientific(10_672_806.2) == "1.07·10⁷"
    assert page.scientific(821_001.0) == "8.22·10⁵"
