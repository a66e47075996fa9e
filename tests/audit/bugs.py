"""Bugs to plant in the shipped training step, one at a time, for audits to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tacita.training import mechanism


def _noise(factor: float) -> dict[str, Any]:
    def noisy_mean(sums: Any, *, noise_multiplier: float, **others: Any) -> Any:
        return shipped_noisy_mean(sums, noise_multiplier=factor * noise_multiplier, **others)

    return {"noisy_mean": noisy_mean}


def _clip(factor: float) -> dict[str, Any]:
    def clipped_sum(loss: Any, parameters: Any, records: Any, bounds: Any, **others: Any) -> Any:
        return shipped_clipped_sum(loss, parameters, records, factor * bounds, **others)

    return {"clipped_sum": clipped_sum}


def _rate(factor: float) -> dict[str, Any]:
    def poisson_sample(size: int, sample_rate: float, *, rng: Any) -> Any:
        return shipped_poisson_sample(size, min(1.0, factor * sample_rate), rng=rng)

    return {"poisson_sample": poisson_sample}


def _no_noise_on_biases() -> dict[str, Any]:
    def noisy_mean(sums: Any, *, divisor: float, **others: Any) -> Any:
        silent = {name: total / divisor for name, total in sums.items() if total.dim() == 1}
        return {**shipped_noisy_mean(sums, divisor=divisor, **others), **silent}

    return {"noisy_mean": noisy_mean}


def _noise_without_clip_norm() -> dict[str, Any]:
    def noisy_mean(sums: Any, *, clip_norm: float, **others: Any) -> Any:
        return shipped_noisy_mean(sums, clip_norm=min(1.0, clip_norm), **others)

    return {"noisy_mean": noisy_mean}


def _shuffled() -> dict[str, Any]:
    """Batches of one size from a shuffled order: every record once an epoch."""
    orders: dict[int, list[int]] = {}

    def poisson_sample(size: int, sample_rate: float, *, rng: Any) -> Any:
        order, batch = orders.setdefault(size, []), max(1, round(size * sample_rate))
        if len(order) < batch:
            order[:] = rng.permutation(size).tolist()
        chosen, order[:] = order[:batch], order[batch:]
        return np.sort(np.array(chosen))

    return {"poisson_sample": poisson_sample}


def _sticky() -> dict[str, Any]:
    """Every batch is used for two steps."""
    kept: dict[int, Any] = {}

    def poisson_sample(size: int, sample_rate: float, *, rng: Any) -> Any:
        drawn = kept.pop(size, None)
        if drawn is None:
            drawn = kept[size] = shipped_poisson_sample(size, sample_rate, rng=rng)
        return drawn

    return {"poisson_sample": poisson_sample}


def _noise_by_step(period: int) -> dict[str, Any]:
    """The noise of the first steps again and again."""
    kept: dict[Any, list[Any]] = {}
    taken: dict[Any, int] = {}

    def noisy_mean(sums: Any, *, divisor: float, **others: Any) -> Any:
        run = tuple((name, tuple(total.shape)) for name, total in sums.items())
        noises, step = kept.setdefault(run, []), taken.get(run, 0)
        taken[run] = step + 1
        if len(noises) < period:
            nothing = {name: torch.zeros_like(total) for name, total in sums.items()}
            noises.append(shipped_noisy_mean(nothing, divisor=divisor, **others))
        return {name: total / divisor + noises[step % period][name] for name, total in sums.items()}

    return {"noisy_mean": noisy_mean}


def _antithetic() -> dict[str, Any]:
    """Fresh noise at every other step, and its opposite in between."""
    kept: dict[Any, Any] = {}

    def noisy_mean(sums: Any, *, divisor: float, **others: Any) -> Any:
        run = tuple((name, tuple(total.shape)) for name, total in sums.items())
        noise = kept.pop(run, None)
        if noise is None:
            nothing = {name: torch.zeros_like(total) for name, total in sums.items()}
            noise = shipped_noisy_mean(nothing, divisor=divisor, **others)
            kept[run] = {name: -value for name, value in noise.items()}
        return {name: total / divisor + noise[name] for name, total in sums.items()}

    return {"noisy_mean": noisy_mean}


def _changed_noise(change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The noise of each tensor, changed."""

    def noisy_mean(sums: Any, *, divisor: float, **others: Any) -> Any:
        nothing = {name: torch.zeros_like(total) for name, total in sums.items()}
        noise = shipped_noisy_mean(nothing, divisor=divisor, **others)
        return {name: total / divisor + change(noise[name]) for name, total in sums.items()}

    return {"noisy_mean": noisy_mean}


def _some_silent(noise: Tensor) -> Tensor:
    quiet = noise.flatten().clone()
    quiet[500::1000] = 0.0
    return quiet.reshape(noise.shape)


def _same_for_rows(noise: Tensor) -> Tensor:
    return noise[:1].expand(noise.shape).clone() if noise.dim() > 1 else noise


def _uniform(noise: Tensor) -> Tensor:
    scale = noise.double().square().mean().sqrt()
    return ((2.0 * torch.special.ndtr(noise.double() / scale) - 1.0) * scale * 3.0**0.5).to(noise.dtype)


def _clip_forgotten(share: float) -> dict[str, Any]:
    dice = np.random.default_rng(1)

    def clipped_sum(loss: Any, parameters: Any, records: Any, bounds: Any, **others: Any) -> Any:
        forgotten = torch.from_numpy(dice.random(len(bounds)) < share)
        return shipped_clipped_sum(loss, parameters, records, torch.where(forgotten, 1e3 * bounds, bounds), **others)

    return {"clipped_sum": clipped_sum}


shipped_noisy_mean, shipped_clipped_sum = mechanism.noisy_mean, mechanism.clipped_sum
shipped_poisson_sample = mechanism.poisson_sample
BUGS: dict[str, Callable[[], dict[str, Any]]] = {
    "noise x 0.5": lambda: _noise(0.5),
    "noise x 0.8": lambda: _noise(0.8),
    "noise x 0.9": lambda: _noise(0.9),
    "noise x 0.99": lambda: _noise(0.99),
    "clip at 2C": lambda: _clip(2.0),
    "clip at 1.1C": lambda: _clip(1.1),
    "clip forgotten, 1 in 100": lambda: _clip_forgotten(1e-2),
    "clip forgotten, 1 in 10,000": lambda: _clip_forgotten(1e-4),
    "no noise on biases": _no_noise_on_biases,
    "noise not scaled by C": _noise_without_clip_norm,
    "no noise on 1 coordinate in 1,000": lambda: _changed_noise(_some_silent),
    "one noise for all rows": lambda: _changed_noise(_same_for_rows),
    "uniform noise": lambda: _changed_noise(_uniform),
    "sample rate 2q": lambda: _rate(2.0),
    "every batch used twice": _sticky,
    "shuffled batches": _shuffled,
    "noise used twice": lambda: _noise_by_step(1),
    "noise used again after 7 steps": lambda: _noise_by_step(7),
    "noise in opposite pairs": _antithetic,
}
SAMPLING = ("sample rate 2q", "every batch used twice", "shuffled batches")  # no bugs where everybody takes part
STEPS = ("noise used twice", "noise used again after 7 steps", "noise in opposite pairs")  # no bugs of one step


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run the shipped training step with one bug in it."""
    with mock.patch.multiple(mechanism, **BUGS[name]()):
        yield
