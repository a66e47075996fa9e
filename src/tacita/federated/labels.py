"""From a federation to its privacy label: one sentence for each unit that is protected, and no way between them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tacita.accounting import ORDERS, epsilon_from_costs
from tacita.accounting.levels import TOP, cost_table
from tacita.assumptions import Assumption, assume
from tacita.facts import MEMORY, RunFacts
from tacita.federated.plan import FederationPlan
from tacita.federated.server import Server
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.label import (
    Label,
    Readings,
    build,
    declared_ends,
    end_assumption,
    noise_assumption,
    not_hardened,
    percentiles,
    run_rows,
    status_rows,
)
from tacita.papers import product_figure, sequential_accountant
from tacita.training.labels import own_epsilons
from tacita.training.plan import of_one_end, within_promise

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.training.panel import Panel

_POINTS = 10  # of the curve over rounds

_TRUST = {
    "client": "server-trusted",
    "parallel": "server-not-trusted",
    "sequential": "server-trusted-to-sum",
    "joint": "server-trusted-for-clients",
}


def federation_label(server: Server, facts: RunFacts, delta: float) -> Label:
    """Return the label of a federation after the rounds it has taken, at one delta for every figure."""
    plan, server = server.plan, server.settled()  # an open round was charged, and what comes of it is not known
    worst, (end, share) = _headline(server, delta), _end(server)
    return build(
        facts,
        worst,
        rests_on=_rests_on(server, facts),
        comparisons=_comparisons(server, delta),
        curve=(
            *((t, min(worst.epsilon, _running(server, t, delta * share))) for t in _times(end)),
            (end, worst.epsilon),
        ),
        mechanism=_mechanism(server, facts),
        declared=_declared(server),
        bare_rate=plan.bare_rate,
        end_shown=bool(plan.stops) or bool(server.ended),
        steps_word="round",
        not_hardened=not_hardened("how long a round takes depends on how many clients were drawn, and on their data"),
        readings=_readings(server, facts, worst, delta),
    )


def hidden_participation(plan: FederationPlan, rounds: int, delta: float) -> Guarantee:
    """Return a record's worst case whose client takes part by chance, over that chance as well.

    In a round the record's client takes part with chance p, and only then do the two worlds differ. Moments of a
    mixture are at most mixed moments: the round costs log(1 + p (exp(a) - 1)), a being the cost of the client's steps.
    It holds whether or not the attacker learns who took part, since the coins are the same in both worlds; once they
    are known, the figure of the busiest client says more.
    """
    declared = plan.of_records
    if declared is None:
        raise ValueError(f"Level {plan.level!r} does not protect single records.")
    table = cost_table(declared.sample_rate, declared.noise_multiplier, ORDERS)
    costs = rounds * plan.copies * mixed_costs(plan.local_steps * table[:, TOP], plan.client_rate)
    epsilon = max(SMALLEST_EPSILON, float(epsilon_from_costs(costs, ORDERS, delta=delta, notion="weak")))
    plain = plan.record_worst(rounds * plan.steps_a_round, delta)  # of clients that are in every round
    if plain.epsilon <= epsilon:
        return plain
    return replace(plain, epsilon=epsilon, method="rdp, over who takes part", mechanism=())


def mixed_costs(costs: Floats, chance: float) -> Floats:
    """Return log(1 + p (exp(a) - 1)) for every cost a, without overflow and never below it.

    Examples:
        >>> float(mixed_costs(np.log([3.0]), 0.5)[0] - np.log(2.0)) < 1e-14
        True
    """
    small = np.minimum(costs, 1.0)
    large = np.maximum(costs, 1.0)
    mixed = np.where(
        costs < 1.0,
        np.log1p(chance * np.expm1(small)),
        large + np.log(chance + (1.0 - chance) * np.exp(-large)),
    )
    return np.asarray(np.minimum(mixed * (1.0 + 1e-14) + 1e-15, costs))


def _end(server: Server) -> tuple[int, float]:
    """Return the round that the label speaks of, and its share of delta: the declared end that covers those taken."""
    return (server.taken, 1.0) if server.ended else server.plan.end_after(server.taken)


def _headline(server: Server, delta: float) -> Guarantee:
    """Return the headline: for clients where they are protected, else for records of the busiest client."""
    found = _worst(server, delta, "pld")
    return within_promise(found, server.promise(found.unit)) if _end(server)[1] == 1.0 else found


def figures(server: Server) -> dict[str, float]:
    """Return what the label says of each unit if the federation ends now, at the plan's delta."""
    plan, (rounds, share) = server.plan, _end(server)
    found = _headline(server, plan.delta)
    if plan.level != "joint":
        return {found.unit: found.epsilon}
    return {found.unit: found.epsilon, "record": hidden_participation(plan, rounds, plan.delta * share).epsilon}


