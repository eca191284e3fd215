"""Visibility of runs by caller."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import NotAllowed
from conductor.run.record import NO_ACCOUNT, Account
from serving.accounts.caller import ANONYMOUS, Caller, Scope

IDS = st.sampled_from(["", "a", "b"])
ACCOUNTS = st.builds(Account, IDS, IDS)
KEYED = ACCOUNTS.filter(lambda account: account.key_id)
SCOPES = st.frozensets(st.sampled_from(Scope))
TENANTS = st.builds(Caller, KEYED, SCOPES.filter(lambda scopes: Scope.ADMIN not in scopes))


@given(TENANTS, ACCOUNTS)
def test_only_administrators_see_runs_of_other_teams_or_without_an_account(
    caller: Caller, account: Account
) -> None:
    if caller.sees(account):
        mine = caller.account
        assert mine.team_id == account.team_id
        assert mine.team_id or mine.key_id == account.key_id
    assert not caller.sees(NO_ACCOUNT)


@given(KEYED, SCOPES, ACCOUNTS)
def test_a_caller_sees_its_own_runs_and_an_administrator_all(
    account: Account, scopes: frozenset[Scope], other: Account
) -> None:
    assert Caller(account, scopes).sees(account)
    assert Caller(account, scopes | {Scope.ADMIN}).sees(other)


@given(TENANTS, TENANTS)
def test_visibility_is_symmetric(one: Caller, other: Caller) -> None:
    assert one.sees(other.account) == other.sees(one.account)


@given(KEYED, SCOPES, st.sampled_from(Scope))
def test_a_missing_scope_is_named_in_the_error(
    account: Account, scopes: frozenset[Scope], scope: Scope
) -> None:
    caller = Caller(account, scopes)
    if caller.may(scope):
        caller.require(scope)
        assert {scope, Scope.ADMIN} & scopes
    else:
        with pytest.raises(NotAllowed, match=repr(scope.value)):
            caller.require(scope)


def test_without_keys_a_local_caller_has_all_scopes_and_no_account() -> None:
    assert all(ANONYMOUS.may(scope) for scope in Scope)
    assert not ANONYMOUS.has_key
