"""The LoRA adapters of one engine: fetched, checked, and in vLLM before a request names them.

vLLM loads an adapter that it does not have in the middle of a step, where a fault ends the engine. So here
every adapter is loaded by itself first, and a fault ends nothing. vLLM puts the least recently used one out
when it needs the room (`max_loras`), and reads it again from the kept folder when it is asked for once
more.
"""

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from serving.lora.adapters import AdapterError, name_of
from serving.lora.compatibility import Tensor, check, tensors_of_model
from serving.lora.fetching import cache, fetch

FETCHED_WITHIN_S = 300.0
"""A store that does not give an adapter within this is given up on."""
FAILED_FOR_S = 10.0
"""After a permanent failure, calls do not retry the load for this long; an explicit `load` does."""

logger = logging.getLogger("podium")


class Adapters:
    """What one engine has loaded, each under its name and a number that no other has had.

    Args:
        engine: vLLM's.
    """

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._numbers = itertools.count(1)
        self._loads: dict[str, asyncio.Task[LoRARequest]] = {}
        self._base: dict[str, Tensor] | None = None

    async def load(self, address: str) -> LoRARequest:
        """Fetch it and put it into the engine, unless that is done; a failure before does not count.

        Raises:
            AdapterError: it cannot be had or served. The engine is as it was.
        """
        before = self._loads.get(name_of(address))
        if before and before.done() and (before.cancelled() or before.exception()):
            self._forget(name_of(address), before)
        return await self.lora_request(address)

    async def lora_request(self, address: str) -> LoRARequest:
        """What a call names to vLLM; loaded now where nobody has before, as in a replica that has just
        started.

        Raises:
            AdapterError: see `load`.
        """
        name = name_of(address)
        task = self._loads.get(name)
        if task is None:
            task = self._loads[name] = asyncio.create_task(self._load(name, address))
        return await asyncio.shield(task)  # who asked may leave; others wait for the same

    async def _load(self, name: str, address: str) -> LoRARequest:
        try:
            return await self._into_engine(name, await self._at_hand(name, address))
        except AdapterError as exc:
            logger.error("%s", exc.message)
            failed = asyncio.current_task()
            asyncio.get_running_loop().call_later(FAILED_FOR_S, self._forget, name, failed)
            raise

    def _forget(self, name: str, failed: object) -> None:
        if self._loads.get(name) is failed:
            del self._loads[name]

    async def _at_hand(self, name: str, address: str) -> Path:
        config = self._engine.vllm_config.lora_config
        if config is None:
            raise AdapterError(
                f"The adapter {name} needs an engine that was started for adapters. Set `enable_lora: true` in the worker's `engine` "
                "and deploy again."
            )
        try:
            async with asyncio.timeout(FETCHED_WITHIN_S):
                folder = await asyncio.to_thread(fetch, address, cache())
                await asyncio.to_thread(self._check, folder, config.max_lora_rank)
                return folder
        except TimeoutError as exc:
            raise AdapterError(
                f"The adapter {address} did not come within {FETCHED_WITHIN_S:.0f} s."
            ) from exc

    def _check(self, folder: Path, max_rank: int) -> None:
        if self._base is None:
            base = model_folder(self._engine.model_config.model)
            self._base = (tensors_of_model(base) if base else None) or {}
            if not self._base:
                logger.warning(
                    "%s: the model's weights are not at hand to compare their shapes.", folder.name
                )
        check(folder, max_rank, self._base or None)

    async def _into_engine(self, name: str, folder: Path) -> LoRARequest:
        request = LoRARequest(name, next(self._numbers), str(folder))
        try:
            await self._engine.add_lora(request)
        except EngineDeadError:
            raise
        except Exception as exc:
            await self._engine.remove_lora(request.lora_int_id)  # it may be in by half
            raise AdapterError(f"vLLM does not take the adapter {name}: {exc}") from exc
        logger.info("The adapter %s is loaded.", name)
        return request


def model_folder(model: str) -> Path | None:
    """Where the engine has its model from: the folder itself, or the hub's cache; None where it is not
    there.
    """
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache

    config: Any = try_to_load_from_cache(model, "config.json")
    return Path(config).parent if isinstance(config, str) else None
