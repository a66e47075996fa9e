"""From a federation to its privacy label: one sentence for each unit that is protected, and no way between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tacita._check import PrivacyError
from tacita.accounting.shares import certified_shares, own_epsilons, own_successes
from tacita.assumptions import Assumption, assume
from tacita.facts import MEMORY, RunFacts
from tacita.federated.server import Server
from tacita.guarantee import Guarantee
from tacita.label import (
    Label,
    Readings,
    build,
    declared_ends,
    end_assumption,
    ends_remark,
    no_guarantee,
    noise_assumption,
    not_hardened,
    percentiles,
    run_rows,
    status_rows,
)
from tacita.papers import product_figure
from tacita.profile import Profile
from tacita.training.panel import Panel, order_checks
from tacita.training.plan import of_one_end, within_promise

_POINTS = 10  # of the curve over rounds

_TIMING = "how long a round takes depends on how many clients were drawn, and on their data"


def federation_label(server: Server, facts: RunFacts, delta: float | None = None) -> Label:
    """Return the label of a federation after the rounds it has taken, at one delta for every figure.

    Args:
        server: The federation's server; it is left as it is. An open round counts as charged and lost.
        facts: What the run knows about itself.
        delta: Total failure probability; the plan's if not given.

    Raises:
        PrivacyError: If no round was taken, the run goes on elsewhere, or a ledger was taken away.

    Guarantee:
        The headline holds for every client where clients are protected, else for every record, whenever the federation
        ends, under the assumptions of `rests_on`.
    """
    if server.taken == 0:
        raise PrivacyError("No round was taken yet: there is nothing to label.")
    plan, server = server.plan, server.settled()
    delta = plan.delta if delta is None else delta
    if not plan.privacy_level.units:
        return _without_guarantee(server, facts, delta)
    worst, (end, share) = _headline(server, delta), server.covered_end
    times = {max(1, round(end * k / _POINTS)) for k in range(1, _POINTS)} - {end}
    return build(
        facts,
        worst,
        rests_on=rests_on(server, facts),
        comparisons=_comparisons(server, delta),
        curve=(
            *((t, min(worst.epsilon, _running(server, t, delta * share))) for t in sorted(times)),
            (end, worst.epsilon),
        ),
        mechanism=_mechanism(server, facts),
        declared=(*plan.privacy_level.remarks(server), *ends_remark(plan.stops, server.ended, "round")),
        bare_rate=plan.bare_rate,
        end_shown=bool(plan.stops) or bool(server.ended),
        steps_word="round",
        not_hardened=not_hardened(
            facts,
            "how long a round takes depends on how many clients were drawn, and on their data",
            exact=plan.grid is not None,
        ),
        readings=_readings(server, facts, worst, delta),
    )


def _without_guarantee(server: Server, facts: RunFacts, delta: float) -> Label:
    """Return the label of a federation that neither clips nor adds noise: an infinite worst case."""
    level = server.plan.privacy_level
    return build(
        facts,
        no_guarantee(delta=delta, unit="client"),
        rests_on=(assume(level.trust),),
        mechanism=_enrolment(server),
        declared=level.remarks(server),
        steps_word="round",
        readings=Readings(panels=level.followed, metrics=facts.metrics, facts=_standing(server, facts)),
    )


def _headline(server: Server, delta: float) -> Guarantee:
    """Return the headline: for clients where they are protected, else for records of the busiest client."""
    found = _worst(server, delta, "pld")
    return within_promise(found, server.charges.promise(found.unit)) if server.covered_end[1] == 1.0 else found


def figures(server: Server) -> dict[str, float]:
    """Return the epsilon on the label of each protected unit if the federation ends now, at the plan's delta."""
    plan, (rounds, share) = server.plan, server.covered_end
    if not plan.privacy_level.units:
        return {}
    found = _headline(server, plan.delta)
    beside = plan.privacy_level.beside
    smaller = {} if beside is None else {"record": beside(plan, rounds, plan.delta * share).epsilon}
    return {found.unit: found.epsilon, **smaller}


def _worst(server: Server, delta: float, method: str) -> Guarantee:
    plan = server.plan

    def statement(rounds: int, own: float, how: str = "pld") -> Guarantee:
        if plan.of_clients is not None:
            return plan.client_worst(rounds, own, method=how)
        return plan.record_worst(plan.privacy_level.record_steps(server, rounds), own, how)

    rounds, share = server.covered_end
    return _of_end(server, statement(rounds, delta * share, method), lambda: statement(plan.rounds, delta))


def _of_end(server: Server, found: Guarantee, whole: Callable[[], Guarantee]) -> Guarantee:
    """Return the figure of the end that a label speaks of, with the curve of all rounds where others were declared."""
    share = server.covered_end[1]
    return found if share == 1.0 else of_one_end(found, whole(), share)


