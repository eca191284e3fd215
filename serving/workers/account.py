"""What the three API workers are made from: whom to call, as whom, and how long it may take."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from conductor.model.call import Call
from conductor.model.usage import Price
from serving.egress.reach import SETTINGS, Reach
from serving.settings.accepts import Accepts
from serving.settings.access import Access
from serving.workers.http_errors import ErrorMapper
from serving.workers.own_turns import Origin
from serving.workers.stall_timer import StallTimer, shorter

NO_KEY = "none"
"""In place of a key, for servers that want none and for clouds that are asked in another way."""
STALL_S = 120.0
THINKING_STALL_S = 600.0
"""Some models think for minutes and show nothing of it."""


@dataclass(frozen=True, slots=True)
class Account:
    """A model at a provider, and the key that pays for it."""

    name: str
    """In the pool."""
    model: str
    """As the provider knows it."""
    api_key: str = field(repr=False)
    """Some word that is not empty for servers that want none."""
    base_url: str | None = None
    """None: the provider's own."""
    price: Price | None = None
    """Per token; None where it is not known."""
    stall_timeout_s: float | None = None
    """How long the server may go without a word between two. None: `STALL_S`, or `THINKING_STALL_S` where
    the call lets the model think."""
    first_token_timeout_s: float | None = None
    """How long its first word may take. None: what the call says (`AttemptLimits.first_token_s`), else as above."""
    connect_timeout_s: float = 5.0
    """How long a connection may take."""
    extra_body: Mapping[str, object] = field(default_factory=dict[str, object])
    """Fields laid over every request's body."""
    family: str = ""
    """The name by which the model is known; see `known_as`."""
    accepts: Accepts = Accepts()
    """What the model accepts, and whether it thinks."""
    reach: Reach = SETTINGS
    """Which addresses its server may have."""
    fetches_pictures: bool | None = None
    """Whether its server may be given the address of a picture; see `serving.workers.pictures`."""
    access: Access = Access()
    """Through which cloud it is reached, and as whom there; its key and its address are above."""

    @property
    def public_name(self) -> str:
        """The model's public name, where `model` is a deployment's."""
        return self.family or self.model

    @property
    def origin(self) -> Origin:
        """Whose turns its model takes back as they were written: of the same model, at the same place, for the same
        key.
        """
        access = self.access
        facts = (self.model, self.base_url, access.service, access.region, access.project, access.profile)
        told = "\n".join(map(str, (*facts, self.api_key)))
        return Origin(self.name, hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:16])

    @property
    def timeout(self) -> httpx2.Timeout:
        """As the SDKs take them, for all calls: the longest silence. `timer` ends those that may last
        less.
        """
        longest_s = max(self.stall_timeout_s or THINKING_STALL_S, self.first_token_timeout_s or 0.0)
        return httpx2.Timeout(longest_s, connect=self.connect_timeout_s)

    def timer(self, faults: ErrorMapper, call: Call) -> StallTimer:
        """What ends the silence of `call`; one for each. What is known of first tokens and of pauses holds for
        calls that do not think.
        """
        thinks = self.accepts.thinks(call.sampling.effort)
        silence_s = self.stall_timeout_s or (THINKING_STALL_S if thinks else STALL_S)
        usual_s = None if thinks or self.first_token_timeout_s else call.terms.limits.first_token_s
        usual_s = shorter(usual_s, call.terms.limits.patience_s)
        pauses = None if thinks or self.stall_timeout_s else call.terms.limits.pauses
        return StallTimer(silence_s, faults.stall, self.first_token_timeout_s, usual_s, pauses)

    def faults(self, provider: str, key_env: str, url: httpx2.URL) -> ErrorMapper:
        """What makes the errors of calls to `url`. See `Faults` for the rest."""
        secret = "" if self.api_key == NO_KEY else self.api_key
        address = f"{url.scheme}://{url.netloc.decode()}"
        return ErrorMapper(self.name, self.model, provider, key_env, address, secret)
