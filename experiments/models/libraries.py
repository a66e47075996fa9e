"""Models of transformers and adapters of peft, small, from their own configurations; nothing is downloaded.

All compute their loss themselves. A batch's loss is the mean of its records' losses: they have as many labels each.
"""

from __future__ import annotations

from typing import Any

import peft
import torch
import transformers
from torch import nn

from experiments.models.cases import RECORDS, Build, Case, settled

WORDS, TOKENS, CLASSES = 50, 8, 3
PLAIN = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
DECODER = {**PLAIN, "num_key_value_heads": 1, "max_position_embeddings": 16, "pad_token_id": 0, "head_dim": 8}
GPT2 = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 16,
    "decoder_start_token_id": 2,
}
IMAGES = {"image_size": 16, "num_channels": 3, "patch_size": 4}
SOUND = {
    **PLAIN,
    "conv_dim": [8, 8],
    "conv_stride": [4, 2],
    "conv_kernel": [8, 3],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
    "apply_spec_augment": False,
    "ctc_loss_reduction": "mean",
}


def configured(kind: str, **settings: Any) -> nn.Module:
    """Return a model without any dropout, and with no words that mean something unless a setting says so."""
    maker = getattr(transformers, kind)
    config = maker.config_class(**{"bos_token_id": 1, "eos_token_id": 2, **settings})
    for part in [config, *(value for value in vars(config).values() if hasattr(value, "to_dict"))]:
        for name, value in vars(part).items():
            if ("drop" in name or name.endswith("pdrop")) and isinstance(value, float):
                setattr(part, name, 0.0)
    return maker(config)


def words(lengths: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return sentences of several lengths, padded."""
    seen = (torch.arange(TOKENS) < lengths[:, None]).long()
    return {"input_ids": torch.randint(3, WORDS, (RECORDS, TOKENS)) * seen, "attention_mask": seen}


def classes() -> torch.Tensor:
    """Return a class for each record."""
    return torch.arange(RECORDS) % CLASSES


def classified(kind: str, *left_out: str, **settings: Any) -> Case:
    """Return a classifier of sentences."""
    model = configured(f"{kind}ForSequenceClassification", vocab_size=WORDS, num_labels=CLASSES, **settings)
    records = {**words(TOKENS - torch.arange(RECORDS)), "labels": classes()}
    return Case(settled(model), {name: t for name, t in records.items() if name not in left_out})


def predicted(kind: str, *left_out: str, **settings: Any) -> Case:
    """Return a language model."""
    return written(configured(kind, vocab_size=WORDS, **settings), *left_out)


def written(model: nn.Module, *left_out: str) -> Case:
    """Return a language model with its records, which have as much padding each."""
    records = words(torch.full((RECORDS,), TOKENS - 2))
    records["labels"] = records["input_ids"].masked_fill(records["attention_mask"] == 0, -100)
    return Case(settled(model), {name: t for name, t in records.items() if name not in left_out})


def placed(case: Case) -> Case:
    """Return a case whose records say their positions."""
    places = torch.arange(TOKENS).expand(RECORDS, TOKENS)
    return Case(case.model, {"input_ids": case.records["input_ids"], "position_ids": places, **case.records})


def seen(kind: str, size: int = 16, **settings: Any) -> Case:
    """Return a classifier of images."""
    model = configured(f"{kind}ForImageClassification", num_labels=CLASSES, **settings)
    return Case(settled(model), {"pixel_values": torch.randn(RECORDS, 3, size, size), "labels": classes()})


def regrouped(case: Case) -> Case:
    """Return a model with every BatchNorm2d replaced by a GroupNorm, as the error for it offers."""
    for name, layer in list(case.model.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            parent, _, last = name.rpartition(".")
            setattr(case.model.get_submodule(parent), last, nn.GroupNorm(2, layer.num_features))
    return Case(settled(case.model), case.records)


def heard(kind: str, **settings: Any) -> Case:
    """Return a model of sound."""
    model = configured(kind, vocab_size=20, num_labels=CLASSES, pad_token_id=0, **SOUND, **settings)
    labels = torch.randint(1, 20, (RECORDS, 3)) if kind.endswith("CTC") else classes()
    return Case(settled(model), {"input_values": torch.randn(RECORDS, 200), "labels": labels})


def whisper() -> Case:
    """Return a model that writes what it hears."""
    settings = {**BART, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16}
    del settings["max_position_embeddings"]
    model = configured("WhisperForConditionalGeneration", vocab_size=WORDS, pad_token_id=0, **settings)
    labels = torch.randint(3, WORDS, (RECORDS, TOKENS))
    return Case(settled(model), {"input_features": torch.randn(RECORDS, 8, 20), "labels": labels})


def spectrogram() -> Case:
    """Return a classifier of spectrograms."""
    settings = {"num_mel_bins": 16, "max_length": 24, "patch_size": 4, "frequency_stride": 4, "time_stride": 4}
    model = configured("ASTForAudioClassification", num_labels=CLASSES, **PLAIN, **settings)
    return Case(settled(model), {"input_values": torch.randn(RECORDS, 24, 16), "labels": classes()})


class Contrasting(nn.Module):
    """A model of images and sentences that returns its contrastive loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, **records: torch.Tensor) -> Any:
        """Return what the model returns, with its loss."""
        return self.model(input_ids, **records, return_loss=True)


