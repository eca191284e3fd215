"""Addresses of OpenAI's endpoints for each kind of call."""

import httpx2
import openai

from conductor.model.operation import CallKind
from serving.workers.account import ProviderAccount

PATHS: dict[CallKind, str] = {
    "chat": "/chat/completions",
    "plan": "/chat/completions",
    "text_completion": "/completions",
    "embeddings": "/embeddings",
}


def address(account: ProviderAccount, sdk: openai.AsyncOpenAI) -> httpx2.URL:
    """Return the base URL of the account's API, including `/v1` or its equivalent."""
    if account.access.service == "azure":
        return sdk.base_url.copy_with(params={"api-version": account.access.api_version})
    return httpx2.URL(account.base_url) if account.base_url else sdk.base_url


def endpoints(url: httpx2.URL) -> dict[CallKind, httpx2.URL]:
    """Return the endpoints below `url`. Its query, such as Azure's `api-version`, is kept."""
    return {kind: url.copy_with(path=url.path.rstrip("/") + path) for kind, path in PATHS.items()}
