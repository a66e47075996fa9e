"""Networks written with torch alone, with a loss of their own beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint

from experiments.models.cases import RECORDS, Build, Case, settled

Reading = Callable[[Any, Tensor], Tensor]
CLASSES, WORDS, TOKENS, WIDTH = 3, 20, 6, 8


class Then(nn.Module):
    """A layer, or several, followed by what is done with its output, and a linear head."""

    def __init__(self, layer: nn.Module, then: Reading, size: int) -> None:
        super().__init__()
        self.layer, self.then, self.head = layer, then, nn.Linear(size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.then(self.layer, x))


class Block(nn.Module):
    """A residual block with group normalisation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.two = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first, self.second = nn.GroupNorm(2, channels), nn.GroupNorm(2, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return what goes on, with the input added."""
        inside = functional.relu(self.first(self.one(x)), inplace=True)
        return functional.relu(x + self.second(self.two(inside)))


class Double(torch.autograd.Function):
    """A function of the old style: no rule for `vmap`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the double."""
        return 2.0 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return its gradient."""
        return 2.0 * gradient


class Tied(nn.Module):
    """A language model of one recurrent layer, whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """Return logits of the next word."""
        return self.head(self.layer(self.words(words))[0])[:, -1]


class Masked(nn.Module):
    """An encoder or an attention layer over embedded words, some of which are padding."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(WORDS, WIDTH), layer, nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits."""
        x, padding = self.words(words), words == 0
        if isinstance(self.layer, nn.MultiheadAttention):
            x, _ = self.layer(x, x, x, key_padding_mask=padding, need_weights=False)
        else:
            x = self.layer(x, src_key_padding_mask=padding)
        return self.head(x.masked_fill(padding[:, :, None], 0.0).sum(1))


def _case(model: nn.Module, *inputs: Tensor) -> Case:
    return Case(settled(model), (*inputs, torch.arange(RECORDS) % CLASSES), functional.cross_entropy)


def _images(*layers: nn.Module, size: int) -> Case:
    """Return a network for images of 8 by 8: layers, then a linear head on all that comes out of them."""
    return _case(nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, CLASSES)), torch.randn(RECORDS, 2, 8, 8))


def _vectors(*layers: nn.Module) -> Case:
    return _case(nn.Sequential(nn.Linear(6, WIDTH), *layers, nn.Linear(WIDTH, CLASSES)), torch.randn(RECORDS, 6))


def _steps(layer: nn.Module, then: Reading, size: int = WIDTH) -> Case:
    """Return a network for sequences: a layer, what is done with its output, and a linear head."""
    return _case(Then(layer, then, size), torch.randn(RECORDS, TOKENS, 5))


def _words(model: nn.Module) -> Case:
    words = torch.randint(1, WORDS, (RECORDS, TOKENS))
    return _case(model, words * (torch.arange(TOKENS) < TOKENS - torch.arange(RECORDS)[:, None]))


def _bag(**settings: Any) -> Case:
    return _words(nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH, **settings), nn.Linear(WIDTH, CLASSES)))


def _embedded(**settings: Any) -> Case:
    return _words(Then(nn.Embedding(WORDS, WIDTH, **settings), lambda layer, x: layer(x).mean(1), WIDTH))


def _last(layer: Any, x: Tensor) -> Tensor:
    return layer(x)[0][:, -1]


def _packed(layer: Any, x: Tensor) -> Tensor:
    """Run a recurrent layer over packed sequences, whose lengths the records say; return where each of them ended."""
    lengths = 1 + (x[:, :, 0] > 0).sum(1).clamp_max(TOKENS - 1).cpu()
    ends = layer(rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1]
    return torch.cat(list((ends[0] if isinstance(ends, tuple) else ends)[-(1 + layer.bidirectional) :]), -1)


def _recurrent(kind: type[nn.RNNBase], then: Reading = _last, **settings: Any) -> Case:
    size = WIDTH * (2 if settings.get("bidirectional") else 1)
    return _steps(kind(5, WIDTH, batch_first=True, **settings), then, size)


def _encoder(**settings: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True, **settings)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _branch(layer: Any, x: Tensor) -> Tensor:
    hidden: Tensor = layer(x).mean(1)
    return hidden if hidden.isfinite().all() else torch.zeros_like(hidden)


