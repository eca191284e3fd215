"""Signed ids of tool calls. An id contains the run and the number of the call, and cannot be forged.

The format is `call_`, followed by 40 characters of base64url. They encode the run (16 bytes), the number of
the call (2 bytes) and a signature (12 bytes). The encoding has no spare bits, so each id has only one
spelling. It meets the rules of every provider: at most 64 letters, digits, `_` and `-`.

Tool results are matched with their run only by these ids, because clients do not return conversations byte
for byte.
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
    """Content of a tool call id: the id of the run, and the number of the call in the run."""

    run_id: str
    number: int


class CallIds:
    """Signer and reader of tool call ids. The first of the shared secrets signs new ids, all verify."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = tuple(secrets)

    def sign(self, name: CallName) -> str:
        payload = _pack(name)
        return PREFIX + base64.urlsafe_b64encode(payload + _signature(self._secrets[0], payload)).decode()

    def read(self, id: str, param: str = "messages") -> CallName | None:
        """Return the content of a tool call id, or None for another format, such as a provider's. Raise
        BadTask, about the field `param`, for an invalid signature.
        """
        if not OURS.fullmatch(id):
            return None
        data = base64.urlsafe_b64decode(id.removeprefix(PREFIX))
        payload, signature = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
        if not any(hmac.compare_digest(_signature(each, payload), signature) for each in self._secrets):
            raise BadTask(
                f"The tool call id {id} has an invalid signature. Send tool call ids exactly as you received them.",
                param=param,
            )
        run = payload[:RUN_BYTES].hex()
        return CallName(f"wf_{run}", int.from_bytes(payload[RUN_BYTES:], "big"))


def _pack(name: CallName) -> bytes:
    return bytes.fromhex(name.run_id.removeprefix("wf_")) + name.number.to_bytes(NUMBER_BYTES, "big")


def _signature(secret: bytes, payload: bytes) -> bytes:
    return hmac.digest(secret, b"podium tool call 1\0" + payload, "sha256")[:SIGNATURE_BYTES]
