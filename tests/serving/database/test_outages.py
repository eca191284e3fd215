"""Which errors of a database driver are outages."""

import sqlite3

import pytest

from serving.database.outages import is_away


@pytest.mark.parametrize(
    ("code", "away"),
    [
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, True),
        (sqlite3.SQLITE_IOERR_WRITE, True),
        (sqlite3.SQLITE_READONLY_DBMOVED, True),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, False),
        (sqlite3.SQLITE_ERROR, False),
    ],
)
def test_extended_codes_of_sqlite_are_outages_like_their_basic_codes(code: int, away: bool) -> None:
    error = sqlite3.OperationalError("failed")
    error.sqlite_errorcode = code
    assert is_away(error) is away
