"""Generate completions with transformers, to measure a policy and for second rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.plan_runner import Chat


@dataclass(frozen=True, slots=True)
class Completion:
    """Completion of one prompt by a policy.

    Args:
        ended: whether it ended with the end token. It is False if the text was truncated.
        ids: the tokens of the completion, including the end token.
    """

    text: str
    ended: bool
    prompt_ids: list[int]
    ids: list[int]


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Chat],
    max_tokens: int,
    temperature: float,
    processors: Sequence[Any] = (),
) -> list[Completion]:
    """Generate one completion per prompt, as one batch. At temperature 0, decoding is greedy."""
    texts = [
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        for prompt in prompts
    ]
    inputs = tokenizer(
        texts, return_tensors="pt", padding=True, add_special_tokens=False, padding_side="left"
    )
    ids, mask = (inputs[name].to(model.device) for name in ("input_ids", "attention_mask"))
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    output = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=max_tokens,
        disable_compile=True,
        logits_processor=list(processors),
        **sampling,
    )
    completions: list[Completion] = []
    for row, attended, sequence in zip(ids, mask, output.tolist(), strict=True):
        token_ids, end = sequence[len(row) :], tokenizer.eos_token_id
        ended = end in token_ids
        if ended:
            token_ids = token_ids[: token_ids.index(end) + 1]
        text = tokenizer.decode(token_ids, skip_special_tokens=True)
        completions.append(Completion(text, ended, row[attended.bool()].tolist(), token_ids))
    return completions