def contrasted() -> Case:
    """Return a model whose loss compares every image with every sentence of a batch."""
    text = {**PLAIN, "vocab_size": WORDS, "max_position_embeddings": 16, "eos_token_id": 2}
    model = configured("CLIPModel", text_config=text, vision_config={**PLAIN, **IMAGES}, projection_dim=8)
    return Case(
        settled(Contrasting(model)),
        {**words(torch.full((RECORDS,), TOKENS)), "pixel_values": torch.randn(RECORDS, 3, 16, 16)},
    )


def adapted(base: Case, **settings: Any) -> Case:
    """Return a model under an adapter of peft; only the adapter, and what is said to be saved, is trained."""
    kind = settings.pop("kind", peft.LoraConfig)
    return Case(settled(peft.get_peft_model(base.model, kind(**settings))), base.records)


def _distilbert() -> Case:
    return classified("DistilBert", dim=16, n_heads=2, n_layers=2, hidden_dim=24, max_position_embeddings=16)


def _gpt2() -> Case:
    return predicted("GPT2LMHeadModel", pad_token_id=0, **GPT2)


def _llama() -> Case:
    return predicted("LlamaForCausalLM", **DECODER)


def _lora(base: Case, **settings: Any) -> Case:
    return adapted(base, r=2, lora_alpha=4, **settings)


T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
NEO = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 16, "window_size": 4}
SWIN = {**IMAGES, "embed_dim": 8, "depths": [1, 2], "num_heads": [1, 2], "window_size": 2}
CONVNEXT = {"num_channels": 3, "patch_size": 2, "num_stages": 2, "hidden_sizes": [8, 12], "depths": [1, 1]}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}
SEGFORMER = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [3, 3],
    "strides": [2, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
}
PVT = {**SEGFORMER, "image_size": 32, "patch_sizes": [4, 2], "strides": [4, 2], "sequence_reduction_ratios": [2, 1]}
POOLFORMER = {
    "num_encoder_blocks": 2,
    "hidden_sizes": [8, 12],
    "depths": [1, 1],
    "patch_sizes": [3, 3],
    "strides": [2, 2],
    "padding": [1, 1],
}
MOBILEVIT = {
    "image_size": 32,
    "hidden_sizes": [8, 8, 8],
    "neck_hidden_sizes": [4, 4, 4, 4, 4, 4, 8],
    "num_attention_heads": 2,
    "expand_ratio": 1.0,
}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 16}

