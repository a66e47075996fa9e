"""Membership inference: from a classifier's answers alone, can an outsider tell who was trained on?

The score is that of RMIA (Zarifzadeh, Liu & Shokri 2024, arXiv:2312.03262): how much more confident the model is in a
record's true class than reference models are, half of which had the record and half of which had not. With references
that all records share, their test orders records as this ratio of confidences does. The likelihood ratios of Carlini et
al., S&P 2022, arXiv:2112.03570, revealed less on small sets with up to eight reference models.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logsumexp
from torch import Tensor, nn

from tacita import _check
from tacita._progress import Progress, quiet
from tacita.audit.attack import Session
from tacita.audit.models import outputs
from tacita.audit.scores import FEWEST, Floats, Membership, compare_scores
from tacita.audit.tally import paced
from tacita.label import Finding
from tacita.profile import Profile

Records = tuple[Tensor, Tensor]

_TEMPERATURE = 2.0  # softer than the model's own answers: keeps confident answers apart


def membership(
    model: nn.Module,
    members: Records,
    others: Records,
    *,
    train: Callable[[Tensor, Tensor], nn.Module],
    references: int = 4,
    epsilon: float | None = None,
    delta: float = 0.0,
    profile: Profile | None = None,
    size: int = 2000,
    rng: np.random.Generator | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Membership:
    """Attack a classifier: tell its training records from others by its answers.

    Reference models are trained on random halves of all the records, in pairs on opposite halves, so that an even
    number of them has every record in exactly half. If there are many more members than others, they see fewer
    records than the attacked model did, which makes the attack weaker.

    Args:
        model: The attacked model, which answers with one logit for each class. Only its answers are used.
        members: (inputs, int64 targets) that it was trained on.
        others: Records like them that it was not trained on.
        train: Takes inputs and targets and returns a model, trained as the attacked one was.
        references: How many reference models to train. Even numbers are best.
        epsilon: The worst case claimed (add or remove a record), to compare with. None, or infinity, for no claim.
        delta: Its delta.
        profile: Its whole privacy curve; None takes what the pair (epsilon, delta) allows.
        size: The largest number of members, and of others, that are attacked.
        rng: Chooses records and halves; None is seeded by the operating system. `train` has its own randomness.
        progress: Called after every reference model.
        stop: Asked between reference models; True goes on with those there are.

    Returns:
        How well members were told from others, and whether the claim allows it.

    Raises:
        ValueError: If targets are not classes, records do not fit the model, or there are too few.
    """
    planned = _check.count("references", references, high=10_000)
    most = _check.count("size", size, low=FEWEST)
    inputs, targets = _pool(members, others)
    generator = rng or np.random.default_rng()
    sides = len(members[1]), len(others[1])
    count = min(most, *sides)
    chosen = [generator.choice(side, count, replace=False) for side in sides]
    picked = torch.from_numpy(np.concatenate([chosen[0], chosen[1] + sides[0]])).to(targets.device)
    attacked = inputs[picked], targets[picked]
    answers = _confidence(model, attacked, "The model")
    compared: list[Floats] = []
    halves = _halves(len(targets), generator)
    for _ in paced(planned, progress, stop):
        kept = torch.from_numpy(next(halves)).to(targets.device)
        compared.append(_confidence(train(inputs[kept], targets[kept]), attacked, "A reference model"))
    scores = _relative_confidence(answers, np.stack(compared))
    both, made = (scores[:count], scores[count:]), len(compared)
    return compare_scores(*both, references=made, epsilon=epsilon, delta=delta, profile=profile, rng=generator)


def attack_membership(session: Session) -> tuple[dict[str, Any], Finding]:
    """Train reference models as the run was trained: can an outsider tell from its answers who was trained on?"""
    target, worst = session.target, session.target.label.worst
    members, others = target.classified()
    seeds = itertools.count(100)  # a stream for each reference model

    def train(inputs: Tensor, targets: Tensor) -> nn.Module:
        rate = min(1.0, target.plan.sample_rate * len(members[1]) / len(targets))
        return target.retrain((inputs, targets), sample_rate=rate, seed=session.seed(next(seeds))).run(quiet).model

    found = membership(
        target.trained()[0],
        (members[0], members[1]),
        (others[0], others[1]),
        train=train,
        references=session.references,
        epsilon=worst.curve.epsilon(worst.delta) if worst.one_end else worst.epsilon,  # one end says nothing of others
        delta=worst.delta,
        profile=worst.curve,
        rng=session.rng(6),
        progress=session.progress,
        stop=session.out_of_time,
    )
    return found.to_dict(), found.finding()


def _relative_confidence(answers: Floats, references: Floats) -> Floats:
    """Return log p - log mean p', for log odds of p under the model and of p' under each reference model."""
    doubt = expit(-references).mean(axis=0)
    sure = np.log1p(-np.minimum(doubt, 0.5))
    unsure = logsumexp(log_expit(references), axis=0) - math.log(len(references))
    return np.asarray(log_expit(answers) - np.where(doubt < 0.5, sure, unsure), dtype=np.float64)


def _confidence(model: nn.Module, records: Records, who: str) -> Floats:
    """Return the log odds of every record's true class, at the attack's temperature."""
    inputs, targets = records
    if not isinstance(model, nn.Module):
        raise TypeError(f"A model must be a torch module, got {type(model).__name__}; train must return the model.")
    logits = outputs(model, inputs).double().cpu() / _TEMPERATURE
    if logits.ndim != 2 or len(logits) != len(targets) or logits.shape[1] < 2:
        raise ValueError(f"{who} must answer with one logit for each class and record, got {tuple(logits.shape)}.")
    if not bool(torch.isfinite(logits).all()):
        raise ValueError(f"{who} gave answers that are not finite; lower its learning rate and train it again.")
    if not 0 <= int(targets.min()) <= int(targets.max()) < logits.shape[1]:
        raise ValueError(f"targets must be class numbers from 0 and below {logits.shape[1]}, the number of logits.")
    truth = targets.cpu()[:, None]
    rest = logits.scatter(1, truth, -math.inf).logsumexp(1)
    return np.asarray((logits.gather(1, truth)[:, 0] - rest).numpy(), dtype=np.float64)


def _halves(size: int, rng: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
    while True:
        half = rng.permutation(size) < size // 2
        yield half
        yield ~half


def _pool(members: Records, others: Records) -> Records:
    for name, (inputs, targets) in (("members", members), ("others", others)):
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            raise TypeError(f"{name} must be a pair of tensors, inputs and targets.")
        if targets.dtype != torch.int64 or targets.ndim != 1:
            raise ValueError(
                f"The targets of {name} must be class numbers, int64 of shape (n,), got {targets.dtype} of shape "
                f"{tuple(targets.shape)}; models that predict amounts cannot be attacked this way."
            )
        if len(inputs) != len(targets):
            raise ValueError(f"{name} must have as many inputs as targets, got {len(inputs)} and {len(targets)}.")
        if len(targets) < FEWEST:
            raise ValueError(f"At least {FEWEST} {name} are needed for an attack, got {len(targets)}.")
    if members[0].shape[1:] != others[0].shape[1:] or members[0].dtype != others[0].dtype:
        raise ValueError("members and others must have inputs of one shape and one type.")
    return torch.cat([members[0], others[0]]), torch.cat([members[1], others[1]])