def _worst(server: Server, delta: float, method: str) -> Guarantee:
    plan, (rounds, share) = server.plan, _end(server)
    if plan.of_clients is not None:
        return of_one_end(plan.client_worst(rounds, delta * share, method=method), delta, share)
    return of_one_end(plan.record_worst(_record_steps(server, rounds), delta * share, method), delta, share)


def _running(server: Server, rounds: int, delta: float) -> float:
    """Return the headline's epsilon of so many rounds by our own curves: a hundred times quicker."""
    plan = server.plan
    if plan.of_clients is not None:
        return plan.of_clients.running(rounds, delta - plan.failure)
    return plan.headline.running(_record_steps(server, rounds), delta)


def _record_steps(server: Server, rounds: int) -> int:
    """Return the most steps that a record is in; at level parallel the coins tell, which do not depend on the data.

    They count once all rounds that the label speaks of were taken: before, how many were may depend on the data.
    """
    steps = rounds * server.plan.steps_a_round
    known = server.plan.level == "parallel" and _end(server)[0] == server.taken
    return min(steps, server.most_steps) if known else steps


def _comparisons(server: Server, delta: float) -> list[Guarantee]:
    plan, (rounds, share) = server.plan, _end(server)
    found, own = [_worst(server, delta, "rdp")], delta * share
    if plan.level == "joint":  # how often clients took part is theirs to hide, so it enters no public figure
        records = of_one_end(hidden_participation(plan, rounds, own), delta, share)
        found.insert(0, within_promise(records, server.promise("record")) if share == 1.0 else records)
    if plan.of_clients is not None:
        lowest = min(plan.client_rates.values(), default=plan.client_rate)
        if lowest < plan.client_rate:
            slow = of_one_end(plan.client_worst(rounds, own, rate=lowest), delta, share)
            found.append(replace(slow, unit=f"client at rate {lowest:g}"))
    if plan.level == "parallel":
        hidden = of_one_end(hidden_participation(plan, rounds, own), delta, share)
        found += [hidden] if hidden.epsilon < _worst(server, delta, "pld").epsilon else []
    return found


def _times(taken: int) -> list[int]:
    return sorted({max(1, round(taken * k / _POINTS)) for k in range(1, _POINTS)} - {taken})


def _mechanism(server: Server, facts: RunFacts) -> tuple[tuple[str, str], ...]:
    plan = server.plan
    rows = [
        ("Level", plan.level),
        ("Clients enrolled at most", f"{plan.clients:,}"),
        ("Chance to take part in a round", f"{plan.client_rate:.6g} (independent coins)"),
        ("Rounds", declared_ends(plan.rounds, plan.stops, _end(server)[0], server.ended)),
        ("Clip norm of an update", f"{plan.clip_norm:g}"),
    ]
    if plan.noise_multiplier is not None:
        rows.append(("Noise multiplier, clients", f"{plan.noise_multiplier:.6g}"))
    if plan.record_noise_multiplier is not None:
        rows += [
            ("Clip norm of a record's gradient", f"{plan.record_clip_norm:g}"),
            ("Noise multiplier, records", f"{plan.record_noise_multiplier:.6g}"),
            ("Chance of a record to enter a step", f"{plan.record_rate:.6g} (independent coins)"),
            ("Local steps in a round", f"{plan.local_steps}"),
            ("Clients that may hold the same record", f"{plan.copies}"),
            ("Divisor inside a client", f"{plan.local_batch:g}"),
        ]
    if plan.shares:
        rows.append(("Shares of the noise", f"{plan.shares}; the server adds those that are missing"))
    rows.append(("Divisor (expected clients)", f"{plan.divisor:g}"))
    return (*rows, *run_rows(facts))


