"""What the server of a federation does: coins, charge, clip, sum, noise, account. Transport is elsewhere.

A round is `begin`, whose charge is on disk before anybody is asked, and `finish`, which takes what came back, whatever
that is, and returns the private mean. Nothing that a client sends stops the server.
"""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor

from tacita import _check
from tacita._check import PrivacyError
from tacita.facts import Status
from tacita.federated.charging import RoundCharges
from tacita.federated.measurements import Measurements
from tacita.federated.plan import FederationPlan
from tacita.federated.updates import clipped, in_steps, norm_of
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.training.gradients import Parameters
from tacita.training.randomness import Randomness, randomness
from tacita.training.step import coin_bound, coins, noisy_mean
from tacita.training.whole import whole_mean

_LARGEST = 1e18  # norms from here on are dropped, as a record's gradient is


@dataclass(frozen=True)
class Round:
    """One round: who takes part, and who is only measured.

    Attributes:
        number: 1 for the first round.
        drawn: Clients whose coin came up: their updates enter the sum.
        followed: Clients whose updates are measured, drawn or not.
    """

    number: int
    drawn: tuple[str, ...]
    followed: tuple[str, ...] = ()

    @property
    def asked(self) -> tuple[str, ...]:
        """Everybody who gets the model, in the order of their names."""
        return tuple(sorted({*self.drawn, *self.followed}))


