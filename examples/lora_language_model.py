"""Fine-tune a small causal language model with LoRA on private texts, on a CPU, without a download.

    pip install -e '.[huggingface,report]'
    python examples/lora_language_model.py runs/notes

It writes a run directory with a privacy label, the adapter beside it, and a model card. The base model is random and
tiny, and made here; put the name of a real one in the place of its folder, and nothing else changes.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainingArguments,
)

from tacita.training.huggingface import PrivateTrainer

WHO = ("ann", "bob", "eve", "ian", "joe", "kim", "sue", "tom")
DID, WHAT = (
    ("had", "lost", "took", "saw", "sold", "hid"),
    ("a cold", "the keys", "two pills", "a cat", "no time", "tea"),
)
NOTES = [f"{who} {did} {what}" for who, did, what in itertools.product(WHO, DID, WHAT)]  # in place of private texts


def make_base(folder: Path) -> None:
    """Write what a public base model is: weights, here random ones, and a tokenizer."""
    words = ["<pad>", "<s>", "</s>", "<unk>", *sorted({word for note in NOTES for word in note.split()})]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=made, **marks).save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **sizes, **ids)).save_pretrained(folder)


def fine_tune(base: Path, run: Path, steps: int = 30) -> None:
    """Train adapters of a base model, label the run, and write adapter and model card."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    notes = Dataset.from_dict({"text": NOTES}).map(lambda row: tokenizer(row["text"]), remove_columns="text")
    trainer = PrivateTrainer(
        model=model,
        args=TrainingArguments(
            str(run) + "-adapter",
            per_device_train_batch_size=64,
            max_steps=steps,
            learning_rate=1e-2,
            logging_steps=10,
            save_strategy="no",
            use_cpu=True,
        ),
        train_dataset=notes,
        # Every text becomes as long, whatever others are: none has more than eight tokens.
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False, pad_to_multiple_of=8),
        nominal_size=300,  # what is publicly known, not counted
        target=(8.0, 1e-5),  # so few texts need much noise
        panel=16,
        run_dir=run,
        name="Notes",
        purpose="LoRA adapters of a small language model, fine-tuned on short notes.",
    )
    trainer.train()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    adapters = {name for name in before if "lora_" in name}
    if moved != adapters:
        raise RuntimeError(f"Other weights than the adapters' moved: {sorted(moved ^ adapters)}.")
    print(f"{len(moved)} adapter tensors moved, {len(before) - len(moved)} tensors of the base model did not.")

    trainer.save_model()
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(run) + "-adapter").eval()
    asked = tokenizer("ann had", return_tensors="pt")
    torch.testing.assert_close(again(**asked).logits, model.eval()(**asked).logits)
    print(trainer.label().worst)
    card = Path(str(run) + "-adapter") / "MODEL_CARD.md"
    stated = ["--issuer", "The notes' owner", "--model", "notes-lora"]
    command = [sys.executable, "-m", "tacita", "label", str(run), "--model-card", str(card), *stated]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"\nSafe to publish: {run / 'label.html'}, {card} and {card.parent / 'adapter_model.safetensors'}")


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        make_base(Path(folder))
        fine_tune(Path(folder), Path(sys.argv[1] if len(sys.argv) > 1 else "runs/notes"))
