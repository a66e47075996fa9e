"""Federated generators on MNIST without noise, as in the thesis: tables 4.1 and 4.2.

    python -m experiments.federated_generators.run                    # every row that results.jsonl does not hold
    python -m experiments.federated_generators.run --quick            # small digits, few rounds, into quick.jsonl
    python -m experiments.federated_generators.run "table 4.1 1000 *" # some rows, by pattern
    python -m experiments.papers.page                                 # the page and the figure

Ten clients (the thesis does not say how many), each with a number of records drawn evenly between 100 and what makes
the mean 500, 1,000 or 2,000. Students have the thesis's network in small and see the test set once, at the end of a
row. The `choice` rows compare schedules on training records that no client holds; the `table` rows use the best of
each split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch

from experiments.federated_generators.mdgan import MdGan
from experiments.federated_generators.mdgan import train as train_mdgan
from experiments.federated_generators.parts import FULL, QUICK, Average, Sizes, held, judged, mu, test_records, unheld
from experiments.rows import Jobs, Row, load, main
from tacita.data import load as load_data
from tacita.federated import Federation
from tacita.federated.recipes import deal
from tacita.synthesis import FedGP, sample, student
from tacita.synthesis.fedgp import ready
from tacita.synthesis.gan import Game, Wgan, WganTraining, adam
from tacita.synthesis.networks import Generator

CLIENTS, SIZES, SPLITS = 10, (500, 1000, 2000), ("even", "class")
METHODS = ("real", "mdgan", "centgp", "fedgp")
COMPARED = "one of the schedules that are compared, on training records that no client holds"
SETTINGS = "schedule chosen at 1,000 records a client, on training records that no client holds; not paid for"
HARDY = "batches of 10 and one critic step a round, as Hardy et al. have it; the networks and their rate as for FedGP"


@dataclass(frozen=True)
class Schedule:
    """How FedGP is trained.

    Attributes:
        rounds: How many.
        client_rate: The chance with which a client takes part in one.
        local_steps: Steps of the generator at a client in a round.
        critic_steps: Steps of a critic for each of them.
        batch_size: Records of a step; 32 where a name does not say it.
        server_rate: What the server multiplies the mean update by.
        learning_rate: Of both networks.
        average: How slowly the mean of the generator's weights follows, a round; 0 takes the last weights.
    """

    rounds: int
    client_rate: float
    local_steps: int
    critic_steps: int = 1
    batch_size: int = 32
    server_rate: float = 1.0
    learning_rate: float = 2e-3
    average: float = 0.95


def recipe_of(split: str, mean: int, seed: int, schedule: Schedule, sizes: Sizes) -> FedGP:
    """Return the recipe of a federation whose clients have so many records on average.

    Ten clients of two random classes may leave a class out, and the thesis's did not: its baselines are near 98%. So
    the seed is the first of seed, seed + 1000, ... with which somebody holds each class.
    """
    recipe = FedGP(
        data=sizes.data,
        split=split,
        clients=CLIENTS,
        size=2 * mean - sizes.least,
        least=sizes.least,
        rounds=schedule.rounds,
        client_rate=schedule.client_rate,
        local_steps=schedule.local_steps,
        critic_steps=schedule.critic_steps,
        batch_size=schedule.batch_size,
        server_rate=schedule.server_rate,
        learning_rate=schedule.learning_rate,
    )
    labels = load_data(sizes.data).targets
    for tried in range(seed, seed + 100_000, 1000):
        parts = deal(labels, split, CLIENTS, 2 * mean - sizes.least, seed=tried)
        if len(np.unique(labels[np.concatenate(parts)])) == 10:
            return replace(recipe, seed=tried)
    raise RuntimeError(f"no split of {mean} records a client covers all classes.")


def fedgp(recipe: FedGP, average: float) -> tuple[Generator, Generator]:
    """Train FedGP and return the generator of the last round, and the one with the mean of its rounds' weights."""
    job = ready(recipe)
    last, averaged = job.model(), job.model()
    optimizer = torch.optim.SGD(last.parameters(), lr=job.server_rate)
    federation = Federation(
        last, None, job.holdings, job.plan, local=job.local, optimizer=optimizer, panel=0, seed=recipe.seed
    )
    mean = Average(last, average)
    for _ in federation:
        mean.follow(last)
    mean.settle(averaged)
    return last, averaged


