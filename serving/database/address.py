"""Address of the store: a SQLite file on this machine, or a PostgreSQL database that all routers share.

The address may contain a password. It therefore comes from an environment variable and is never stored. The
password does not appear in `repr` or in any error.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from conductor.errors import PodiumError
from serving.settings.sections import StoreSettings

Kind = Literal["sqlite", "postgresql"]
FILE_NAME = "podium.db"
POSTGRESQL_SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
EXAMPLE = "postgresql://USER:PASSWORD@HOST:5432/DATABASE"


class StoreError(PodiumError):
    """The store cannot be used. The message says why and what to do. It contains no password."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a database.

    Args:
        kind: kind of database.
        name: path of the SQLite file, or host and name of the PostgreSQL database. It is shown in messages.
        dsn: URL for asyncpg, including the password, or "" for SQLite.
    """

    kind: Kind
    name: str
    dsn: str = field(default="", repr=False)

    @property
    def path(self) -> Path:
        assert self.kind == "sqlite", self.kind
        return Path(self.name)

    @property
    def may_hold_something(self) -> bool:
        """False if nothing was stored yet: the SQLite file does not exist until the first write."""
        return self.kind != "sqlite" or self.path.exists()


def find_address(settings: StoreSettings, environment: Mapping[str, str]) -> Address:
    """Return the store's address from the variable `settings.url_env`, or the SQLite file at `settings.path`
    or the default path. Raise StoreError if the variable is not valid.
    """
    text = environment.get(settings.url_env, "").strip()
    if not text:
        return sqlite_address(settings.path or default_path(environment))
    try:
        return parse_address(text)
    except ValueError as exc:  # without its cause, which may quote the password
        raise StoreError(
            f"store.url_env: the environment variable {settings.url_env} {exc}. Set it to {EXAMPLE}, or unset it to use a SQLite file."
        ) from None


def parse_address(text: str) -> Address:
    """Parse `postgresql://...` or `sqlite:////absolute/path`. The ValueError has no subject and no password."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise ValueError("is not a URL")
    if scheme == "sqlite":
        path = Path(unquote(rest.removeprefix("/")))
        if not path.is_absolute():
            raise ValueError("must have an absolute path to the SQLite file, as in sqlite:////data/podium.db")
        return sqlite_address(path)
    if scheme not in POSTGRESQL_SCHEMES:
        raise ValueError("names an unsupported kind of database (supported: PostgreSQL, SQLite)")
    dsn = f"postgresql://{rest}"
    try:
        parts = urlsplit(dsn)
        hosts, database = parts.netloc.rpartition("@")[2], parts.path.removeprefix("/")
        hosts = hosts or dict(parse_qsl(parts.query)).get("host", "")
        for host in hosts.split(","):
            _ = urlsplit(f"//{host}").port  # raises ValueError
    except ValueError:
        hosts, database = "", ""
    # A password that contains / ends the host early. The rest must then not be shown as the database's name.
    if not hosts or not database or any(sign in database for sign in "/@"):
        raise ValueError(
            "must have a valid host, port and database (in the password, write @ as %40 and / as %2F)"
        )
    return Address("postgresql", f"{hosts}/{unquote(database)}", dsn)


def sqlite_address(path: Path) -> Address:
    """Return the address of the SQLite file at `path`. The address contains the absolute path."""
    absolute = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 (links stay: a mount may move)
    return Address("sqlite", str(absolute))


def default_path(environment: Mapping[str, str]) -> Path:
    """Return the default path of the SQLite file in `$XDG_DATA_HOME/podium` or `~/.local/share/podium`."""
    folder = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(folder) / "podium" / FILE_NAME


def require_shared(address: Address) -> None:
    """Check that routers on several nodes can reach the database, or raise StoreError for a file."""
    if address.kind == "sqlite":
        raise StoreError(
            f"The store is the SQLite file {address.name}, which only one node can use, but routers may run on several. "
            f"Set PODIUM_STORE_URL (store.url_env) to {EXAMPLE} when you start Ray on each node."
        )