def _running(server: Server, rounds: int, delta: float) -> float:
    """Return the headline's epsilon of so many rounds by our own curves: a hundred times quicker."""
    plan = server.plan
    if plan.of_clients is not None:
        return plan.of_clients.running(rounds, delta - plan.failure)
    return plan.headline.running(plan.privacy_level.record_steps(server, rounds), delta)


def _comparisons(server: Server, delta: float) -> list[Guarantee]:
    plan, (rounds, share) = server.plan, server.covered_end
    level, found, own = plan.privacy_level, [_worst(server, delta, "rdp")], delta * share
    if level.beside is not None:
        beside = level.beside
        records = _of_end(server, beside(plan, rounds, own), lambda: beside(plan, plan.rounds, delta))
        found.insert(0, within_promise(records, server.charges.promise("record")) if share == 1.0 else records)
    if plan.of_clients is not None:
        lowest = min(plan.client_rates.values(), default=plan.client_rate)
        if lowest < plan.client_rate:
            slow = plan.client_worst(rounds, own, rate=lowest)
            slow = _of_end(server, slow, lambda: plan.client_worst(plan.rounds, delta, rate=lowest))
            found.append(replace(slow, unit=f"client at rate {lowest:g}"))
    if level.compared is not None:
        compared = level.compared
        other = _of_end(server, compared(plan, rounds, own), lambda: compared(plan, plan.rounds, delta))
        found += [other] if other.epsilon < _worst(server, delta, "pld").epsilon else []
    return found


def _enrolment(server: Server) -> tuple[tuple[str, str], ...]:
    plan = server.plan
    return (
        ("Level", plan.level),
        ("Clients enrolled (at most)", f"{plan.clients:,}"),
        ("Probability of taking part in a round", f"{plan.client_rate:.6g} (Poisson sampling)"),
        ("Rounds", declared_ends(plan.rounds, plan.stops, server.covered_end[0], server.ended)),
    )


def _mechanism(server: Server, facts: RunFacts) -> tuple[tuple[str, str], ...]:
    plan = server.plan
    rows = [*_enrolment(server), ("Clip norm of an update", f"{plan.clip_norm:g}")]
    if plan.noise_multiplier is not None:
        rows.append(("Noise multiplier, clients", f"{plan.noise_multiplier:.6g}"))
    if plan.grid is not None:
        rows.append(("Noise", f"exact, on a grid of {plan.grid.step:.6g}"))
    if plan.record_noise_multiplier is not None:
        rows += [
            ("Clip norm of a record's gradient", f"{plan.record_clip_norm:g}"),
            ("Noise multiplier, records", f"{plan.record_noise_multiplier:.6g}"),
            ("Probability that a record enters a step", f"{plan.record_rate:.6g} (Poisson sampling)"),
            ("Local steps in a round", f"{plan.local_steps}"),
            ("Clients that may hold the same record", f"{plan.copies}"),
            ("Divisor inside a client", f"{plan.local_batch:g}"),
        ]
    if plan.shares:
        rows.append(("Shares of the noise", f"{plan.shares}; the server adds any that are missing"))
    rows.append(("Divisor (expected clients)", f"{plan.divisor:g}"))
    return (*rows, *run_rows(facts))


def rests_on(server: Server, facts: RunFacts) -> list[Assumption]:
    """Return what every publishable figure of a federation rests on."""
    plan = server.plan
    found = [assume("client-coins"), assume("updates-checked"), assume("rounds-fixed-beforehand"), _charged(server)]
    found.append(assume("clipped-inside" if plan.privacy_level.protects_records else "updates-clipped"))
    if plan.shares:
        found += [assume("noise-complete"), assume("shares-kept-secret")]
    if plan.client_metrics:
        found.append(assume("client-metrics"))
    if plan.grid is not None:
        found += [noise_assumption(facts, exact=True), assume("whole-updates"), assume("updates-still")]
    elif facts.client_noise:  # of clients that run elsewhere the server cannot know where their noise comes from
        found += [assume("chosen-seed" if facts.seeded else "fresh-server-noise"), assume("fresh-client-noise")]
    else:
        found.append(noise_assumption(facts))
    found.append(end_assumption(server.ended, "round"))
    if plan.bare_rate:
        found.append(assume("bare-rate"))
    if facts.form_taken:
        found.append(assume("form-taken"))
    found.append(assume(plan.privacy_level.trust))
    found.append(
        assume("record-in-few-clients", copies=plan.copies) if plan.of_clients is None else assume("client-is-person")
    )
    return [*found, assume("answers-blindly"), assume("nothing-else")]


