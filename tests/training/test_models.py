"""Models from other libraries, built from their configurations: gradients as by a loop over records."""

import pytest
import torch
from torch.utils._pytree import tree_map

from tacita.training.gradients import clipped_sum
from tacita.training.records import Records, check_model, record_loss, try_one

transformers = pytest.importorskip("transformers")

RECORDS, TOKENS = 5, 9
SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}


def text(labels=None):
    """Sentences of several lengths, padded."""
    words = torch.randint(1, 50, (RECORDS, TOKENS))
    seen = (torch.arange(TOKENS) < TOKENS - torch.arange(RECORDS)[:, None]).long()
    return {"input_ids": words, "attention_mask": seen, "labels": words.clone() if labels is None else labels}


def bert(attention):
    config = transformers.BertConfig(
        vocab_size=50,
        **SMALL,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )
    return transformers.BertForSequenceClassification(config), text(torch.arange(RECORDS) % 3)


def gpt2(attention):
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=attention,
    )
    return transformers.GPT2LMHeadModel(config), text()


MODELS = {
    "bert, sdpa": lambda: bert("sdpa"),
    "bert, eager": lambda: bert("eager"),
    "gpt2, sdpa": lambda: gpt2("sdpa"),
    "gpt2, eager": lambda: gpt2("eager"),
}


def by_loop(model, batch, moved):
    """The oracle: an ordinary backward pass for each record on its own."""
    rows = []
    for i in range(RECORDS):
        model.zero_grad()
        model(**tree_map(lambda t, i=i: t[i : i + 1], batch)).loss.backward()
        rows.append(torch.cat([p.grad.flatten() for p in moved.values()]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_its_own_loss_matches_a_loop_over_records(name):
    torch.manual_seed(1)
    model, batch = MODELS[name]()
    model.train()
    moved = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = by_loop(model, batch, moved)
    norms = rows.double().norm(dim=1)
    check_model(model)
    loss, parameters = record_loss(model, None), {name: p.detach() for name, p in moved.items()}
    try_one(model, loss, parameters, Records(batch))
    for bound in (1e12, float(norms.median())):
        got = clipped_sum(loss, parameters, batch, torch.full((RECORDS,), bound, dtype=torch.float64))
        wanted = ((bound / norms).clamp(max=1.0).float()[:, None] * rows).sum(0)
        sums = torch.cat([g.flatten() for g in got.sums.values()])
        assert float((sums - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())
        torch.testing.assert_close(got.norms, norms.clamp(max=bound), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("form", ["attribute", "entry", "first"])
def test_a_loss_is_taken_from_what_a_model_returns(form):
    def model_loss(model, x, y):
        value = torch.nn.functional.cross_entropy(model.layer(x), y)
        forms = {"attribute": type("Out", (), {"loss": value})(), "entry": {"loss": value}, "first": (value, x)}
        return forms[form]

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x, y):
            return model_loss(self, x, y)

    model = Own()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    value = record_loss(model, None)(parameters, (torch.ones(4), torch.tensor(1)))
    torch.testing.assert_close(
        value, torch.nn.functional.cross_entropy(model.layer(torch.ones(1, 4)), torch.tensor([1]))
    )


def test_a_model_without_its_labels_says_what_is_missing():
    model, batch = bert("sdpa")
    del batch["labels"]
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with pytest.raises(TypeError, match="labels under `labels`"):
        record_loss(model, None)(parameters, tree_map(lambda t: t[0], batch))
