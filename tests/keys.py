"""API keys created and revoked by command, and a server's responses to them."""

import os
import subprocess
import time
from collections.abc import Mapping

import httpx2 as httpx

from serving.accounts.keys import ApiKey
from tests.conftest import PODIUM

PROMISED_S = 10.0
"""Maximum time until a server applies a command's change."""
ASK = {"model": "podium-mini", "messages": [{"role": "user", "content": "Why?"}]}


def make_key(store: Mapping[str, str], name: str, *options: str) -> str:
    """Return the key that `podium keys create` prints."""
    return ApiKey(_keys(store, "create", name, *options).strip()).reveal()


def revoke_key(store: Mapping[str, str], name: str) -> None:
    _keys(store, "revoke", name)


def _keys(store: Mapping[str, str], *arguments: str) -> str:
    environment = os.environ | store
    return subprocess.run(
        [PODIUM, "keys", *arguments], env=environment, capture_output=True, text=True, check=True
    ).stdout


def status(url: str, key: str | None = None, body: object = None) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(timeout=60, trust_env=False) as client:
        return client.request("POST" if body else "GET", url, json=body, headers=headers).status_code


OPEN_AND_CLOSED = [200, 200, 200, 200, 401, 200, 401, 200]


def open_and_closed(url: str, key: str) -> list[int]:
    """Return the statuses of health, readiness, models and chat, each without a key and with `key`."""
    paths = (("/healthz", None), ("/readyz", None), ("/v1/models", None), ("/v1/chat/completions", ASK))
    return [status(url + path, each, body) for path, body in paths for each in (None, key)]


def wait_until_rejected(url: str, key: str | None = None) -> None:
    """Wait until the server rejects `key`, or requests without a key."""
    ends_s = time.monotonic() + PROMISED_S
    while (answer := status(url, key)) != 401:
        assert time.monotonic() < ends_s, f"it still answers {answer}"
        time.sleep(0.1)
