"""The table of errors is complete, and its bodies are what the official SDK understands."""

import httpx2
import openai
import pytest

from conductor import errors as e
from conductor.worker import Attempt
from serving.api import errors
from serving.settings import SettingsError

STATUSES = {
    e.PodiumError: 500, e.BadTask: 400, e.UnknownName: 404, e.TooLarge: 413, e.TooSlow: 408, e.WrongContentType: 415, e.NotAllowed: 403, e.NoPlan: 502,
    e.InvalidPlan: 502, e.WorkerError: 502, e.WorkerUnavailable: 502, e.WorkerBusy: 503, e.WorkerRefused: 502,
    e.ContextOverflow: 400, e.BudgetExceeded: 402, e.DeadlineExceeded: 504, e.Overloaded: 429,
}  # fmt: skip
CLASSES = {
    400: openai.BadRequestError, 402: openai.APIStatusError, 403: openai.PermissionDeniedError, 404: openai.NotFoundError,
    408: openai.APIStatusError, 413: openai.APIStatusError, 415: openai.APIStatusError, 429: openai.RateLimitError, 500: openai.InternalServerError, 502: openai.InternalServerError,
    503: openai.InternalServerError, 504: openai.InternalServerError,
}  # fmt: skip


def tree(kind: type[e.PodiumError] = e.PodiumError) -> set[type[e.PodiumError]]:
    """The classes of `conductor.errors`."""
    inner = {found for child in kind.__subclasses__() for found in tree(child)}
    return {each for each in {kind} | inner if each.__module__ == "conductor.errors"}


def test_every_error_has_a_row_of_its_own():
    assert set(errors.TABLE) == tree()


def test_statuses_are_the_designs():
    assert {kind: row.status for kind, row in errors.TABLE.items()} == STATUSES


def test_codes_tell_errors_apart():
    codes = [row.code for row in errors.TABLE.values()]
    assert len(set(codes)) == len(codes)


def test_an_error_from_elsewhere_has_its_nearest_ancestors_row():
    class OutOfCredit(e.WorkerRefused):
        pass

    assert errors.row(OutOfCredit("x")) == errors.TABLE[e.WorkerRefused]
    assert errors.row(SettingsError("x")).status == 500


@pytest.mark.parametrize(
    "kind", sorted(tree(), key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_every_body_is_an_error_of_the_sdks_right_class(kind: type[e.PodiumError]):
    error = kind("It went wrong.", param="podium.x")
    answer = httpx2.Response(
        errors.row(error).status,
        json=errors.body(error),
        headers=errors.headers(error),
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
        errors.TABLE[kind].code, errors.TABLE[kind].type, "podium.x",
    )  # fmt: skip
    assert "It went wrong." in caught.value.message


@pytest.mark.parametrize(
    ("error", "header"),
    [
        (e.Overloaded("x"), "1"),
        (e.Overloaded("x", retry_after_s=0.2), "1"),
        (e.WorkerBusy("x", retry_after_s=7.0), "7"),
        (e.WorkerBusy("x", retry_after_s=7.2), "8"),
        (e.WorkerBusy("x"), None),
        (e.WorkerUnavailable("x"), None),
        (e.BadTask("x"), None),
    ],
)
def test_retry_after_is_told_where_it_is_known_in_whole_seconds_and_never_too_early(
    error: e.PodiumError, header: str | None
):
    assert errors.headers(error).get("retry-after") == header


def test_clients_are_told_to_ask_again_where_that_may_help_and_nowhere_else():
    again = {kind for kind in tree() if errors.headers(kind("x"))["x-should-retry"] == "true"}
    assert again == {e.WorkerUnavailable, e.WorkerBusy, e.Overloaded, e.TooSlow}


def test_a_detail_is_in_what_the_record_says_and_not_in_a_body():
    tried = Attempt("a", "WorkerBusy", "busy", 0.5, "at 10.0.0.7")
    error = e.WorkerRefused("x", detail="at 10.0.0.8", attempts=(tried,))
    assert "10.0.0" not in str(errors.body(error))
    recorded = errors.record_body(error)
    assert recorded["detail"] == "at 10.0.0.8"
    assert recorded["podium"]["attempts"][0]["detail"] == "at 10.0.0.7"


def test_a_body_tells_the_facts_and_keeps_openais_shape():
    tried = Attempt("a", "WorkerBusy", "busy", 0.5)
    body = errors.body(e.WorkerUnavailable("x", worker="a", step=0, attempts=(tried,)), "wf_1")["error"]
    assert body == {
        "message": "x", "type": "upstream_error", "param": None, "code": "worker_unavailable",
        "podium": {
            "worker": "a", "step": 0, "workflow_id": "wf_1",
            "attempts": [{"worker": "a", "error": "WorkerBusy", "message": "busy", "waited_s": 0.5}],
        },
    }  # fmt: skip
    assert errors.body(e.BudgetExceeded("x", spent="$1", held="$2", limit="$3"))["error"]["podium"] == {
        "spent": "$1", "held": "$2", "limit": "$3",
    }  # fmt: skip
    assert "podium" not in errors.body(e.BadTask("x"))["error"]
