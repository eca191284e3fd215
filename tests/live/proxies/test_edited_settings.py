from typing import Any

import httpx2 as httpx
import pytest
import yaml

from tests.live.proxies.conftest import Proxied
from tests.states import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
WITHIN_S = 60


async def test_an_edited_settings_file_is_applied_without_a_restart(
    behind_serves_proxy: Proxied,
) -> None:
    path = behind_serves_proxy.settings
    before = path.read_text()
    settings: Any = yaml.safe_load(before)
    ask = {"model": "c", "messages": [{"role": "user", "content": "?"}]}
    with httpx.Client(base_url=behind_serves_proxy.url, timeout=30) as client:

        def answer() -> str:
            return client.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]["content"]

        def rejection() -> str:
            return client.get("/readyz").json().get("refused_user_config", "")

        assert answer() != "new"
        next(worker for worker in settings["workers"] if worker["name"] == "c")["replies"] = ["new"]
        try:
            path.write_text(yaml.safe_dump(settings))
            await until(lambda: answer() == "new", "the edited file is taken", WITHIN_S)
            path.write_text(yaml.safe_dump(settings | {"workerz": []}))
            await until(lambda: "workerz" in rejection(), "the bad file is told", WITHIN_S)
            assert answer() == "new"
        finally:
            path.write_text(before)
        await until(lambda: answer() != "new" and not rejection(), "the first file is taken again", WITHIN_S)
