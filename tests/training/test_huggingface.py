"""`transformers.Trainer` with private steps."""

import importlib
import json
import math
import sys

import numpy as np
import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")

from transformers import DataCollatorWithPadding, EarlyStoppingCallback, TrainerCallback, TrainingArguments  # noqa: E402

from tacita._check import PrivacyError  # noqa: E402
from tacita.ledger import Ledger  # noqa: E402
from tacita.runs import Run  # noqa: E402
from tacita.training import PrivateTraining, label_of_run  # noqa: E402
from tacita.training.huggingface import PrivateTrainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


class Classifier(nn.Module):
    """A bag of words that returns its loss, as the models of transformers do."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 3), nn.Linear(3, 2)

    def forward(self, input_ids, attention_mask=None, labels=None):
        seen = self.words(input_ids) * (1.0 if attention_mask is None else attention_mask[..., None])
        logits = self.head(seen.sum(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


IDS = torch.randint(0, 9, (60, 4), generator=torch.Generator().manual_seed(1))
ROWS = {"input_ids": IDS.tolist(), "label": (IDS.sum(1) % 2).tolist()}
DATA = datasets.Dataset.from_dict({**ROWS, "text": ["a secret"] * 60})


def classifier():
    torch.manual_seed(0)
    return Classifier()


def trainer(folder, *, model=None, args=None, **settings):
    given = {"per_device_train_batch_size": 12, "max_steps": 4, "logging_steps": 1, "save_strategy": "no"}
    given |= {"learning_rate": 0.1, "optim": "sgd", "disable_tqdm": True, "use_cpu": True, **(args or {})}
    settings = {"train_dataset": DATA, "nominal_size": 60, "noise_multiplier": 1.0, "panel": 8, **settings}
    return PrivateTrainer(model=model or classifier(), args=TrainingArguments(str(folder / "out"), **given), **settings)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Evaluates(TrainerCallback):
    """Looks at exact figures in the middle of the training."""

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.evaluate()


class Seen(TrainerCallback):
    """Notes what callbacks are told."""

    def __init__(self, stop=None):
        self.events, self.logs, self.stop = [], [], stop

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(logs)

    def on_step_end(self, args, state, control, **kwargs):
        self.events.append(state.global_step)
        control.should_training_stop |= state.global_step == self.stop
        return control

    def on_epoch_end(self, args, state, control, **kwargs):
        self.events.append("epoch")


def test_it_takes_the_steps_of_a_private_training(tmp_path):
    """The same records, clipped, noised and moved alike: the Trainer adds its optimiser and scheduler alone."""
    made = trainer(tmp_path, seed=3, panel=0, args={"lr_scheduler_type": "linear", "weight_decay": 0.0})
    out = made.train()
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    PrivateTraining(
        model,
        lambda out, y: nn.functional.cross_entropy(out["logits"], y),
        {"input_ids": IDS, "labels": torch.tensor(ROWS["label"])},
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 4),
        nominal_size=60,
        batch_size=12,
        noise_multiplier=1.0,
        steps=4,
        panel=0,
        seed=3,
    ).run()
    torch.testing.assert_close(weights(made.model), weights(model))
    assert out.global_step == 4
    assert math.isnan(out.training_loss)
    assert out.metrics["epsilon"] >= made.label().worst.epsilon


def test_arguments_declare_the_plan(tmp_path):
    made = trainer(tmp_path, args={"max_steps": -1, "num_train_epochs": 3, "max_grad_norm": 0.5}, nominal_size=100)
    assert (made.plan.steps, made.plan.batch_size, made.plan.clip_norm) == (27, 12.0, 0.5)
    assert trainer(tmp_path, clip_norm=2.0, target=(3.0, 1e-5), noise_multiplier=None).plan.clip_norm == 2.0
    with pytest.raises(TypeError, match="nominal_sizes"):
        trainer(tmp_path, nominal_sizes=60)
    with pytest.raises(TypeError, match="batch_size is that of the TrainingArguments: set per_device_train_batch_size"):
        trainer(tmp_path, batch_size=12)
    with pytest.raises(TypeError, match="steps is that of the TrainingArguments: set max_steps"):
        trainer(tmp_path, steps=12)


def test_callbacks_logs_and_checkpoints_get_public_things_only(tmp_path):
    seen = Seen()
    made = trainer(
        tmp_path, callbacks=[seen], run_dir=tmp_path / "run", args={"save_strategy": "steps", "save_steps": 2}
    )
    made.train()
    assert seen.events == [1, 2, 3, 4, "epoch"]
    assert {name for logs in seen.logs for name in logs} == {"epsilon", "delta", "learning_rate", "epoch"}
    assert [round(logs["learning_rate"], 3) for logs in seen.logs] == [0.075, 0.05, 0.025, 0.0]
    kept = {file.name for file in (tmp_path / "out" / "checkpoint-2").iterdir()}
    assert kept == {"model.safetensors", "training_args.bin", "trainer_state.json"}
    history = json.loads((tmp_path / "out" / "checkpoint-4" / "trainer_state.json").read_text())
    assert "loss" not in json.dumps(history)
    assert history["total_flos"] == history["num_input_tokens_seen"] == 0  # they count what was drawn
    assert "loss" in (tmp_path / "run" / "metrics.jsonl").read_text()  # for the owner


def test_what_evaluate_finds_is_for_the_owner(tmp_path):
    seen = Seen()
    made = trainer(tmp_path, callbacks=[seen], eval_dataset=DATA, run_dir=tmp_path / "run")
    made.train()
    before = len(seen.logs)
    assert made.evaluate()["eval_loss"] > 0.0
    assert len(seen.logs) == before
    label = made.label(metrics={"words": "9"})
    assert dict(label.readings.metrics).keys() == {"eval_loss", "words"}
    assert "eval_loss" not in (tmp_path / "run" / "label.html").read_text()


class Logs(PrivateTrainer):
    """Logs parts of its loss, as subclasses of Trainer do."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs)
        self.log({"part": loss.detach()})
        return loss


