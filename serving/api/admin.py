"""`/v1/admin`: teams and keys, for callers with the scope `admin`.

Every change is logged, with the id of the key that made it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from conductor.errors import BadTask, NotAllowed, WorkerUnavailable
from conductor.model.failure import Failure
from serving.accounts.account_policy import AccountPolicy, check_names
from serving.accounts.caller import Caller
from serving.accounts.directory import MOST_LISTED, Directory
from serving.accounts.hold import key_subject, team_subject
from serving.accounts.key_info import iso
from serving.api.admin_schema import (
    BudgetBody,
    BudgetChange,
    Error,
    Key,
    KeyChange,
    Keys,
    KeyWithSecret,
    NewKey,
    NewTeam,
    PolicyBody,
    Reloaded,
    Rotation,
    TeamBody,
    TeamChange,
    Teams,
)
from serving.api.authentication import FIRST_KEY, Authenticator, caller_of
from serving.api.dialects.read_body import BoundedRoute
from serving.api.respond import constant
from serving.lora.adapters import AdapterError
from serving.sessions.service import Service
from serving.settings.settings import SettingsError
from serving.telemetry.logs import FIELDS

logger = logging.getLogger("podium")
BAD = {"model": Error, "description": "A field is invalid. `param` names it."}
ABSENT = {"model": Error, "description": "The team or the key does not exist."}
ALWAYS: dict[int | str, dict[str, Any]] = {
    401: {"model": Error, "description": "The API key is missing or not accepted."},
    403: {"model": Error, "description": "The API key does not have the scope `admin`."},
    503: {"model": Error, "description": "The store is unreachable. Try again."},
}
OPENAPI = "/openapi.json"


async def administrator(request: Request, response: Response) -> Caller:
    """Return the caller, who needs a key even if local, and mark the response as not cacheable."""
    caller = caller_of(request)
    if not caller.has_key:
        raise NotAllowed(FIRST_KEY, param="Authorization")
    response.headers["cache-control"] = "no-store"
    return caller


Admin = Annotated[Caller, Depends(administrator)]
router = APIRouter(
    prefix="/v1/admin", dependencies=[Depends(administrator)], responses=ALWAYS, route_class=BoundedRoute
)


@router.post("/teams", status_code=201, responses={400: BAD})
async def create_team(request: Request, caller: Admin, body: NewTeam) -> TeamBody:
    """Create a team. Its keys can see each other's runs, but no runs of other teams."""
    team = await _directory(request).create_team(body.name)
    _note(request, caller, "team created", team_id=team.id)
    return TeamBody.of(team)


@router.get("/teams")
async def list_teams(request: Request) -> Teams:
    """List teams, oldest first. If there are more than 1,000, only the newest are listed."""
    return Teams(data=[TeamBody.of(team) for team in await _directory(request).teams()])


@router.post("/teams/{id}", responses={404: ABSENT})
async def change_team(request: Request, caller: Admin, id: str, body: TeamChange) -> TeamBody:
    """Enable or disable a team. The keys of a disabled team are rejected."""
    team = await _directory(request).switch_team(id, on=body.enabled)
    _note(request, caller, "team enabled or disabled", team_id=team.id, enabled=body.enabled)
    return TeamBody.of(team)


@router.post("/keys", status_code=201, responses={400: BAD, 404: ABSENT})
async def create_key(request: Request, caller: Admin, body: NewKey) -> KeyWithSecret:
    """Create a key. The response contains its secret, which is shown only once."""
    key, info = await _directory(request).create_key(body.name, body.team, body.scopes, body.expires_us)
    _note(request, caller, "key created", made_key_id=info.id, scopes=sorted(info.scopes))
    return KeyWithSecret.reveal(info, key.reveal())


