"""Sums and maxima of private numbers that reach the server only in aggregate.

Clients stand on a ring, in an order that their fresh public keys decide. Each pair that is at most ten places apart
agrees on a secret (X25519, HKDF-SHA256) and stretches it to a mask (ChaCha20): one adds it to what it sends, the other
subtracts it. The server adds up all messages modulo 2^64: the masks cancel and the sum is left. If one message is
missing, nothing can be read. With up to 21 clients every pair has a mask; with more, the work does not grow.

What it protects: a server that follows the protocol and looks at what it gets learns the sum, or which levels at least
one client reaches, and nothing else about a client, as long as two clients that do not work with the server take part
and no ten clients in a row on the ring work with it.
What it does not: a server that hands out keys of its own making, clients that work with the server, and a client that
sends false numbers: the server replaces what is not plausible by the worst case (`tacita.federated.measurements`).

Numbers are fixed point, rounded up, so a sum is never below the true one.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita._check import PrivacyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from numpy.typing import NDArray

    from tacita._check import Floats

    Words = NDArray[np.uint64]

UNIT = 2**32  # one nat
FEWEST = 3  # with two clients each learns the other's number from the sum
LARGEST_COST = 2.0**20  # nats; larger ones are refused, so that a sum of 2^11 clients stays below 2^63
MOST_CLIENTS = 2**11
ATTEMPTS = 3  # at an exchange, each among those who answered before
REACH = 10  # places on the ring, each way


@dataclass
class Masker:
    """One client's side of one exchange. It sends one message: a mask that is used twice hides nothing.

    Attributes:
        name: The client's name in this exchange.
        key: The private key.
        exchange: What is exchanged, for both sides to agree on: run, round, attempt and purpose.
        used: Whether its message was made.
    """

    name: str
    key: X25519PrivateKey
    exchange: str
    used: bool = False

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes, for the server to hand to the others."""
        return self.key.public_key().public_bytes_raw()

    def sum_message(self, costs: Sequence[float] | Floats, keys: Mapping[str, bytes]) -> Words:
        """Return costs, masked, for a sum.

        Args:
            costs: Numbers from 0 to LARGEST_COST; they are rounded up to whole units.
            keys: Every client's public key by name, this one's too.
        """
        return self._masked(_fixed_point(costs), keys)

    def maximum_message(
        self, costs: Sequence[float] | Floats, levels: Sequence[float] | Floats, keys: Mapping[str, bytes]
    ) -> Words:
        """Return which levels each cost is above, masked, for a maximum.

        Each of these is marked by a random number that is not 0, so that the sum does not reveal how many there are.

        Args:
            costs: Numbers to compare.
            levels: What they are compared with.
            keys: Every client's public key by name, this one's too.
        """
        above = np.asarray(costs, dtype=np.float64)[:, None] > np.asarray(levels, dtype=np.float64)[None, :]
        drawn = np.array([1 + secrets.randbelow(2**64 - 1) for _ in range(above.size)], dtype=np.uint64)
        return self._masked(np.where(above.reshape(-1), drawn, np.uint64(0)), keys)

    def _masked(self, words: Words, keys: Mapping[str, bytes]) -> Words:
        if self.used:
            raise PrivacyError("This exchange's message was made already: begin another one, with new keys.")
        if keys.get(self.name) != self.public:
            raise PrivacyError("The keys handed out do not hold this client's own: nothing is sent.")
        if not FEWEST <= len(keys) <= MOST_CLIENTS or len(set(keys.values())) != len(keys):
            raise PrivacyError(
                f"An exchange needs {FEWEST} to {MOST_CLIENTS} different clients, got {len(set(keys.values()))}."
            )
        self.used = True
        masked = words.copy()
        everyone = hashlib.sha256(repr((self.exchange, len(words), sorted(keys.items()))).encode()).hexdigest()
        for other in neighbours(self.name, keys):
            mask = self._mask(other, keys[other], len(words), everyone)
            masked = masked + mask if self.name < other else masked - mask
        return masked

    def _mask(self, other: str, public: bytes, length: int, everyone: str) -> Words:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        secret = self.key.exchange(X25519PublicKey.from_public_bytes(public))
        pair = sorted((self.name, other))
        info = repr(("tacita masking 2", pair, everyone)).encode()
        stretched = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)
        stream = Cipher(ChaCha20(stretched, bytes(16)), mode=None).encryptor().update(bytes(8 * length))
        return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def neighbours(name: str, keys: Mapping[str, bytes]) -> list[str]:
    """Return with whom a client shares masks: those at most ten places away on the ring of all clients.

    Examples:
        >>> ring = {f"{i:02d}": bytes([i]) for i in range(40)}
        >>> len(neighbours("07", ring)), all("07" in neighbours(n, ring) for n in neighbours("07", ring))
        (20, True)
    """
    ring = sorted(keys, key=lambda n: hashlib.sha256(keys[n]).digest())
    place, size = ring.index(name), len(ring)
    near = {ring[(place + step) % size] for step in range(-REACH, REACH + 1)}
    return sorted(near - {name})


