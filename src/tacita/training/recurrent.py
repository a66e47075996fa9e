"""Recurrent layers written out, step by step, for all records at once: the fused ones have no per-record form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_Cell = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _lstm(given: Tensor, own: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    enter, forget, new, leave = (given + own).chunk(4, -1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru(given: Tensor, own: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    (reset, keep, new), (own_reset, own_keep, own_new) = given.chunk(3, -1), own.chunk(3, -1)
    keep = (keep + own_keep).sigmoid()
    return (1.0 - keep) * (new + (reset + own_reset).sigmoid() * own_new).tanh() + keep * hidden, cell


def _tanh(given: Tensor, own: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    return (given + own).tanh(), cell


def _relu(given: Tensor, own: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    return (given + own).relu(), cell


_CELLS: dict[Any, _Cell] = {torch.lstm: _lstm, torch.gru: _gru, torch.rnn_tanh: _tanh, torch.rnn_relu: _relu}


def unrollable(func: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
    """Return whether this is a call of a recurrent layer, and not of packed sequences."""
    return func in _CELLS and not kwargs and len(args) == 9 and isinstance(args[3], bool)


def unrolled(
    func: Any,
    given: Tensor,
    start: Any,
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Return what a recurrent layer puts out: the sequence, and its last hidden states.

    Args:
        func: Which layer: of torch's.
        given: The sequence.
        start: Hidden states to start from.
        weights: All weights and biases, in torch's order.
        bias: Whether there are biases.
        layers: How many are stacked.
        dropout: Between them.
        training: Whether to drop.
        bidirectional: Whether each reads backwards, too.
        batch_first: Whether the batch is the first dimension.
    """
    cell, directions = _CELLS[func], 2 if bidirectional else 1
    hidden, memory = start if isinstance(start, tuple | list) else (start, start)
    sequence = given.transpose(0, 1) if batch_first else given
    each = len(weights) // (layers * directions)
    ends = []
    for layer in range(layers):
        both = []
        for number in range(layer * directions, (layer + 1) * directions):
            own = weights[each * number : each * (number + 1)]
            into, round_, *biases = own[: 4 if bias else 2]
            shrink = own[-1] if each in (3, 5) else None
            first, again = biases or (None, None)
            inputs, state, kept = functional.linear(sequence, into, first), hidden[number], memory[number]
            steps: list[Any] = [None] * len(inputs)
            for t in range(len(inputs)) if number % directions == 0 else reversed(range(len(inputs))):
                state, kept = cell(inputs[t], functional.linear(state, round_, again), state, kept)
                steps[t] = state = state if shrink is None else functional.linear(state, shrink)
            both.append(torch.stack(steps))
            ends.append((state, kept))
        sequence = torch.cat(both, -1)
        if dropout and training and layer < layers - 1:
            sequence = functional.dropout(sequence, dropout)
    out = sequence.transpose(0, 1) if batch_first else sequence
    states = [torch.stack(s) for s in zip(*ends, strict=True)]
    return (out, *states) if func is torch.lstm else (out, states[0])
