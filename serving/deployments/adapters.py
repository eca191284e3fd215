"""LoRA adapters of one vLLM engine. Each adapter is fetched, checked and loaded before a request uses it.

If a request names an adapter that vLLM has not loaded, vLLM loads it in the middle of a step, and an error
there ends the engine. Loading each adapter on its own first keeps the engine alive. vLLM evicts the least
recently used adapter when it needs room (`max_loras`), and reloads it from the cached folder when it is used
again.
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

FETCH_TIMEOUT_S = 300.0
"""Maximum time to fetch and check one adapter."""
FAILURE_TTL_S = 10.0
"""Seconds for which calls get a failed load's error. An explicit `load` retries immediately."""

logger = logging.getLogger("podium")


class Adapters:
    """Adapters that are loaded into one engine. Each has a name, and an id that is never reused."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._numbers = itertools.count(1)
        self._loads: dict[str, asyncio.Task[LoRARequest]] = {}
        self._base: dict[str, Tensor] | None = None

    async def load(self, address: str) -> LoRARequest:
        """Fetch the adapter and load it into the engine, also after a failure. An AdapterError leaves the
        engine unchanged.
        """
        before = self._loads.get(name_of(address))
        if before and before.done() and (before.cancelled() or before.exception()):
            self._forget(name_of(address), before)
        return await self.lora_request(address)

    async def lora_request(self, address: str) -> LoRARequest:
        """Return vLLM's request object for the adapter, and load it first if this replica has not."""
        name = name_of(address)
        task = self._loads.get(name)
        if task is None:
            task = self._loads[name] = asyncio.create_task(self._load(name, address))
        return await asyncio.shield(task)  # a cancelled caller must not cancel the load for the others

    async def _load(self, name: str, address: str) -> LoRARequest:
        try:
            return await self._add_to_engine(name, await self._fetch(name, address))
        except AdapterError as exc:
            logger.error("%s", exc.message)
            failed = asyncio.current_task()
            asyncio.get_running_loop().call_later(FAILURE_TTL_S, self._forget, name, failed)
            raise

    def _forget(self, name: str, failed: object) -> None:
        if self._loads.get(name) is failed:
            del self._loads[name]

    async def _fetch(self, name: str, address: str) -> Path:
        config = self._engine.vllm_config.lora_config
        if config is None:
            raise AdapterError(
                f"Adapter {name} needs an engine with LoRA support. "
                "Set `enable_lora: true` in the worker's `engine` and redeploy."
            )
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                folder = await asyncio.to_thread(fetch, address, cache())
                await asyncio.to_thread(self._check, folder, config.max_lora_rank)
                return folder
        except TimeoutError as exc:
            raise AdapterError(
                f"Fetching adapter {address} took longer than {FETCH_TIMEOUT_S:.0f} s."
            ) from exc

    def _check(self, folder: Path, max_rank: int) -> None:
        if self._base is None:
            base = model_folder(self._engine.model_config.model)
            self._base = (tensors_of_model(base) if base else None) or {}
            if not self._base:
                logger.warning(
                    "Adapter %s: tensor shapes are not checked, because the base model's weights are not on this machine.",
                    folder.name,
                )
        check(folder, max_rank, self._base or None)

    async def _add_to_engine(self, name: str, folder: Path) -> LoRARequest:
        request = LoRARequest(name, next(self._numbers), str(folder))
        try:
            await self._engine.add_lora(request)
        except EngineDeadError:
            raise
        except Exception as exc:
            await self._engine.remove_lora(request.lora_int_id)  # it may be partly loaded
            raise AdapterError(f"vLLM rejected adapter {name}: {exc}") from exc
        logger.info("Loaded adapter %s.", name)
        return request


def model_folder(model: str) -> Path | None:
    """Return the engine's local folder of its model, maybe in the Hugging Face cache, or None."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache

    config: Any = try_to_load_from_cache(model, "config.json")
    return Path(config).parent if isinstance(config, str) else None
