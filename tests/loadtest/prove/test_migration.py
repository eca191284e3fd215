"""Migration on real databases, killed before each of its statements while others write."""

import pytest

from loadtest.prove.migration import kill_migrations
from serving.database.address import Address


@pytest.mark.slow
@pytest.mark.postgresql
async def test_a_migration_killed_at_any_statement_loses_no_row(
    empty_address: Address,
) -> None:
    killed, half, n_lost = await kill_migrations(empty_address)
    assert killed > 10
    assert (half, n_lost) == (0, 0)
