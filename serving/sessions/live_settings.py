"""Changes of the settings at run time: by Serve's `user_config`, by an edited settings file, or by rotated
key files.

New settings create a new pool of workers. Active runs finish on the old pool. Invalid settings are rejected.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from conductor.errors import PodiumError, StoreUnavailable, WorkerUnavailable
from conductor.model.failure import Failure
from conductor.run.run import end_task
from serving.database.address import StoreError
from serving.lora.adapters import AdapterError
from serving.pool import Pool
from serving.sessions.service import Service
from serving.settings.faults import in_file
from serving.settings.patch import apply_patch, check_same_deployments
from serving.settings.settings import Settings, SettingsError
from serving.settings.source import SettingsSource, key_stamps

logger = logging.getLogger("podium")

POLL_S = 1.0
"""Seconds between two checks of the files."""
FAULTS = (SettingsError, AdapterError, WorkerUnavailable)
AT_START = ("http", "store")
"""Sections of the settings that are read only when the server starts."""


class LiveSettings:
    """Current settings of one router, and their changes. Call `start` and `aclose`.

    Args:
        source: source of the settings, or None if they do not come from a file.
        poll_s: seconds between two checks of the files.
        complete: function that adds missing values, such as known prices. It is called in a thread.
        find_policy_faults: function that returns a message for each name in a policy that the settings do not
            define.
    """

    def __init__(
        self,
        service: Service,
        settings: Settings,
        build: Callable[[Settings], Pool],
        source: SettingsSource | None = None,
        poll_s: float = POLL_S,
        *,
        complete: Callable[[Settings], Settings] = lambda settings: settings,
        find_policy_faults: Callable[[Settings], Awaitable[list[str]]] | None = None,
    ) -> None:
        self._service, self._settings, self._build = service, settings, build
        self._source, self._poll_s, self._complete = source, poll_s, complete
        self._find_policy_faults = find_policy_faults
        self._user_config: Mapping[str, Any] = {}
        self._complete_settings = settings
        """Settings with `user_config` applied, including workers whose keys are missing."""
        self._changing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.is_up = False
        """True if the server has started. Before `/readyz` succeeds, engines start and load their adapters."""

    def start(self) -> None:
        """Start to check the settings file and the key files for changes."""
        self.is_up = True
        if self._task is None and self._source is not None:
            self._task = asyncio.create_task(self._follow(self._source), name="settings file")

    async def aclose(self) -> None:
        task, self._task = self._task, None
        await end_task(task)

    async def patch(self, user_config: Mapping[str, Any]) -> None:
        """Apply `user_config`, which replaces the previous one. If it is invalid, raise before the start, or
        else report it in the log and `/readyz`.
        """
        try:
            await self._apply(self._settings, user_config)
        except FAULTS as exc:
            if not self.is_up:
                raise
            self._reject("user_config", exc)

    async def reload(self) -> None:
        """Read settings and key files again, and apply them. If they are invalid, the previous ones stay."""
        try:
            if self._source is None:
                raise SettingsError(
                    "This server was started without a settings file, so there is nothing to reload."
                )
            settings = await asyncio.to_thread(self._source.read)
            check_same_deployments(self._settings, settings, "The settings file")
            await self._apply(settings, self._user_config)
        except FAULTS as exc:
            error = (
                in_file(exc, self._source.path) if isinstance(exc, SettingsError) and self._source else exc
            )
            self._reject("settings file", error)
            raise error from exc
        logger.info("Settings file reloaded: %s", self._source.path)

    async def _apply(self, settings: Settings, user_config: Mapping[str, Any]) -> None:
        async with self._changing:
            complete_settings = await asyncio.to_thread(self._complete, apply_patch(settings, user_config))
            pool = self._build(complete_settings)
            try:
                if self.is_up:
                    await pool.load_adapters()
            except BaseException:
                await pool.aclose()
                raise
            late = [name for name in AT_START if getattr(settings, name) != getattr(self._settings, name)]
            if late:
                logger.warning("Changes to %s take effect after a restart.", ", ".join(late))
            self._settings, self._user_config, self._complete_settings = (
                settings,
                user_config,
                complete_settings,
            )
            await self._service.swap(pool)
        if self.is_up:
            await self.check_policies()

    async def check_policies(self) -> None:
        """Log the names in policies of teams and keys that the settings do not define.

        Skip the check if the store is unreachable.
        """
        if self._find_policy_faults is None:
            return
        faults: list[str] = []
        with suppress(StoreUnavailable, StoreError):
            faults = await self._find_policy_faults(self._service.pool.written)
        for fault in faults:
            logger.warning("Unknown name in the policy of %s", fault)
        self._service.policy_faults = faults

    def _reject(self, what: str, error: PodiumError) -> None:
        why = self._service.refused = Failure.of(error).explanation
        logger.error("Rejected the new %s. The previous settings stay in use. %s", what, why)

    async def _follow(self, source: SettingsSource) -> None:
        """Reload when a file has changed, and stayed the same for one poll, so that it is completely written."""
        applied_stamp = last_stamp = (source.digest, key_stamps(self._complete_settings))
        while True:
            await asyncio.sleep(self._poll_s)
            now = await asyncio.to_thread(source.stamp, self._complete_settings)
            if now == last_stamp and now != applied_stamp and now[0]:
                applied_stamp = now
                with suppress(*FAULTS):
                    await self.reload()
                    applied_stamp = last_stamp = (now[0], key_stamps(self._complete_settings))
                    continue
            last_stamp = now
