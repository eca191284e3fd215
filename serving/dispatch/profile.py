"""What the model of a worker accepts and can do: resolved once, when the pool is built."""

from collections.abc import Callable
from dataclasses import dataclass

from conductor.model.call import Call
from serving.schemas.translation import Translate, translate_to_words
from serving.settings.accepts import Accepts


def _never(_: Call) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Capabilities of a worker's model.

    Args:
        model: its name, for notes on the record.
        accepts: the parameters that its provider accepts; None: all that are sent.
        default_effort: how long it thinks if a call does not say.
        translate: how its provider is asked for an answer's form.
        prefills: whether its wire continues a call's prefix as the beginning of the model's turn.
        sees_images, reads_pdfs: whether it takes them.
        calls_tools: whether it calls tools; None: not known.
        reports_filter: whether the client is told if its content filter stops a prompt; else a fallback is tried.
    """

    model: str = ""
    accepts: Accepts | None = None
    default_effort: str = "none"
    translate: Translate = translate_to_words
    prefills: Callable[[Call], bool] = _never
    sees_images: bool = True
    reads_pdfs: bool = True
    calls_tools: bool | None = None
    reports_filter: bool = False