def test_what_a_loss_logs_of_a_record_is_dropped(tmp_path):
    seen = Seen()
    args = TrainingArguments(str(tmp_path), per_device_train_batch_size=12, max_steps=2, logging_steps=1, use_cpu=True)
    settings = {"train_dataset": DATA, "nominal_size": 60, "noise_multiplier": 1.0, "panel": 0, "callbacks": [seen]}
    made = Logs(classifier(), args, **settings)
    made.train()
    assert [set(logs) for logs in seen.logs] == 2 * [{"epsilon", "delta", "learning_rate", "epoch"}]
    assert "part" not in json.dumps(made.state.log_history)


def test_callbacks_get_no_exact_figure_of_an_evaluation(tmp_path):
    """Loggers such as WandbCallback write down what on_predict is given."""
    told = {}

    class Writes(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            told.update(metrics)

        on_predict = on_evaluate

    made = trainer(tmp_path, callbacks=[Writes()], eval_dataset=DATA)
    made.train()
    exact = made.evaluate() | made.predict(DATA).metrics
    assert exact["eval_loss"] == pytest.approx(exact["test_loss"])
    assert {"eval_loss", "test_loss"} <= set(told)
    assert all(math.isnan(value) for value in told.values())


def test_a_predict_within_the_training_is_refused(tmp_path):
    class Predicts(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            made.predict(DATA)

    made = trainer(tmp_path, callbacks=[Predicts()])
    with pytest.raises(PrivacyError, match=r"predict\(\) while the model trains"):
        made.train()


class Modes(torch.optim.SGD):
    """Takes steps in train mode alone, as optimisers without a schedule do."""

    def train(self):
        self.ready = True

    def step(self, closure=None):
        assert self.ready
        super().step(closure)


def test_optimisers_that_have_modes_are_put_in_train_mode(tmp_path):
    model = classifier()
    made = trainer(tmp_path, model=model, optimizers=(Modes(model.parameters(), lr=0.1), None))
    assert made.train().global_step == 4


def test_a_run_goes_on_in_train_mode_after_an_evaluation(tmp_path):
    made = trainer(tmp_path, callbacks=[Seen(stop=2)], eval_dataset=DATA)
    made.train()
    made.evaluate()
    assert not made.model.training
    assert made.train().global_step == 4
    assert made.model.training


class Perturbs(PrivateTrainer):
    def training_step(self, *args, **kwargs):
        return super().training_step(*args, **kwargs)


class Norms(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        pass


def test_what_is_never_called_is_refused_where_it_is_overridden(tmp_path):
    settings = {"train_dataset": DATA, "nominal_size": 60, "noise_multiplier": 1.0}
    with pytest.raises(ValueError, match=r"training_step is never called.*compute_loss"):
        Perturbs(classifier(), TrainingArguments(str(tmp_path), use_cpu=True), **settings)
    for callback in (Norms, Norms()):
        with pytest.raises(ValueError, match=r"Norms\.on_pre_optimizer_step is never called"):
            trainer(tmp_path, callbacks=[callback])


def test_the_figures_of_a_training_can_be_printed(tmp_path, capsys):
    """log_metrics rounds numbers to four places, which makes a delta of 1e-5 a zero."""
    made = trainer(tmp_path)
    made.log_metrics("train", made.train().metrics)
    assert "= 0.00001" in capsys.readouterr().out


class Weighed(PrivateTrainer):
    """Has a loss of its own."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        return 7.0 * nn.functional.cross_entropy(model(**inputs)["logits"], labels)


def test_a_loss_of_ones_own_and_label_smoothing_are_the_records_loss(tmp_path):
    norms = []
    for kind in (PrivateTrainer, Weighed):
        made = kind(
            model=classifier(),
            args=TrainingArguments(str(tmp_path), per_device_train_batch_size=12, max_steps=1, use_cpu=True),
            train_dataset=DATA,
            nominal_size=60,
            noise_multiplier=1.0,
            panel=0,
        )
        made.train()
        made.model.load_state_dict(classifier().state_dict())
        norms.append(made.private.mechanism.norms("training", np.arange(9), rng=np.random.default_rng(0)))
    np.testing.assert_allclose(norms[1], 7.0 * norms[0], rtol=1e-5)


class Tokens:
    """The little of a tokenizer that a padding collator needs."""

    padding_side, deprecation_warnings = "right", {}

    def pad(self, rows, pad_to_multiple_of=None, **_):
        longest = max(len(row["input_ids"]) for row in rows)
        width = -(-longest // pad_to_multiple_of) * pad_to_multiple_of if pad_to_multiple_of else longest
        empty = [width - len(row["input_ids"]) for row in rows]
        return {
            "input_ids": torch.tensor([r["input_ids"] + [0] * n for r, n in zip(rows, empty, strict=True)]),
            "attention_mask": torch.tensor(
                [[1] * len(r["input_ids"]) + [0] * n for r, n in zip(rows, empty, strict=True)]
            ),
            "labels": torch.tensor([row["label"] for row in rows]),
        }


def test_each_record_is_padded_alone(tmp_path):
    """A long record changes nobody else's gradient, as it does where a batch is padded to its longest."""
    lengths = [{"input_ids": row[: 1 + i % 4], "label": i % 2} for i, row in enumerate(ROWS["input_ids"])]
    rows = datasets.Dataset.from_list(lengths)
    collator = DataCollatorWithPadding(Tokens(), pad_to_multiple_of=4)
    made = trainer(tmp_path, train_dataset=rows, data_collator=collator)
    made.train()
    alone, together = (made.private.mechanism.records.marked(places).record for places in ([0], [0, 3]))
    assert torch.equal(alone["attention_mask"][0], together["attention_mask"][0])
    assert alone["attention_mask"].tolist() == [[1, 0, 0, 0]]
    longest = trainer(tmp_path, train_dataset=rows, data_collator=DataCollatorWithPadding(Tokens()))
    with (
        pytest.warns(UserWarning, match="DataCollatorWithPadding pads to the longest.*contribute nothing"),
        pytest.raises(ValueError, match=r"no common form.*pad_to_multiple_of"),
    ):
        longest.train()


REFUSED = {
    "gradient_accumulation_steps": (2, ValueError, "per_device_train_batch_size is the whole batch"),
    "fp16": (True, ValueError, "use bf16=True"),
    "deepspeed": ("zero2.json", ValueError, "with torchrun, where each process holds a copy"),
    "fsdp": ("full_shard", ValueError, "with torchrun, where each process holds a copy"),
    "train_sampling_strategy": ("group_by_length", ValueError, "by what is in records"),
    "auto_find_batch_size": (True, ValueError, "whole batch"),
    "neftune_noise_alpha": (5.0, ValueError, "leave it out"),
    "activation_checkpointing": (True, ValueError, "chunks that fit memory"),
    "eval_strategy": ("steps", PrivacyError, "call evaluate\\(\\) afterwards"),
    "eval_on_start": (True, PrivacyError, "exact figures"),
    "lr_scheduler_type": ("reduce_lr_on_plateau", PrivacyError, "exact figures"),
    "optim": ("adalomo", ValueError, "steps within backward"),
    "max_grad_norm": (0.0, ValueError, "clip_norm must be positive"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_go_with_private_steps_are_refused_with_a_way_out(tmp_path, name):
    value, kind, why = REFUSED[name]
    args = TrainingArguments(str(tmp_path), max_steps=4, use_cpu=True)
    setattr(args, name, value)
    with pytest.raises(kind, match=why):
        PrivateTrainer(model=classifier(), args=args, train_dataset=DATA, nominal_size=60, noise_multiplier=1.0)


def test_what_looks_at_private_records_is_refused(tmp_path):
    for args in (
        {"save_strategy": "best", "metric_for_best_model": "loss"},
        {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"},
    ):
        with pytest.raises(PrivacyError, match="no label covers"):
            trainer(tmp_path, args=args, eval_dataset=DATA)
    for callback in (EarlyStoppingCallback, EarlyStoppingCallback(3)):
        with pytest.raises(PrivacyError, match="EarlyStoppingCallback decides by records"):
            trainer(tmp_path, callbacks=[callback])
    with pytest.raises(PrivacyError, match="search on public data"):
        trainer(tmp_path).hyperparameter_search()
    with pytest.raises(PrivacyError, match="lies in output_dir, which is what gets published"):
        trainer(tmp_path, run_dir=tmp_path / "out" / "run")
    with pytest.raises(PrivacyError, match="output_dir lies in run_dir"):
        trainer(tmp_path, run_dir=tmp_path)
    looking = Evaluates()
    looking.trainer = trainer(tmp_path, callbacks=[looking], eval_dataset=DATA)
    with pytest.raises(PrivacyError, match="call it afterwards"):
        looking.trainer.train()
    with pytest.raises(PrivacyError, match="call train"):
        trainer(tmp_path).label()


def test_bfloat16_gives_the_gradient_of_a_loop(tmp_path):
    made = trainer(tmp_path, args={"bf16": True, "max_steps": 1})
    made.train()
    found = made.private.mechanism.norms("training", np.arange(3), rng=np.random.default_rng(0))
    for place in range(3):
        made.model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            made.model(IDS[place : place + 1], labels=torch.tensor(ROWS["label"][place : place + 1]))["loss"].backward()
        expected = torch.cat([p.grad.flatten() for p in made.model.parameters()]).norm()
        assert found[place] == pytest.approx(float(expected), rel=2e-2)


def test_a_run_that_was_stopped_goes_on_from_its_directory(tmp_path):
    kept = {"run_dir": tmp_path / "run", "ledger": tmp_path / "ledger.sqlite"}
    first = trainer(tmp_path, callbacks=[Seen(stop=2)], **kept)
    assert first.train().global_step == 2
    with pytest.raises(PrivacyError, match="another plan"):
        trainer(tmp_path, noise_multiplier=2.0, **kept).train(resume_from_checkpoint=True)
    changed = datasets.Dataset.from_dict({**ROWS, "label": [*ROWS["label"][:-1], 1 - ROWS["label"][-1]]})
    with pytest.raises(PrivacyError, match="it is another dataset"):  # one label of sixty
        trainer(tmp_path, train_dataset=changed, **kept).train(resume_from_checkpoint=True)
    again = trainer(tmp_path, model=Classifier(), **kept)
    with pytest.raises(ValueError, match="resume_from_checkpoint=True and run_dir"):
        again.train(resume_from_checkpoint="checkpoint-2")
    out = again.train(resume_from_checkpoint=True)
    assert out.global_step == 4
    assert again.lr_scheduler.get_last_lr()[0] == 0.0
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert len(ledger.runs()) == 1
    assert label_of_run(tmp_path / "run").worst.epsilon == again.label().worst.epsilon
    assert Run.open(tmp_path / "run").facts.status == "done"
    with pytest.raises(ValueError, match="needs run_dir"):
        trainer(tmp_path).train(resume_from_checkpoint=True)


def test_weights_of_a_step_that_failed_are_not_saved(tmp_path):
    made = trainer(tmp_path)
    made.save_model()  # of before the first step: nothing of the records is in them
    made.train()
    made.save_model(str(tmp_path / "saved"))
    from safetensors.torch import load_model

    model = Classifier()
    load_model(model, tmp_path / "saved" / "model.safetensors")
    assert torch.equal(weights(model), weights(made.model))
    made.private._stepper.state.facts = made.private._stepper.state.facts.with_status("failed")
    with pytest.raises(PrivacyError, match="failed halfway"):
        made.save_model()


def test_a_missing_extra_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "tacita.training.huggingface")
    with pytest.raises(ImportError, match=r"pip install -e '\.\[huggingface\]' in the checkout of tacita"):
        importlib.import_module("tacita.training.huggingface")


def test_people_with_several_records_are_protected(tmp_path):
    people = {"person": [f"p{i % 15}" for i in range(60)], "records_per_person": 2, "nominal_size": 15, "panel": 0}
    made = trainer(tmp_path, args={"per_device_train_batch_size": 5, "max_steps": 2}, **people)
    made.train()
    assert made.label().worst.unit == "person"
    assert made.private.plan.sample_rate == pytest.approx(1 / 3)
    assert len(made.private.mechanism.parts["training"]) == 15
