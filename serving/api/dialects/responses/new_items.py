"""Items that a client adds to a conversation, as they are kept: read as a request's are, each with an id of our own,
without secrets and, where a policy says so, without personal data.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from conductor.errors import BadTask
from serving.accounts.account_policy import Policies
from serving.accounts.caller import Caller
from serving.api.dialects.read_body import PartCount
from serving.api.dialects.responses.items import Transcript, items_of
from serving.batches.kept_text import redactor_of
from serving.redaction.slices import in_turns
from serving.redaction.texts import json_in_steps, map_texts

Json = dict[str, Any]
PREFIXES = {"reasoning": "rs", "compaction": "cmp", "compaction_summary": "cmp"}


def new_id(prefix: str) -> str:
    """A name that nothing else has."""
    return f"{prefix}_{uuid.uuid4().hex}"


async def new_items(sent: Sequence[Json], caller: Caller) -> list[Json]:
    """`sent` as it is kept. Its texts are looked through in slices, keys in turn.

    Raises:
        BadTask: one cannot be read, served or kept; names its place.
    """
    redact = redactor_of(caller.policies)
    kept, _ = await in_turns(json_in_steps(list(sent), redact), caller.account.key_id)
    packed = PartCount()
    return [_new_item(item, f"items[{n}]", packed) for n, item in enumerate(kept)]


def kept_metadata(sent: Mapping[str, str] | None, policies: Policies) -> dict[str, str]:
    """A conversation's metadata as it is kept: it is the client's text, too."""
    return dict(map_texts(sent or {}, redactor_of(policies)))


def _new_item(item: Json, at: str, packed: PartCount) -> Json:
    if item.get("type") == "item_reference":
        message = f"{at}.type: a reference cannot be kept. Send the item itself."
        raise BadTask(message, param=f"{at}.type")
    transcript = Transcript(packed=packed)
    transcript.add_item(item, at, lambda _item, _at: ())
    kind = str(item.get("type") or "message")
    custom = {str(item["call_id"])} if kind == "custom_tool_call_output" else set[str]()
    read = [each for message in transcript.messages for each in items_of(message, 0, "", 0, custom)]
    if not read or kind in PREFIXES:  # no part of the conversation, or several of its messages: as it came
        return item | {"id": new_id(PREFIXES.get(kind, "item"))}
    role = {"role": item["role"]} if kind == "message" else {}
    return read[0] | role | {"id": new_id(read[0]["id"].partition("_")[0])}
