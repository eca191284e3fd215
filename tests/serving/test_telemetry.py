"""Telemetry: names, the span of a run, and trace headers in and out."""

import importlib
import re

import pytest
from opentelemetry.trace import StatusCode

from conductor.errors import PodiumError
from conductor.model.call import CallSite
from serving.settings.workers import Kind
from serving.telemetry import spans
from tests.resolver import Names
from tests.serving.spans import SPANS

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore whether spans are recorded, because `span_processors` sets it for the process."""
    monkeypatch.setattr(spans, "_is_exported", spans.is_recording())


def test_every_kind_of_worker_has_a_providers_name():
    assert set(spans.PROVIDERS) == set(Kind.__args__)


def test_span_names_follow_the_conventions_or_have_our_prefix():
    names = {
        value
        for name, value in vars(spans).items()
        if name.isupper() and isinstance(value, str) and name != "EXPORTER"
    }
    assert len(names) > 20
    assert all(
        re.fullmatch(r"(gen_ai|podium)(\.[a-z_]+)+|error\.type|openinference\.span\.kind", name)
        for name in names
    )


def test_a_run_joins_the_callers_trace_and_propagates_it():
    SPANS.clear()
    with spans.workflow("mini", "wf_1", {"traceparent": PARENT}) as span:
        assert spans.trace_id(span) == "0af7651916cd43dd8448eb211c80319c"
        assert spans.outgoing_headers()["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
        assert PARENT[36:52] not in spans.outgoing_headers()["traceparent"], (
            "the parent is now the run's own span"
        )
    root = SPANS.ended[0]
    assert root.name == "invoke_workflow mini"
    assert dict(root.attributes or {}) == {
        "gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "mini", "gen_ai.request.model": "mini",
        "podium.workflow_id": "wf_1", "openinference.span.kind": "CHAIN",
    }  # fmt: skip
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == "b7ad6b7169203331"


def test_without_a_valid_traceparent_a_run_starts_its_own_trace():
    for headers in (None, {}, {"traceparent": "nonsense"}):
        with spans.workflow("mini", "wf_1", headers) as span:
            assert re.fullmatch(r"[0-9a-f]{32}", spans.trace_id(span) or "")


def test_an_existing_span_is_the_parent_whatever_the_headers():
    with (
        spans.tracer.start_as_current_span("ray") as outer,
        spans.workflow("mini", "wf_1", {"traceparent": PARENT}) as span,
    ):
        assert spans.trace_id(span) == spans.trace_id(outer)


def test_runs_do_not_link_to_each_others_steps():
    with spans.workflow("mini", "wf_1"):
        run_spans = spans.RUN_SPANS.get()
        assert run_spans is not None
        assert run_spans.links(CallSite(run="wf_1", step=1, access=(0,))) == []
    assert spans.RUN_SPANS.get() is None


def test_a_failed_runs_span_has_an_error_status():
    SPANS.clear()
    with spans.workflow("mini", "wf_1") as span:
        spans.mark_failed(span, "WorkerBusy", "try later")
    assert (SPANS.ended[0].attributes or {})["error.type"] == "WorkerBusy"
    assert (SPANS.ended[0].status.status_code, SPANS.ended[0].status.description) == (
        StatusCode.ERROR,
        "try later",
    )


def test_a_failed_run_ends_its_span():
    SPANS.clear()
    try:
        with spans.workflow("mini", "wf_1"):
            raise PodiumError("what was asked")
    except PodiumError:
        pass
    assert SPANS.open == []
    (ended,) = SPANS.ended
    assert (ended.attributes or {})["error.type"] == "PodiumError"
    assert (ended.status.status_code, ended.status.description or "") == (StatusCode.ERROR, "")


def test_without_an_endpoint_spans_are_not_exported(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    assert spans.span_processors() == []
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        (processor,) = spans.span_processors()
        processor.shutdown()
        monkeypatch.delenv(name)


def test_spans_are_never_sent_to_a_metadata_service(monkeypatch, caplog):
    Names(monkeypatch).lead("collector.example", ("10.0.0.1", "169.254.169.254"))
    for endpoint in (
        "http://169.254.169.254:4317",
        "169.254.169.254:80",
        "http://0xa9fea9fe",
        "https://collector.example:4317",
    ):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        assert spans.span_processors() == []
    assert len([each for each in caplog.records if "link-local" in each.getMessage()]) == 4


def test_the_exporter_path_names_the_function():
    module, _, name = spans.EXPORTER.partition(":")
    assert getattr(importlib.import_module(module), name) is spans.span_processors
