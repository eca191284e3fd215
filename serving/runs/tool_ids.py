"""The ids that clients get for calls of tools. Each says which call of which run it is, and cannot be made up.

`call_` and 40 characters of base64url: the run (16 bytes), the call's number (2) and a signature (12): no bit is
spare, so that no two texts are one id. That fits every provider's rules for ids (64 characters; letters, digits,
`_`, `-`). Only ids are compared: no client sends a conversation back byte for byte.
"""

import base64
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass

from conductor.errors import BadTask

PREFIX = "call_"
OURS = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{40}}")
RUN_BYTES, NUMBER_BYTES, SIGNATURE_BYTES = 16, 2, 12
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class CallName:
    """Which call of which run."""

    run_id: str
    number: int


class CallIds:
    """Makes and reads ids.

    Args:
        secrets: that all replicas share; the first one signs, the others are of before.
    """

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = tuple(secrets)

    def sign(self, name: CallName) -> str:
        """The id of a call."""
        named = _pack(name)
        return PREFIX + base64.urlsafe_b64encode(named + _signature(self._secrets[0], named)).decode()

    def read(self, id: str, param: str = "messages") -> CallName | None:
        """What `id` names; None where it is none of ours, such as a provider's in a conversation begun elsewhere.
        `param`: the field that it came in.

        Raises:
            BadTask: it looks like ours, and was not made here.
        """
        if not OURS.fullmatch(id):
            return None
        packed = base64.urlsafe_b64decode(id.removeprefix(PREFIX))
        named, signature = packed[:-SIGNATURE_BYTES], packed[-SIGNATURE_BYTES:]
        if not any(hmac.compare_digest(_signature(each, named), signature) for each in self._secrets):
            raise BadTask(
                f"The tool call id {id} was not made here: its signature is wrong. Send ids back as they came.",
                param=param,
            )
        run = named[:RUN_BYTES].hex()
        return CallName(f"wf_{run}", int.from_bytes(named[RUN_BYTES:], "big"))


def _pack(name: CallName) -> bytes:
    return bytes.fromhex(name.run_id.removeprefix("wf_")) + name.number.to_bytes(NUMBER_BYTES, "big")


def _signature(secret: bytes, named: bytes) -> bytes:
    return hmac.digest(secret, b"podium tool call 1\0" + named, "sha256")[:SIGNATURE_BYTES]
