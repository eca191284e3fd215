"""Where the store is: a SQLite file of this machine, or a PostgreSQL database that all routers share.

An address may hold a password. It comes from an environment variable, `repr` and every error leave it out,
and nothing writes it down.
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
    """The store cannot be used; the message says why, and what to do. It holds no password."""


@dataclass(frozen=True, slots=True)
class Address:
    """A database.

    Args:
        kind: of database.
        name: for messages: the SQLite file, or the host and the database.
        dsn: what asyncpg takes, password included; empty for SQLite.
    """

    kind: Kind
    name: str
    dsn: str = field(default="", repr=False)

    @property
    def path(self) -> Path:
        """The SQLite file."""
        assert self.kind == "sqlite", self.kind
        return Path(self.name)

    @property
    def may_hold_something(self) -> bool:
        """Whether anything can have been stored: a SQLite file appears with the first thing that is."""
        return self.kind != "sqlite" or self.path.exists()


def find_address(settings: StoreSettings, environment: Mapping[str, str]) -> Address:
    """The address that `environment` has in the variable of `settings`, else the SQLite file.

    Raises:
        StoreError: the variable holds no such address.
    """
    text = environment.get(settings.url_env, "").strip()
    if not text:
        return sqlite_address(settings.path or default_path(environment))
    try:
        return parse_address(text)
    except ValueError as exc:  # its cause may quote the password
        raise StoreError(
            f"store.url_env: the variable {settings.url_env} {exc}. Write {EXAMPLE}, or unset it to keep the store in a SQLite file."
        ) from None


def parse_address(text: str) -> Address:
    """The address that a URL says: `postgresql://...`, or `sqlite:////absolute/path`.

    Raises:
        ValueError: it is neither; the message continues a sentence and quotes no password.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise ValueError("is no URL")
    if scheme == "sqlite":
        path = Path(unquote(rest.removeprefix("/")))
        if not path.is_absolute():
            raise ValueError(
                "names a SQLite file that is not an absolute path, as in sqlite:////data/podium.db"
            )
        return sqlite_address(path)
    if scheme not in POSTGRESQL_SCHEMES:
        raise ValueError("names a kind of database that is not supported (PostgreSQL and SQLite are)")
    dsn = f"postgresql://{rest}"
    try:
        parts = urlsplit(dsn)
        hosts, database = parts.netloc.rpartition("@")[2], parts.path.removeprefix("/")
        hosts = hosts or dict(parse_qsl(parts.query)).get("host", "")
        for host in hosts.split(","):
            _ = urlsplit(f"//{host}").port  # or ValueError
    except ValueError:
        hosts, database = "", ""
    # A password with a / in it ends the host early: what follows is no name of a database to be shown.
    if not hosts or not database or any(sign in database for sign in "/@"):
        raise ValueError(
            "names no host, port or database (write special characters of the password as %40 for @, %2F for /)"
        )
    return Address("postgresql", f"{hosts}/{unquote(database)}", dsn)


def sqlite_address(path: Path) -> Address:
    """The file at `path`, made absolute."""
    absolute = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 (links stay: a mount may move)
    return Address("sqlite", str(absolute))


def default_path(environment: Mapping[str, str]) -> Path:
    """The file in this account's data folder: `$XDG_DATA_HOME/podium`, by default `~/.local/share/podium`."""
    folder = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(folder) / "podium" / FILE_NAME


def require_shared(address: Address) -> None:
    """See that routers on several nodes can all reach `address`.

    Raises:
        StoreError: it is a file of one node.
    """
    if address.kind == "sqlite":
        raise StoreError(
            f"The store is the SQLite file {address.name}, which one node alone can use, and routers may run on several. "
            f"Set PODIUM_STORE_URL (store.url_env) to {EXAMPLE} where Ray is started on every node."
        )
