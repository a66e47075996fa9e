"""What the server of a federation does: coins, charge, clip, sum, noise, account. No transport in here.

A round is `begin`, whose charge is on disk before anybody is asked, and `finish`, which takes what came back, whatever
that is, and returns the private mean. Nothing that a client sends stops the server.
"""

from __future__ import annotations

import copy
import json
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
import torch
from torch import Tensor

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting import NORM_LEVELS, BayesianAccountant
from tacita.facts import Status
from tacita.federated.client import clipped, epsilon_levels, norm_of
from tacita.federated.masking import FEWEST, MOST_CLIENTS, largest, summed
from tacita.federated.plan import FederationPlan
from tacita.ledger import Ledger
from tacita.owner import Owner
from tacita.training.charges import Charges, ledger_at
from tacita.training.gradients import Parameters
from tacita.training.panel import Panel
from tacita.training.plan import Pair
from tacita.training.randomness import Randomness, randomness
from tacita.training.step import noisy_mean

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.federated.masking import Words

ATTEMPTS = 3  # at a cost exchange, each among those who answered before
_LARGEST = 1e18  # norms from here on are dropped, as a record's gradient is
_UNKNOWN: Floats = np.ones(2)  # norms of a round of which nothing is known; estimators need two
_PROMISED = "noise that was promised"


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
        ledger: A path or a `Ledger` of the plan's larger unit; made if it does not exist.
        record_ledger: The same for records, at level joint.
        rng: A seed. None, the default, is seeded by the operating system; a chosen seed is marked as not secure.
        identity: The run's name in the ledgers; made up if not given.
        owner: Who holds the run's folder while rounds are taken; None for a run that writes nothing.

    Guarantee:
        Each client enters a round by its own coin; its update is clipped, or dropped if it is not what was asked for;
        the noise in the sum is exactly the promised one whoever answers; the divisor is declared; a round is charged
        before anybody is asked, and an empty round is noised like any other.
    """

    def __init__(
        self,
        plan: FederationPlan,
        like: Parameters,
        *,
        panel: int = 0,
        held_out: Iterable[str] = (),
        ledger: Ledger | str | Path = ":memory:",
        record_ledger: Ledger | str | Path = ":memory:",
        rng: int | None = None,
        identity: str | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.plan, self.like = plan, {name: torch.empty_like(p, device="meta") for name, p in like.items()}
        self.random: Randomness = randomness(rng)
        self.held_out = frozenset(held_out)
        self.taken = 0
        self.identity = identity or secrets.token_hex(8)
        self.owner = owner or Owner()
        self.status: Status = "running"
        self.participations: dict[str, int] = {}
        self.unnamed: set[str] = set()  # clients that did not declare who they are
        self.lost = 0  # rounds of which nothing is known any more
        self.untold: set[str] = set()  # clients whose records' costs since their last exchange are not known
        self.typical: Floats = np.zeros(2)  # the largest typical epsilon of any client's records so far
        self.norms = self._norms_accountant()
        self._panel_size = _check.count("panel", panel, low=0, high=10**6)
        self.panels: dict[str, Panel] = {}
        self.members: dict[str, tuple[str, ...]] = {}
        self.open_round: Round | None = None
        self._opened = False
        self._charges = self._books(ledger, record_ledger)

    def _books(self, ledger: Ledger | str | Path, record_ledger: Ledger | str | Path) -> tuple[Charges, ...]:
        plan, made = self.plan, list[Charges]()
        also = json.dumps(plan.to_dict(), sort_keys=True)
        if plan.of_clients is not None:
            book = ledger_at(ledger, unit="client")
            failure = plan.failure / plan.rounds
            made.append(Charges(book, self.identity, plan.of_clients, 1, failure, also, self.owner.token))
        if plan.of_records is not None:
            book = ledger_at(record_ledger if made else ledger)
            made.append(
                Charges(book, self.identity, plan.of_records, plan.steps_a_round, also=also, owner=self.owner.token)
            )
        for charges in made:
            if charges.ledger.unit != charges.plan.unit:
                raise PrivacyError(
                    f"The ledger {charges.ledger.path.name} counts {charges.ledger.unit}s, and this federation charges "
                    f"{charges.plan.unit}s there: use another ledger."
                )
        return tuple(made)

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """The ledgers that are charged, the larger unit's first."""
        return tuple(charges.ledger for charges in self._charges)

    @property
    def ended(self) -> str:
        """Why the owner ended the federation early, if that depended on nothing private; else empty."""
        return self.ledgers[0].ended(self.identity)

    def promise(self, unit: str) -> Pair | None:
        """Return the (epsilon, delta) that the ledger of a unit keeps, if it had a budget from its first charge on."""
        own = (charges.ledger for charges in self._charges if charges.plan.unit == unit)
        return next((ledger.promise(self.identity) for ledger in own), None)

    def end(self, reason: str) -> None:
        """End the federation here, declaring that this depended on nothing private. No round can follow."""
        for charges in reversed(self._charges):  # the first one speaks for all
            if charges is self._charges[0] or not charges.ledger.ended(self.identity):
                charges.ledger.end(self.identity, reason, owner=charges.owner if self._opened else "")

    @property
    def next_round(self) -> int:
        """The number that the next round to begin will have; one that is open would be lost."""
        return self.taken + 1 + (self.open_round is not None)

    def settled(self) -> Server:
        """Return a copy to read figures from, in which an open round counts as lost: looking changes nothing here."""
        other = copy.copy(self)
        other.panels, other.norms = copy.deepcopy((self.panels, self.norms))
        other.lose(int(self.open_round is not None))
        other.settle()
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
        if not self._charge():
            return None
        self.status = "running"
        self.unnamed |= set(unnamed)
        self._choose_panel(names)
        self.open_round = Round(self.taken + 1, self._draw(names), self._also_asked(names))
        return self.open_round

    def _charge(self) -> bool:
        """Charge one round in every ledger; a used-up budget in any of them ends the run.

        The last ledger is always charged. One before it may be a round ahead: the last one was not charged any more.
        """
        for charges in self._charges:
            if not self._opened:
                charges.open(self.random)
        self._opened = True
        ended = next(filter(None, (ledger.ended(self.identity) for ledger in self.ledgers)), "")
        if ended:
            raise PrivacyError(f"The federation was ended by its owner ({ended}); start a new one.")
        for charges in self._charges:
            steps = self._steps_a_round(charges)
            target = (self.taken + 1) * steps
            if charges is not self._charges[-1] and charges.charged == target:
                charges.check()
                continue
            if charges.grant(target - steps, whole=True) < target:
                self.status = "budget-spent"
                return False
        return True

    def check(self) -> None:
        """Refuse to say what was spent if the run goes on elsewhere, or a ledger was taken away."""
        for charges in self._charges:
            charges.check()

    def _steps_a_round(self, charges: Charges) -> int:
        return charges.plan.steps // self.plan.rounds

    def _draw(self, names: list[str]) -> tuple[str, ...]:
        coins = self.random.sampling.random(len(names))
        drawn = tuple(
            n for n, coin in zip(names, coins, strict=True) if n not in self.held_out and coin < self.plan.rate_of(n)
        )
        if self.plan.level == "joint" and len(drawn) > self.plan.shares:
            return ()  # more noise than promised would tell how many there were
        return drawn

    def finish(self, replies: Mapping[str, object]) -> Parameters:
        """Return the private mean of the updates that came back for the open round.

        Args:
            replies: By client. Replies of clients that were not asked, or that are not updates of the right names,
                shapes and finite numbers, are dropped in silence.
        """
        if self.open_round is None:
            raise PrivacyError("No round was begun: its charge must come before its updates.")
        now = self.open_round
        sums = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in self.like.items()}
        norms, accepted = {}, 0
        for name in now.asked:
            update = self._accepted(replies.get(name))
            if update is None:
                continue
            held = update if self.plan.shares else clipped(update, self.plan.clip_norm)
            norms[name] = min(1.0, norm_of(held) / self.plan.clip_norm)
            if name in now.drawn:
                accepted += 1
                for key, value in held.items():
                    sums[key] += value
        mean = self._with_noise(sums, accepted)
        self._follow(now, norms)
        self._close(now)
        return mean

    def _accepted(self, reply: object) -> Parameters | None:
        """Return a reply in float64 if it is an update, whatever it is.

        One with noise of its own must not be scaled, so it is dropped where it is larger than any honest one.
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
        total, share = self.plan.total_noise, self.plan.share_noise
        missing = total**2 - accepted * share**2
        if missing < -1e-9 * total**2:
            raise PrivacyError(f"More clients answered than there are shares of the {_PROMISED}: the round is aborted.")
        scale = math.sqrt(max(missing, 0.0))
        mean = noisy_mean(sums, clip_norm=scale, noise_multiplier=1.0, divisor=self.plan.divisor, rng=self.random.noise)
        return {name: mean[name].to(p.dtype) for name, p in self.like.items()}

    def _close(self, now: Round) -> None:
        for name in now.drawn:
            self.participations[name] = self.participations.get(name, 0) + 1
            self.untold.add(name)
        self.taken += 1
        self.open_round = None
        if self.taken == self.plan.rounds:
            self.status = "done"

    def lose(self, rounds: int) -> None:
        """Count rounds that were charged and of which nothing is known any more, everything at its bound."""
        if rounds <= 0:
            return
        for panel in self.panels.values():
            panel.lose(rounds)
        self.lost += rounds
        self.taken += rounds
        self.untold = set(self.participations)
        self.open_round = None
        self.settle()
        if self.taken == self.plan.rounds:
            self.status = "done"

    def settle(self) -> None:
        """Charge rounds of which no norms were counted, at the clip bound."""
        if self.norms is not None and self.norms.taken < self.taken:
            self.norms.step(_UNKNOWN, steps=self.taken - self.norms.taken)

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

    # Typical figures for clients, who are measured by the server.

    def _choose_panel(self, names: list[str]) -> None:
        if self.members or self.plan.level != "client":
            return
        drawable = [n for n in names if n not in self.held_out]
        some = drawable
        if self._panel_size < len(drawable):
            places = self.random.sampling.choice(len(drawable), self._panel_size, replace=False)
            some = [drawable[i] for i in sorted(places)]
        self.members = {"training": tuple(some)} if some else {}
        outside = tuple(n for n in names if n in self.held_out)
        if outside:
            self.members["held-out"] = outside
        self.panels = {
            kind: Panel(None, np.arange(len(members)), self._panel_accountant())
            for kind, members in self.members.items()
        }
        for panel in self.panels.values():  # rounds before anybody could be followed
            panel.lose(self.taken)

    def _also_asked(self, names: list[str]) -> tuple[str, ...]:
        here = set(names)
        return tuple(n for members in self.members.values() for n in members if n in here)

    def _panel_accountant(self) -> BayesianAccountant:
        return BayesianAccountant(
            sample_rate=self.plan.client_rate,
            noise_multiplier=self.plan.headline.noise_multiplier,
            steps=self.plan.rounds,
        )

    def _follow(self, now: Round, norms: Mapping[str, float]) -> None:
        """Charge followed clients by their measured norms, and at the clip bound where nothing was measured."""
        for kind, panel in self.panels.items():
            panel.measure(np.array([norms.get(n, 1.0) for n in self.members[kind]]), period=1)
            panel.tick()
        if self.plan.level == "client" and self.norms is not None and not self.panels:
            seen = np.array([norms.get(n, 1.0) for n in now.drawn])
            self.norms.step(seen if len(seen) > 1 else _UNKNOWN)

    # Figures that clients tell in aggregate only.

    def _norms_accountant(self) -> BayesianAccountant | None:
        """Norms of the participants, fresh every round: of clients, or at level sequential of records."""
        if self.plan.level == "parallel":
            return None
        declared = self.plan.headline
        return BayesianAccountant(
            sample_rate=declared.sample_rate,
            noise_multiplier=declared.noise_multiplier,
            composition="hoelder",
            steps=self.plan.rounds,
        )

    def norms_exchange(self, now: Round) -> str:
        """Return the name of the exchange of a round's norms."""
        return f"{self.identity} round {now.number} norms"

    def hear_norms(self, now: Round, exchange: Exchange, *, followed: int = 1) -> None:
        """Ask the round's participants for counts of their norms, in aggregate, and charge the round by them.

        Where the exchange fails, or the counts are not plausible, the round is charged at the clip bound.
        """
        if self.norms is None or self.norms.taken >= self.taken:
            return
        told, names = exchange(now.drawn, self.norms_exchange(now), "norms", summed)
        counts = np.rint(np.zeros(1) if told is None else told).astype(np.int64)
        if len(counts) == len(NORM_LEVELS) and len(names) <= counts.sum() <= len(names) * followed:
            silent = (len(now.drawn) - len(names)) * followed  # of whom the most is assumed
            self.norms.step(np.concatenate([np.repeat(NORM_LEVELS, counts), np.ones(silent)]))
        else:
            self.norms.step(_UNKNOWN)

    def hear_records(self, exchange: Exchange) -> None:
        """Ask those who took part since the last time for the largest typical epsilon of their records."""
        names, levels = sorted(self.untold), epsilon_levels(self.plan)
        groups = -(-len(names) // MOST_CLIENTS)
        for group in range(groups):
            told, answered = exchange(
                tuple(names[group::groups]),
                f"{self.identity} round {self.taken} records {group}",
                "records",
                lambda m, k: largest(m, k, levels),
            )
            if told is not None and len(told) == 2:
                self.typical = np.maximum(self.typical, np.minimum(told, levels[-1]))
                self.untold -= set(answered)

    # Keeping.

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return tensors and plain data for a checkpoint."""
        panels = {kind: panel.state() for kind, panel in self.panels.items()}
        document = {
            "heads": [ledger.head for ledger in self.ledgers],
            "taken": self.taken,
            "lost": self.lost,
            "status": self.status,
            "participations": dict(self.participations),
            "unnamed": sorted(self.unnamed),
            "untold": sorted(self.untold),
            "typical": self.typical.tolist(),
            "held_out": sorted(self.held_out),
            "members": {kind: list(names) for kind, names in self.members.items()},
            "norms": None if self.norms is None else self.norms.state_dict(),
            "panels": {kind: plain for kind, (_, plain) in panels.items()},
        }
        return {kind: tensors for kind, (tensors, _) in panels.items()}, document

    def restore(self, tensors: Mapping[str, Any], saved: Mapping[str, Any], *, resume: bool) -> None:
        """Take up a checkpoint; rounds that were charged after it are lost. `resume` tells the ledgers."""
        self.taken, self.lost = int(saved["taken"]), int(saved["lost"])
        self.status = cast(Status, _check.one_of("status", saved["status"], get_args(Status)))
        self.participations = {str(n): _check.count("participations", c) for n, c in saved["participations"].items()}
        self.unnamed = set(saved.get("unnamed", self.participations))  # a checkpoint that does not say knows no names
        self.untold, self.typical = set(saved["untold"]), np.asarray(saved["typical"], dtype=np.float64)
        self.held_out |= set(saved.get("held_out", ()))
        self.members = {kind: tuple(names) for kind, names in saved["members"].items()}
        self.norms = None if saved["norms"] is None else BayesianAccountant.from_state(saved["norms"])
        self.panels = {
            kind: Panel.restore(None, part, saved["panels"][kind], budget=None) for kind, part in tensors.items()
        }
        reached = []
        for charges, head in zip(self._charges, saved["heads"], strict=True):
            steps, known = self._steps_a_round(charges), charges.ledger.runs().get(self.identity)
            if known is not None and known["mechanism"] != charges.mechanism:
                raise PrivacyError("The run's plan is not the one that its ledger froze before the first round.")
            if resume:
                charges.open(self.random)
            standing = charges.standing(self.taken * steps, str(head), clean=False, resume=resume)
            reached.append(-(-standing // steps))
        if reached[0] - reached[-1] not in (0, 1):
            raise PrivacyError("The run's two ledgers know different numbers of rounds: one of them was rolled back.")
        self.lose(reached[-1] - self.taken)  # nobody is asked before the last ledger was charged


class Exchange:
    """A cost exchange over some transport: keys first, then masked numbers, again among the rest if somebody drops out.

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
        """Return what was read and who took part; None if too few did, or they kept dropping out."""
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


def _numbers(value: object, like: Tensor) -> Tensor:
    """Return a client's tensor in float64, or raise."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.layout != torch.strided:
        raise TypeError
    wide = value.detach().cpu().double()
    if wide.shape != like.shape:
        raise ValueError
    return wide


def first_attempt(exchange: str) -> str:
    """Return the name of an exchange's first attempt; later ones have names of their own, and new keys."""
    return exchange.split(" attempt ")[0] + " attempt 1"


def _is_key(key: object) -> bool:
    return isinstance(key, bytes) and len(key) == 32
