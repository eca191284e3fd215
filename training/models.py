"""Load or initialize the weights of the conductor. They are trained completely, or with LoRA adapters."""
# The types of transformers and PEFT are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig as PeftLora
from peft import PeftModel, TaskType, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils import load_peft_weights
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from serving.settings.settings import SettingsError
from training.config import LoraConfig, ModelConfig, ScratchConfig
from training.tokenizer import train_tokenizer


def tokenizer_for(config: ModelConfig, texts: Iterable[str]) -> PreTrainedTokenizerBase:
    if config.scratch:
        return train_tokenizer(texts, config.scratch.vocabulary)
    tokenizer = _load(AutoTokenizer.from_pretrained, config)
    if tokenizer.chat_template is None:
        raise SettingsError(
            f"The tokenizer of {config.path} has no chat template. Use an instruction-tuned model."
        )
    tokenizer.padding_side = "left"
    return tokenizer


def model_for(
    config: ModelConfig, tokenizer: PreTrainedTokenizerBase, seed: int
) -> PreTrainedModel | PeftModel:
    """Return the model, ready to train. Raise SettingsError if it cannot be loaded."""
    torch.manual_seed(seed)
    if config.scratch:
        model = _scratch(config.scratch, tokenizer)
    else:
        model = _load(AutoModelForCausalLM.from_pretrained, config, dtype=getattr(torch, config.dtype))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    if config.lora is None:
        return model
    if config.lora.start:
        return _resume(model, config.lora, str(config.path))
    return get_peft_model(model, _adapters(config.lora))


def _resume(model: PreTrainedModel, config: LoraConfig, base: str) -> PeftModel:
    start = str(config.start)
    try:
        saved = cast(PeftLora, PeftLora.from_pretrained(start))
        resumed = PeftModel.from_pretrained(model, start, is_trainable=True, autocast_adapter_dtype=True)
    except (OSError, ValueError) as exc:
        raise SettingsError(f"model.lora.start: {start} has no adapter for this model. {exc}") from exc
    if (saved.r, saved.lora_alpha) != (config.rank, config.alpha):
        raise SettingsError(
            f"model.lora: {start} has rank {saved.r} and alpha {saved.lora_alpha}, but the config has "
            f"{config.rank} and {config.alpha}. Use the values of the adapter in the config."
        )
    # With a published name, PEFT would query the hub.
    resumed.peft_config["default"].base_model_name_or_path = base
    return resumed


def keep_of_start(model: Any, config: LoraConfig) -> None:
    """Average each weight of the adapter with its start, whose share is `config.kept`."""
    started = load_peft_weights(str(config.start), device="cpu")
    learned = get_peft_model_state_dict(model)
    mean = {
        name: (1 - config.kept) * weight.float() + config.kept * started[name].to(weight.device).float()
        for name, weight in learned.items()
    }
    set_peft_model_state_dict(model, mean)


def _load(load: Callable[..., Any], config: ModelConfig, **options: Any) -> Any:
    try:
        return load(config.path, **options)
    except OSError as exc:
        hint = "" if Path(str(config.path)).exists() else f" The folder {config.path} does not exist."
        raise SettingsError(f"The model {config.path} cannot be loaded.{hint} {exc}") from exc


def _adapters(config: LoraConfig) -> PeftLora:
    """Return a LoRA configuration that vLLM can serve: no bias, no DoRA, no fully trained modules."""
    return PeftLora(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules="all-linear",
        task_type=TaskType.CAUSAL_LM,
        lora_dropout=0.0,
    )


def _scratch(config: ScratchConfig, tokenizer: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden,
            intermediate_size=3 * config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=1024,
            initializer_range=config.hidden**-0.5,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
