"""Runs that a caller may go on with or ask about again."""

from conductor.run.record import RunRecords
from serving.accounts.caller import Caller, Scope
from serving.api.dialect import CallId
from serving.runs.service import Service
from serving.runs.tool_ids import CallName


class CallersRuns:
    """Those that `caller` may read, and those of its own key; see `EarlierRuns`."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service, self._caller = service, caller

    async def find(self, id: str) -> RunRecords | None:
        """See `EarlierRuns.find`."""
        records = await self._service.records(id, self._caller)
        if records is None or self._caller.may(Scope.READ):
            return records
        return records if records.record.account.key_id == self._caller.account.key_id else None

    async def call_id(self, id: str) -> CallId:
        """See `EarlierRuns.call_id`."""
        ids = await self._service.store.call_ids()
        return lambda number: ids.sign(CallName(id, number))
