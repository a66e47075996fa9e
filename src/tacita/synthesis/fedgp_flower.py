"""FedGP on Flower: a client's app, whose critic is kept in Flower's own state, and the server's side."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tacita.federated.client import Part
from tacita.federated.engines.flower import quiet_flower, simulate
from tacita.federated.flower import PrivateStrategy  # fails if Flower is missing
from tacita.federated.flower_client import (
    client_name_of,
    keep_memory,
    kept_memory,
    local_training,
    named_client,
)
from tacita.federated.local import client_name
from tacita.label import Label
from tacita.owner import Owner
from tacita.runs import Run
from tacita.synthesis.fedgp import (
    Progress,
    coins,
    keep_plain,
    keep_recipe,
    plain_end,
    private_label,
    restore_plain,
)
from tacita.synthesis.fedgp_recipe import FedGP, Ready, ready
from tacita.synthesis.networks import Generator

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # isort: skip
from flwr.clientapp import ClientApp  # isort: skip
from flwr.serverapp import Grid, ServerApp  # isort: skip
from flwr.serverapp.strategy import FedAvg, FedAvgM  # isort: skip


def flower_client(recipe: FedGP) -> ClientApp:
    """Return a client's app: it answers with the generator, and keeps its critic in Flower's state."""
    app = ClientApp(mods=[named_client])

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        this = ready(recipe)
        if this.plan is None:
            return _plain_answer(this, message, context)
        generator, held = this.generator(), _Holding(recipe)
        return local_training(message, context, this.plan, generator, None, held, this.training, seed=recipe.seed)

    return app


@dataclass(frozen=True)
class _Holding:
    """What a Flower client holds, by its partition."""

    recipe: FedGP

    def __call__(self, context: Context) -> Part:
        return ready(self.recipe).holdings[client_name(int(context.node_config["partition-id"]))]


def _plain_answer(this: Ready, message: Message, context: Context) -> Message:
    """Answer Flower's own FedAvg: the generator after this client's round, and how many records it has."""
    parameters = dict(message.content["arrays"].to_torch_state_dict())
    number, records = int(message.content["config"]["server-round"]), _Holding(this.recipe)(context)
    random = coins(this.recipe.seed, number, client_name_of(context))
    update, memory = this.training(parameters, records, kept_memory(context), random)
    keep_memory(context, memory)
    moved = ArrayRecord({name: value + update[name] for name, value in parameters.items()})
    content = {"arrays": moved, "metrics": MetricRecord({"num-examples": len(records)})}
    return Message(RecordDict(content), reply_to=message)


def simulated(this: Ready, folder: Path, progress: Progress | None) -> tuple[Generator, Label]:
    """Run in Flower's simulation, from the beginning or from where a run was left.

    Args:
        this: The recipe with its data.
        folder: The run directory.
        progress: Called with the round and the generator so far.

    Returns:
        The generator, and the owner's label.
    """
    server_app, generator, made = ServerApp(), this.generator(), list[Label]()

    @server_app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        made.append(serve(this, folder, grid, generator, progress))

    with quiet_flower():
        simulate(server_app, flower_client(this.recipe), this.recipe.clients)
    if not made:
        raise RuntimeError("Flower's simulation ended early; its log says why.")
    return generator, made[0]


def serve(this: Ready, folder: Path, grid: Grid, generator: Generator, progress: Progress | None = None) -> Label:
    """Be the server of a Flower app: train `generator` over the nodes of a grid and return the label.

    Args:
        this: The recipe with its data.
        folder: The run directory; an interrupted run in it is resumed.
        grid: Flower's connection to the nodes.
        generator: Trained in place.
        progress: Called with the round and the generator so far.

    Returns:
        The owner's label.
    """
    if this.plan is None:
        return _serve_plain(this, folder, grid, generator, progress)
    strategy = PrivateStrategy(
        _averaging(this.recipe),
        plan=this.plan,
        run_dir=folder,
        named=True,
        seed=this.recipe.seed,
        name=this.facts.title,
        purpose=this.facts.purpose,
    )

    def show(number: int, arrays: ArrayRecord) -> None:
        generator.load_state_dict(arrays.to_torch_state_dict())
        if progress is not None and number > begun:
            progress(number, generator)

    arrays = strategy.open(ArrayRecord(generator.state_dict()))
    begun = strategy.server.taken if strategy.server is not None else 0
    keep_recipe(this.recipe, folder, "flower")
    strategy.start(grid, arrays, evaluate_fn=show)
    label = private_label(strategy.label())
    Run(folder).write_label(label)
    return label


def _serve_plain(this: Ready, folder: Path, grid: Grid, generator: Generator, progress: Progress | None) -> Label:
    taken, facts = 0, this.facts
    if Run(folder).exists:
        taken, facts = restore_plain(folder, generator)
    else:
        keep_recipe(this.recipe, Run.create(folder).folder, "flower")

    def show(number: int, arrays: ArrayRecord) -> None:
        if number == 0:
            return
        generator.load_state_dict(arrays.to_torch_state_dict())
        keep_plain(folder, generator, taken + number, facts)
        if progress is not None:
            progress(taken + number, generator)

    arrays, left = ArrayRecord(generator.state_dict()), this.recipe.rounds - taken
    with closing(Owner(folder).hold()):
        _averaging(this.recipe).start(grid, arrays, num_rounds=left, evaluate_fn=show)
        return plain_end(this, folder, generator, facts)


def _averaging(recipe: FedGP) -> FedAvg:
    who = {"fraction_train": recipe.client_rate, "min_available_nodes": recipe.clients, "min_train_nodes": 1}
    if recipe.server_step == 1.0:
        return FedAvg(fraction_evaluate=0.0, **who)
    return FedAvgM(fraction_evaluate=0.0, server_learning_rate=recipe.server_step, server_momentum=0.0, **who)
