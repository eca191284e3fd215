"""Address of the store. No password leaves it."""

from pathlib import Path

import pytest

from serving.database.address import Address, StoreError, find_address, parse_address, require_shared
from serving.settings.sections import StoreSettings

SECRET = "hunter2-p%40ss"
URL = f"postgresql://podium:{SECRET}@db.example:6432/accounts?sslmode=require"


def test_the_default_store_is_a_file_in_the_data_folder(tmp_path: Path) -> None:
    address = find_address(StoreSettings(), {"XDG_DATA_HOME": str(tmp_path)})
    assert (address.kind, address.path) == ("sqlite", tmp_path / "podium" / "podium.db")
    assert not address.may_hold_something, "nothing is made before something is stored"
    home = find_address(StoreSettings(), {}).path
    assert home == Path.home() / ".local/share/podium/podium.db"


def test_the_settings_may_set_the_file_and_the_variable() -> None:
    assert find_address(StoreSettings(path=Path("/data/a b?.db")), {}).path == Path("/data/a b?.db")
    settings = StoreSettings(url_env="STORE")
    assert find_address(settings, {"STORE": URL, "PODIUM_STORE_URL": "nonsense"}).kind == "postgresql"
    assert find_address(settings, {"STORE": "sqlite:////data/podium.db"}).path == Path("/data/podium.db")


def test_an_address_shows_no_password() -> None:
    address = parse_address(URL)
    assert address == Address("postgresql", "db.example:6432/accounts", URL)
    assert SECRET not in repr(address) + str(address)
    assert parse_address(URL.replace("postgresql", "postgres", 1)) == address
    assert parse_address(f"postgresql://podium:{SECRET}@one:1,[::1]:2/a").name == "one:1,[::1]:2/a"
    assert parse_address("postgresql:///a?host=/run/postgresql").name == "/run/postgresql/a"


@pytest.mark.parametrize(
    "text",
    [
        f"mysql://podium:{SECRET}@db/x",
        f"podium:{SECRET}@db/x",
        f"postgresql://podium:{SECRET}@db",
        f"postgresql://podium:{SECRET}@/x",
        f"postgresql://podium:{SECRET}@[db/x",
        f"postgresql://podium:{SECRET}/9@db/x",
        f"postgresql://podium:{SECRET}@9/9@db/x",
        f"postgresql://podium:6/{SECRET}@db/x",
        f"postgresql://podium:{SECRET}@db:port/x",
        f"postgresql://podium:{SECRET}@db:5432,db:65536/x",
        f"sqlite:///{SECRET}.db",
    ],
)
def test_an_invalid_address_is_an_error_without_the_password(text: str) -> None:
    with pytest.raises(
        StoreError, match=r"variable PODIUM_STORE_URL .*Set it to postgresql://USER"
    ) as caught:
        find_address(StoreSettings(), {"PODIUM_STORE_URL": text})
    assert SECRET not in repr(caught.value)
    assert caught.value.__suppress_context__


def test_a_file_is_rejected_if_several_nodes_share_the_store() -> None:
    with pytest.raises(StoreError, match="only one node"):
        require_shared(Address("sqlite", "/data/podium.db"))
    require_shared(parse_address(URL))
