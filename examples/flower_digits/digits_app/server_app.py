"""The server: a usual Flower app, its strategy wrapped once."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedAvgM

from digits_app.task import model, plan
from tacita.data import load
from tacita.federated import PrivateStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print the privacy label."""
    declared = plan(context)
    inner = {"fraction_evaluate": 0.0, "min_available_nodes": declared.clients}
    trains = declared.level in (
        "client",
        "parallel",
    )  # clients move the model; else the server does, by their gradients
    strategy = PrivateStrategy(
        FedAvg(**inner) if trains else FedAvgM(**inner, server_learning_rate=0.5, server_momentum=0.5),
        plan=declared,
        run_dir=context.run_config["run-dir"] or None,
        named=True,
        name="Digits in a Flower federation",
    )
    result = strategy.start(grid, ArrayRecord(model().state_dict()), evaluate_fn=evaluate)
    found = result.evaluate_metrics_serverapp
    accuracy = found[max(found)]["accuracy"] if found else 0.0
    label = strategy.label(metrics={"accuracy": f"{accuracy:.1%} on the test set"})
    print(label.public())


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure on public test digits, which no client holds."""
    digits, network = load("digits"), model()
    network.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        guesses = network(torch.from_numpy(digits.test_inputs)).argmax(1)
    return MetricRecord({"accuracy": float((guesses == torch.from_numpy(digits.test_targets)).float().mean())})
