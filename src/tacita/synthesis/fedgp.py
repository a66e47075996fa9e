"""FedGP: one generator made by many clients, whose critics never leave them (Triastcyn & Faltings 2020; thesis, ch. 4).

In a round every client that takes part gets the common generator, trains it against its own critic on its own records,
and sends back by how much the generator moved. Critic and optimiser stay, and go on in the client's next round.

With `epsilon` or `noise_multiplier` these updates are clipped, summed and noised by `tacita.federated` at level client,
so a client with all it holds is protected. With neither they are averaged as they are, without a guarantee: critics
that stay at home protect nobody, since updates are computed from the records. What a client does is in `fedgp_client`,
Flower's side in `fedgp_flower`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from tacita import _check
from tacita._guard import Interrupts
from tacita.assumptions import assume
from tacita.facts import RunFacts
from tacita.federated.client import Memory
from tacita.federated.engines import ENGINES
from tacita.federated.local import Federation
from tacita.federated.storage import keep_memory, kept_memory
from tacita.federated.storage import label_of_run as label_of_federation
from tacita.label import Label, Readings, build, no_guarantee, status_rows
from tacita.owner import Owner
from tacita.report.page import page_template
from tacita.runs import Run, RunError
from tacita.synthesis.fedgp_recipe import FedGP, Ready, ready
from tacita.synthesis.networks import Generator

Progress = Callable[[int, Generator], None]

KIND = "federated-generator"
PLAIN = "plain-federated-generator"  # without noise
_GENERATOR = "fedgp: federated, its critics stay with their clients"


def federate_generator(
    recipe: FedGP, run_dir: str | Path, *, engine: str = "local", progress: Progress | None = None
) -> tuple[Generator, Label]:
    """Train a federated generator in a new run directory and return it with its label.

    Args:
        recipe: What to do.
        run_dir: Where to write checkpoints, the label and, with noise, the ledger. `clients/` in it is what clients
            keep to themselves; in Flower they keep it in their own state.
        engine: `local` (this process) or `flower` (Flower's simulation, one node for each client).
        progress: Called with the round and the generator so far. What it measures is for the owner.

    Returns:
        The generator, and the owner's label.

    Guarantee:
        With noise, a worst case for a client with all it holds: `client_rate`, the noise and the rounds taken, as for
        any federation at level client. The server is trusted, which sees updates. Without noise, none.
    """
    page_template()  # fail early if an extra is missing
    this, where = ready(recipe), Path(run_dir)
    if _check.one_of("engine", engine, tuple(ENGINES)) == "flower":
        return _in_flower(this, where, progress)
    if this.plan is None:
        keep_recipe(recipe, Run.create(where).folder, engine)
        return _plain_rounds(this, where, this.generator(), 0, this.facts, progress)
    generator, facts = this.generator(), this.facts
    federation = Federation(
        generator,
        None,
        this.holdings,
        this.plan,
        local=this.training,
        optimizer=_optimizer(recipe, generator),
        panel=0,  # participants show what is typical: a followed client would train more than others
        run_dir=where,
        seed=recipe.seed,
        name=facts.title,
        purpose=facts.purpose,
    )
    keep_recipe(recipe, where, engine)
    return _private_rounds(federation, generator, progress)


def resume_generator(run_dir: str | Path, *, progress: Progress | None = None) -> tuple[Generator, Label]:
    """Resume an interrupted run: the same plan, the same guarantee, fresh coins and noise.

    Critics go on from what their clients kept. In Flower's simulation clients end with it, and begin new critics.
    """
    where = Path(run_dir)
    recipe, engine = recipe_of(where)
    this = ready(recipe)
    if engine == "flower":
        return _in_flower(this, where, progress)
    generator = this.generator()
    if this.plan is None:
        return _plain_rounds(this, where, generator, *restore_plain(where, generator), progress)
    optimizer = _optimizer(recipe, generator)
    federation = Federation.resume(where, generator, None, this.holdings, local=this.training, optimizer=optimizer)
    return _private_rounds(federation, generator, progress)


def _optimizer(recipe: FedGP, generator: Generator) -> torch.optim.Optimizer:
    return torch.optim.SGD(generator.parameters(), lr=recipe.server_step)


def _in_flower(this: Ready, folder: Path, progress: Progress | None) -> tuple[Generator, Label]:
    from tacita.synthesis.fedgp_flower import simulated

    return simulated(this, folder, progress)


def _private_rounds(federation: Federation, generator: Generator, progress: Progress | None) -> tuple[Generator, Label]:
    for now in federation:
        if progress is not None:
            progress(now.number, generator)
    label = private_label(federation.label())
    if federation.run_dir is not None:
        Run(federation.run_dir).write_label(label)
    return generator, label


def keep_recipe(recipe: FedGP, folder: Path, engine: str) -> None:
    """Keep the recipe in the run's document; the run is a federation's, or one of its own without noise.

    Args:
        recipe: What was asked for.
        folder: The run directory.
        engine: What runs the federation.
    """
    run = Run(folder)
    family = run.document()["family"] if run.exists else PLAIN
    run.write(kind=KIND if recipe.private else PLAIN, family=family, engine=engine, recipe=asdict(recipe))


def recipe_of(run_dir: str | Path) -> tuple[FedGP, str]:
    """Return the recipe of a run and the engine that it was started with."""
    run = Run.open(run_dir)
    if run.kind not in (KIND, PLAIN):
        raise RunError(f"{str(run_dir)!r} is not the run of a federated generator.")
    with run.reading():
        return FedGP(**run.recipe), _check.one_of("engine", run.document()["engine"], tuple(ENGINES))


# Without noise: no guarantee.


def _plain_rounds(
    this: Ready, folder: Path, generator: Generator, taken: int, facts: RunFacts, progress: Progress | None
) -> tuple[Generator, Label]:
    owner = Owner(folder).hold()
    memories = {name: kept_memory(folder, name) for name in this.holdings}
    with closing(owner), Interrupts() as interrupts:
        for number in range(taken + 1, this.recipe.rounds + 1):
            drawn = _plain_round(this, generator, number, memories)
            for name in drawn:
                keep_memory(folder, name, number, memories[name])
            keep_plain(folder, generator, number, facts)
            if progress is not None:
                progress(number, generator)
            if interrupts.seen:
                keep_plain(folder, generator, number, facts.with_status("interrupted"))
                raise KeyboardInterrupt
        return generator, plain_end(this, folder, generator, facts)


def _plain_round(this: Ready, generator: Generator, number: int, memories: dict[str, Memory]) -> list[str]:
    """Take one round of federated averaging, weighted by the numbers of records, and return who took part."""
    names = list(this.holdings)
    count = max(1, int(this.recipe.client_rate * len(names)))
    drawn = [names[i] for i in sorted(coins(this.recipe.seed, number).choice(len(names), count, replace=False))]
    before = {name: value.clone() for name, value in generator.state_dict().items()}
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in before.items()}
    for client in drawn:
        records, random = this.holdings[client], coins(this.recipe.seed, number, client)
        update, memories[client] = this.training(before, records, memories[client], random)
        for name, value in update.items():
            total[name] += len(records) * value
    share = this.recipe.server_step / sum(len(this.holdings[client]) for client in drawn)
    generator.load_state_dict({name: value + share * total[name] for name, value in before.items()})
    return drawn


def coins(seed: int | None, number: int, client: str = "") -> np.random.Generator:
    """Return randomness for a round, or for a client in it, where nothing needs to be secret.

    Args:
        seed: The recipe's; None for the operating system's randomness.
        number: The round.
        client: The client's name; empty for the server.

    Returns:
        A generator of its own for every round and client.
    """
    return np.random.default_rng(None if seed is None else [seed, number, int(client or -1) + 1])


def keep_plain(folder: Path, generator: Generator, number: int, facts: RunFacts) -> None:
    """Write a checkpoint of a run without noise, and its document.

    Args:
        folder: The run directory.
        generator: The generator so far.
        number: The round.
        facts: What the run knows about itself.
    """
    run = Run(folder)
    run.save(number, generator.state_dict(), {})
    run.write(rounds=number, ledgers=[], facts=facts.to_dict())


def restore_plain(folder: Path, generator: Generator) -> tuple[int, RunFacts]:
    """Put the newest checkpoint into the generator and return its round and the run's facts."""
    run = Run.open(folder, PLAIN)
    state, saved = run.load()
    try:
        generator.load_state_dict(state)
    except (KeyError, TypeError, RuntimeError) as error:
        raise RunError(f"The run in {str(folder)!r} is damaged: {error}") from error
    return int(saved["step"]), run.facts.with_status("running")


def plain_end(this: Ready, folder: Path, generator: Generator, facts: RunFacts) -> Label:
    """Close a run without noise and return its label.

    Args:
        this: The recipe with its data.
        folder: The run directory.
        generator: The trained generator.
        facts: What the run knows about itself.

    Returns:
        The owner's label.
    """
    done = facts.with_status("done")
    keep_plain(folder, generator, this.recipe.rounds, done)
    label = plain_label(this.recipe, done, this.recipe.rounds)
    Run(folder).write_label(label)
    return label


# Labels.


def label_of_run(folder: str | Path, *, delta: float | None = None) -> Label:
    """Return the label of a federated generator's run directory; the data are not needed."""
    run = Run.open(folder)
    if run.kind == KIND:
        return private_label(label_of_federation(folder, delta=delta))
    recipe = recipe_of(folder)[0]
    if delta is not None:
        recipe = replace(recipe, delta=_check.probability("delta", delta))
    with run.reading():
        return plain_label(recipe, run.facts, int(run.document()["rounds"]))


def private_label(label: Label) -> Label:
    """Return the label of a federation at level client with what is particular about a generator."""
    made = replace(label, mechanism=(("Generator", _GENERATOR), *label.mechanism))
    return made.resting_on(assume("critics-stay"), assume("after-release"))


def plain_label(recipe: FedGP, facts: RunFacts, taken: int) -> Label:
    """Return the label of a generator whose updates were neither clipped nor noised: an infinite worst case.

    Args:
        recipe: What was asked for.
        facts: What the run knows about itself.
        taken: How many rounds were taken.

    Returns:
        The owner's label.
    """
    return build(
        facts,
        no_guarantee(delta=recipe.delta, unit="client"),
        rests_on=(assume("federated-generator-unlimited"),),
        mechanism=(
            ("Generator", _GENERATOR),
            ("Clients", f"{recipe.clients:,}"),
            ("Share of clients taking part in a round", f"{recipe.client_rate:g}"),
            ("Rounds taken / planned", f"{taken} / {recipe.rounds}"),
        ),
        declared=(
            "No guarantee: updates were averaged without clipping or noise. Keeping the critics with their clients "
            "protects nobody: the generator's updates are computed from the records. The owner may have measured the "
            "released set; a measurement bounds nothing.",
        ),
        steps_word="round",
        readings=Readings(
            panels="No clients were followed: there is no noise to account for.",
            metrics=facts.metrics,
            facts=(("Clients", f"{facts.trained:,}"), *status_rows(facts)),
        ),
    )
