"""What `training.py` times: networks of several kinds, each with a batch and a loss that keeps records apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacita.training.recipes import default_model


@dataclass(frozen=True)
class Network:
    """A model, a batch of records and what a step of it needs."""

    build: Callable[[], nn.Module]
    records: Callable[[], tuple[Any, ...]]  # inputs …, target
    rounds: int

    def fresh(self) -> tuple[nn.Module, tuple[Any, ...]]:
        """Return the model and its batch, the same whenever it is asked."""
        torch.manual_seed(0)
        return self.build(), self.records()


def _images(count: int, *shape: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(count, *shape), torch.randint(0, 10, (count,)))


def _words(count: int, length: int, vocabulary: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randint(0, vocabulary, (count, length)), torch.randint(0, 2, (count,)))


class _Block(nn.Module):
    def __init__(self, given: int, out: int, stride: int) -> None:
        super().__init__()
        self.one, self.first = nn.Conv2d(given, out, 3, stride, 1, bias=False), nn.GroupNorm(32, out)
        self.two, self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.GroupNorm(32, out)
        plain = stride == 1 and given == out
        self.short = (
            nn.Identity()
            if plain
            else nn.Sequential(nn.Conv2d(given, out, 1, stride, bias=False), nn.GroupNorm(32, out))
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.first(self.one(x)))
        return functional.relu(self.second(self.two(hidden)) + self.short(x))


def _resnet() -> nn.Module:
    blocks = [
        _Block(given, out, stride)
        for one, out, first in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        for given, stride in ((one, first), (out, 1))
    ]
    stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class _Logits(nn.Module):
    """A Hugging Face model that returns its logits alone."""

    def __init__(self, model: nn.Module, *, places: bool = False) -> None:
        super().__init__()
        self.model, self.places = model, places  # Opacus needs these indices given, record by record

    def forward(self, words: Tensor) -> Tensor:
        positions, types = torch.arange(words.shape[1]).repeat(len(words), 1), torch.zeros_like(words)
        places = {"position_ids": positions, "token_type_ids": types} if self.places else {}
        return self.model(input_ids=words, **places).logits


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    return _Logits(BertForSequenceClassification(BertConfig(**sizes, num_labels=2)), places=True)


def _lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    model = DistilBertForSequenceClassification(
        DistilBertConfig(dim=256, n_layers=4, n_heads=4, hidden_dim=1024, num_labels=2)
    )
    return _Logits(get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["q_lin", "v_lin"], r=8)))


class _Bag(nn.Module):
    """The mean of a text's embeddings, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(100_000, 100), nn.Linear(100, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.words(words).mean(1))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 200), nn.ReLU(), nn.Linear(200, 10)
    )


NETWORKS = {
    "CNN, 26 thousand": Network(lambda: default_model((1, 28, 28), 10), _images(256, 1, 28, 28), 40),
    "MLP, 1 million": Network(_mlp, _images(256, 1, 28, 28), 40),
    "ResNet18, group norm, 11 million": Network(_resnet, _images(32, 3, 32, 32), 7),
    "BERT 4 x 256, 11 million": Network(_bert, _words(32, 64, 30_000), 9),
    "DistilBERT 4 x 256, LoRA": Network(_lora, _words(32, 64, 30_000), 15),
    "embedding, 10 million": Network(_Bag, _words(256, 32, 100_000), 15),
}
