"""From a federation to its privacy label: one sentence for each unit that is protected, and no way between them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tacita.accounting import ORDERS, BayesianAccountant, epsilon_from_costs
from tacita.accounting.levels import TOP, cost_table
from tacita.federated.plan import FederationPlan
from tacita.federated.server import Server
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.report.label import Check, Label, Readings
from tacita.training.labels import (
    PERCENTS,
    RunFacts,
    holds,
    ledger_row,
    noise_check,
    not_hardened,
    own_epsilons,
    percentile,
)

if TYPE_CHECKING:
    from tacita._check import Floats
    from tacita.training.followed import Panel

_POINTS = 10  # of the curve over rounds

_TRUST = {
    "client": "The server is trusted: it sees updates before the noise is added",
    "parallel": "The server is not trusted with records: noise is added before anything leaves a client",
    "sequential": "The server is trusted to add up, and to add the noise of clients that do not answer",
    "joint": "The server is trusted for the clients' figure only: it sees single updates, which carry their own noise",
}


def federation_label(server: Server, facts: RunFacts, delta: float) -> Label:
    """Return the label of a federation after the rounds it has taken, at one delta for every figure."""
    plan, server = server.plan, server.settled()  # an open round was charged, and what comes of it is not known
    worst = _worst(server, server.taken, delta)
    texts = tuple(check.text for check in _checks(server, facts))
    worst = replace(worst, assumptions=texts)
    return Label(
        title=facts.title,
        purpose=facts.purpose,
        worst=worst,
        comparisons=tuple(replace(g, assumptions=texts) for g in _comparisons(server, delta)),
        curve=(*((t, _running(server, t, delta)) for t in _times(server.taken)), (server.taken, worst.epsilon)),
        mechanism=_mechanism(server, facts),
        declared=_declared(plan),
        checks=_checks(server, facts),
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
    table = cost_table(declared.sample_rate, declared.noise_multiplier, ORDERS, False)
    costs = rounds * plan.copies * mixed_costs(plan.local_steps * table[:, TOP], plan.client_rate)
    epsilon = max(SMALLEST_EPSILON, float(epsilon_from_costs(costs, ORDERS, delta=delta, notion="weak")))
    plain = plan.record_worst(rounds * plan.steps_a_round, delta)  # of clients that are in every round
    if plain.epsilon <= epsilon:
        return plain
    return replace(plain, epsilon=epsilon, method="rdp, over who takes part", mechanism=())


def mixed_costs(costs: Floats, chance: float) -> Floats:
    """Return log(1 + p (exp(a) - 1)) for every cost a, without overflow and never below it.

    Examples:
        >>> float(mixed_costs(np.array([math.log(3.0)]), 0.5)[0]) - math.log(2.0) < 1e-14
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


def _worst(server: Server, rounds: int, delta: float) -> Guarantee:
    """Return the headline: for clients where they are protected, else for records of the busiest client."""
    plan = server.plan
    if plan.of_clients is not None:
        return plan.client_worst(rounds, delta)
    return plan.record_worst(_record_steps(server, rounds), delta)


def _running(server: Server, rounds: int, delta: float) -> float:
    """Return the headline's epsilon so far by our own curves: a hundred times quicker."""
    plan = server.plan
    if plan.of_clients is not None:
        return plan.of_clients.running(rounds, delta - plan.failure)
    return plan.headline.running(_record_steps(server, rounds), delta)


def _record_steps(server: Server, rounds: int) -> int:
    """Return the most steps that a record was in; at level parallel the coins tell, which do not depend on the data."""
    steps = rounds * server.plan.steps_a_round
    return min(steps, server.most_steps) if server.plan.level == "parallel" else steps


def _comparisons(server: Server, delta: float) -> list[Guarantee]:
    plan, rounds = server.plan, server.taken
    found = []
    if plan.level == "joint":  # how often clients took part is theirs to hide, so it enters no public figure
        found.append(hidden_participation(plan, rounds, delta))
    if plan.of_clients is not None:
        found.append(plan.client_worst(rounds, delta, method="rdp"))
        lowest = min(plan.client_rates.values(), default=plan.client_rate)
        if lowest < plan.client_rate:
            slow = plan.client_worst(rounds, delta, rate=lowest)
            found.append(replace(slow, unit=f"client at rate {lowest:g}"))
    else:
        found.append(plan.record_worst(server.most_steps if plan.level == "parallel" else rounds, delta, "rdp"))
    if plan.level == "parallel":
        hidden = hidden_participation(plan, rounds, delta)
        found += [hidden] if hidden.epsilon < _worst(server, rounds, delta).epsilon else []
    return found


def _times(taken: int) -> list[int]:
    return sorted({max(1, round(taken * k / _POINTS)) for k in range(1, _POINTS)} - {taken})