@router.get("/keys", responses={404: ABSENT})
async def list_keys(
    request: Request,
    team: Annotated[str | None, Query(description="Id or name of a team. Only its keys are listed.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
    after: Annotated[
        str | None, Query(description="Id of a key. Only keys created before it are listed.")
    ] = None,
) -> Keys:
    """List keys, newest first, including revoked and expired ones."""
    keys = await _directory(request).keys(team, limit + 1, after)
    return Keys(data=[Key.of(key) for key in keys[:limit]], has_more=len(keys) > limit)


@router.get("/keys/{id}", responses={404: ABSENT})
async def get_key(request: Request, id: str) -> Key:
    """Return one key."""
    return Key.of(await _directory(request).key(id))


@router.post("/keys/{id}", responses={400: BAD, 404: ABSENT})
async def change_key(request: Request, caller: Admin, id: str, body: KeyChange) -> Key:
    """Change the scopes or the expiry of a key. Its secret, team, budgets and policy stay the same.

    All replicas apply the change within 10 s. Open runs of the key continue to their end. If it loses a scope, its
    event streams end.
    """
    key = await _directory(request).change_key(id, body.edit)
    _note(
        request,
        caller,
        "key changed",
        changed_key_id=key.id,
        scopes=sorted(key.scopes),
        expires=iso(key.expires_us),
    )
    return Key.of(key)


@router.delete("/keys/{id}", responses={404: ABSENT})
async def revoke_key(request: Request, caller: Admin, id: str) -> Key:
    """Revoke a key. All replicas reject it within 10 s.

    The key stays in lists, because the records of its runs refer to it. Its open runs continue to their end.
    """
    revoked = await _directory(request).revoke(id)
    _note(request, caller, "key revoked", revoked_key_id=revoked.id)
    return Key.of(revoked)


@router.post("/keys/{id}/rotate", responses={400: BAD, 404: ABSENT})
async def rotate_key(request: Request, caller: Admin, id: str, body: Rotation) -> KeyWithSecret:
    """Give a key a new secret. Its id, team, scopes, budgets and records stay the same."""
    key, rotated = await _directory(request).rotate(id, body.overlap_s)
    _note(request, caller, "key rotated", rotated_key_id=rotated.id, overlap_s=body.overlap_s)
    return KeyWithSecret.reveal(rotated, key.reveal())


@router.get("/teams/{id}/budget", responses={404: ABSENT})
async def get_team_budget(request: Request, id: str) -> BudgetBody:
    """Return the budget of a team, for all its keys together."""
    team = await _directory(request).team(id)
    return BudgetBody.of(team.id, await _directory(request).budget(team_subject(team.id)))


@router.post("/teams/{id}/budget", responses={404: ABSENT})
async def set_team_budget(request: Request, caller: Admin, id: str, body: BudgetChange) -> BudgetBody:
    """Limit what all keys of a team together may spend. A call that could cost more than what is left is
    rejected.
    """
    team = await _directory(request).team(id)
    await _directory(request).set_budget(team_subject(team.id), body.limits_usd)
    _note(request, caller, "team budget set", team_id=team.id, **body.limits_usd)
    return await get_team_budget(request, team.id)


@router.get("/keys/{id}/budget", responses={404: ABSENT})
async def get_key_budget(request: Request, id: str) -> BudgetBody:
    """Return the budget of a key."""
    key = await _directory(request).key(id)
    return BudgetBody.of(key.id, await _directory(request).budget(key_subject(key.id)))


@router.post("/keys/{id}/budget", responses={404: ABSENT})
async def set_key_budget(request: Request, caller: Admin, id: str, body: BudgetChange) -> BudgetBody:
    """Limit what a key may spend, in addition to the budget of its team. The limit stays when the key is
    rotated.
    """
    key = await _directory(request).key(id)
    await _directory(request).set_budget(key_subject(key.id), body.limits_usd)
    _note(request, caller, "key budget set", set_key_id=key.id, **body.limits_usd)
    return await get_key_budget(request, key.id)


@router.get("/teams/{id}/policy", responses={404: ABSENT})
async def get_team_policy(request: Request, id: str) -> PolicyBody:
    """Return the policy of a team, which applies to all its keys."""
    return PolicyBody.of(await _directory(request).team(id))


@router.post("/teams/{id}/policy", responses={400: BAD, 404: ABSENT})
async def set_team_policy(request: Request, caller: Admin, id: str, body: AccountPolicy) -> PolicyBody:
    """Change the policy of a team. Only the fields in the request change; null or the default removes a
    limit.

    All replicas apply the change within 10 s. Open runs continue under the previous policy.
    """
    check_names(body, _service(request).pool.written)
    team = await _directory(request).change_team_policy(id, body)
    _note(request, caller, "team policy set", team_id=team.id, policy=team.policy.stated())
    return PolicyBody.of(team)


@router.get("/keys/{id}/policy", responses={404: ABSENT})
async def get_key_policy(request: Request, id: str) -> PolicyBody:
    """Return the policy of a key."""
    return PolicyBody.of(await _directory(request).key(id))


@router.post("/keys/{id}/policy", responses={400: BAD, 404: ABSENT})
async def set_key_policy(request: Request, caller: Admin, id: str, body: AccountPolicy) -> PolicyBody:
    """Change the policy of a key. It can only restrict what the policy of the key's team allows."""
    check_names(body, _service(request).pool.written)
    key = await _directory(request).change_key_policy(id, body)
    _note(request, caller, "key policy set", set_key_id=key.id, policy=key.policy.stated())
    return PolicyBody.of(key)


@router.post("/reload", responses={400: BAD})
async def reload(request: Request, caller: Admin) -> Reloaded:
    """Reload the settings file and the key files on this replica. The other replicas follow within seconds if
    they can read the file.

    If a file is invalid, nothing changes, and the error says what is wrong.
    """
    service = _service(request)
    read_again: Callable[[], Awaitable[None]] | None = request.app.state.reload
    if read_again is None:
        raise BadTask(
            "This server was started without a settings file, so there is nothing to reload.",
            param="settings",
        )
    try:
        await read_again()
    except (SettingsError, AdapterError, WorkerUnavailable) as exc:
        raise BadTask(Failure.of(exc).explanation, param="settings") from exc
    _note(request, caller, "settings reloaded")
    return Reloaded(workers=list(service.pool.members), policies=service.policy_faults)


@router.get(OPENAPI, include_in_schema=False)
async def openapi(request: Request) -> Response:
    """Return the OpenAPI document of the admin API."""
    return await constant(request, _document)


def _document(routes: Sequence[Any]) -> dict[str, Any]:
    document = get_openapi(
        title="Podium administration",
        version="1",
        description="Teams and API keys of a Podium server. Every request needs a key with the scope `admin`.",
        routes=[each for each in routes if getattr(each, "path", "").startswith(router.prefix)],
    )
    document.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document | {"security": [{"key": []}]}


def _service(request: Request) -> Service:
    return request.app.state.service


def _directory(request: Request) -> Directory:
    return request.app.state.directory


def _note(request: Request, caller: Caller, what: str, **fields: object) -> None:
    """Log a change, and clear this replica's cache of keys, so that the next request sees the change."""
    authenticator: Authenticator = request.app.state.authenticator
    authenticator.forget()
    logger.info(what, extra={FIELDS: {"by_key_id": caller.account.key_id, **fields}})
