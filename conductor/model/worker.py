"""The port: a model that can be asked one thing.

A vLLM replica, a provider's API and a script look the same from here. So does the dispatcher, which sends a call to one
of several workers, with retries. This file knows no model and no wire.
"""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from conductor.model.call import Call
from conductor.model.reply import Reply


class Worker(Protocol):
    """A model that can be asked one thing."""

    @property
    def name(self) -> str:
        """Its name in the pool."""
        ...

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """Send `call`; entered once the first token is here.

        So the time to the first token is the time entering takes, a retry is allowed exactly until then,
        and leaving the block closes the socket or aborts the local request, whatever was read by then.

        Raises:
            WorkerError: nothing was shown. A provider that had begun to work may still count what it read;
                where it said so, `usage` and `cost_usd` of the error have it.
        """
        ...
