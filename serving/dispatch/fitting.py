"""Send only what a model accepts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from conductor.model.call import Call, Sampling
from conductor.model.terms import EFFORTS
from serving.schemas.translation import Translate, translate_to_words
from serving.settings.accepts import Accepts

NEUTRAL = {"top_k": 0, "min_p": 0, "repetition_penalty": 1}
"""What each of them is where it changes nothing."""


def fit(call: Call, accepts: Accepts, model: str) -> tuple[Call, tuple[str, ...]]:
    """The part of `call` that may be sent to `model`, and a sentence on each change. What says no more than
    the default goes without one.
    """
    notes: list[str] = []
    effort = accepts.effort(call.sampling.effort)
    if effort != call.sampling.effort:
        notes.append(
            f"effort {call.sampling.effort} became {effort}: the nearest that {model} accepts."
            if effort
            else f"effort was left out: {model} does not accept it."
        )
    temperature, top_p = _sampling(call, accepts, model, notes)
    samplers = _samplers(call, accepts, model, notes)
    stop = _stop(call, accepts, model, notes)
    seed = call.sampling.seed
    if seed is not None and not accepts.seeds(seed):
        seed = None
        notes.append(
            f"seed was left out: {model} accepts none{' so large' if accepts.seed == 'int32' else ''}."
        )
    longest = call.sampling.max_output_tokens
    if longest and accepts.max_output_tokens and longest > accepts.max_output_tokens:
        longest = accepts.max_output_tokens
        notes.append(f"max_output_tokens was lowered to {longest}: {model} accepts no more.")
    grammar = call.grammar
    if grammar is not None and grammar.json_schema is not None and not accepts.json_schema:
        grammar = None
        notes.append(f"The JSON schema was left out: {model} does not accept one.")
    sampling = Sampling(longest, temperature, top_p, stop, seed, effort, call.sampling.options, **samplers)
    return replace(call, sampling=sampling, grammar=grammar), tuple(notes)


def _sampling(
    call: Call, accepts: Accepts, model: str, notes: list[str]
) -> tuple[float | None, float | None]:
    temperature, top_p = call.sampling.temperature, call.sampling.top_p
    if why := _refusal(call, accepts):
        notes += [
            f"{name} was left out: {model} {why}"
            for name, value in (("temperature", temperature), ("top_p", top_p))
            if value not in (None, 1)  # 1 is the default of all of them
        ]
        return None, None
    if temperature is not None and temperature > accepts.max_temperature:
        temperature = accepts.max_temperature
        notes.append(f"temperature was lowered to {temperature:g}: {model} accepts no more.")
    if temperature is not None and top_p is not None and not accepts.temperature_with_top_p:
        if top_p != 1:
            notes.append(f"top_p was left out: {model} does not accept it beside temperature.")
        top_p = None
    return temperature, top_p


def _refusal(call: Call, accepts: Accepts) -> str:
    """Why no sampling parameter may be sent; empty: they may."""
    if accepts.sampling == "never":
        return "does not accept it."
    is_thinking = accepts.sampling == "unless_thinking" and accepts.thinks(call.sampling.effort)
    return "does not accept it while it thinks." if is_thinking else ""


def _samplers(call: Call, accepts: Accepts, model: str, notes: list[str]) -> dict[str, Any]:
    """Those of `top_k`, `min_p` and `repetition_penalty` that may be sent."""
    why = _refusal(call, accepts)
    sent = dict[str, Any]()
    for name, neutral in NEUTRAL.items():
        value = getattr(call.sampling, name)
        if name in accepts.samplers and not why:
            sent[name] = value
        elif value not in (None, neutral):
            notes.append(f"{name} was left out: {model} {why or 'does not accept it.'}")
    return sent


def _stop(call: Call, accepts: Accepts, model: str, notes: list[str]) -> tuple[str, ...]:
    """The stop sequences that may be sent."""
    fit = [stop for stop in call.sampling.stop if accepts.blank_stop_sequences or not stop.isspace()]
    sent = tuple(fit[: accepts.stop_sequences])
    if len(sent) < len(call.sampling.stop):
        which = (
            "stop was"
            if not sent
            else f"{len(call.sampling.stop) - len(sent)} of {len(call.sampling.stop)} stop sequences were"
        )
        notes.append(
            f"{which} not sent but applied here: {model} does not accept {'it' if not sent else 'them'}."
        )
    return sent


def limit_effort(effort: str | None, most: str | None, default: str) -> str | None:
    """Return the level to ask for: `effort`, or `most` if that is lower. An unknown level counts as the highest.

    Args:
        effort: what is asked for; None: what the model does by itself.
        most: the highest level that is allowed; None: any.
        default: what the model does by itself.
    """
    if most is None:
        return effort
    return most if _rank(effort or default) > _rank(most) else effort


def _rank(level: str) -> int:
    return EFFORTS.index(level) if level in EFFORTS else len(EFFORTS)


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