def masker(name: str, exchange: str) -> Masker:
    """Return one client's side of a new exchange, with a fresh key."""
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError as error:
        raise _check.missing("Masked sums need cryptography", "federated") from error
    return Masker(name, X25519PrivateKey.generate(), exchange)


def summed(messages: Mapping[str, Words], keys: Mapping[str, bytes]) -> Floats:
    """Return the sum of all clients' costs, each rounded up.

    Raises:
        PrivacyError: If a message is missing, came twice, or is of another length; repeat the exchange with new keys.
    """
    total = _unmasked(messages, keys)
    if int(total.max(initial=0)) > len(keys) * math.ceil(LARGEST_COST * UNIT):
        raise PrivacyError("The sum is larger than any sum of costs: a message is damaged. Repeat the exchange.")
    return np.nextafter(total.astype(np.float64), np.inf) / UNIT


def largest(messages: Mapping[str, Words], keys: Mapping[str, bytes], levels: Sequence[float] | Floats) -> Floats:
    """Return, for each cost, the first level that no client is above; infinite if one is above the last.

    Args:
        messages: Every client's masked message.
        keys: Every client's public key.
        levels: The levels that clients compared with; they must rise.

    Raises:
        PrivacyError: If a message is missing or damaged; repeat the exchange with new keys.
    """
    edges = np.append(np.asarray(levels, dtype=np.float64), np.inf)
    if not (np.diff(edges) > 0.0).all():
        raise ValueError("levels must rise.")
    above = _unmasked(messages, keys).reshape(-1, len(edges) - 1) != 0
    highest = np.where(above.any(axis=1), above.shape[1] - above[:, ::-1].argmax(axis=1), 0)
    return np.asarray(edges[highest])


@dataclass(frozen=True)
class Exchange:
    """The server's side over some transport: keys, then masked numbers; repeated among the others if one drops out.

    Attributes:
        keys: (names, exchange) -> public keys of those who answered.
        costs: (keys, exchange, what) -> messages of those who answered.
    """

    keys: Callable[[tuple[str, ...], str], Mapping[str, bytes]]
    costs: Callable[[Mapping[str, bytes], str, str], Mapping[str, Words]]

    def __call__(
        self, names: tuple[str, ...], exchange: str, what: str, read: Callable[[Any, Any], Floats]
    ) -> tuple[Floats | None, tuple[str, ...]]:
        """Exchange masked numbers among clients.

        Args:
            names: The clients to ask.
            exchange: The name of the exchange.
            what: What clients are asked for, `records` or `norms`.
            read: (messages, keys) -> the aggregate; raises ValueError or TypeError where nothing can be read.

        Returns:
            The aggregate and who took part; None if too few did, or clients kept dropping out.
        """
        for attempt in range(1, ATTEMPTS + 1):
            if not FEWEST <= len(names) <= MOST_CLIENTS:
                break
            this = first_attempt(exchange) if attempt == 1 else f"{exchange} attempt {attempt}"
            asked = self.keys(names, this).items()
            keys = {n: k for n, k in asked if n in names and isinstance(k, bytes) and len(k) == 32}
            if len(keys) < FEWEST:
                break
            messages = {n: m for n, m in self.costs(keys, this, what).items() if n in keys}
            try:
                return read(messages, keys), tuple(sorted(keys))
            except (ValueError, TypeError):
                names = tuple(sorted(messages))
        return None, ()


def first_attempt(exchange: str) -> str:
    """Return the name of an exchange's first attempt; later ones have names of their own, and new keys."""
    return exchange.split(" attempt ")[0] + " attempt 1"


def _unmasked(messages: Mapping[str, Words], keys: Mapping[str, bytes]) -> Words:
    if set(messages) != set(keys):
        missing = len(set(keys) - set(messages))
        raise PrivacyError(
            f"{missing} of {len(keys)} clients did not answer: nothing can be read. Repeat with new keys."
        )
    words = [np.asarray(message) for message in messages.values()]
    if any(w.dtype != np.uint64 or w.shape != words[0].shape or w.ndim != 1 for w in words):
        raise PrivacyError("Messages of one exchange must be rows of 64-bit words of one length. Repeat the exchange.")
    return np.asarray(np.sum(words, axis=0, dtype=np.uint64))


def _fixed_point(costs: Sequence[float] | Floats) -> Words:
    values = [_check.in_range("a cost", cost, 0.0, LARGEST_COST) for cost in costs]
    return np.array([math.ceil(value * UNIT) for value in values], dtype=np.uint64)
