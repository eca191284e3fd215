"""Runs that wait for tool results in vain, and rotation of the secret of ids meanwhile."""

import logging

import pytest

from conductor.errors import BadTask
from serving.accounts.caller import ANONYMOUS
from serving.database.address import Address
from serving.settings.sections import StoreSettings
from serving.store.signing_secrets import ROTATE_S, rotate_secret
from tests.serving.api.calling_team import calling_team
from tests.serving.api.served import served
from tests.serving.store.stores import open_stores, replicas
from tests.serving.store.test_suspended_runs import PATH, suspend, suspended_rows, text_of

pytestmark = pytest.mark.postgresql

PAST = "UPDATE signing_secret SET made_us = made_us - :us"


def log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("workflow")]


async def test_a_waiting_run_that_expires_or_is_cancelled_is_logged_and_counted_once(
    store_address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "podium")
    async with replicas(store_address, calling_team()) as (one, other):
        await suspend(one.api)
        await one.change("UPDATE suspended_run SET drop_us = 1")
        assert log_lines(caplog) == []
        for router in (one, other):
            await router.records.sweep()
        assert log_lines(caplog) == ["workflow expired"]
        await suspend(one.api)
        ((id, *_),) = await suspended_rows(one)
        for router in (other, one):
            cancelled = await router.api.http.post(f"/v1/workflows/{id}/cancel", json={})
            assert cancelled.status_code == 200, cancelled.text
        assert log_lines(caplog) == ["workflow expired", "workflow cancelled"]


async def test_a_run_in_memory_that_is_cancelled_while_it_waits_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "podium")
    async with served(calling_team()) as api:
        await suspend(api)
        id = next(iter((await api.service.store.newest(1, ANONYMOUS)).runs)).record.id
        await api.http.post(f"/v1/workflows/{id}/cancel", json={})
    assert log_lines(caplog) == ["workflow cancelled"]


async def test_the_oldest_waiting_runs_of_a_team_expire_first(
    store_address: Address,
) -> None:
    async with replicas(store_address, calling_team(), n=1) as (one,):
        for _ in range(4):
            await suspend(one.api)
        ids = [id for (id,) in await one.rows("SELECT id FROM run ORDER BY made_us")]
        owners = zip(ids, ("mine", "mine", "mine", "other"), strict=True)
        for id, team_id in owners:
            await one.change("UPDATE run SET team_id = :team_id WHERE id = :id", id=id, team_id=team_id)
        ((size,),) = await one.rows("SELECT max(length(body)) FROM suspended_run")
        async with open_stores(
            store_address, settings=StoreSettings(waiting_bytes_per_team=size * 5 // 2)
        ) as (
            _,
            store,
        ):
            await store.sweep()
        statuses = [status for (status,) in await one.rows("SELECT status FROM run ORDER BY made_us")]
        assert statuses == ["expired", "waiting", "waiting", "waiting"]
        assert [id for id, *_ in await suspended_rows(one)] == ids[1:]


async def test_a_run_waits_at_most_as_long_as_its_texts_may_be_stored(store_address: Address) -> None:
    settings = calling_team() | {"store": {"content_days": 0.01}}
    async with replicas(store_address, settings, n=1) as (one,):
        await suspend(one.api)
        ((waits_us,),) = await one.rows(
            "SELECT s.drop_us - r.made_us FROM suspended_run s JOIN run r ON r.id = s.run_id"
        )
    assert 864 <= waits_us / 1e6 < 900


async def test_results_continue_a_run_once_and_reject_n(store_address: Address) -> None:
    async with replicas(store_address, calling_team(), n=1) as (one,):
        answer = await suspend(one.api)
        refused = await one.api.http.post(PATH, json=answer | {"n": 2})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n"), refused.text
        assert text_of(await one.api.http.post(PATH, json=answer)) == "They gave: noon."


async def test_after_a_rotation_the_previous_secret_is_valid_until_the_next(
    store_address: Address,
) -> None:
    async with replicas(store_address, calling_team(), n=1) as (one,):
        old, older = await suspend(one.api), await suspend(one.api)
        await rotate_secret(store_address)
        with pytest.raises(BadTask, match="The previous rotation takes effect"):
            await rotate_secret(store_address)
        async with replicas(store_address, calling_team(), n=1) as (new,):
            early = await suspend(new.api)
            assert text_of(await one.api.http.post(PATH, json=early)) == "They gave: noon."
        await one.change(PAST, us=int(ROTATE_S * 1_000_000) + 1)
        async with replicas(store_address, calling_team(), n=1) as (new,):
            late = await suspend(new.api)
            assert text_of(await new.api.http.post(PATH, json=old)) == "They gave: noon."
        await rotate_secret(store_address)
        async with replicas(store_address, calling_team(), n=1) as (new,):
            refused = await new.api.http.post(PATH, json=older)
            assert refused.status_code == 400
            assert "has an invalid signature" in refused.text
            assert text_of(await new.api.http.post(PATH, json=late)) == "They gave: noon."
