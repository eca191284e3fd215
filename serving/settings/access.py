"""How a model behind an API is reached: at which address, through which cloud, and as whom."""

import re
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

Service = Literal["azure", "bedrock", "vertex"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SERVICES: dict[str, tuple[Service, ...]] = {
    "openai": ("azure",),
    "anthropic": ("bedrock", "vertex"),
    "gemini": ("vertex",),
}
"""The clouds through which the models of each kind are reached."""
NEEDS: dict[Service, tuple[str, ...]] = {
    "azure": ("base_url", "api_version"),
    "bedrock": ("region",),
    "vertex": ("region", "project"),
}
TAKES: dict[str, tuple[Service, ...]] = {
    "project": ("vertex",),
    "profile": ("bedrock",),
    "credentials_file": ("vertex",),
    "api_version": ("azure",),
}


ENDPOINTS = ("/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/embeddings")
"""What workers add to their `base_url` themselves."""


class Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        allow_inf_nan=False,  # null says that there is no limit
        hide_input_in_errors=True,  # what is refused may be a secret, and a traceback goes into a log
    )


class Access(Frozen):
    """Where a model is reached, and as whom."""

    service: Service | None = None
    """The cloud through which it is reached: `azure` (kind `openai`; Azure's dated API, whose v1 API is a plain
    `base_url`), `bedrock` (kind `anthropic`) or `vertex` (kinds `anthropic` and `gemini`). null: the provider
    itself, or whatever `base_url` names."""
    api_key_env: str | None = None
    """The variable that holds its key where the router runs. Without a key, `azure` asks Entra ID
    (`DefaultAzureCredential`) and `bedrock` looks for AWS credentials as boto3 does."""
    api_key_file: str | None = None
    """In its place: a file that holds the key, readable by its owner only. Read again whenever the pool is
    made again."""
    credentials_file: str | None = None
    """`vertex`: the JSON file of a service account's key, readable by its owner only. null: Application Default
    Credentials."""
    profile: str | None = None
    """`bedrock`: of AWS's configuration files. null: boto3's own search."""
    base_url: str | None = None
    """null: the provider's own. `azure`: the resource, such as `https://NAME.openai.azure.com`. A query in it
    (kind `openai`) is sent with every call."""
    region: str | None = None
    """Where it runs: of `bedrock` and `vertex` the cloud's own name, such as `eu-central-1` or `europe-west4`;
    else, for policies alone, any name, such as `eu`. null: nobody said, so a policy that names regions leaves it
    out."""
    project: str | None = None
    """`vertex`: the Google Cloud project that pays."""
    api_version: str | None = None
    """`azure`: such as `2024-10-21`."""

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
            raise ValueError("has both `api_key_env` and `api_key_file`; name one")
        return self


def check_variable(name: str) -> str:
    """Return the name of a variable.

    Raises:
        ValueError: it cannot be one; it may be the secret itself, so it is not shown.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            "must be the name of an environment variable, such as OPENAI_API_KEY, and not what is in it"
        )
    return name


def check_url(url: str) -> None:
    """See that a model can be asked at an address.

    Raises:
        ValueError: it cannot; the message says what may be meant.
    """
    try:
        parts = urlsplit(url)
        has_port_number = parts.port != 0
    except ValueError as exc:
        raise ValueError(f"is no address ({exc}); write it as https://HOST:PORT/PATH") from exc
    if "@" in parts.netloc:
        raise ValueError(
            "has a user or a password before its host; name the key's variable in `api_key_env` instead, "
            "so that it is written nowhere"
        )
    if url != url.strip() or " " in url:
        raise ValueError("has a blank in it; take it out")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        rest = re.sub(r"^[a-z]*:?/+", "", url)
        meant = f"{'http' if _is_near(rest) else 'https'}://{rest}"
        hint = f" Did you mean {meant!r}?" if urlsplit(meant).hostname and "@" not in rest else ""
        raise ValueError(f"must begin with http:// or https:// and name a host.{hint}".removesuffix("."))
    if not has_port_number:
        raise ValueError("names the port 0, at which no server answers")
    if end := next((each for each in ENDPOINTS if parts.path.rstrip("/").endswith(each)), None):
        raise ValueError(
            f"must end before {end!r}, which is added to it. Did you mean {url.partition(end)[0]!r}?"
        )


def _is_near(address: str) -> bool:
    """Whether an address without a scheme looks like one of one's own machines, which mostly speak plain HTTP."""
    host = address.partition("/")[0]
    return ":" in host or "." not in host or re.fullmatch(r"[\d.]+", host) is not None


def check_access(kind: str, access: Access) -> None:
    """`access` is whole, and fits the kind of worker.

    Raises:
        ValueError: it is not.
    """
    service = access.service
    known = SERVICES.get(kind, ())
    if service is not None and service not in known:
        others = f"; it takes {' or '.join(known)}" if known else ""
        raise ValueError(f"service {service!r} is not for kind {kind!r}{others}")
    for name in NEEDS[service] if service else ():
        if getattr(access, name) is None:
            raise ValueError(f"service {service!r} needs `{name}`")
    for name, services in TAKES.items():
        if getattr(access, name) is not None and service not in services:
            raise ValueError(f"`{name}` is for service {' or '.join(services)}")
    if access.api_key_env is None and access.api_key_file is None:
        return
    if service == "vertex":
        raise ValueError("service 'vertex' takes no key; name a `credentials_file`, or nothing")
    if access.profile is not None:
        raise ValueError("has both a key and `profile`; name one")
