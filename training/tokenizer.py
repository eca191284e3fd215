"""A small tokenizer for a conductor from scratch, trained on the run's own texts."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

BEGIN, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
TEMPLATE = (
    "{% for message in messages %}"
    + BEGIN
    + "{{ message['role'] }}\n{{ message['content'] }}"
    + END
    + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + BEGIN + "assistant\n{% endif %}"
)
"""ChatML, as used by SmolLM2 and Qwen."""
WORDS = Regex(
    r"\p{L}+(?: \p{L}+)*\.\", \"[a-z]+\": [\"\[]?|\"?,? ?\{?\"[a-z]+\": ?[\"\[]?"
    r"| ?\p{L}+|\p{N}|[^\p{L}\p{N}\n]+|\n"
)
"""Pattern of the pieces of a plan: a sentence and the next key, a key and its punctuation, words, digits,
other characters, and lines.

A step is then six tokens long, and the worker directly follows the token of its task. A policy of this size
must learn by reward which token follows which.
"""


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of at most `vocabulary` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, BEGIN, END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=TEMPLATE, padding_side="left"
    )