def centgp(recipe: FedGP, steps: int) -> Generator:
    """Train the same networks on all records in one place, for so many steps of the generator."""
    job, random = ready(recipe), np.random.default_rng(recipe.seed)
    inputs, labels = held(recipe)
    generator, critic = job.local.generator(random), job.local.critic(10, random)
    batch = recipe.batch_size
    optimizer = adam(generator.parameters(), recipe.learning_rate)
    game = Game(critic, generator, optimizer, pool=max(4, 2 * batch // 10), batch=batch)
    plan = Wgan(
        steps=steps * recipe.critic_steps,
        batch_size=batch,
        size=len(labels),
        critic_steps=recipe.critic_steps,
        learning_rate=recipe.learning_rate,
    )
    for _ in WganTraining(plan, game, inputs, labels, rng=random):
        pass
    game.settle()
    return generator


def chosen(split: str, schedule: Schedule, *, quick: bool) -> Row:
    """Return how good short students of a schedule are on training records that no client holds."""
    sizes, mean = (QUICK, 40) if quick else (FULL, 1000)
    recipe, average = recipe_of(split, mean, 1, small(schedule, quick), sizes), schedule.average
    last, averaged = (short_student(generator, recipe, sizes) for generator in fedgp(recipe, average))
    return {"student": averaged, "last": last}


def short_student(generator: Generator, recipe: FedGP, sizes: Sizes) -> float:
    """Return the accuracy of a short student on training records that no client holds."""
    made = sample(generator, sizes.made, rng=np.random.default_rng(1))
    return student(made, unheld(recipe, 8_000), 10, rng=np.random.default_rng(1), steps=sizes.short)


def in_one_place(*, quick: bool) -> Row:
    """Return the same for a run in one place with as many steps as the library's default schedule has."""
    sizes, mean, steps = (QUICK, 40, 2) if quick else (FULL, 1000, DEFAULT_STEPS)
    recipe = recipe_of("even", mean, 1, replace(CHOICES[0][2], critic_steps=2, batch_size=16), sizes)
    return {"student": short_student(centgp(recipe, steps), recipe, sizes)}


def real(recipe: FedGP, sizes: Sizes) -> Row:
    """Return the baseline: a student of the records themselves, and the measure of publishing them, or fresh ones."""
    records, rng = held(recipe), np.random.default_rng(recipe.seed)
    fresh = unheld(recipe, len(records[1]))
    scored = student(records, test_records(ready(recipe).dataset), 10, rng=rng, steps=sizes.steps)
    copies, others = mu(records, records[0], rng), mu(records, fresh[0], rng)
    return {"student": scored, "mu_copies": copies["mu"], "mu_fresh": others["mu"], "held": copies["held"]}


def measured(method: str, split: str, mean: int, seed: int, *, quick: bool) -> Row:
    """Return a cell of the tables."""
    sizes = QUICK if quick else FULL
    schedule = small(best(split, quick) if method in ("fedgp", "centgp") else CHOICES[0][2], quick)
    recipe = recipe_of(split, mean // 25 if quick else mean, seed, schedule, sizes)
    if method == "real":
        return {"recipe_seed": recipe.seed, **real(recipe, sizes)}
    if method == "fedgp":
        generator = fedgp(recipe, schedule.average)[1]
    elif method == "centgp":
        generator = centgp(recipe, schedule.rounds * schedule.local_steps)
    else:
        plan = MdGan(rounds=2 if quick else MDGAN_ROUNDS, swap_every=1 if quick else mean // 10)
        generator = train_mdgan(recipe, plan)
    made = sample(generator, sizes.made, rng=np.random.default_rng(seed))
    used = {} if method == "mdgan" else {"schedule": asdict(schedule)}
    return {"recipe_seed": recipe.seed, **used, **judged(made, recipe, sizes)}


def small(schedule: Schedule, quick: bool) -> Schedule:
    """Return a schedule for a quick run."""
    return replace(schedule, rounds=2, local_steps=2) if quick else schedule


def rows(quick: bool) -> Jobs:
    """Return what measures each row."""
    torch.set_num_threads(1)
    named: dict[str, Callable[[], Row]] = {}

    def add(name: str, settings: str, job: Callable[[], Row], seed: int = 1) -> None:
        named[f"{name} seed {seed}"] = lambda: {"seeds": [seed], "settings": settings, **job()}

    for split, label, schedule in CHOICES:
        add(f"choice {split} {label}", COMPARED, partial(chosen, split, schedule, quick=quick))
    add(f"choice {CENTRAL}", COMPARED, partial(in_one_place, quick=quick))
    for mean in SIZES:
        for split in SPLITS:
            for method in METHODS:
                if (split, method) != ("class", "centgp"):  # in one place it does not matter who held what
                    settings = HARDY if method == "mdgan" else SETTINGS
                    add(
                        f"table 4.1 {mean} {split} {method}",
                        settings,
                        partial(measured, method, split, mean, 1, quick=quick),
                    )
    return named


# Schedules to choose from, each of two or three minutes; "all, 31 steps" is the library's default, cut short.
CHOICES = (
    ("even", "2 of 10, 16 steps", Schedule(100, 0.2, 16, average=0.9)),
    ("even", "5 of 10, 4 steps", Schedule(160, 0.5, 4, average=0.9)),
    ("even", "1 of 10, 16 steps", Schedule(200, 0.1, 16)),
    ("even", "2 of 10, 4 steps", Schedule(400, 0.2, 4)),
    ("even", "2 of 10, 16 steps of 16", Schedule(160, 0.2, 16, batch_size=16, average=0.93)),
    ("even", "all, 31 steps of 16", Schedule(6, 1.0, 31, critic_steps=2, batch_size=16, average=0.5)),
    ("class", "5 of 10, 4 steps, server 2", Schedule(160, 0.5, 4, server_rate=2.0, average=0.9)),
    ("class", "2 of 10, 4 steps", Schedule(400, 0.2, 4)),
    ("class", "all, 2 steps, server 2", Schedule(160, 1.0, 2, server_rate=2.0, average=0.9)),
    ("class", "5 of 10, 4 steps of 16, server 4", Schedule(250, 0.5, 4, batch_size=16, server_rate=4.0, average=0.93)),
)
CENTRAL, DEFAULT_STEPS = "one place, 20 x 31 steps", 620
FACTOR = 3  # by how many more rounds the table's rows are trained
MDGAN_ROUNDS = 1500


def best(split: str, quick: bool) -> Schedule:
    """Return the schedule whose students were best on training records that nobody holds, with more rounds.

    Raises:
        RuntimeError: If no schedule of this split has been measured.
    """
    there = load("federated_generators", "quick.jsonl" if quick else "results.jsonl")
    scores = {
        schedule: there[name]["student"]
        for one, label, schedule in CHOICES
        if one == split and (name := f"choice {split} {label} seed 1") in there
    }
    if not scores:
        raise RuntimeError(f"run the rows 'choice {split} *' first: the tables use the best of them.")
    schedule = max(scores, key=lambda one: scores[one])
    return replace(schedule, rounds=schedule.rounds * FACTOR)


if __name__ == "__main__":
    main("federated_generators", rows)
