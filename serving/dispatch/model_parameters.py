"""Adaptation of a call to the parameters that a model accepts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from conductor.model.call import Call, Sampling
from conductor.model.terms import EFFORTS
from serving.schemas.translation import Translate, translate_to_words
from serving.settings.known_models import Accepts

NEUTRAL = {"top_k": 0, "min_p": 0, "repetition_penalty": 1}
"""Values that have no effect."""


def fit(call: Call, accepts: Accepts, model: str) -> tuple[Call, tuple[str, ...]]:
    """Return the call with the parameters that `model` accepts. Dropped ones get a note unless they are
    defaults.
    """
    notes: list[str] = []
    effort = accepts.effort(call.sampling.effort)
    if effort != call.sampling.effort:
        notes.append(
            f"effort was changed from {call.sampling.effort} to {effort}, the nearest level that {model} accepts."
            if effort
            else f"effort was omitted, because {model} does not accept it."
        )
    temperature, top_p = _sampling(call, accepts, model, notes)
    samplers = _samplers(call, accepts, model, notes)
    stop = _stop(call, accepts, model, notes)
    seed = call.sampling.seed
    if seed is not None and not accepts.seeds(seed):
        seed = None
        notes.append(
            f"seed was omitted, because {model} does not accept it."
            if accepts.seed == "none"
            else f"seed was omitted, because {model} accepts only {accepts.seed.removeprefix('int')}-bit integers."
        )
    longest = call.sampling.max_output_tokens
    if longest and accepts.max_output_tokens and longest > accepts.max_output_tokens:
        longest = accepts.max_output_tokens
        notes.append(f"max_output_tokens was lowered to {longest}, the maximum that {model} accepts.")
    grammar = call.grammar
    if grammar is not None and grammar.json_schema is not None and not accepts.json_schema:
        grammar = None
        notes.append(f"The JSON schema was omitted, because {model} does not accept JSON schemas.")
    sampling = Sampling(longest, temperature, top_p, stop, seed, effort, call.sampling.options, **samplers)
    return replace(call, sampling=sampling, grammar=grammar), tuple(notes)


def _sampling(
    call: Call, accepts: Accepts, model: str, notes: list[str]
) -> tuple[float | None, float | None]:
    temperature, top_p = call.sampling.temperature, call.sampling.top_p
    if why := _refusal(call, accepts):
        notes += [
            f"{name} was omitted, because {model} {why}"
            for name, value in (("temperature", temperature), ("top_p", top_p))
            if value not in (None, 1)  # 1 is the default of all models
        ]
        return None, None
    if temperature is not None and temperature > accepts.max_temperature:
        temperature = accepts.max_temperature
        notes.append(f"temperature was lowered to {temperature:g}, the maximum that {model} accepts.")
    if temperature is not None and top_p is not None and not accepts.temperature_with_top_p:
        if top_p != 1:
            notes.append(f"top_p was omitted, because {model} does not accept it together with temperature.")
        top_p = None
    return temperature, top_p


def _refusal(call: Call, accepts: Accepts) -> str:
    """Return why the model accepts no sampling parameters, or "" if it does."""
    if accepts.sampling == "never":
        return "does not accept it."
    is_thinking = accepts.sampling == "unless_thinking" and accepts.thinks(call.sampling.effort)
    return "does not accept it while it reasons." if is_thinking else ""


def _samplers(call: Call, accepts: Accepts, model: str, notes: list[str]) -> dict[str, Any]:
    """Return the values of `top_k`, `min_p` and `repetition_penalty` that the model accepts, by name."""
    why = _refusal(call, accepts)
    samplers = dict[str, Any]()
    for name, neutral in NEUTRAL.items():
        value = getattr(call.sampling, name)
        if name in accepts.samplers and not why:
            samplers[name] = value
        elif value not in (None, neutral):
            notes.append(f"{name} was omitted, because {model} {why or 'does not accept it.'}")
    return samplers


def _stop(call: Call, accepts: Accepts, model: str, notes: list[str]) -> tuple[str, ...]:
    """Return the stop sequences that the model accepts. Podium applies the others to the answer."""
    accepted = [stop for stop in call.sampling.stop if accepts.blank_stop_sequences or not stop.isspace()]
    stops = tuple(accepted[: accepts.stop_sequences])
    if len(stops) < len(call.sampling.stop):
        which = (
            "stop was"
            if not stops
            else f"{len(call.sampling.stop) - len(stops)} of {len(call.sampling.stop)} stop sequences were"
        )
        notes.append(
            f"{which} applied by Podium, because {model} does not accept {'it' if not stops else 'them'}."
        )
    return stops


def limit_effort(effort: str | None, most: str, default: str) -> str | None:
    """Return `effort`, or `default` if it is None, but at most `most`. Unknown levels count as the highest."""
    return most if _rank(effort or default) > _rank(most) else effort


def _rank(level: str) -> int:
    return EFFORTS.index(level) if level in EFFORTS else len(EFFORTS)


def _never(_: Call) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Capabilities of a worker's model.

    Args:
        accepts: parameters that the provider accepts, or None if it accepts all.
        sees_images, reads_pdfs: whether the model accepts images and PDFs.
        calls_tools: whether the model calls tools, or None if unknown.
        reports_filter: whether the client gets an error if the content filter stops its prompt. If False, a
            fallback is tried.
        context_tokens: longest prompt and answer together, in tokens, or None if unknown.
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
    context_tokens: int | None = None
