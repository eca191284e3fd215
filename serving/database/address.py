"""Address of the store: a SQLite file on this machine, or a PostgreSQL database that all routers share.

An address may contain a password. It comes from an environment variable, is left out of `repr` and of all
errors, and is never stored.
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
    """The store cannot be used. The message says why and what to do, and contains no password."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a database.

    Args:
        kind: kind of database.
        name: name for messages: the SQLite file, or the host and the database.
        dsn: URL for asyncpg, including the password. Empty for SQLite.
    """

    kind: Kind
    name: str
    dsn: str = field(default="", repr=False)

    @property
    def path(self) -> Path:
        """Path of the SQLite file."""
        assert self.kind == "sqlite", self.kind
        return Path(self.name)

    @property
    def may_hold_something(self) -> bool:
        """False if nothing can have been stored yet: a SQLite file is created by the first write."""
        return self.kind != "sqlite" or self.path.exists()


def find_address(settings: StoreSettings, environment: Mapping[str, str]) -> Address:
    """Return the address from the environment variable that `settings` names, or else the SQLite file.

    Raises:
        StoreError: the variable does not contain a valid address.
    """
    text = environment.get(settings.url_env, "").strip()
    if not text:
        return sqlite_address(settings.path or default_path(environment))
    try:
        return parse_address(text)
    except ValueError as exc:  # without its cause, which may quote the password
        raise StoreError(
            f"store.url_env: the variable {settings.url_env} {exc}. Set it to {EXAMPLE}, or unset it to use a SQLite file."
        ) from None


def parse_address(text: str) -> Address:
    """Return the address for a URL: `postgresql://...`, or `sqlite:////absolute/path`.

    Raises:
        ValueError: the URL is neither. The message continues a sentence and contains no password.
    """
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
        raise ValueError("has no valid host, port or database (in the password, write @ as %40 and / as %2F)")
    return Address("postgresql", f"{hosts}/{unquote(database)}", dsn)


def sqlite_address(path: Path) -> Address:
    """Return the address of the file at `path`, which is made absolute."""
    absolute = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 (links stay: a mount may move)
    return Address("sqlite", str(absolute))


def default_path(environment: Mapping[str, str]) -> Path:
    """Return the file in this user's data folder: `$XDG_DATA_HOME/podium`, by default
    `~/.local/share/podium`.
    """
    folder = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(folder) / "podium" / FILE_NAME


def require_shared(address: Address) -> None:
    """Check that routers on several nodes can all reach `address`.

    Raises:
        StoreError: the address is a file on one node.
    """
    if address.kind == "sqlite":
        raise StoreError(
            f"The store is the SQLite file {address.name}, which only one node can use, but routers may run on several. "
            f"Set PODIUM_STORE_URL (store.url_env) to {EXAMPLE} when you start Ray on each node."
        )
