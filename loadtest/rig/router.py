"""Router in its own process, without Ray: `python -m loadtest.rig.router`.

It reads one line of JSON from standard input that says what to serve. It prints one line of JSON with its URL
and its id in the store, and serves until SIGTERM. It is the same router as in
`serving/deployments/router.py`, but behind uvicorn.

SIGUSR1 shifts its clock by the number of seconds in the file `clock`, as if an operator had set the machine's
time. The database's clock does not change. With `watch`, SIGUSR2 makes it print its resource use
(`vitals.py`).
"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn

from loadtest.rig.vitals import answer_signals
from podium.command_line.process import allow_open_files
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.directory import Directory
from serving.accounts.replica_store import ReplicaStore
from serving.api.app import build_api
from serving.api.dialects.responses.conversations import ConversationTurns
from serving.api.dialects.table import DIALECTS
from serving.batches.database_store import DatabaseBatchStore
from serving.batches.memory_store import MemoryBatchStore
from serving.batches.runner import Batches
from serving.database.address import parse_address
from serving.edge.exchange import WaitingRoom
from serving.edge.policy import HttpPolicy
from serving.edge.protocol import ReaderProtocol, guard_protocol
from serving.gc_tuning import trim_when_idle, tune_garbage_collection
from serving.pool import build_pool
from serving.sessions.service import Service
from serving.settings.settings import parse
from serving.store.database_store import DatabaseStore
from serving.store.prompt_caches import PromptCaches
from serving.store.store import StoreListener

WAITING = 4096
"""Listen backlog: the number of connections that may wait to be accepted."""
KEEP_ALIVE_S = 75
"""Keep-alive timeout in seconds, as in the cluster files. If a server closes idle connections first, requests
on their way fail.
"""


async def serve(address: str, settings: dict[str, Any], has_keys: bool, watch: bool) -> None:
    """Serve `settings` over the store at `address` until SIGTERM. With `watch`, answer SIGUSR2 and create
    spans.
    """
    checked, where = parse(settings), parse_address(address)
    directory, store = Directory(where), ReplicaStore(where)
    limits, store_settings = checked.limits, checked.store
    ledgers = AccountLedgers(store, store_settings.when_away) if has_keys else None
    pool, policies = build_pool(checked, os.environ, {}), directory.policies if has_keys else None

    def open_store(listener: StoreListener) -> DatabaseStore:
        return DatabaseStore(store, lambda: limits, store_settings, listener=listener)

    service = Service(
        pool,
        open_store if store_settings.records else None,
        ledgers=ledgers,
        policies=policies,
        keep_turn=ConversationTurns(),
        prompt_caches=PromptCaches(store) if store_settings.records else None,
    )
    batches = Batches(
        DatabaseBatchStore(store) if store_settings.records else MemoryBatchStore(), service, policies
    )
    service.store.start()
    batches.start()
    api = build_api(service, directory=directory if has_keys else None, work=batches)
    policy = HttpPolicy.of(checked)
    room = WaitingRoom(policy.max_waiting, policy.max_unfinished_bytes)
    config = uvicorn.Config(
        api,
        http=guard_protocol(policy, room, DIALECTS.error_body, ReaderProtocol),  # as behind HAProxy
        log_level="error",
        lifespan="off",
        ws="none",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(WAITING)
        await server.startup(sockets=[listener])
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: _stop(server))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        tune_garbage_collection()
        trim_when_idle()
        if watch:
            answer_signals(service)
        sys.stdout.write(json.dumps({"url": url, "owner": store.owner}) + "\n")
        sys.stdout.flush()
        await server.main_loop()
        await server.shutdown(sockets=[listener])
    await batches.aclose()
    await service.aclose()
    await store.aclose()
    await directory.aclose()


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


def follow_clock(path: Path) -> None:
    """At each SIGUSR1, shift the time of day by the seconds in `path`."""
    true_ns = time.time_ns

    def move(*_: object) -> None:
        off_ns = int(float(path.read_text()) * 1e9)
        time.time_ns = lambda: true_ns() + off_ns
        time.time = lambda: (true_ns() + off_ns) / 1e9

    signal.signal(signal.SIGUSR1, move)


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    allow_open_files()
    if clock := orders.pop("clock"):
        follow_clock(Path(clock))
    asyncio.run(serve(**orders))


if __name__ == "__main__":
    main()