def _charged(server: Server) -> Assumption:
    lost = [ledger.unit for ledger in server.ledgers if ledger.name == MEMORY]
    if not lost:
        return assume("round-charged")
    where = "in memory only" if len(lost) == len(server.ledgers) else f"for {lost[0]}s in memory only"
    return assume("round-charged-in-memory", where=where)


def _readings(server: Server, facts: RunFacts, worst: Guarantee, delta: float) -> Readings:
    typical = [*_typical_clients(server, delta), *_typical_records(server, delta)]
    panels, followed = server.measured.panels, server.plan.privacy_level.followed
    account = panels["training"].account(worst.delta) if "training" in panels else None
    own = np.zeros(0) if account is None else own_epsilons(account, worst)
    if panels:
        sizes = " and ".join(f"{len(panel.indices)} {kind}" for kind, panel in panels.items())
        followed = f"{sizes} clients were followed through all rounds"
    # Records are followed by their clients, among those they train on: only held-out clients speak for a population.
    shares = certified_shares(panels["held-out"].account_for_shares(), worst) if "held-out" in panels else None
    return Readings(
        typical=tuple(typical),
        panels=followed if typical else "Nothing was followed, so there is no typical figure.",
        percentiles=percentiles(own),
        successes=() if account is None else percentiles(own_successes(account, worst)),
        shares=shares,
        checks=(
            *((assume("clients-own-choices"),) if shares else ()),
            *order_checks(panels, ordered="ordered-clients", unordered="no-client-trend"),
        ),
        metrics=facts.metrics,
        facts=_standing(server, facts),
    )


def _standing(server: Server, facts: RunFacts) -> tuple[tuple[str, str], ...]:
    return (
        ("Clients", f"{facts.trained:,}"),
        ("Rounds taken", f"{server.taken} of {server.plan.rounds}; the typical figures are for these"),
        ("Rounds lost to interruptions", str(server.lost)),
        *status_rows(facts),
    )


def _typical_clients(server: Server, delta: float) -> list[Guarantee]:
    """Return what the measured norms say: of clients, or at level sequential of records."""
    plan, norms = server.plan, server.measured.norms
    if server.measured.panels:
        return _panel_figures(server.measured.panels, delta)
    if norms is None or norms.taken == 0 or plan.client_rates:
        return []  # who takes part more often is counted more often, so participants are no sample of all clients
    unit = plan.headline.unit
    reported = () if plan.privacy_level.server_measures else (assume("true-norms"),)
    assumptions = (assume("measured-representative", unit=unit), assume("hoelder"), *reported)
    sound = norms.guarantee(delta=delta, estimator="bernstein", notion="weak")
    found = [replace(sound, unit=unit, assumptions=assumptions)]
    try:
        product = product_figure(plan.privacy_level.papers_norms(plan, norms), delta=delta)
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
            found = panel.account(delta).guarantee(delta=delta, estimator=estimator)
            figures.append(replace(found, unit="client", assumptions=(who, assume("observed-norms"))))
    return sorted(figures, key=lambda g: (g.estimator != "band", -g.epsilon))


def _typical_records(server: Server, delta: float) -> list[Guarantee]:
    """Return the largest typical epsilon that any client reported of its records; else the worst case."""
    plan, typical = server.plan, server.measured.typical
    bound = plan.privacy_level.record_bound
    if bound is None or not typical.any() or delta != plan.delta or plan.copies > 1:
        return []  # of copies a client knows nothing: what they cost elsewhere
    floor, worst = typical_floor(server), bound(server, delta)
    band, student = (min(worst.epsilon, max(float(reported), floor)) for reported in typical)
    split = (("band, over all clients", delta / 20), ("expected", delta * 19 / 20))
    about: dict[str, Any] = {
        "kind": "bayesian",
        "scope": "reading",
        "notion": "weak",
        "composition": "panel",
        "assumptions": (assume("largest-of-clients"), assume("true-costs"), assume("observed-norms")),
        "publishable": False,
    }
    free = {**about, "method": "pld", "estimator": "band", "model": "distribution-free", "delta_split": split}
    fitted = {**about, "method": "moments", "estimator": "student", "model": "model-based", "delta_split": ()}
    return [
        replace(worst, epsilon=epsilon, profile=worst.curve & Profile.of_pair(epsilon, delta), **how)
        for epsilon, how in ((band, free), (student, fitted))
    ]


def typical_floor(server: Server) -> float:
    """Return the worst case of clients whose records' costs are not known."""
    steps = [server.steps_of(name) for name in server.measured.unreported]
    steps.append(server.lost * server.plan.local_steps)
    most = max(steps)
    return server.plan.record_worst(most, server.plan.delta).epsilon if most else 0.0
