"""Webhooks about budgets, and their signatures (https://www.standardwebhooks.com)."""

from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from serving.redaction.secrets import learn_secret
from serving.settings.model_access import Frozen, check_variable

if TYPE_CHECKING:
    from standardwebhooks.webhooks import Webhook

PREFIX = "whsec_"
LEAST_BYTES = 24
"""Shortest secret that the specification allows."""
Percent = Annotated[int, Field(ge=1, le=100)]


class WebhookSettings(Frozen):
    """Webhook that Podium calls when a key or a team has spent a given share of its budget. Podium reports
    each share once per day or month, depending on the period of the budget. It signs the messages as Standard
    Webhooks specifies. They never delay requests.
    """

    url: str | None = None
    """URL to which messages are posted. If null, no messages are sent."""
    secret_env: str = Field(default="PODIUM_WEBHOOK_SECRET", min_length=1)
    """Name of the environment variable that holds the secret for signing messages. The secret is `whsec_`
    followed by base64. To replace it without an interruption, set both secrets, separated by a space. Podium
    then signs each message with both of them."""
    budget_percent: tuple[Percent, ...] = (50, 80, 100)
    """Shares of a budget to report, in percent. At 100, Podium also reports if it has rejected a call because
    too little of the budget was left."""
    timeout_s: float = Field(default=10.0, gt=0, le=60)
    """Maximum time, in seconds, to wait for the receiver's answer. If the receiver does not answer with a 2xx
    status, Podium sends the message again for three days, at growing intervals."""

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
            raise ValueError("must be an https:// URL, or an http:// URL for a receiver in your own network")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "must not contain a user name or password. Receivers verify the signatures of the messages instead"
            )
        return url


class SecretError(Exception):
    """Webhook messages cannot be signed. The message says why, and what to do."""


def signers(settings: WebhookSettings, environment: Mapping[str, str]) -> "tuple[Webhook, ...]":
    """Return the signers of webhook messages, if a URL is set. The SecretError does not contain the secret."""
    if settings.url is None:
        return ()
    # Not at the top: settings must load where only pydantic is installed.
    from standardwebhooks.webhooks import Webhook

    secrets = environment.get(settings.secret_env, "").split()
    for secret in secrets:
        learn_secret(secret)  # so that no log, record or span shows it
    if not secrets:
        raise SecretError(
            f"webhooks.url needs a signing secret, but the environment variable {settings.secret_env} is not set. "
            "Set it in the router's environment. To create a secret, run `echo whsec_$(openssl rand -base64 32)`."
        )
    try:
        keys = [b64decode(secret.removeprefix(PREFIX), validate=True) for secret in secrets]
    except ValueError:
        keys = [b""]
    if min(map(len, keys)) < LEAST_BYTES:
        raise SecretError(
            f"Each secret in the environment variable {settings.secret_env} (webhooks.secret_env) must be `whsec_` followed by "
            f"at least {LEAST_BYTES} bytes in base64."
        )
    return tuple(Webhook(key) for key in keys)
