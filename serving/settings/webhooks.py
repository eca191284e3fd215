"""Who is told of budgets, and what signs what is told (https://www.standardwebhooks.com)."""

from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from serving.redaction.secrets import learn_secret
from serving.settings.access import Frozen, check_variable

if TYPE_CHECKING:
    from standardwebhooks.webhooks import Webhook

PREFIX = "whsec_"
LEAST_BYTES = 24
"""Of a secret, as the specification has it."""
Percent = Annotated[int, Field(ge=1, le=100)]


class WebhookSettings(Frozen):
    """Whom the server calls when a key or a team has spent a part of its budget, with a message signed as Standard
    Webhooks has it. Never in a request's way; each part once in its day or month.
    """

    url: str | None = None
    """Where it is posted. null: nobody is told."""
    secret_env: str = Field(default="PODIUM_WEBHOOK_SECRET", min_length=1)
    """The variable with the secret that signs: `whsec_` and base64. Several, a space between them, sign each: so
    a secret is changed without a gap."""
    budget_percent: tuple[Percent, ...] = (50, 80, 100)
    """The parts of a budget, in percent, of which is told. At 100 also a call that was refused because too little
    was left."""
    timeout_s: float = Field(default=10.0, gt=0, le=60)
    """How long the receiver may take to answer. Any answer but 2xx is tried again, in ever longer intervals, for
    three days."""

    @field_validator("secret_env")
    @classmethod
    def _check_secret_env(cls, name: str) -> str:
        return check_variable(name)

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise ValueError("must be https://... (or http://..., for a receiver of one's own)")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must hold no password: what is sent is signed")
        return url


class SecretError(Exception):
    """Nothing can be signed; the message says why, and what to do."""


def signers(settings: WebhookSettings, environment: Mapping[str, str]) -> "tuple[Webhook, ...]":
    """What signs; none where nobody is told.

    Raises:
        SecretError: there is no secret, or none that can be used. The message does not show it.
    """
    if settings.url is None:
        return ()
    from standardwebhooks.webhooks import Webhook  # settings are read where nothing but pydantic is

    secrets = environment.get(settings.secret_env, "").split()
    for secret in secrets:
        learn_secret(secret)  # so that no log, record or span shows it, whoever says it
    if not secrets:
        raise SecretError(
            f"webhooks.url is set, and the variable {settings.secret_env}, which holds the secret that signs, is not. "
            "Set it in the environment that the router is started in: `echo whsec_$(openssl rand -base64 32)` makes one."
        )
    try:
        keys = [b64decode(secret.removeprefix(PREFIX), validate=True) for secret in secrets]
    except ValueError:
        keys = [b""]
    if min(map(len, keys)) < LEAST_BYTES:
        raise SecretError(
            f"webhooks: the variable {settings.secret_env} holds no secret of the form `whsec_` and base64 of at least "
            f"{LEAST_BYTES} bytes."
        )
    return tuple(Webhook(key) for key in keys)
