"""Library that load tests, the bench, proofs and the siege share: servers, fake upstreams, clients and
measurements.
"""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
Json = dict[str, Any]


class RigError(Exception):
    """A measurement or a proof could not be run. The message says why."""