def _lowered(layer: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return layer(x).mean(1).float()


def _convolution(**settings: Any) -> nn.Module:
    return nn.Conv2d(2, 4, 3, padding=1, **settings)


NETWORKS: dict[str, Build] = {
    "MLP": lambda: _vectors(nn.Tanh()),
    "MLP, activations in place": lambda: _vectors(nn.ReLU(inplace=True)),
    "CNN": lambda: _images(_convolution(), nn.Tanh(), nn.MaxPool2d(2), size=64),
    "CNN, `.view` after its convolutions": lambda: _case(
        Then(_convolution(), lambda layer, x: layer(x).relu().view(len(x), -1), 256), torch.randn(RECORDS, 2, 8, 8)
    ),
    "residual network, GroupNorm": lambda: _images(
        _convolution(), Block(4), Block(4), nn.AdaptiveAvgPool2d(2), size=16
    ),
    "LSTM": lambda: _recurrent(nn.LSTM),
    "LSTM, two layers, bidirectional": lambda: _recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "LSTM, packed sequences": lambda: _recurrent(nn.LSTM, _packed),
    "GRU": lambda: _recurrent(nn.GRU),
    "GRU, packed sequences": lambda: _recurrent(nn.GRU, _packed),
    "GRU, packed, bidirectional": lambda: _recurrent(nn.GRU, _packed, bidirectional=True),
    "RNN": lambda: _recurrent(nn.RNN),
    "GRU, head tied to its embedding": lambda: _words(Tied()),
    "TransformerEncoder, padding mask": lambda: _words(Masked(_encoder())),
    "TransformerEncoder, norm first, GELU": lambda: _words(Masked(_encoder(norm_first=True, activation="gelu"))),
    "MultiheadAttention, padding mask": lambda: _words(Masked(nn.MultiheadAttention(WIDTH, 2, batch_first=True))),
    "Embedding, `padding_idx`": lambda: _embedded(padding_idx=0),
    "Embedding stored transposed, `padding_idx`": lambda: _words(
        Then(nn.Linear(WORDS, WIDTH), lambda layer, x: functional.embedding(x, layer.weight.T, 0).mean(1), WIDTH)
    ),
    "Embedding, sparse gradients": lambda: _embedded(sparse=True),
    "Embedding, `max_norm`": lambda: _embedded(max_norm=1.0),
    "EmbeddingBag": lambda: _bag(mode="mean"),
    "EmbeddingBag, sum, `padding_idx`": lambda: _bag(mode="sum", padding_idx=0),
    "EmbeddingBag, sparse gradients": lambda: _bag(mode="sum", sparse=True),
    "Conv1d": lambda: _case(
        Then(nn.Conv1d(2, WIDTH, 3, stride=2), lambda layer, x: layer(x).mean(2), WIDTH), torch.randn(RECORDS, 2, 9)
    ),
    "Conv3d": lambda: _case(
        Then(nn.Conv3d(2, WIDTH, 3, padding=1), lambda layer, x: layer(x).mean((2, 3, 4)), WIDTH),
        torch.randn(RECORDS, 2, 4, 4, 4),
    ),
    "Conv2d, grouped": lambda: _images(_convolution(groups=2), nn.Tanh(), size=256),
    "Conv2d, dilated, `padding='same'`": lambda: _images(
        nn.Conv2d(2, 4, 3, dilation=2, padding="same"), nn.Tanh(), size=256
    ),
    "Conv2d, circular padding": lambda: _images(_convolution(padding_mode="circular"), nn.Tanh(), size=256),
    "Conv2d, reflected padding": lambda: _images(_convolution(padding_mode="reflect"), nn.Tanh(), size=256),
    "ConvTranspose2d": lambda: _images(nn.ConvTranspose2d(2, 3, 3, stride=2), nn.Tanh(), size=867),
    "InstanceNorm2d": lambda: _images(_convolution(), nn.InstanceNorm2d(4, affine=True), nn.Tanh(), size=256),
    "LayerNorm": lambda: _vectors(nn.LayerNorm(WIDTH)),
    "RMSNorm": lambda: _vectors(nn.RMSNorm(WIDTH)),
    "GroupNorm": lambda: _images(_convolution(), nn.GroupNorm(2, 4), nn.Tanh(), size=256),
    "PReLU": lambda: _vectors(nn.PReLU()),
    "Bilinear": lambda: _case(
        Then(nn.Bilinear(6, 6, WIDTH), lambda layer, x: layer(x, x.tanh()), WIDTH), torch.randn(RECORDS, 6)
    ),
    "weight norm, as a parametrization": lambda: _vectors(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))),
    "orthogonal, as a parametrization": lambda: _vectors(parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH))),
    "spectral norm, as a parametrization": lambda: _vectors(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))),
    "BatchNorm1d": lambda: _vectors(nn.BatchNorm1d(WIDTH)),
    "BatchNorm2d": lambda: _images(_convolution(), nn.BatchNorm2d(4), nn.Tanh(), size=256),
    "an `autograd.Function` without a rule for `vmap`": lambda: _steps(
        nn.Linear(5, WIDTH), lambda layer, x: Double.apply(layer(x)).mean(1)
    ),
    "gradient checkpointing": lambda: _steps(
        nn.Linear(5, WIDTH), lambda layer, x: checkpoint(layer, x, use_reentrant=False).tanh().mean(1)
    ),
    "a branch that looks at data": lambda: _steps(nn.Linear(5, WIDTH), _branch),
    "Dropout, switched off": lambda: _vectors(nn.Dropout(0.0), nn.Tanh()),
    "autocast to bfloat16": lambda: _steps(nn.Linear(5, WIDTH), _lowered),
}
