"""The table of errors is complete, and the official SDK understands its bodies."""

import math

import httpx2
import openai
import pytest

from conductor import errors
from conductor.model.failure import Attempt
from serving import errors as api_errors
from serving.api.dialects.table import CHAT
from serving.api.error_json import operator_json
from serving.settings.settings import SettingsError

STATUSES = {
    errors.PodiumError: 500, errors.BadTask: 400, errors.UnknownName: 404, errors.UnknownModel: 404, errors.TooLarge: 413, errors.TooSlow: 408, errors.WrongContentType: 415, errors.NotAllowed: 403, errors.Unauthenticated: 401, errors.NoPlan: 502,
    errors.InvalidPlan: 502, errors.WorkerError: 502, errors.WorkerUnavailable: 502, errors.WorkerBusy: 503, errors.LineTooLong: 429, errors.WorkerRefused: 502, errors.ContentFiltered: 400, errors.QuestionRejected: 400, errors.AnswerInvalid: 400,
    errors.ContextOverflow: 400, errors.BudgetExceeded: 402, errors.DeadlineExceeded: 504, errors.Cancelled: 409, errors.Interrupted: 503, errors.StoreUnavailable: 503, errors.Overloaded: 429, errors.RateLimited: 429, errors.NotTheSame: 422,
}  # fmt: skip
CLASSES = {
    400: openai.BadRequestError, 401: openai.AuthenticationError, 402: openai.APIStatusError, 403: openai.PermissionDeniedError, 404: openai.NotFoundError,
    408: openai.APIStatusError, 409: openai.ConflictError, 413: openai.APIStatusError, 415: openai.APIStatusError, 422: openai.UnprocessableEntityError, 429: openai.RateLimitError, 500: openai.InternalServerError, 502: openai.InternalServerError,
    503: openai.InternalServerError, 504: openai.InternalServerError,
}  # fmt: skip


def tree(kind: type[errors.PodiumError] = errors.PodiumError) -> set[type[errors.PodiumError]]:
    inner = {error for child in kind.__subclasses__() for error in tree(child)}
    return {each for each in {kind} | inner if each.__module__ == "conductor.errors"}


def test_every_error_class_has_a_row_in_the_table():
    assert set(api_errors.TABLE) == tree()


def test_every_error_has_its_specified_status():
    assert {kind: row.status for kind, row in api_errors.TABLE.items()} == STATUSES


def test_every_error_has_its_own_code():
    codes = [row.code for row in api_errors.TABLE.values()]
    assert len(set(codes)) == len(codes)


def test_an_unknown_error_uses_its_nearest_ancestors_row():
    class OutOfCredit(errors.WorkerRefused):
        pass

    assert api_errors.row(OutOfCredit("x")) == api_errors.TABLE[errors.WorkerRefused]
    assert api_errors.row(SettingsError("x")).status == 500


@pytest.mark.parametrize(
    "kind", sorted(tree(), key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_every_body_is_an_error_of_the_sdks_right_class(kind: type[errors.PodiumError]):
    error = kind("It went wrong.", param="podium.x")
    answer = httpx2.Response(
        api_errors.row(error).status,
        json=CHAT.error_body(error, None),
        headers=api_errors.headers(error),
        request=httpx2.Request("POST", "http://x"),
    )
    client = openai.OpenAI(
        api_key="none", base_url="http://x", max_retries=0,
        http_client=openai.DefaultHttpxClient(transport=httpx2.MockTransport(lambda _: answer)),
    )  # fmt: skip
    with pytest.raises(openai.APIStatusError) as caught:
        client.models.list()
    assert type(caught.value) is CLASSES[STATUSES[kind]]
    assert (caught.value.code, caught.value.type, caught.value.param) == (
        api_errors.TABLE[kind].code, api_errors.TABLE[kind].type, "podium.x",
    )  # fmt: skip
    assert "It went wrong." in caught.value.message


@pytest.mark.parametrize(
    ("error", "header"),
    [
        (errors.Overloaded("x"), "1"),
        (errors.Overloaded("x", retry_after_s=0.2), "1"),
        (errors.WorkerBusy("x", retry_after_s=7.0), "7"),
        (errors.WorkerBusy("x", retry_after_s=7.2), "8"),
        (errors.WorkerBusy("x", retry_after_s=1e9), "300"),
        (errors.WorkerBusy("x", retry_after_s=math.inf), "300"),
        (errors.WorkerBusy("x", retry_after_s=-5.0), "1"),
        (errors.WorkerBusy("x", retry_after_s=math.nan), None),
        (errors.WorkerBusy("x"), None),
        (errors.WorkerUnavailable("x"), None),
        (errors.BadTask("x"), None),
    ],
)
def test_retry_after_is_rounded_up_to_whole_seconds(error: errors.PodiumError, header: str | None):
    assert api_errors.headers(error).get("retry-after") == header


@pytest.mark.parametrize(
    ("said_s", "told_s"), [(7.2, 7.2), (1e9, 300.0), (math.inf, 300.0), (math.nan, None), (-5.0, 0.0)]
)
def test_the_body_has_the_same_retry_after_as_the_header(said_s: float, told_s: float | None):
    error = CHAT.error_body(errors.WorkerBusy("x", retry_after_s=said_s), None)["error"]
    assert error["podium"]["retry_after_s"] == told_s


def test_clients_may_retry_exactly_the_temporary_errors():
    again = {kind for kind in tree() if api_errors.headers(kind("x"))["x-should-retry"] == "true"}
    assert again == {
        errors.WorkerUnavailable,
        errors.WorkerBusy,
        errors.LineTooLong,
        errors.Overloaded,
        errors.RateLimited,
        errors.StoreUnavailable,
        errors.TooSlow,
        errors.Interrupted,
    }


def test_an_errors_detail_is_in_the_record_but_not_in_the_body():
    tried = Attempt("a", "WorkerBusy", "busy", 0.5, "at 10.0.0.7")
    error = errors.WorkerRefused("x", detail="at 10.0.0.8", attempts=(tried,))
    assert "10.0.0" not in str(CHAT.error_body(error, None))
    recorded = operator_json(error)
    assert recorded["detail"] == "at 10.0.0.8"
    assert recorded["podium"]["attempts"][0]["detail"] == "at 10.0.0.7"


def test_an_error_body_has_podiums_facts_and_openais_shape():
    tried = Attempt("a", "WorkerBusy", "busy", 0.5)
    body = CHAT.error_body(errors.WorkerUnavailable("x", worker="a", step=0, attempts=(tried,)), "wf_1")[
        "error"
    ]
    assert body == {
        "message": "x", "type": "upstream_error", "param": None, "code": "worker_unavailable",
        "podium": {
            "worker": "a", "step": 0, "workflow_id": "wf_1",
            "attempts": [{"worker": "a", "error": "WorkerBusy", "message": "busy", "waited_s": 0.5, "took_s": None, "outcome": "failed", "hedge": False, "cost_usd": None, "cost_is_bound": False}],
        },
    }  # fmt: skip
    assert CHAT.error_body(errors.BudgetExceeded("x", spent="$1", held="$2", limit="$3"), None)["error"]["podium"] == {
        "spent": "$1", "held": "$2", "limit": "$3",
    }  # fmt: skip
    assert "podium" not in CHAT.error_body(errors.BadTask("x"), None)["error"]