def _mechanism(server: Server, facts: RunFacts) -> tuple[tuple[str, str], ...]:
    plan = server.plan
    rows = [
        ("Level", plan.level),
        ("Clients enrolled at most", f"{plan.clients:,}"),
        ("Chance to take part in a round", f"{plan.client_rate:.6g} (independent coins)"),
        ("Rounds taken / planned", f"{server.taken} / {plan.rounds}"),
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
    rows.append(("Randomness", "a chosen seed" if facts.seeded else "seeded by the operating system"))
    rows.append(ledger_row(facts))
    return tuple(rows)


def _declared(plan: FederationPlan) -> tuple[str, ...]:
    lines = []
    if plan.level == "parallel":
        lines.append(
            "The headline is for a record of the client that took part most often; who takes part is decided by coins "
            "and does not depend on the data."
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


def _checks(server: Server, facts: RunFacts) -> tuple[Check, ...]:
    plan = server.plan
    checks = [
        holds("Each client enters a round by an independent coin, and a round may be empty"),
        holds("Updates that are not finite, or not of the model's shape, are dropped in silence"),
        holds("Noise, rates, divisors and the number of rounds were fixed before the first round"),
        _charged(facts),
    ]
    if plan.level == "client":
        checks.append(holds("Each client's update is clipped before noise is added to the sum"))
    else:
        checks.append(holds("Inside a client each record enters a step by its own coin and is clipped before the sum"))
    if plan.shares:
        checks.append(holds("The noise in a round's sum is the promised one, whoever answers"))
        text = "Clients that answer add their share of the noise, and neither tell it nor take it out again themselves"
        checks.append(Check(text=text, state="open"))
    if plan.client_metrics:
        text = "What clients measured themselves was passed on: no figure on this label covers it"
        checks.append(Check(text=text, state="warning"))
    checks.append(noise_check(facts))
    people = "One client is one person or one institution; somebody behind several clients is covered less"
    if plan.of_clients is None:
        people = f"One record is one person, held by at most {plan.copies} of the clients"
    for text in (
        _TRUST[plan.level],
        people,
        "Whether a client answers does not depend on its data",
        "Nothing else computed from these data is published, or it is charged to the same ledger",
    ):
        checks.append(Check(text=text, state="open"))
    return tuple(checks)


def _charged(facts: RunFacts) -> Check:
    if facts.ledger == ":memory:":
        text = "Every round was charged before anybody was asked, but in memory only: no other run knows of it"
        return Check(text=text, state="open")
    return Check(text="Every round was charged to the ledger, on disk, before anybody was asked", state="holds")


def _readings(server: Server, facts: RunFacts, worst: Guarantee, delta: float) -> Readings:
    typical = [*_typical_clients(server, delta), *_typical_records(server, delta)]
    panel = server.panels.get("training")
    own = own_epsilons(panel, delta, worst) if panel is not None else np.zeros(0)
    return Readings(
        typical=tuple(typical),
        panels=_who_was_followed(server) if typical else "Nobody was followed, so there is no typical case.",
        percentiles=tuple((float(p), percentile(own, p)) for p in PERCENTS) if len(own) else (),
        metrics=facts.metrics,
        facts=(
            ("Clients", f"{facts.trained:,}"),
            ("Rounds lost to interruptions", str(server.lost)),
            ("Started", facts.started),
            ("Status", facts.status),
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
    papers = papers_accountant(server)
    try:
        theirs = papers.guarantee(delta=delta, estimator="student", notion="strong")
        found.append(replace(theirs, unit=unit, assumptions=("the federated paper's product over rounds; no bound",)))
    except ValueError:  # too few were measured for the paper's estimator
        pass
    return found


def _panel_figures(panels: dict[str, Panel], delta: float) -> list[Guarantee]:
    figures = []
    for kind, panel in panels.items():
        panel.settle()
        text = f"the followed clients ({kind}) are independent draws from the population"
        if kind == "training":
            text = "the followed clients took part, so the figure describes them rather than the population"
        for estimator in ("band", "student"):
            if estimator == "student" and len(panel.indices) < 2:
                continue
            found = panel.accountant.guarantee(delta=delta, estimator=estimator)
            figures.append(
                replace(found, unit="client", assumptions=(text, "the norms are those observed along this run"))
            )
    return sorted(figures, key=lambda g: (g.estimator != "band", -g.epsilon))


def papers_accountant(server: Server) -> BayesianAccountant:
    """Return the federated paper's own accounting of the same norms, for comparison: not a bound.

    Rounds multiply as if they were independent. At level sequential each client's batch is taken as a part of the whole
    federation's data, with the client's own noise, and the clients' costs are added up.
    """
    plan, norms = server.plan, server.norms
    if norms is None:
        raise ValueError("No norms were counted at this level.")
    state = {**norms.state_dict(), "composition": "independent"}
    if plan.level == "sequential":
        state["sample_rate"] = norms.sample_rate / plan.clients
        state["noise_multiplier"] = norms.noise_multiplier / math.sqrt(plan.clients)
        state["steps"] = plan.rounds * plan.clients
        state["taken"] = norms.taken * plan.clients
        state["histograms"] = [[repeat * plan.clients, counts] for repeat, counts in state["histograms"]]
    return BayesianAccountant.from_state(state)


def _fresh(plan: FederationPlan) -> tuple[str, ...]:
    texts = (
        f"the {plan.headline.unit}s measured in a round are independent draws from the population; the norms are those "
        "of this run",
        "rounds are joined by Hölder's inequality; the estimators' failures add up over rounds and orders",
    )
    return texts if plan.level == "client" else (*texts, "clients told the truth about their norms")


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


_ABOUT_RECORDS = (
    "the figure is the largest of all clients, each about records like its own that it followed",
    "clients told the truth about their costs; those who did not answer are counted at the worst case",
    "the norms are those observed along this run",
)


def typical_floor(server: Server) -> float:
    """Return the worst case of clients whose records' costs are not known."""
    steps = [server.steps_of(name) for name in server.untold]
    steps.append(server.lost * server.plan.local_steps)
    most = max(steps)
    return server.plan.record_worst(most, server.plan.delta).epsilon if most else 0.0
