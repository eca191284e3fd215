"""`/v1/admin`: teams and keys, for callers whose key has the scope `admin`.

Every change is a line in the log: who changed what, by ids.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from conductor.errors import BadTask, NotAllowed, WorkerUnavailable
from conductor.model.failure import Failure
from serving.accounts.account_policy import AccountPolicy
from serving.accounts.authenticator import Authenticator
from serving.accounts.caller import Caller
from serving.accounts.directory import MOST_LISTED, Directory
from serving.accounts.permission import check_names
from serving.accounts.rates import key_subject, team_subject
from serving.api.admin_schema import (
    Budget,
    BudgetChange,
    Error,
    Key,
    Keys,
    KeyWithSecret,
    NewKey,
    NewTeam,
    Policy,
    Reloaded,
    Rotation,
    Team,
    TeamChange,
    Teams,
)
from serving.api.authentication import FIRST_KEY, caller_of
from serving.api.bounded_route import BoundedRoute
from serving.api.respond import constant
from serving.lora.adapters import AdapterError
from serving.sessions.service import Service
from serving.settings.settings import SettingsError
from serving.telemetry.logs import FIELDS

logger = logging.getLogger("podium")
BAD = {"model": Error, "description": "A field cannot be so; `param` names it."}
ABSENT = {"model": Error, "description": "There is no such team or key."}
ALWAYS: dict[int | str, dict[str, Any]] = {
    401: {"model": Error, "description": "The request holds no key, or none that is in force."},
    403: {"model": Error, "description": "The key has not the scope `admin`."},
    503: {"model": Error, "description": "The store cannot be reached. Try again."},
}
OPENAPI = "/openapi.json"


async def administrator(request: Request, response: Response) -> Caller:
    """Who calls, an administrator. What it is told is kept by no proxy and no browser.

    Raises:
        NotAllowed: it sends no key. Whoever is on this machine is no administrator by that alone.
    """
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
async def create_team(request: Request, caller: Admin, body: NewTeam) -> Team:
    """Make a team. Its keys see each other's runs, and nobody else's."""
    made = await _directory(request).create_team(body.name)
    _note(request, caller, "team made", team_id=made.id)
    return Team.of(made)


@router.get("/teams")
async def list_teams(request: Request) -> Teams:
    """All teams, the oldest first; where there are more than 1,000, the newest of them."""
    return Teams(data=[Team.of(team) for team in await _directory(request).teams()])


@router.post("/teams/{id}", responses={404: ABSENT})
async def change_team(request: Request, caller: Admin, id: str, body: TeamChange) -> Team:
    """Switch a team off, so that none of its keys is let in, or on again."""
    changed = await _directory(request).switch_team(id, on=body.enabled)
    _note(request, caller, "team switched", team_id=changed.id, enabled=body.enabled)
    return Team.of(changed)


@router.post("/keys", status_code=201, responses={400: BAD, 404: ABSENT})
async def create_key(request: Request, caller: Admin, body: NewKey) -> KeyWithSecret:
    """Make a key. The answer holds its secret, which is shown this once."""
    key, made = await _directory(request).create_key(body.name, body.team, body.scopes, body.expires_us)
    _note(request, caller, "key made", made_key_id=made.id, scopes=sorted(made.scopes))
    return KeyWithSecret.made(made, key.reveal())


@router.get("/keys", responses={404: ABSENT})
async def list_keys(
    request: Request,
    team: Annotated[str | None, Query(description="The id or name of a team: its keys alone.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
    after: Annotated[str | None, Query(description="The id of a key: those made before it.")] = None,
) -> Keys:
    """Keys, the newest first, those that are not in force any more included."""
    found = await _directory(request).keys(team, limit + 1, after)
    return Keys(data=[Key.of(key) for key in found[:limit]], has_more=len(found) > limit)


@router.get("/keys/{id}", responses={404: ABSENT})
async def get_key(request: Request, id: str) -> Key:
    """One key."""
    return Key.of(await _directory(request).key(id))


@router.delete("/keys/{id}", responses={404: ABSENT})
async def revoke_key(request: Request, caller: Admin, id: str) -> Key:
    """Revoke a key: nobody who holds it is let in again, on any replica within 10 s. It stays in lists, for
    the records of its runs. Runs under way end as they would have.
    """
    revoked = await _directory(request).revoke(id)
    _note(request, caller, "key revoked", revoked_key_id=revoked.id)
    return Key.of(revoked)


@router.post("/keys/{id}/rotate", responses={400: BAD, 404: ABSENT})
async def rotate_key(request: Request, caller: Admin, id: str, body: Rotation) -> KeyWithSecret:
    """Give a key a new secret. Its id, team, scopes, budgets and records stay."""
    key, rotated = await _directory(request).rotate(id, body.overlap_s)
    _note(request, caller, "key rotated", rotated_key_id=rotated.id, overlap_s=body.overlap_s)
    return KeyWithSecret.made(rotated, key.reveal())


@router.get("/teams/{id}/budget", responses={404: ABSENT})
async def get_team_budget(request: Request, id: str) -> Budget:
    """What all keys of a team together may spend, and what is spent."""
    team = await _directory(request).team(id)
    return Budget.of(team.id, await _directory(request).budget(team_subject(team.id)))


@router.post("/teams/{id}/budget", responses={404: ABSENT})
async def set_team_budget(request: Request, caller: Admin, id: str, body: BudgetChange) -> Budget:
    """Limit what all keys of a team together may spend. A call is refused that could cost more than is left."""
    team = await _directory(request).team(id)
    await _directory(request).set_budget(team_subject(team.id), body.limits_usd)
    _note(request, caller, "team budget set", team_id=team.id, **body.limits_usd)
    return await get_team_budget(request, team.id)


@router.get("/keys/{id}/budget", responses={404: ABSENT})
async def get_key_budget(request: Request, id: str) -> Budget:
    """What a key may spend, and what is spent."""
    key = await _directory(request).key(id)
    return Budget.of(key.id, await _directory(request).budget(key_subject(key.id)))


@router.post("/keys/{id}/budget", responses={404: ABSENT})
async def set_key_budget(request: Request, caller: Admin, id: str, body: BudgetChange) -> Budget:
    """Limit what a key may spend, beside what its team may. Rotating the key changes nothing about it."""
    key = await _directory(request).key(id)
    await _directory(request).set_budget(key_subject(key.id), body.limits_usd)
    _note(request, caller, "key budget set", set_key_id=key.id, **body.limits_usd)
    return await get_key_budget(request, key.id)


@router.get("/teams/{id}/policy", responses={404: ABSENT})
async def get_team_policy(request: Request, id: str) -> Policy:
    """What the keys of a team may do."""
    return Policy.of(await _directory(request).team(id))


@router.post("/teams/{id}/policy", responses={400: BAD, 404: ABSENT})
async def set_team_policy(request: Request, caller: Admin, id: str, body: AccountPolicy) -> Policy:
    """Change what the keys of a team may do: fields that are named, null or the default lifts one. Everywhere
    within 10 s; runs under way go on as they began.
    """
    check_names(body, _service(request).pool.written)
    changed = await _directory(request).change_team_policy(id, body)
    _note(request, caller, "team policy set", team_id=changed.id, policy=changed.policy.stated())
    return Policy.of(changed)


@router.get("/keys/{id}/policy", responses={404: ABSENT})
async def get_key_policy(request: Request, id: str) -> Policy:
    """What a key may do."""
    return Policy.of(await _directory(request).key(id))


@router.post("/keys/{id}/policy", responses={400: BAD, 404: ABSENT})
async def set_key_policy(request: Request, caller: Admin, id: str, body: AccountPolicy) -> Policy:
    """Change what a key may do of what its team may. It can only take away."""
    check_names(body, _service(request).pool.written)
    changed = await _directory(request).change_key_policy(id, body)
    _note(request, caller, "key policy set", set_key_id=changed.id, policy=changed.policy.stated())
    return Policy.of(changed)


@router.post("/reload", responses={400: BAD})
async def reload(request: Request, caller: Admin) -> Reloaded:
    """Read the settings file and the files of keys again, now, on this replica; the others follow within seconds,
    where the file is. A file that cannot be used changes nothing, and the answer says what is wrong.
    """
    service = _service(request)
    read_again: Callable[[], Awaitable[None]] | None = request.app.state.reload
    if read_again is None:
        raise BadTask("This server was started from no settings file.", param="settings")
    try:
        await read_again()
    except (SettingsError, AdapterError, WorkerUnavailable) as exc:
        raise BadTask(Failure.of(exc).explanation, param="settings") from exc
    _note(request, caller, "settings reloaded")
    return Reloaded(workers=list(service.pool.members), policies=service.policy_faults)


@router.get(OPENAPI, include_in_schema=False)
async def openapi(request: Request) -> Response:
    """This API in OpenAPI's words."""
    return constant(request, _document)


def _document(routes: Sequence[Any]) -> dict[str, Any]:
    document = get_openapi(
        title="Podium administration",
        version="1",
        description="Teams and API keys of a Podium. Every request takes a key with the scope `admin`.",
        routes=[each for each in routes if getattr(each, "path", "").startswith(router.prefix)],
    )
    document.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document | {"security": [{"key": []}]}


def _service(request: Request) -> Service:
    return request.app.state.service


def _directory(request: Request) -> Directory:
    return request.app.state.directory


def _note(request: Request, caller: Caller, what: str, **fields: object) -> None:
    """Log a change, and have this replica look keys up again."""
    authenticator: Authenticator = request.app.state.authenticator
    authenticator.forget()
    logger.info(what, extra={FIELDS: {"by_key_id": caller.account.key_id, **fields}})
