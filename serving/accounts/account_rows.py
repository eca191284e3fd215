"""Teams and keys as rows of the store."""

import json
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select

from serving.accounts.account_policy import AccountPolicy
from serving.accounts.caller import Scope
from serving.accounts.key_info import KeyInfo, TeamInfo
from serving.database.address import StoreError
from serving.database.schema import api_key, team
from serving.errors import explain_fault

KEYS = select(
    *api_key.c["id", "name", "hint", "scopes", "made_us", "expires_us", "revoked_us", "policy"],
    team.c.id.label("team_id"),
    team.c.name.label("team_name"),
    team.c.made_us.label("team_made_us"),
    team.c.off_us,
    team.c.policy.label("team_policy"),
).select_from(api_key.outerjoin(team, api_key.c.team_id == team.c.id))
"""Query for all information about keys and their teams, except for the hashes of the keys."""


def read_team(row: Any) -> TeamInfo:
    """Convert a row of the table `team`. Raise StoreError if its policy is not valid."""
    return TeamInfo(row.id, row.name, row.made_us, row.off_us, _policy(row.policy, row.id))


def read_key(row: Any) -> KeyInfo:
    """Convert a row of the query `KEYS`. Raise StoreError if a policy is not valid."""
    owner = None
    if row.team_id:
        policy = _policy(row.team_policy, row.team_id)
        owner = TeamInfo(row.team_id, row.team_name, row.team_made_us, row.off_us, policy)
    scopes = frozenset(Scope(name) for name in json.loads(row.scopes))
    times = (row.made_us, row.expires_us, row.revoked_us)
    return KeyInfo(row.id, row.name, row.hint, scopes, owner, *times, _policy(row.policy, row.id))


def _policy(text: str, id: str) -> AccountPolicy:
    """Parse a stored policy of the key or team `id`. Raise StoreError if it is not valid."""
    try:
        return AccountPolicy.model_validate_json(text)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        message = f"The stored policy of {id} is not valid: {explain_fault(where or 'it', fault)}."
        raise StoreError(f"{message} To remove the policy, replace it with {{}} in the database.") from exc