def _declared(server: Server) -> tuple[str, ...]:
    plan, lines = server.plan, []
    if plan.level == "parallel" and server.unnamed_took_part:
        lines.append(
            "The headline is for a record of a client that took part in every round, since not every client declared "
            "who it is."
        )
    elif plan.level == "parallel":
        lines.append(
            "Who takes part is decided by coins and does not depend on the data. Once all rounds were taken, the "
            "headline is for a record of the client that took part most often; before, for one in every round."
        )
    if plan.copies > 1:
        lines.append(f"A record may be held by up to {plan.copies} clients: its costs are added up over them.")
    if plan.level == "joint" and plan.shares < plan.clients:
        lines.append(f"A round in which more than {plan.shares} clients are drawn asks nobody.")
    if plan.level == "sequential":
        lines.append(
            "Every record of the federation has its own coin in every round, and all clients answer every round."
        )
    return tuple(lines)


def _rests_on(server: Server, facts: RunFacts) -> list[Assumption]:
    plan = server.plan
    found = [assume("client-coins"), assume("updates-checked"), assume("rounds-fixed-beforehand"), _charged(server)]
    found.append(assume("updates-clipped" if plan.level == "client" else "clipped-inside"))
    if plan.shares:
        found += [assume("noise-complete"), assume("shares-kept-secret")]
    if plan.client_metrics:
        found.append(assume("client-metrics"))
    found += [*_noise(facts), end_assumption(server.ended, "round")]
    if plan.bare_rate:
        found.append(assume("bare-rate"))
    if facts.form_taken:
        found.append(assume("form-taken"))
    found.append(assume(_TRUST[plan.level]))
    found.append(
        assume("record-in-few-clients", copies=plan.copies) if plan.of_clients is None else assume("client-is-person")
    )
    return [*found, assume("answers-blindly"), assume("nothing-else")]


def _noise(facts: RunFacts) -> list[Assumption]:
    """Return where the noise came from; of clients that run elsewhere the server cannot know it."""
    if not facts.client_noise:
        return [noise_assumption(facts)]
    return [assume("chosen-seed" if facts.seeded else "fresh-server-noise"), assume("fresh-client-noise")]


def _charged(server: Server) -> Assumption:
    lost = [ledger.unit for ledger in server.ledgers if ledger.path.name == MEMORY]
    if not lost:
        return assume("round-charged")
    where = "in memory only" if len(lost) == len(server.ledgers) else f"for {lost[0]}s in memory only"
    return assume("round-charged-in-memory", where=where)


def _readings(server: Server, facts: RunFacts, worst: Guarantee, delta: float) -> Readings:
    typical = [*_typical_clients(server, delta), *_typical_records(server, delta)]
    panel = server.panels.get("training")
    own = own_epsilons(panel, delta, worst) if panel is not None else np.zeros(0)
    return Readings(
        typical=tuple(typical),
        panels=_who_was_followed(server) if typical else "Nobody was followed, so there is no typical case.",
        percentiles=percentiles(own),
        metrics=facts.metrics,
        facts=(
            ("Clients", f"{facts.trained:,}"),
            ("Rounds taken", f"{server.taken} of {server.plan.rounds}; the typical figures are for these"),
            ("Rounds lost to interruptions", str(server.lost)),
            *status_rows(facts),
        ),
    )


