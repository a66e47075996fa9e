"""The client: a usual Flower app, and one mod."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import data, loss_fn, model, plan
from tacita.federated import instance_privacy

# A hospital would add ledger=, epsilon= and delta=: its own budget over all federations that it takes part in.
# panel=64 would let the server tell a typical figure; its documentation says what that gives away.
app = ClientApp(mods=[instance_privacy(plan, model=model, loss_fn=loss_fn, data=data, learning_rate=0.5)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as usual. It runs at level client; at the others the mod trains in its place."""
    network, (inputs, targets) = model(), data(context)
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for batch in torch.randperm(len(targets)).split(16):
        optimizer.zero_grad()
        loss_fn(network(inputs[batch]), targets[batch]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": len(targets)})}
    return Message(RecordDict(content), reply_to=message)
