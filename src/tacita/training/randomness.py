"""Where coins and noise come from: an explicit generator, seeded by the operating system unless asked otherwise."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np

from tacita import _check


@dataclass(frozen=True)
class Randomness:
    """Two independent streams, one for sampling and one for noise.

    Attributes:
        sampling: Which records enter a step, and which are followed.
        noise: The Gaussian noise.
        fingerprint: Identifies the streams without giving them away; the ledger refuses to see one twice.
        seeded: True if a person chose the seed. Such a run can be repeated by anyone who knows it.
    """

    sampling: np.random.Generator
    noise: np.random.Generator
    fingerprint: str
    seeded: bool


def randomness(seed: int | None, *, part: int = 0) -> Randomness:
    """Return fresh streams. `part` counts resumptions, so that a seeded run never repeats its noise."""
    if seed is None:
        entropy, seeded = secrets.randbits(256), False
    else:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise TypeError(f"seed must be a whole number or None, got {type(seed).__name__}.")
        entropy, seeded = _check.count("seed", int(seed), low=0, high=2**63), True
    root = np.random.SeedSequence(entropy, spawn_key=(part,))
    sampling, noise = (np.random.Generator(np.random.PCG64DXSM(child)) for child in root.spawn(2))
    mark = hashlib.sha256(f"tacita randomness {entropy} {part}".encode()).hexdigest()
    return Randomness(sampling, noise, mark, seeded)
