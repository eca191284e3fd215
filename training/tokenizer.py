"""A small tokenizer trained on the run's own texts, for a conductor from scratch. Nothing is downloaded."""

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
"""ChatML, as SmolLM2 and Qwen speak it."""
WORDS = Regex(
    r"\p{L}+(?: \p{L}+)*\.\", \"[a-z]+\": [\"\[]?|\"?,? ?\{?\"[a-z]+\": ?[\"\[]?"
    r"| ?\p{L}+|\p{N}|[^\p{L}\p{N}\n]+|\n"
)
"""A sentence of a plan with the key after it, a key with its marks, words, digits, other marks, lines.

So a step is six tokens long, and the worker comes right after the token of its task: what a policy of this
size must learn by reward is which token follows which.
"""


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most `vocabulary` tokens."""
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