def _who_was_followed(server: Server) -> str:
    if server.panels:
        sizes = [f"{len(panel.indices)} {kind}" for kind, panel in server.panels.items()]
        return f"{' and '.join(sizes)} clients were followed through all rounds"
    if server.plan.level == "parallel":
        return "each client followed records of its own; the largest figure of all clients is shown"
    who = "records followed by each client" if server.plan.level == "sequential" else "clients that took part"
    return f"the norms of the {who} were counted anew every round, in aggregate"


def _typical_clients(server: Server, delta: float) -> list[Guarantee]:
    """Return what the measured norms say: of clients, or at level sequential of records."""
    plan = server.plan
    if server.panels:
        return _panel_figures(server.panels, delta)
    if server.norms is None or server.norms.taken == 0 or plan.client_rates:
        return []  # who takes part more often is counted more often, so participants are no sample of all clients
    unit = plan.headline.unit
    sound = server.norms.guarantee(delta=delta, estimator="bernstein", notion="weak")
    found = [replace(sound, unit=unit, assumptions=_fresh(plan))]
    theirs = server.norms
    if plan.level == "sequential":
        theirs = sequential_accountant(theirs, clients=plan.clients)
    try:
        product = product_figure(theirs, delta=delta)
        found.append(replace(product, unit=unit, assumptions=(assume("papers-product"),)))
    except ValueError:  # too few were measured for the paper's estimator
        pass
    return found


def _panel_figures(panels: dict[str, Panel], delta: float) -> list[Guarantee]:
    figures = []
    for kind, panel in panels.items():
        panel.settle()
        who = assume("clients-representative", panel=kind) if kind != "training" else assume("clients-took-part")
        for estimator in ("band", "student"):
            if estimator == "student" and len(panel.indices) < 2:
                continue
            found = panel.accountant.guarantee(delta=delta, estimator=estimator)
            figures.append(replace(found, unit="client", assumptions=(who, assume("observed-norms"))))
    return sorted(figures, key=lambda g: (g.estimator != "band", -g.epsilon))


def _fresh(plan: FederationPlan) -> tuple[Assumption, ...]:
    found = (assume("measured-representative", unit=plan.headline.unit), assume("hoelder"))
    return found if plan.level == "client" else (*found, assume("true-norms"))


def _typical_records(server: Server, delta: float) -> list[Guarantee]:
    """Return the largest typical epsilon that any client told of its records; the worst case for those who did not."""
    plan = server.plan
    if plan.level not in ("parallel", "joint") or not server.typical.any() or delta != plan.delta:
        return []
    if plan.copies > 1:  # a client knows nothing of what a record costs elsewhere
        return []
    floor = typical_floor(server)
    worst = plan.record_worst(server.most_steps, delta)
    if plan.level == "joint":
        worst = hidden_participation(plan, server.taken, delta)
    figures = []
    for estimator, told in zip(("band", "student"), server.typical, strict=True):
        figures.append(
            replace(
                worst,
                kind="bayesian",
                epsilon=min(worst.epsilon, max(float(told), floor)),
                method="pld" if estimator == "band" else "moments",
                scope="reading",
                notion="weak",
                estimator=estimator,
                composition="panel",
                model="distribution-free" if estimator == "band" else "model-based",
                delta_split=(("band, over all clients", delta / 20), ("expected", delta * 19 / 20))
                if estimator == "band"
                else (),
                assumptions=_ABOUT_RECORDS,
                publishable=False,
            )
        )
    return figures


_ABOUT_RECORDS = (assume("largest-of-clients"), assume("true-costs"), assume("observed-norms"))


def typical_floor(server: Server) -> float:
    """Return the worst case of clients whose records' costs are not known."""
    steps = [server.steps_of(name) for name in server.untold]
    steps.append(server.lost * server.plan.local_steps)
    most = max(steps)
    return server.plan.record_worst(most, server.plan.delta).epsilon if most else 0.0
