"""Access to a model behind an API: address, cloud service and credentials."""

import re
from typing import Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

Model = TypeVar("Model", bound=BaseModel)
Service = Literal["azure", "bedrock", "vertex"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SERVICES: dict[str, tuple[Service, ...]] = {
    "openai": ("azure",),
    "anthropic": ("bedrock", "vertex"),
    "gemini": ("vertex",),
}
"""Cloud services that offer the models of each kind."""
NEEDS: dict[Service, tuple[str, ...]] = {
    "azure": ("base_url", "api_version"),
    "bedrock": ("region",),
    "vertex": ("region", "project"),
}
"""Fields that each cloud service requires."""
TAKES: dict[str, tuple[Service, ...]] = {
    "project": ("vertex",),
    "profile": ("bedrock",),
    "credentials_file": ("vertex",),
    "api_version": ("azure",),
}
"""Fields that only some cloud services accept, with these services."""


USUAL_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}
"""Environment variables of the key for each provider's own API, by kind."""
ENDPOINTS = ("/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/embeddings")
"""Paths that workers append to their `base_url`."""


class Frozen(BaseModel):
    """Base class of all settings: immutable, without unknown fields and infinite numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        allow_inf_nan=False,  # null means no limit
        hide_input_in_errors=True,  # a rejected value may be a secret, and tracebacks are logged
    )


def overlay(base: Model, changes: Model) -> Model:
    """Return `base`, with the fields that are set in `changes` replaced."""
    return base.model_copy(update={name: getattr(changes, name) for name in changes.model_fields_set})


class ModelAccess(Frozen):
    """Address and credentials of a model."""

    service: Service | None = None
    """Cloud service through which Podium calls the model: `azure` for kind `openai`, `bedrock` for kind
    `anthropic`, or `vertex` for kinds `anthropic` and `gemini`. With `azure`, Podium uses Azure's dated API.
    To use Azure's v1 API, set only `base_url`. If null, Podium calls the provider itself, or the server at
    `base_url`."""
    api_key_env: str | None = None
    """Name of the router's environment variable that holds the API key. If this field,
    `api_key_file`, `base_url` and `service` are all omitted, the name is `OPENAI_API_KEY`,
    `ANTHROPIC_API_KEY` or `GEMINI_API_KEY`. Other servers get no key by default. Without a key, `azure` uses Entra ID
    (`DefaultAzureCredential`), and `bedrock` finds AWS credentials like boto3."""
    api_key_file: str | None = None
    """File that holds the API key, as an alternative to `api_key_env`. Other users must not be able to read
    this file. Podium reads the file again whenever it rebuilds the pool."""
    credentials_file: str | None = None
    """JSON key file of a service account (`vertex`). Only the owner of the file may be able to read it. If
    null, Podium uses Application Default Credentials."""
    profile: str | None = None
    """Profile in AWS's configuration files (`bedrock`). If null, boto3 searches for credentials in its usual
    way."""
    base_url: str | None = None
    """Base URL of the API. If null, Podium uses the provider's own URL. For `azure`, this is the URL of the
    resource, such as `https://NAME.openai.azure.com`. For kind `openai`, the URL may have a query, which
    Podium sends with every call."""
    region: str | None = None
    """Region where the model runs. For `bedrock` and `vertex`, use the cloud's own name, such as
    `eu-central-1` or `europe-west4`. In all other cases, only policies use the name, and you can choose any,
    such as `eu`. If null, the region is unknown, and a policy that names regions excludes the worker."""
    project: str | None = None
    """Google Cloud project that is billed (`vertex`)."""
    api_version: str | None = None
    """API version (`azure`), such as `2024-10-21`."""

    @field_validator("base_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None:
            check_url(url)
        return url

    @field_validator("api_key_env")
    @classmethod
    def _check_variable(cls, name: str | None) -> str | None:
        return name if name is None else check_variable(name)

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("`api_key_env` and `api_key_file` must not both be set")
        return self


def check_variable(name: str) -> str:
    """Return `name` if it is a valid name of an environment variable.

    Raises:
        ValueError: it is not. It may be the secret itself, so the message does not contain it.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("must be the name of an environment variable, such as OPENAI_API_KEY, not its value")
    return name


def check_url(url: str) -> None:
    """Check that `url` can be the base URL of a model.

    Raises:
        ValueError: it cannot. The message suggests a correction.
    """
    try:
        parts = urlsplit(url)
        has_port_number = parts.port != 0
    except ValueError as exc:
        raise ValueError(f"is not a valid URL ({exc}). Use the form https://HOST:PORT/PATH") from exc
    if "@" in parts.netloc:
        raise ValueError(
            "must not contain a user name or password. Name the environment variable of the API key in `api_key_env` instead"
        )
    if url != url.strip() or " " in url:
        raise ValueError("must not contain spaces")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        rest = re.sub(r"^[a-z]*:?/+", "", url)
        meant = f"{'http' if _is_near(rest) else 'https'}://{rest}"
        hint = f" Did you mean {meant!r}?" if urlsplit(meant).hostname and "@" not in rest else ""
        raise ValueError(f"must begin with http:// or https://, followed by a host.{hint}".removesuffix("."))
    if not has_port_number:
        raise ValueError("must not have the port 0. Use the port of the server")
    if end := next((each for each in ENDPOINTS if parts.path.rstrip("/").endswith(each)), None):
        raise ValueError(
            f"must not end with {end!r}, because Podium appends this path. Did you mean {url.partition(end)[0]!r}?"
        )


def _is_near(address: str) -> bool:
    """Return whether an address without a scheme looks like one of your own machines, which mostly use plain
    HTTP.
    """
    host = address.partition("/")[0]
    return ":" in host or "." not in host or re.fullmatch(r"[\d.]+", host) is not None


def check_access(kind: str, access: ModelAccess) -> None:
    """Check that `access` is complete and fits the kind of worker.

    Raises:
        ValueError: it is not.
    """
    service = access.service
    kind_services = SERVICES.get(kind, ())
    if service is not None and service not in kind_services:
        others = f". Use {' or '.join(kind_services)}" if kind_services else ""
        raise ValueError(f"The service {service!r} is not available for kind {kind!r}{others}")
    for name in NEEDS[service] if service else ():
        if getattr(access, name) is None:
            raise ValueError(f"`{name}` is required for service {service!r}")
    for name, services in TAKES.items():
        if getattr(access, name) is not None and service not in services:
            raise ValueError(f"`{name}` must be set only for service {' or '.join(services)}")
    if access.api_key_env is None and access.api_key_file is None:
        return
    if service == "vertex":
        raise ValueError(
            "An API key must not be set for service 'vertex'. Set `credentials_file`, or omit it to use Application Default Credentials"
        )
    if access.profile is not None:
        raise ValueError("An API key and `profile` must not both be set")
