"""What the three API workers are made from: whom to call, as whom, and how long it may take."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from conductor.money import Price
from serving.workers.faults import Faults
from serving.workers.stall_timer import StallTimer


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
    stall_timeout_s: float = 120.0
    """How long the server may go without a word, before the first token and between two."""
    connect_timeout_s: float = 5.0
    """How long a connection may take."""
    extra_body: Mapping[str, object] = field(default_factory=dict[str, object])
    """Fields laid over every request's body."""
    family: str = ""
    """The name by which the model is known; see `known_as`."""
    output_limit_field: str | None = None
    """What the longest answer is called; None: what the server's address suggests."""

    @property
    def known_as(self) -> str:
        """The model's public name, where `model` is a deployment's."""
        return self.family or self.model

    @property
    def timeout(self) -> httpx2.Timeout:
        """Both, as the SDKs take them."""
        return httpx2.Timeout(self.stall_timeout_s, connect=self.connect_timeout_s)

    def timer(self, faults: Faults) -> StallTimer:
        """What ends a call's silence; one for each call."""
        return StallTimer(self.stall_timeout_s, faults.stalled)

    def faults(self, provider: str, key_env: str, url: httpx2.URL) -> Faults:
        """What makes the errors of calls to `url`. See `Faults` for the rest."""
        address = f"{url.scheme}://{url.netloc.decode()}"
        return Faults(self.name, self.model, provider, key_env, address, self.api_key)
