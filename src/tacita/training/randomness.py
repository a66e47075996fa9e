"""Where coins and noise come from: a cryptographic generator keyed by the operating system, unless a seed is given."""

from __future__ import annotations

import functools
import hashlib
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from randomgen.aes import AESCounter

from tacita import _check

_STATE_BYTES, _STATE_WORDS = 5056, slice(24, 24 + 624 * 8)  # of torch's Mersenne twister, as get_rng_state has it


@dataclass(frozen=True)
class Randomness:
    """Two independent streams, one for sampling and one for noise.

    Attributes:
        sampling: Which records enter a step, and which are followed.
        noise: The Gaussian noise.
        fingerprint: Identifies the streams without giving them away; the ledger refuses to see one twice.
        seeded: True if a person chose the seed. Such a run can be repeated by anyone who knows it, and its generator is
            a statistical one (PCG64).
    """

    sampling: np.random.Generator
    noise: np.random.Generator
    fingerprint: str
    seeded: bool


def secure_generator() -> np.random.Generator:
    """Return numpy's generator on the bits of AES-128 in counter mode, with a fresh key of the operating system."""
    return np.random.Generator(AESCounter(key=secrets.randbits(128)))


def generator(seed: int | np.random.SeedSequence | None) -> np.random.Generator:
    """Return a secure generator, or a statistical one for a seed."""
    return secure_generator() if seed is None else np.random.Generator(np.random.PCG64DXSM(seed))


def randomness(seed: int | None, *, part: int = 0) -> Randomness:
    """Return fresh streams. `part` counts resumptions, so that a seeded run never repeats its noise."""
    if seed is None:
        return Randomness(secure_generator(), secure_generator(), secrets.token_hex(32), seeded=False)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed must be a whole number or None, got {type(seed).__name__}.")
    entropy = _check.count("seed", int(seed), low=0, high=2**63)
    root = np.random.SeedSequence(entropy, spawn_key=(part,))
    sampling, noise = map(generator, root.spawn(2))
    mark = hashlib.sha256(f"tacita randomness {entropy} {part}".encode()).hexdigest()
    return Randomness(sampling, noise, mark, seeded=True)


@contextmanager
def fresh_draws(rng: np.random.Generator | None = None, generators: Sequence[Any] = ()) -> Iterator[None]:
    """Give random generators seeds of their own while a user's code runs on records, and take them back afterwards.

    They are the global ones of torch, numpy and Python, and those that the code has itself. Dropout and the like draw
    by a record's place in its batch, and random augmentation by its place among those that are read. With a seed that
    others know, or that the script or the dataset sets, one record more would change everybody's draws in a known way,
    which no clip bounds.

    Args:
        rng: Where the seed comes from, without moving its stream; the operating system if None.
        generators: Those of the code; see `tacita.training.memory.generators`.
    """
    own = secure_generator() if rng is None else rng.spawn(1)[0]
    with torch.random.fork_rng(devices=[]), _others(own), ExitStack() as stack:
        _seed(int(own.integers(2**63)))
        torch.set_rng_state(_filled(torch.get_rng_state(), own))
        for generator in generators:
            stack.enter_context(_reseeded(generator, own))
        yield


def _seed(seed: int) -> None:
    """Seed torch's generators; without a device only the CPU's, since torch would format the stack for each kind."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _filled(state: torch.Tensor, own: np.random.Generator) -> torch.Tensor:
    """Fill the state of torch's twister: a seed sets 32 bits of it only, few enough to try them all."""
    if len(state) == _STATE_BYTES:
        words = state.numpy()[_STATE_WORDS].view(np.uint64)
        words[:] = own.integers(2**32, size=len(words), dtype=np.uint64)
    return state


def standing(generators: Sequence[Any] = ()) -> list[Any]:
    """Return where numpy's and Python's generators stand: the global ones, and those among some others.

    They know of no record under `vmap`: those that run together would share what is drawn from them.
    """
    states: list[Any] = [np.random.get_state(), random.getstate()]  # noqa: NPY002
    for generator in generators:
        if isinstance(generator, np.random.Generator):
            states.append(generator.bit_generator.state)
        elif isinstance(generator, np.random.RandomState):
            states.append(generator.get_state())
        elif isinstance(generator, random.Random):
            states.append(generator.getstate())
    return [_plain(state) for state in states]


def _plain(state: Any) -> Any:
    """Return a generator's state as something that can be compared."""
    if isinstance(state, Mapping):
        return {name: _plain(part) for name, part in state.items()}
    if isinstance(state, tuple | list):
        return [_plain(part) for part in state]
    return state.tobytes() if isinstance(state, np.ndarray) else state


@contextmanager
def _reseeded(generator: Any, own: np.random.Generator) -> Iterator[None]:
    """Seed one generator of torch, numpy or Python, and take it back afterwards."""
    before: Any
    restore: Callable[[Any], object]
    if isinstance(generator, torch.Generator):
        before = generator.get_state()
        generator.manual_seed(int(own.integers(2**63)))
        generator.set_state(_filled(generator.get_state(), own))
        restore = generator.set_state
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        before = bits.state
        bits.state = type(bits)(own.integers(2**32, size=8, dtype=np.uint32)).state
        restore = functools.partial(setattr, bits, "state")
    elif isinstance(generator, np.random.RandomState):
        before = generator.get_state()
        generator.seed(own.integers(2**32, size=624, dtype=np.uint32))
        restore = generator.set_state
    else:
        before = generator.getstate()
        generator.seed(own.bytes(32))
        restore = generator.setstate
    try:
        yield
    finally:
        restore(before)


@contextmanager
def _others(own: np.random.Generator) -> Iterator[None]:
    """Seed numpy's and Python's global generators, and take them back afterwards."""
    arrays, plain = np.random.get_state(), random.getstate()  # noqa: NPY002
    np.random.seed(own.integers(2**32, size=624, dtype=np.uint32))  # noqa: NPY002
    random.seed(own.bytes(32))
    try:
        yield
    finally:
        np.random.set_state(arrays)  # noqa: NPY002
        random.setstate(plain)
