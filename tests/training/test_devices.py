"""What runs on an accelerator, on stand-ins for one: `meta`, which has no numbers to read, and the CPU's generator."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from tacita.training import step
from tacita.training.chunks import Way, differentiated
from tacita.training.gradients import clip_factors
from tacita.training.records import record_loss
from tests.training.trainings import FALSE_ALARM, train


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.reader, self.out = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, words):
        return self.out(self.reader(self.words(words))[0].mean(1))


MODELS = {
    "convolutions": lambda: (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        torch.zeros(6, 1, 8, 8),
    ),
    "layers": lambda: (
        nn.Sequential(nn.Linear(7, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 3)),
        torch.zeros(6, 4, 7),
    ),
    "transformer": lambda: (nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), torch.zeros(6, 5, 8)),
    "texts": lambda: (Texts(), torch.zeros(6, 5, dtype=torch.long)),
}


WAYS = [(name, tapped) for name in MODELS for tapped in (True, False) if (name, tapped) != ("texts", False)]


@pytest.mark.parametrize(("name", "tapped"), WAYS)  # torch.func has no rule for an LSTM: it is always tapped
def test_gradients_stay_on_their_device_and_wait_for_no_number(name, tapped):
    """On `meta` a number that is read raises, as does a tensor of another device."""
    model, inputs = MODELS[name]()
    model, inputs = model.to("meta"), inputs.to("meta")
    loss = record_loss(model, lambda out, _: out.square().mean())
    parameters = {key: p.detach() for key, p in model.named_parameters()}
    way = Way(frozenset(parameters) if tapped else frozenset())
    records = inputs, torch.zeros(6, dtype=torch.long, device="meta")
    chunk = differentiated(loss, parameters, records, way)
    norms = chunk.norms()
    factors = clip_factors(norms, torch.ones(6, dtype=torch.float64, device="meta"))
    sums = {key: torch.zeros_like(p) for key, p in parameters.items()}
    for part in chunk.parts:
        part.without(norms > 1.0).add_to(sums, factors)
    assert {t.device.type for t in (chunk.losses, norms, factors, *sums.values())} == {"meta"}
    assert {key: t.shape for key, t in sums.items()} == {key: p.shape for key, p in parameters.items()}


@pytest.mark.stat
def test_noise_of_a_devices_generator_is_normal_and_new_at_every_step(monkeypatch):
    monkeypatch.setattr(step, "_draw_on", step._draw_there)
    monkeypatch.setattr(step, "_DRAWN_ON_DEVICE", 7_000)  # several blocks
    rng = np.random.default_rng(5)
    sums = {"a": torch.ones(100, 200), "b": torch.zeros(9_999)}
    one, other = (step.noisy_mean(sums, clip_norm=2.0, noise_multiplier=1.5, divisor=10.0, rng=rng) for _ in range(2))
    assert (sums["a"] == 1.0).all()
    noise = torch.cat([one["a"].flatten() - 0.1, one["b"]]).double().numpy() * 10.0
    assert kstest(noise, norm(scale=3.0).cdf).pvalue > FALSE_ALARM
    assert kstest(noise, norm(scale=3.2).cdf).pvalue < FALSE_ALARM
    assert abs(np.corrcoef(one["b"], other["b"])[0, 1]) < 0.06
    assert len(np.unique(np.round(noise, 6))) > 0.99 * len(noise)  # no block repeats another
    again = step.noisy_mean(sums, clip_norm=2.0, noise_multiplier=1.5, divisor=10.0, rng=np.random.default_rng(5))
    assert torch.equal(again["b"], one["b"])


def test_the_label_names_the_generator_of_an_accelerator(blobs, monkeypatch):
    private = train(blobs, panel=0)
    assert private.mechanism.accelerator == ""
    assert not any("torch's generator" in line for line in private.run().label().not_hardened)
    monkeypatch.setattr(type(private.mechanism), "accelerator", "cuda")
    label = train(blobs, panel=0).run().label()
    assert any("torch's generator for cuda" in line for line in label.public().not_hardened)