class Server:
    """The server's side of a private federation.

    Args:
        plan: What was declared.
        like: The parameters, for the names and shapes that an update must have.
        panel: How many clients are followed, at level client, for a typical figure. 0 takes those who take part.
        held_out: Clients that are followed and never drawn.
        ledger: A path, a database's URL or a `Ledger` of the plan's larger unit; a file is made if it does not exist.
        record_ledger: The same for records, at level joint.
        seed: None, the default, is seeded by the operating system; a chosen number is marked as not secure.
        identity: The run's name in the ledgers; made up if not given.
        owner: Who holds the run's folder while rounds are taken; None for a run that writes nothing.

    Guarantee:
        Each client enters a round by its own coin; its update is clipped, or dropped if it is not what was asked for;
        the noise in the sum is exactly the promised one whoever answers; the divisor is declared; a round is charged
        before anybody is asked, and an empty round is noised like any other.
    """

    @_check.renamed("rng")
    def __init__(
        self,
        plan: FederationPlan,
        like: Parameters,
        *,
        panel: int = 0,
        held_out: Iterable[str] = (),
        ledger: Ledger | str | Path = ":memory:",
        record_ledger: Ledger | str | Path = ":memory:",
        seed: int | None = None,
        identity: str | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.plan, self.like = plan, {name: torch.empty_like(p, device="meta") for name, p in like.items()}
        self.random: Randomness = randomness(seed)
        self.held_out = frozenset(held_out)
        self.taken = 0
        self.identity = identity or secrets.token_hex(8)
        self.owner = owner or Owner()
        self.status: Status = "running"
        self.participations: dict[str, int] = {}
        self.unnamed: set[str] = set()  # clients that did not declare who they are
        self.lost = 0  # rounds of which nothing is known
        self.measured = Measurements(plan, panel, self.identity)
        self.open_round: Round | None = None
        self.charges = RoundCharges(plan, self.identity, self.owner.token, ledger, record_ledger)

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """The ledgers that are charged, the larger unit's first."""
        return self.charges.ledgers

    @property
    def ended(self) -> str:
        """Why the owner ended the federation early, if that depended on nothing private; else empty."""
        return self.charges.ended

    @property
    def covered_end(self) -> tuple[int, float]:
        """The round that a label speaks of, and its share of delta: the declared end that covers the rounds taken."""
        return (self.taken, 1.0) if self.ended else self.plan.end_after(self.taken)

    @property
    def next_round(self) -> int:
        """The number that the next round to begin will have; one that is open would be lost."""
        return self.taken + 1 + (self.open_round is not None)

    def settled(self) -> Server:
        """Return a copy to read figures from, in which an open round counts as lost: looking changes nothing here."""
        other = copy.copy(self)
        other.measured = copy.deepcopy(self.measured)
        other.lose(int(self.open_round is not None))
        other.measured.settle(other.taken)
        return other

    # A round.

    def begin(self, enrolled: Iterable[str], *, unnamed: Iterable[str] = ()) -> Round | None:
        """Charge the next round, toss the coins, and return who is asked; None if no round, or no budget, is left.

        Args:
            enrolled: The clients that are there.
            unnamed: Those of them that did not declare who they are, so that each may be one that took part before
                under another name. They count as if they had taken part in every round.
        """
        names = sorted(set(enrolled))
        if len(names) > self.plan.clients:
            raise PrivacyError(f"{len(names)} clients are enrolled, and the plan was declared for {self.plan.clients}.")
        if self.open_round is not None:
            self.lose(1)
        if self.taken >= self.plan.rounds:
            return None
        self.owner.hold()
        if not self.charges.charge(self.taken, self.random):
            self.status = "budget-spent"
            return None
        self.status = "running"
        self.unnamed |= set(unnamed)
        followed = self.measured.choose_panel(names, self.held_out, taken=self.taken, rng=self.random.sampling)
        thrown = zip(names, coins(len(names), rng=self.random.sampling).tolist(), strict=True)
        drawn = tuple(n for n, c in thrown if n not in self.held_out and c < coin_bound(self.plan.rate_of(n)))
        if 0 < self.plan.shares < len(drawn):
            drawn = ()  # more noise than promised would reveal how many there were
        self.open_round = Round(self.taken + 1, drawn, followed)
        return self.open_round

    def finish(self, replies: Mapping[str, object]) -> Parameters:
        """Return the private mean of the updates that came back for the open round.

        Args:
            replies: By client. Replies of clients that were not asked, or that are not updates of the right names,
                shapes and finite numbers, are dropped in silence.
        """
        if self.open_round is None:
            raise PrivacyError("No round was begun: its charge must come before its updates.")
        now = self.open_round
        kind, grid = (torch.float64 if self.plan.grid is None else torch.int64), self.plan.grid
        sums = {name: torch.zeros(p.shape, dtype=kind) for name, p in self.like.items()}
        norms, accepted = {}, 0
        for name in now.asked:
            update = self._accepted(replies.get(name))
            if update is None:
                continue
            held = update if self.plan.shares else clipped(update, self.plan.clip_norm)
            if grid is not None:
                held = in_steps(held, self.plan.clip_norm, grid)
            norms[name] = min(1.0, norm_of(held) * (1.0 if grid is None else grid.step) / self.plan.clip_norm)
            if name in now.drawn:
                accepted += 1
                for key, value in held.items():
                    sums[key] += value
        mean = self._with_noise(sums, accepted)
        self.measured.follow(now.drawn, norms)
        for name in now.drawn:
            self.participations[name] = self.participations.get(name, 0) + 1
        self.measured.unreported |= set(now.drawn)
        self._close(1)
        return mean

    def _accepted(self, reply: object) -> Parameters | None:
        """Return a reply in float64, or None if it is not an update; it may be anything.

        An update with a share of the noise must not be scaled, so it is dropped if it is larger than any honest one.
        """
        if not isinstance(reply, Mapping) or set(reply) != set(self.like):
            return None
        try:
            update = {name: _numbers(reply[name], like) for name, like in self.like.items()}
        except (TypeError, ValueError, RuntimeError):  # tensors that cannot be read, such as those without numbers
            return None
        largest = self.plan.largest_update(sum(p.numel() for p in self.like.values())) if self.plan.shares else _LARGEST
        return update if norm_of(update) < largest else None  # a norm that is not a number is not below it

    def _with_noise(self, sums: Parameters, accepted: int) -> Parameters:
        if self.plan.grid is not None:
            mean = whole_mean(sums, grid=self.plan.grid, divisor=self.plan.divisor, rng=self.random.noise)
            return {name: mean[name].to(p.dtype) for name, p in self.like.items()}
        total, share = self.plan.total_noise, self.plan.share_noise
        missing = total**2 - accepted * share**2
        if missing < -1e-9 * total**2:
            raise PrivacyError("More clients answered than there are shares of the promised noise: the round is lost.")
        scale = math.sqrt(max(missing, 0.0))
        mean = noisy_mean(sums, clip_norm=scale, noise_multiplier=1.0, divisor=self.plan.divisor, rng=self.random.noise)
        return {name: mean[name].to(p.dtype) for name, p in self.like.items()}

    def _close(self, rounds: int) -> None:
        self.taken += rounds
        self.open_round = None
        if self.taken == self.plan.rounds:
            self.status = "done"

    def lose(self, rounds: int) -> None:
        """Count rounds that were charged and of which nothing is known any more, everything at its bound."""
        if rounds <= 0:
            return
        self.measured.lose(rounds, self.participations)
        self.lost += rounds
        self._close(rounds)
        self.measured.settle(self.taken)

    @property
    def most_steps(self) -> int:
        """The steps of the busiest clients that may hold one record; the coins do not depend on the data."""
        if self.unnamed_took_part:
            return self.taken * self.plan.steps_a_round
        counts = sorted(self.participations.values(), reverse=True)[: self.plan.copies]
        counts += [0] * (self.plan.copies - len(counts))
        return max(1, sum(min(count + self.lost, self.taken) for count in counts)) * self.plan.local_steps

    @property
    def unnamed_took_part(self) -> bool:
        """Whether a client took part that did not declare who it is."""
        return not self.unnamed.isdisjoint(self.participations)

    def steps_of(self, name: str) -> int:
        """Return how many local steps of a client count."""
        if name in self.unnamed:
            return self.taken * self.plan.local_steps
        return min(self.participations.get(name, 0) + self.lost, self.taken) * self.plan.local_steps

    # Keeping.

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return tensors and plain data for a checkpoint."""
        tensors, measured = self.measured.state()
        return tensors, {
            "heads": [ledger.head for ledger in self.ledgers],
            "taken": self.taken,
            "lost": self.lost,
            "status": self.status,
            "participations": dict(self.participations),
            "unnamed": sorted(self.unnamed),
            "held_out": sorted(self.held_out),
            **measured,
        }

    def restore(self, tensors: Mapping[str, Any], saved: Mapping[str, Any], *, resume: bool) -> None:
        """Take up a checkpoint; rounds that were charged after it are lost.

        Args:
            tensors: The first part of what `state` returned.
            saved: The second part.
            resume: Whether the run goes on, which is recorded in the ledgers; otherwise it is only read.
        """
        self.taken, self.lost = int(saved["taken"]), int(saved["lost"])
        self.status = cast(Status, _check.one_of("status", saved["status"], get_args(Status)))
        self.participations = {str(n): _check.count("participations", c) for n, c in saved["participations"].items()}
        self.unnamed = set(saved.get("unnamed", self.participations))  # a checkpoint that does not say knows no names
        self.held_out |= set(saved.get("held_out", ()))
        self.measured.restore(tensors, saved)
        self.lose(self.charges.charged_rounds(self.taken, saved["heads"], self.random, resume=resume) - self.taken)


def _numbers(value: object, like: Tensor) -> Tensor:
    """Return a client's tensor in float64, or raise."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.layout != torch.strided:
        raise TypeError
    wide = value.detach().cpu().double()
    if wide.shape != like.shape:
        raise ValueError
    return wide
