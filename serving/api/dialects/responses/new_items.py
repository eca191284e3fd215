"""Prepares items that a client adds to a conversation for storage.

The items are validated like those of a request, and each gets a new id. Secrets are removed. If a policy
requires it, personal data is removed too.
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
    """Return a unique id."""
    return f"{prefix}_{uuid.uuid4().hex}"


async def new_items(items: Sequence[Json], caller: Caller) -> list[Json]:
    """Return `items` as they will be stored. Redaction runs in slices, so that other keys get their turns in
    between.

    Raises:
        BadTask: an item is invalid, not supported or cannot be stored. The message names its place.
    """
    redact = redactor_of(caller.policies)
    redacted_items, _ = await in_turns(json_in_steps(list(items), redact), caller.account.key_id)
    packed = PartCount()
    return [_new_item(item, f"items[{n}]", packed) for n, item in enumerate(redacted_items)]


def redact_metadata(metadata: Mapping[str, str] | None, policies: Policies) -> dict[str, str]:
    """Return the metadata of a conversation as it will be stored. It is redacted, because it may contain any
    text.
    """
    return dict(map_texts(metadata or {}, redactor_of(policies)))


def _new_item(item: Json, at: str, packed: PartCount) -> Json:
    if item.get("type") == "item_reference":
        message = f"{at}.type: an item reference cannot be stored. Send the item itself."
        raise BadTask(message, param=f"{at}.type")
    transcript = Transcript(packed=packed)
    transcript.add_item(item, at, lambda _item, _at: ())
    kind = str(item.get("type") or "message")
    custom = {str(item["call_id"])} if kind == "custom_tool_call_output" else set[str]()
    read = [each for message in transcript.messages for each in items_of(message, 0, "", 0, custom)]
    if not read or kind in PREFIXES:  # it becomes no message, or several: store it as sent
        return item | {"id": new_id(PREFIXES.get(kind, "item"))}
    role = {"role": item["role"]} if kind == "message" else {}
    return read[0] | role | {"id": new_id(read[0]["id"].partition("_")[0])}