TEXT: dict[str, Build] = {
    "BERT": lambda: classified("Bert", **PLAIN),
    "BERT, positions given": lambda: placed(classified("Bert", **PLAIN)),
    "BERT, eager attention": lambda: classified("Bert", attn_implementation="eager", **PLAIN),
    "BERT, masked words, tied": lambda: predicted("BertForMaskedLM", **PLAIN),
    "RoBERTa": lambda: classified("Roberta", pad_token_id=0, **PLAIN),
    "ALBERT": lambda: classified("Albert", embedding_size=8, **PLAIN),
    "ELECTRA": lambda: classified("Electra", embedding_size=8, **PLAIN),
    "DeBERTa-v2": lambda: classified("DebertaV2", **DEBERTA, **PLAIN),
    "DeBERTa-v2, masked words, tied": lambda: predicted("DebertaV2ForMaskedLM", **DEBERTA, **PLAIN),
    "DistilBERT": _distilbert,
    "MPNet": lambda: classified("MPNet", **PLAIN),
    "SqueezeBERT": lambda: classified(
        "SqueezeBert", embedding_size=16, **{f"{n}_groups": 2 for n in ("q", "k", "v", "intermediate")}, **PLAIN
    ),
    "ConvBERT": lambda: classified("ConvBert", embedding_size=16, conv_kernel_size=3, head_ratio=1, **PLAIN),
    "ModernBERT": lambda: classified("ModernBert", pad_token_id=0, **PLAIN),
    "FNet": lambda: classified("FNet", "attention_mask", **PLAIN),
    "Funnel": lambda: classified("Funnel", block_sizes=[1, 1], d_model=16, n_head=2, d_head=8, d_inner=24),
    "XLNet": lambda: classified("XLNet", d_model=16, n_layer=2, n_head=2, d_inner=24, summary_type="mean"),
    "Longformer": lambda: classified("Longformer", attention_window=4, pad_token_id=0, **PLAIN),
    "BigBird": lambda: classified("BigBird", attention_type="original_full", **PLAIN),
    "GPT-2": _gpt2,
    "GPT-2, positions given": lambda: placed(_gpt2()),
    "GPT-2, classifier": lambda: classified("GPT2", pad_token_id=0, **GPT2),
    "GPT-Neo": lambda: predicted("GPTNeoForCausalLM", attention_types=[[["global", "local"], 1]], **NEO),
    "GPT-NeoX": lambda: predicted("GPTNeoXForCausalLM", **PLAIN),
    "GPT-J": lambda: predicted("GPTJForCausalLM", rotary_dim=4, **GPT2),
    "OPT": lambda: predicted("OPTForCausalLM", ffn_dim=24, word_embed_proj_dim=16, **DECODER),
    "Bloom": lambda: predicted("BloomForCausalLM", hidden_size=16, n_layer=2, n_head=2),
    "Falcon": lambda: predicted("FalconForCausalLM", **PLAIN),
    "Llama": _llama,
    "Mistral": lambda: predicted("MistralForCausalLM", sliding_window=4, **DECODER),
    "Mixtral": lambda: predicted("MixtralForCausalLM", num_local_experts=3, num_experts_per_tok=2, **DECODER),
    "Qwen2": lambda: predicted("Qwen2ForCausalLM", tie_word_embeddings=True, **DECODER),
    "Qwen3": lambda: predicted("Qwen3ForCausalLM", **DECODER),
    "Gemma": lambda: predicted("GemmaForCausalLM", **DECODER),
    "Gemma 2": lambda: predicted("Gemma2ForCausalLM", sliding_window=4, **DECODER),
    "Phi": lambda: predicted("PhiForCausalLM", **{**DECODER, "num_key_value_heads": 2}),
    "Mamba": lambda: predicted("MambaForCausalLM", hidden_size=16, state_size=4, num_hidden_layers=2, time_step_rank=2),
    "T5": lambda: predicted("T5ForConditionalGeneration", pad_token_id=0, **T5),
    "BART": lambda: predicted("BartForConditionalGeneration", pad_token_id=0, **BART),
    "mBART": lambda: predicted("MBartForConditionalGeneration", pad_token_id=0, **BART),
    "Pegasus": lambda: predicted("PegasusForConditionalGeneration", pad_token_id=0, **BART),
    "Marian": lambda: predicted("MarianMTModel", pad_token_id=0, **BART),
}
VISION: dict[str, Build] = {
    "ViT": lambda: seen("ViT", **PLAIN, **IMAGES),
    "DeiT": lambda: seen("DeiT", **PLAIN, **IMAGES),
    "BEiT": lambda: seen("Beit", use_relative_position_bias=True, **PLAIN, **IMAGES),
    "DINOv2": lambda: seen("Dinov2", **PLAIN, **IMAGES),
    "Swin": lambda: seen("Swin", **SWIN),
    "Swin v2": lambda: seen("Swinv2", **SWIN),
    "ConvNeXT": lambda: seen("ConvNext", **CONVNEXT),
    "ConvNeXT v2": lambda: seen("ConvNextV2", **CONVNEXT),
    "SegFormer": lambda: seen("Segformer", **SEGFORMER),
    "PVT": lambda: seen("Pvt", 32, **{**IMAGES, **PVT}),
    "PoolFormer": lambda: seen("PoolFormer", **POOLFORMER),
    "ResNet": lambda: seen("ResNet", **RESNET),
    "ResNet, GroupNorm in place of BatchNorm": lambda: regrouped(seen("ResNet", **RESNET)),
    "MobileViT": lambda: seen("MobileViT", 32, **MOBILEVIT),
    "MobileViT, GroupNorm in place of BatchNorm": lambda: regrouped(seen("MobileViT", 32, **MOBILEVIT)),
}
SOUND_MODELS: dict[str, Build] = {
    "Wav2Vec2": lambda: heard("Wav2Vec2ForSequenceClassification"),
    "Wav2Vec2, CTC": lambda: heard("Wav2Vec2ForCTC"),
    "HuBERT": lambda: heard("HubertForSequenceClassification"),
    "Whisper": whisper,
    "AST": spectrogram,
}
MIXED: dict[str, Build] = {
    "CLIP, contrastive loss": contrasted,
}
ADAPTERS: dict[str, Build] = {
    "LoRA on DistilBERT": lambda: _lora(
        _distilbert(), target_modules=["q_lin", "v_lin"], modules_to_save=["classifier", "pre_classifier"]
    ),
    "LoRA on GPT-2": lambda: _lora(_gpt2(), target_modules=["c_attn"], fan_in_fan_out=True),
    "LoRA on Llama": lambda: _lora(_llama(), target_modules="all-linear"),
    "LoRA on Llama's embedding": lambda: _lora(_llama(), target_modules=["embed_tokens", "q_proj"]),
    "DoRA on Llama": lambda: _lora(_llama(), target_modules=["q_proj", "v_proj"], use_dora=True),
    "AdaLoRA on Llama": lambda: adapted(
        _llama(), kind=peft.AdaLoraConfig, target_modules=["q_proj"], total_step=10, init_r=2
    ),
    "IA3 on GPT-2": lambda: adapted(
        _gpt2(), kind=peft.IA3Config, target_modules=["c_attn"], feedforward_modules=[], fan_in_fan_out=True
    ),
    "IA3 on Llama": lambda: adapted(
        _llama(), kind=peft.IA3Config, target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
    ),
    "prefix tuning on GPT-2": lambda: adapted(
        _gpt2(), kind=peft.PrefixTuningConfig, task_type="CAUSAL_LM", num_virtual_tokens=3
    ),
    "prompt tuning on GPT-2": lambda: adapted(
        _gpt2(), kind=peft.PromptTuningConfig, task_type="CAUSAL_LM", num_virtual_tokens=3
    ),
    "prompt tuning on DistilBERT": lambda: adapted(
        _distilbert(),
        kind=peft.PromptTuningConfig,
        task_type="SEQ_CLS",
        num_virtual_tokens=3,
        token_dim=16,
        num_layers=2,
        num_attention_heads=2,
    ),
    "P-tuning on Llama": lambda: adapted(
        _llama(), kind=peft.PromptEncoderConfig, task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8
    ),
}
