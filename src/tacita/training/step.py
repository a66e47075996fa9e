"""One private step as a plain function: clip every record, sum, add noise, divide by a public constant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tacita import _check
from tacita._check import PrivacyError
from tacita.training.gradients import Clipped, Loss, Parameters, clipped_sum, length

AUTO = "auto"  # in the place of a clip norm: gradients are normalised, so that there is none to choose


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: equal steps then give equal numbers, and for small tensors more threads only cost more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_DRAWN = 1 << 15  # numbers drawn at once: few enough to stay in the processor's cache
_DRAWN_ON_DEVICE = 1 << 22
_MANY = 1 << 20  # coins thrown at once

Draw = tuple[int, Callable[[int], torch.Tensor]]


def noisy_mean(
    sums: Parameters,
    *,
    clip_norm: float,
    noise_multiplier: float,
    divisor: float,
    rng: np.random.Generator,
    overwrite: bool = False,
) -> Parameters:
    """Return (sums + noise) / divisor, the noise N(0, (noise_multiplier * clip_norm)²) on every coordinate.

    Args:
        sums: Clipped sums by name.
        clip_norm: C, the largest norm of one contribution.
        noise_multiplier: Noise standard deviation over C.
        divisor: A public constant.
        rng: Where the noise comes from.
        overwrite: Whether the result may take the place of `sums` in memory, which it does where it can.

    Returns:
        Tensors like `sums`; the arithmetic is in float64. On an accelerator the noise is drawn there, by torch's
        generator, which gets a new seed from `rng`.
    """
    scale = noise_multiplier * clip_norm
    noisy = {}
    draws: dict[torch.device, Draw] = {}
    for name, total in sums.items():
        if total.device not in draws:
            draws[total.device] = _draw_on(total.device, rng)
        block, draw = draws[total.device]
        before = total.contiguous()
        own = before.data_ptr() != total.data_ptr()  # a copy already
        after = before if overwrite or own else torch.empty_like(before)
        for old, new in zip(torch.split(before.view(-1), block), torch.split(after.view(-1), block), strict=True):
            drawn = draw(len(old))
            torch.div(torch.add(old, drawn, alpha=scale, out=drawn), divisor, out=new)
        noisy[name] = after
    return noisy


def _draw_on(device: torch.device, rng: np.random.Generator) -> Draw:
    """Return how many standard normals in float64 are drawn at once on a device, and what draws them."""
    if device.type != "cpu":
        return _draw_there(device, rng)
    numbers = np.empty(_DRAWN)
    return _DRAWN, lambda count: torch.from_numpy(rng.standard_normal(out=numbers[:count]))


def _draw_there(device: torch.device, rng: np.random.Generator) -> Draw:
    generator = torch.Generator(device).manual_seed(int(rng.integers(2**63)))
    room = torch.empty(_DRAWN_ON_DEVICE, dtype=torch.float64, device=device)
    return _DRAWN_ON_DEVICE, lambda count: room[:count].normal_(generator=generator)


def private_gradient(
    loss: Loss,
    parameters: Parameters,
    records: Any,
    *,
    clip_norm: float,
    noise_multiplier: float,
    divisor: float,
    rng: np.random.Generator,
    bounds: torch.Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Parameters, Clipped]:
    """Return a private gradient of any per-record loss, and what the accountant needs.

    This is the whole mechanism, for loops of your own: a critic with its gradient penalty inside the
    per-record loss, a client's update, an evidence bound. Sample the records by independent coins
    (`poisson_sample`), charge the step before you use the result, and follow records for their account.

    Args:
        loss: Takes the parameters and one record, without a batch dimension, and returns a scalar.
        parameters: Detached tensors by name.
        records: The sampled records along the first dimension of every tensor; may be none.
        clip_norm: C, the largest norm of one record's contribution.
        noise_multiplier: Noise standard deviation over C.
        divisor: A public constant, such as the planned batch size; never the realised one.
        rng: Where the noise comes from.
        bounds: Smaller bounds for single records, at most C each.
        chunk: Records differentiated at once.

    Guarantee:
        Adding or removing one record changes the sum by at most C (1 + 1e-6) in Euclidean norm, so the result
        is one Poisson-sampled Gaussian step in the sense of `tacita.worst_case`. That is said of exact addition:
        adding up n contributions in k chunks, in float32, rounds by up to about n k 1e-7 C, which records that are
        made for it can bring about. Floating-point noise is not hardened against attacks on its low bits.
    """
    c = check_clip_norm(clip_norm)
    _check.in_range("noise_multiplier", noise_multiplier, 0.0, 1e6)
    positive("divisor", divisor)
    count = length(records)
    limits = torch.full((count,), c, dtype=torch.float64) if bounds is None else bounds.double()
    if len(limits) != count or (count and not (float(limits.min()) >= 0.0 and float(limits.max()) <= c)):
        raise PrivacyError(f"bounds must hold one value in [0, clip_norm] for each of {count} records.")
    clipped = clipped_sum(loss, parameters, records, limits, chunk=chunk, rng=rng)
    noisy = noisy_mean(clipped.sums, clip_norm=c, noise_multiplier=noise_multiplier, divisor=divisor, rng=rng)
    return noisy, clipped


def poisson_sample(size: int, sample_rate: float, *, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return the indices of a sample that every record enters by its own coin.

    Args:
        size: How many records there are.
        sample_rate: The chance of each.
        rng: Where the coins come from.
    """
    heads = coin_bound(_check.rate("sample_rate", sample_rate))
    if size <= _MANY:
        return np.flatnonzero(coins(size, rng=rng) < heads)
    starts = range(0, size, _MANY)
    return np.concatenate([start + _heads(min(_MANY, size - start), heads, rng=rng) for start in starts])


def coins(count: int, *, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return so many coins: words of 64 random bits, each heads if it is below the `coin_bound` of its rate."""
    return rng.integers(2**64 - 1, size=count, dtype=np.uint64, endpoint=True)


def coin_bound(rate: float) -> int:
    """Return floor(2^64 rate), exactly: a coin below it is heads with the rate's probability, or a hair less."""
    return int(math.ldexp(rate, 64))


def _heads(size: int, bound: int, *, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return the places of the coins that fall on heads, where they are many.

    The first 8 of a coin's 64 bits decide but for one in 256 coins, and only for those are the other 56 drawn.
    """
    first, rest = divmod(bound, 2**56)
    bits = rng.integers(2**64 - 1, size=-(-size // 8), dtype=np.uint64, endpoint=True).view(np.uint8)[:size]
    heads, open_ = bits < first, np.flatnonzero(bits == first)
    heads[open_] = rng.integers(2**56, size=len(open_)) < rest
    return np.flatnonzero(heads)


def check_clip_norm(value: object) -> float:
    """Return a clip norm that float32 can hold a gradient to."""
    if isinstance(value, str) and value == AUTO:
        raise ValueError(
            "clip_norm='auto' is for PrivateTraining and recipes of `tacita train`. Normalising shifts averages, so "
            "clients' updates, posteriors and critics need a clip norm in numbers."
        )
    return _check.in_range("clip_norm", positive("clip_norm", value), 1e-12, 1e12)


def positive(name: str, value: object) -> float:
    """Return a finite, positive number."""
    x = _check.number(name, value)
    if not 0.0 < x < 1e30:
        raise PrivacyError(f"{name} must be positive and finite, got {x:g}; without a bound nothing is promised.")
    return x
