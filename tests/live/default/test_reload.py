import time
from typing import Any

import httpx2 as httpx
import pytest

from tests.conftest import ROOT
from tests.live.default.local import Local, deploy

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
ASK = {"model": "c", "messages": [{"role": "user", "content": "?"}]}


def deploy_scripted(user_config: dict[str, Any]) -> None:
    deploy("reload", ROOT / "cluster/scripted.yaml", user_config)


def test_a_new_price_and_limit_apply_to_new_requests_without_a_restart(local: Local) -> None:
    deploy_scripted({})
    with httpx.Client(base_url=f"{local.url}/reload", timeout=30) as client:
        before = client.post("/v1/chat/completions", json=ASK).json()
        price = {"input_usd_per_mtok": 1000, "output_usd_per_mtok": 1000}
        deploy_scripted({"workers": [{"name": "c", "price": price}], "limits": {"max_body_bytes": 200}})

        deadline = time.monotonic() + 60
        while client.post("/v1/chat/completions", json=ASK | {"user": "x" * 200}).status_code != 413:
            assert time.monotonic() < deadline, "the new limit does not hold"
            time.sleep(0.1)
        after = client.post("/v1/chat/completions", json=ASK).json()
        assert after["podium"]["cost_usd"] > 100 * before["podium"]["cost_usd"]
        record = client.get(f"/v1/workflows/{before['podium']['workflow_id']}")
        assert record.status_code == 200, "the replica was restarted: its records are gone"


def test_an_invalid_user_config_is_reported_and_the_replica_continues(local: Local) -> None:
    deploy_scripted({})
    with httpx.Client(base_url=f"{local.url}/reload", timeout=30) as client:
        before = client.post("/v1/chat/completions", json=ASK).json()
        deploy_scripted({"workers": [{"name": "c", "prise": {}}]})
        deadline = time.monotonic() + 60
        while "prise" not in client.get("/readyz").json().get("refused_user_config", ""):
            assert time.monotonic() < deadline, "it is not told"
            time.sleep(0.1)
        assert client.post("/v1/chat/completions", json=ASK).status_code == 200
        assert client.get(f"/v1/workflows/{before['podium']['workflow_id']}").status_code == 200
