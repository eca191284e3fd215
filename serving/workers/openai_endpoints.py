"""Where a server of OpenAI's wire is asked for each kind of call."""

import httpx2
import openai

from conductor.model.operation import CallKind
from serving.workers.account import Account

PATHS: dict[CallKind, str] = {
    "chat": "/chat/completions",
    "plan": "/chat/completions",
    "text_completion": "/completions",
    "embeddings": "/embeddings",
}


def address(account: Account, sdk: openai.AsyncOpenAI) -> httpx2.URL:
    """Up to and with `/v1`, or what stands for it."""
    if account.access.service == "azure":
        return sdk.base_url.copy_with(params={"api-version": account.access.api_version})
    return httpx2.URL(account.base_url) if account.base_url else sdk.base_url


def endpoints(url: httpx2.URL) -> dict[CallKind, httpx2.URL]:
    """Where each kind of call goes, below `url`; its query, such as Azure's `api-version`, stays."""
    return {kind: url.copy_with(path=url.path.rstrip("/") + path) for kind, path in PATHS.items()}
