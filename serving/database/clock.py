"""Current time of the database and of this machine.

The leases of all replicas use the clock of the database, because the clocks of several machines may differ.
"""

import time
from typing import Any

from sqlalchemy import BigInteger, bindparam, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from serving.database.address import Address
from serving.database.database import Database


class ClockUs(FunctionElement[int]):
    """SQL expression for the current time in microseconds since 1970."""

    type = BigInteger()
    inherit_cache = True


NOW_US = ClockUs()
"""Current time of the database server. With SQLite, it is the time of this machine."""


def now_us() -> int:
    """Return the time of this machine in microseconds since 1970."""
    return time.time_ns() // 1000


_MACHINE_US = bindparam("machine_us", callable_=now_us, type_=BigInteger)


@compiles(ClockUs, "postgresql")
def _server_clock(_element: ClockUs, _compiler: Any, **_: Any) -> str:
    return "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


@compiles(ClockUs, "sqlite")
def _machine_clock(_element: ClockUs, compiler: Any, **options: Any) -> str:
    return compiler.process(_MACHINE_US, **options)


async def read_clock_s(address: Address) -> float:
    """Return the time of the database in seconds since 1970. Raise StoreError or StoreUnavailable."""
    async with Database(address) as database, database.reading() as connection:
        return (await connection.execute(select(NOW_US))).scalar_one() / 1_000_000
