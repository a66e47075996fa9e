"""The example that fine-tunes a language model with LoRA runs, and ends with a label and a model card."""

import runpy
from pathlib import Path

import pytest
import torch

from tacita.training import label_of_run

pytest.importorskip("peft")

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora_language_model.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, to peft
def test_lora_moves_the_adapters_alone_and_ends_in_a_label_and_a_card(tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLE))
    torch.manual_seed(0)
    example["make_base"](tmp_path / "base")
    example["fine_tune"](tmp_path / "base", tmp_path / "notes", steps=3)
    assert "8 adapter tensors moved, 21 tensors of the base model did not." in capsys.readouterr().out
    assert label_of_run(tmp_path / "notes").worst.epsilon <= 8.0
    assert (tmp_path / "notes" / "label.html").exists()
    assert (tmp_path / "notes-adapter" / "adapter_model.safetensors").exists()
    assert "epsilon" in (tmp_path / "notes-adapter" / "MODEL_CARD.md").read_text()
