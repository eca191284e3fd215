"""Webhooks about budgets, and their signatures (https://www.standardwebhooks.com)."""

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
"""Shortest secret that the specification allows."""
Percent = Annotated[int, Field(ge=1, le=100)]


class WebhookSettings(Frozen):
    """Webhook that is called when a key or a team has spent a given share of its budget. Messages are signed
    as Standard Webhooks specifies. They do not delay requests, and each share is reported once per day or
    month of the budget.
    """

    url: str | None = None
    """URL that messages are posted to. If null, none are sent."""
    secret_env: str = Field(default="PODIUM_WEBHOOK_SECRET", min_length=1)
    """Environment variable with the secret that signs messages: `whsec_` followed by base64. If it holds
    several secrets, separated by spaces, each of them signs, so that a secret can be rotated without a gap.
    """
    budget_percent: tuple[Percent, ...] = (50, 80, 100)
    """Shares of a budget to report, in percent. At 100, a call that was rejected because too little was left
    is reported too."""
    timeout_s: float = Field(default=10.0, gt=0, le=60)
    """Maximum time in seconds to wait for the receiver. If its status is not 2xx, the message is sent again
    for three days, at growing intervals."""

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
            raise ValueError("must be https://... (or http://..., for a receiver in your own network)")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must not contain a user or a password; messages are signed instead")
        return url


class SecretError(Exception):
    """Webhook messages cannot be signed. The message says why, and what to do."""


def signers(settings: WebhookSettings, environment: Mapping[str, str]) -> "tuple[Webhook, ...]":
    """Return the signers of webhook messages, or none if no URL is set.

    Raises:
        SecretError: there is no secret, or it cannot be used. The message does not contain it.
    """
    if settings.url is None:
        return ()
    # Not at the top: settings must load where only pydantic is installed.
    from standardwebhooks.webhooks import Webhook

    secrets = environment.get(settings.secret_env, "").split()
    for secret in secrets:
        learn_secret(secret)  # so that no log, record or span shows it
    if not secrets:
        raise SecretError(
            f"webhooks.url is set, but the variable {settings.secret_env} with the signing secret is not. "
            "Set it in the environment that the router is started in; `echo whsec_$(openssl rand -base64 32)` creates one."
        )
    try:
        keys = [b64decode(secret.removeprefix(PREFIX), validate=True) for secret in secrets]
    except ValueError:
        keys = [b""]
    if min(map(len, keys)) < LEAST_BYTES:
        raise SecretError(
            f"webhooks: the variable {settings.secret_env} must hold `whsec_` followed by the base64 of at least "
            f"{LEAST_BYTES} bytes."
        )
    return tuple(Webhook(key) for key in keys)
