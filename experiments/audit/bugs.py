"""Bugs to plant in the shipped training step, one at a time: an audit, or the test named beside it, must find each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from tacita.training import loop


def _noise(factor: float) -> dict[str, Any]:
    def noisy_mean(sums: Any, *, noise_multiplier: float, **others: Any) -> Any:
        return loop_noisy_mean(sums, noise_multiplier=factor * noise_multiplier, **others)

    return {"noisy_mean": noisy_mean}


def _clip(factor: float) -> dict[str, Any]:
    def clipped_sum(loss: Any, parameters: Any, records: Any, bounds: Any, **others: Any) -> Any:
        return loop_clipped_sum(loss, parameters, records, factor * bounds, **others)

    return {"clipped_sum": clipped_sum}


def _rate(factor: float) -> dict[str, Any]:
    def poisson_sample(size: int, sample_rate: float, *, rng: Any) -> Any:
        return loop_poisson_sample(size, min(1.0, factor * sample_rate), rng=rng)

    return {"poisson_sample": poisson_sample}


def _no_noise_on_biases() -> dict[str, Any]:
    def noisy_mean(sums: Any, *, divisor: float, **others: Any) -> Any:
        noisy = loop_noisy_mean(sums, divisor=divisor, **others)
        return {name: total / divisor if total.dim() == 1 else noisy[name] for name, total in sums.items()}

    return {"noisy_mean": noisy_mean}


def _noise_without_clip_norm() -> dict[str, Any]:
    def noisy_mean(sums: Any, *, clip_norm: float, **others: Any) -> Any:
        return loop_noisy_mean(sums, clip_norm=min(1.0, clip_norm), **others)

    return {"noisy_mean": noisy_mean}


def _shuffled() -> dict[str, Any]:
    """Batches of one size from a shuffled order: every record once an epoch."""
    order: list[int] = []

    def poisson_sample(size: int, sample_rate: float, *, rng: Any) -> Any:
        batch = max(1, round(size * sample_rate))
        if len(order) < batch:
            order[:] = rng.permutation(size).tolist()
        chosen, order[:] = order[:batch], order[batch:]
        return np.sort(np.array(chosen))

    return {"poisson_sample": poisson_sample}


def _same_noise() -> dict[str, Any]:
    def noisy_mean(sums: Any, *, rng: Any, **others: Any) -> Any:
        return loop_noisy_mean(sums, rng=np.random.default_rng(0), **others)

    return {"noisy_mean": noisy_mean}


loop_noisy_mean, loop_clipped_sum, loop_poisson_sample = loop.noisy_mean, loop.clipped_sum, loop.poisson_sample
BY_AUDIT = {
    "noise x 0.5": lambda: _noise(0.5),
    "noise x 0.8": lambda: _noise(0.8),
    "noise x 0.9": lambda: _noise(0.9),
    "clip at 2C": lambda: _clip(2.0),
    "clip at 1.1C": lambda: _clip(1.1),
    "sample rate 2q": lambda: _rate(2.0),
    "no noise on biases": _no_noise_on_biases,
    "noise not scaled by C": _noise_without_clip_norm,
}
BY_OTHERS = {"shuffled batches": _shuffled, "noise used twice": _same_noise}  # tests F7 and F6


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run the shipped training step with one bug in it."""
    with mock.patch.multiple(loop, **{**BY_AUDIT, **BY_OTHERS}[name]()):
        yield
