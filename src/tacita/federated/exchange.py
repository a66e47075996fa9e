"""The server's side of an exchange of masked numbers, whatever carries the messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tacita.federated.masking import FEWEST, MOST_CLIENTS

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.federated.masking import Words

ATTEMPTS = 3  # at a cost exchange, each among those who answered before


class Exchange:
    """A cost exchange over some transport: keys, then masked numbers; repeated among the others if a client drops out.

    Args:
        keys: (names, exchange) -> public keys of those who answered.
        costs: (keys, exchange, what) -> messages of those who answered.
    """

    def __init__(
        self,
        keys: Callable[[tuple[str, ...], str], Mapping[str, bytes]],
        costs: Callable[[Mapping[str, bytes], str, str], Mapping[str, Words]],
    ) -> None:
        self._keys, self._costs = keys, costs

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
            keys = {n: k for n, k in self._keys(names, this).items() if n in names and _is_key(k)}
            if len(keys) < FEWEST:
                break
            messages = {n: m for n, m in self._costs(keys, this, what).items() if n in keys}
            try:
                return read(messages, keys), tuple(sorted(keys))
            except (ValueError, TypeError):
                names = tuple(sorted(messages))
        return None, ()


def first_attempt(exchange: str) -> str:
    """Return the name of an exchange's first attempt; later ones have names of their own, and new keys."""
    return exchange.split(" attempt ")[0] + " attempt 1"


def _is_key(key: object) -> bool:
    return isinstance(key, bytes) and len(key) == 32
