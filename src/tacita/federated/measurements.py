"""What a server learns about norms and costs, for typical figures: by measuring clients, or from masked aggregates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tacita import _check
from tacita.accounting import NORM_LEVELS, BayesianAccountant
from tacita.federated.client import epsilon_levels
from tacita.federated.masking import MOST_CLIENTS, Exchange, largest, summed
from tacita.federated.plan import FederationPlan
from tacita.training.panel import Panel

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.federated.server import Round

_UNKNOWN: Floats = np.ones(2)  # norms of a round of which nothing is known; estimators need two


class Measurements:
    """Norms of clients or records, and the typical costs that clients reported of their records.

    Args:
        plan: What was declared.
        panel: How many clients are followed where the server measures them; 0 takes those who take part.
        identity: The run's name, for those of exchanges.
    """

    def __init__(self, plan: FederationPlan, panel: int, identity: str) -> None:
        self.plan, self.identity, self._panel_size = plan, identity, _check.count("panel", panel, low=0, high=10**6)
        self.members: dict[str, tuple[str, ...]] = {}  # followed clients, by panel
        self.panels: dict[str, Panel] = {}
        self.norms = self._accountant("hoelder") if plan.privacy_level.counts_norms else None
        self.typical: Floats = np.zeros(2)  # the largest typical epsilon of any client's records so far
        self.unreported: set[str] = set()  # clients whose records' costs since their last report are not known

    def _accountant(self, composition: str) -> BayesianAccountant:
        """Return an accountant of the headline's mechanism, one step a round."""
        declared = self.plan.headline
        return BayesianAccountant(
            sample_rate=declared.sample_rate,
            noise_multiplier=declared.noise_multiplier,
            composition=composition,  # type: ignore[arg-type]
            steps=self.plan.rounds,
        )

    # Clients measured by the server.

    def choose_panel(
        self, names: list[str], held_out: frozenset[str], *, taken: int, rng: np.random.Generator
    ) -> tuple[str, ...]:
        """Return who is followed of the clients that are there; choose them in the first round.

        Args:
            names: The clients that are there.
            held_out: Clients that are never drawn.
            taken: Rounds taken before: nothing is known of them.
            rng: Chooses the panel.
        """
        if not self.members and self.plan.privacy_level.server_measures:
            drawable = [n for n in names if n not in held_out]
            some = drawable
            if self._panel_size < len(drawable):
                places = rng.choice(len(drawable), self._panel_size, replace=False)
                some = [drawable[i] for i in sorted(places)]
            outside = tuple(n for n in names if n in held_out)
            self.members = ({"training": tuple(some)} if some else {}) | ({"held-out": outside} if outside else {})
            self.panels = {
                kind: Panel(np.arange(len(members)), self._accountant("panel"))
                for kind, members in self.members.items()
            }
            for panel in self.panels.values():
                panel.lose(taken)
        here = set(names)
        return tuple(n for members in self.members.values() for n in members if n in here)

    def follow(self, drawn: Iterable[str], norms: Mapping[str, float]) -> None:
        """Charge followed clients by their measured norms, and at the clip bound where nothing was measured."""
        for kind, panel in self.panels.items():
            panel.measure(np.array([norms.get(n, 1.0) for n in self.members[kind]]), period=1)
            panel.tick()
        if self.plan.privacy_level.server_measures and self.norms is not None and not self.panels:
            seen = np.array([norms.get(n, 1.0) for n in drawn])
            self.norms.step(seen if len(seen) > 1 else _UNKNOWN)

    def lose(self, rounds: int, participants: Iterable[str]) -> None:
        """Count rounds of which nothing is known, everything at its bound."""
        for panel in self.panels.values():
            panel.lose(rounds)
        self.unreported = set(participants)

    def settle(self, taken: int) -> None:
        """Charge rounds of which no norms were counted, at the clip bound."""
        if self.norms is not None and self.norms.taken < taken:
            self.norms.step(_UNKNOWN, steps=taken - self.norms.taken)

    # What clients report, in aggregate only.

    def norms_exchange(self, now: Round) -> str:
        """Return the name of the exchange of a round's norms."""
        return f"{self.identity} round {now.number} norms"

    def collect_norms(self, now: Round, exchange: Exchange, *, per_client: int = 1) -> None:
        """Ask a round's participants for counts of their norms, in aggregate, and charge the round by them.

        Where the exchange fails, or the counts are not plausible, the round is charged at the clip bound.

        Args:
            now: The round, which was finished; it is charged once.
            exchange: The exchange to ask through.
            per_client: How many norms a client reports at most.
        """
        if self.norms is None or self.norms.taken >= now.number:
            return
        reported, names = exchange(now.drawn, self.norms_exchange(now), "norms", summed)
        counts = np.rint(np.zeros(1) if reported is None else reported).astype(np.int64)
        if len(counts) == len(NORM_LEVELS) and len(names) <= counts.sum() <= len(names) * per_client:
            silent = (len(now.drawn) - len(names)) * per_client  # of whom the most is assumed
            self.norms.step(np.concatenate([np.repeat(NORM_LEVELS, counts), np.ones(silent)]))
        else:
            self.norms.step(_UNKNOWN)

    def collect_costs(self, exchange: Exchange, taken: int) -> None:
        """Ask those who took part since their last report, in `taken` rounds, for their records' typical epsilon.

        It is the largest of all clients that arrives.
        """
        names, levels = sorted(self.unreported), epsilon_levels(self.plan)
        groups = -(-len(names) // MOST_CLIENTS)
        for group in range(groups):
            asked, name = tuple(names[group::groups]), f"{self.identity} round {taken} records {group}"
            reported, answered = exchange(asked, name, "records", lambda m, k: largest(m, k, levels))
            if reported is not None and len(reported) == 2:
                self.typical = np.maximum(self.typical, np.minimum(reported, levels[-1]))
                self.unreported -= set(answered)

    # Keeping.

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return tensors and plain data for a checkpoint."""
        panels = {kind: panel.state() for kind, panel in self.panels.items()}
        document = {
            "unreported": sorted(self.unreported),
            "typical": self.typical.tolist(),
            "members": {kind: list(names) for kind, names in self.members.items()},
            "norms": None if self.norms is None else self.norms.state_dict(),
            "panels": {kind: plain for kind, (_, plain) in panels.items()},
        }
        return {kind: tensors for kind, (tensors, _) in panels.items()}, document

    def restore(self, tensors: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        self.unreported, self.typical = set(saved["unreported"]), np.asarray(saved["typical"], dtype=np.float64)
        self.members = {kind: tuple(names) for kind, names in saved["members"].items()}
        self.norms = None if saved["norms"] is None else BayesianAccountant.from_state(saved["norms"])
        self.panels = {kind: Panel.restore(part, saved["panels"][kind], budget=None) for kind, part in tensors.items()}
