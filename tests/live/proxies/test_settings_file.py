"""A server as `make serve` starts it follows its settings file."""

import shutil
import time
from pathlib import Path

import httpx2 as httpx
import pytest
import yaml

from cluster.local.server import Server
from tests.conftest import ROOT

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


def test_an_edited_settings_file_is_served_without_a_restart_and_a_bad_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    shutil.copy(ROOT / "cluster/scripted.yaml", path)
    settings = yaml.safe_load(path.read_text())
    ask = {"model": "c", "messages": [{"role": "user", "content": "?"}]}
    with Server(settings=path, port=0) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        assert (
            client.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]["content"] != "new"
        )
        next(worker for worker in settings["workers"] if worker["name"] == "c")["replies"] = ["new"]
        path.write_text(yaml.safe_dump(settings))
        deadline = time.monotonic() + 60
        while (
            client.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]["content"] != "new"
        ):
            assert time.monotonic() < deadline, "the edited file is not taken"
            time.sleep(0.2)
        path.write_text(yaml.safe_dump(settings | {"workerz": []}))
        while "workerz" not in client.get("/readyz").json().get("refused_user_config", ""):
            assert time.monotonic() < deadline, "the bad file is not told"
            time.sleep(0.2)
        assert (
            client.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]["content"] == "new"
        )
