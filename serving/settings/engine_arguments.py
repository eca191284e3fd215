"""Names of vLLM's engine arguments, read from the source of the installed vLLM, because importing it takes
seconds.
"""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from conductor.errors import did_you_mean, quote
from serving.settings.faults import SettingsError
from serving.settings.workers import VllmSettings

OURS = frozenset({"chat_template_kwargs", "tool_call_parser"})
"""Podium's own arguments."""
CLASSES = ("EngineArgs", "AsyncEngineArgs")
FROM_ELSEWHERE = {
    "max_model_length": "max_model_len",
    "max_context_length": "max_model_len",
    "max_seq_len": "max_model_len",
    "context_length": "max_model_len",
    "gpu_mem_utilization": "gpu_memory_utilization",
    "mem_fraction_static": "gpu_memory_utilization",
    "tp": "tensor_parallel_size",
    "tp_size": "tensor_parallel_size",
}
"""Names of these arguments in other servers and in older versions."""


def engine_faults(worker: VllmSettings) -> list[SettingsError]:
    """Return an error for each engine argument that vLLM does not know; none if vLLM is not installed here."""
    arguments = engine_arguments()
    if not arguments or worker.deployment not in (None, worker.name):
        return []
    return [
        SettingsError(
            f"`engine.{quote(name)[1:-1]}` of worker {worker.name!r} is not an engine argument of vLLM.{_nearest(name, arguments)}",
            at=("workers", worker.name, "engine", name),
        )
        for name in worker.engine
        if name not in arguments
    ]


def _nearest(name: str, arguments: frozenset[str]) -> str:
    plain = name.lstrip("-").replace("-", "_").lower()
    argument = FROM_ELSEWHERE.get(plain, plain)
    return f" Did you mean {argument!r}?" if argument in arguments else did_you_mean(plain, arguments)


@cache
def engine_arguments() -> frozenset[str]:
    """Return the names that `engine` of a worker may have; empty if vLLM is not installed."""
    spec = find_spec("vllm")
    places = spec.submodule_search_locations if spec else None
    source = Path(places[0], "engine", "arg_utils.py") if places else None
    if source is None or not source.is_file():
        return frozenset()
    names = {
        field.target.id
        for each in ast.parse(source.read_bytes()).body
        if isinstance(each, ast.ClassDef) and each.name in CLASSES
        for field in each.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    return frozenset(names | OURS) if names else frozenset()
