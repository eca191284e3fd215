"""Provider accounts of API workers: model, address, credentials and time limits."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from conductor.model.call import Call
from conductor.model.terms import least
from conductor.model.usage import Price
from serving.egress.reach import SETTINGS, Reach
from serving.settings.known_models import Accepts
from serving.settings.model_access import ModelAccess
from serving.workers.http_errors import ErrorMapper
from serving.workers.native_turns import Origin
from serving.workers.stall_timer import StallTimer

NO_KEY = "none"
"""Placeholder for the key of servers that need none, and of clouds with other credentials."""
STALL_S = 120.0
THINKING_STALL_S = 600.0
"""Longest silence of a model that thinks, in seconds. Some models think for minutes without sending anything.
"""


@dataclass(frozen=True, slots=True)
class ProviderAccount:
    name: str
    """Name of the worker in the pool."""
    model: str
    """Name of the model or deployment at the provider."""
    api_key: str = field(repr=False)
    """API key, or `NO_KEY`."""
    base_url: str | None = None
    """Address of the server, or None for the provider's own."""
    price: Price | None = None
    """Price per token, or None if it is not known."""
    stall_timeout_s: float | None = None
    """Longest silence between two tokens, in seconds. None stands for `STALL_S`, or for `THINKING_STALL_S` if the
    worker may think."""
    first_token_timeout_s: float | None = None
    """Longest wait for the first token, in seconds. None stands for `AttemptLimits.first_token_s` of the
    call, or else the longest silence.
    """
    connect_timeout_s: float = 5.0
    """Longest wait for a connection, in seconds."""
    extra_body: Mapping[str, object] = field(default_factory=dict[str, object])
    """Fields that are added to the body of every request. They replace fields of the same name."""
    family: str = ""
    """Public name of the model, if `model` names a deployment."""
    accepts: Accepts = Accepts()
    """Parameters that the model accepts, and whether it thinks."""
    reach: Reach = SETTINGS
    """Network addresses that the server may have."""
    fetches_pictures: bool | None = None
    """True if the server may fetch pictures by URL. See `check_pictures` for None."""
    access: ModelAccess = ModelAccess()
    """Cloud through which the model is reached, and the identity there."""
    sets_breakpoints: bool = True
    """Whether breakpoints for Anthropic's prompt cache are set in requests that have none."""

    @property
    def public_name(self) -> str:
        """Public name of the model, even if `model` names a deployment."""
        return self.family or self.model

    @property
    def origin(self) -> Origin:
        """Identity of the account: model, address and key of the turns that the model accepts back unchanged."""
        access = self.access
        facts = (self.model, self.base_url, access.service, access.region, access.project, access.profile)
        text = "\n".join(map(str, (*facts, self.api_key)))
        return Origin(self.name, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16])

    @property
    def timeout(self) -> httpx2.Timeout:
        """Timeouts of the HTTP client, for the longest silence of any call. `timer` limits each call."""
        longest_s = max(self.stall_timeout_s or THINKING_STALL_S, self.first_token_timeout_s or 0.0)
        return httpx2.Timeout(longest_s, connect=self.connect_timeout_s)

    def timer(self, faults: ErrorMapper, call: Call) -> StallTimer:
        """Build the timer that ends `call` in silence. Learned limits apply only if the model does not think."""
        thinks = self.accepts.thinks(call.sampling.effort)
        silence_s = self.stall_timeout_s or (THINKING_STALL_S if thinks else STALL_S)
        usual_s = None if thinks or self.first_token_timeout_s else call.terms.limits.first_token_s
        usual_s = least(usual_s, call.terms.limits.patience_s)
        pauses = None if thinks or self.stall_timeout_s else call.terms.limits.pauses
        return StallTimer(silence_s, faults.stall, self.first_token_timeout_s, usual_s, pauses)

    def faults(self, provider: str, key_env: str, url: httpx2.URL) -> ErrorMapper:
        """Return the error mapper of calls to `url`. See `ErrorMapper` for the other arguments."""
        secret = "" if self.api_key == NO_KEY else self.api_key
        address = f"{url.scheme}://{url.netloc.decode()}"
        return ErrorMapper(self.name, self.model, provider, key_env, address, secret)
