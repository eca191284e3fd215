"""Access to models through Azure, AWS and Google Cloud: libraries, credentials and their errors.

Azure's and AWS's libraries come with the extras `azure` and `bedrock`. They are imported only if a worker needs them.
"""
# boto3 and google-auth have no types of their own.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.settings.model_access import ModelAccess, Service
from serving.settings.settings import SettingsError
from serving.settings.workers import ApiSettings
from serving.workers.provider_account import NO_KEY, ProviderAccount

if TYPE_CHECKING:
    import httpx2
    import openai

ENTRA_SCOPE = "https://cognitiveservices.azure.com/.default"
GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
LIBRARIES: dict[Service, str] = {"azure": "azure.identity", "bedrock": "boto3"}
"""Module that each cloud needs in addition to the base installation."""
ERRORS = {
    "azure.core.exceptions": "AzureError",
    "botocore.exceptions": "BotoCoreError",
    "google.auth.exceptions": "GoogleAuthError",
}
"""Error class of each cloud library for missing or rejected credentials."""
GARBLES = {"botocore.eventstream": "ParserError"}
"""Error class for a response that is not in the cloud's framing."""


def check_installed(worker: ApiSettings) -> None:
    """Check that the library of the worker's cloud is installed.

    Raises:
        SettingsError: it is not installed.
    """
    module = LIBRARIES.get(worker.service) if worker.service else None
    if module is None or (worker.service == "azure" and _has_key(worker)):
        return
    if find_spec(module.partition(".")[0]) is None or find_spec(module) is None:
        raise SettingsError(
            f"The service {worker.service!r} of worker {worker.name!r} needs the module {module}, which is not installed. "
            f"Run `pip install 'podium[{worker.service}]'` in the router's environment.",
            at=("workers", worker.name, "service"),
        )


class EntraTokens:
    """Cached Entra ID tokens for Azure, for the identity of the router's process."""

    def __init__(self) -> None:
        from azure.identity.aio import DefaultAzureCredential, get_bearer_token_provider

        self._credential = DefaultAzureCredential()
        self._tokens = get_bearer_token_provider(self._credential, ENTRA_SCOPE)

    async def __call__(self) -> str:
        return await self._tokens()

    async def aclose(self) -> None:
        await self._credential.close()


def entra_tokens(account: ProviderAccount) -> EntraTokens | None:
    """Return the source of Entra ID tokens for the account, or None if it has a key or does not use Azure."""
    is_needed = account.access.service == "azure" and account.api_key == NO_KEY
    return EntraTokens() if is_needed else None


def azure_client(
    account: ProviderAccount, http: "httpx2.AsyncClient", tokens: EntraTokens | None
) -> "openai.AsyncAzureOpenAI":
    """Build the client of OpenAI's SDK for Azure's API with dated versions (`api-version`)."""
    import openai

    access = account.access
    assert account.base_url is not None, "settings say so"
    return openai.AsyncAzureOpenAI(
        azure_endpoint=account.base_url,
        azure_deployment=account.model,
        api_version=access.api_version,
        api_key=None if tokens else account.api_key,
        azure_ad_token_provider=tokens,
        max_retries=0,
        http_client=http,
    )


def vertex_address(access: ModelAccess) -> str | None:
    """Return the address of Vertex AI in the region, or None if the model is not reached through Vertex AI."""
    region = access.region
    if access.service != "vertex":
        return None
    if region in ("us", "eu"):
        return f"https://aiplatform.{region}.rep.googleapis.com"
    return "https://" + ("" if region == "global" else f"{region}-") + "aiplatform.googleapis.com"


def google_credentials(access: ModelAccess, worker: str) -> Any | None:
    """Read the Google credentials in `credentials_file`.

    Return None if the setting is missing. The SDK then looks for Application Default Credentials.

    Raises:
        SettingsError: the file cannot be used.
    """
    if access.credentials_file is None:
        return None
    from google.oauth2.service_account import Credentials

    path = Path(access.credentials_file).expanduser()
    place, at = f"The `credentials_file` {path} of worker {worker!r}", ("workers", worker, "credentials_file")
    try:
        if path.stat().st_mode & 0o007:
            raise SettingsError(
                f"{place} must not be accessible to other users. Run `chmod 600 {path}`.", at=at
            )
        return Credentials.from_service_account_file(str(path), scopes=[GOOGLE_SCOPE])
    except OSError as exc:
        raise SettingsError(f"{place} cannot be read: {exc.strerror}.", at=at) from exc
    except ValueError as exc:  # its message may quote the file
        raise SettingsError(f"{place} is not the key file of a service account.", at=at) from exc


def credential_errors() -> tuple[type[Exception], ...]:
    """Return the classes in `ERRORS` (missing or rejected credentials) whose libraries are loaded."""
    return _classes_of(ERRORS)


def garble_errors() -> tuple[type[Exception], ...]:
    """Return the classes in `GARBLES` (malformed responses) whose libraries are loaded."""
    return _classes_of(GARBLES)


def _classes_of(errors: Mapping[str, str]) -> tuple[type[Exception], ...]:
    # a library that is not loaded cannot have raised an error
    return tuple(
        getattr(module, name)
        for path, name in errors.items()
        if (module := sys.modules.get(path)) is not None
    )


def _has_key(access: ModelAccess) -> bool:
    return access.api_key_env is not None or access.api_key_file is not None
