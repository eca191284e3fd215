"""OTLP receivers over gRPC (the collector's `TraceService`) and HTTP, which keep what they receive."""

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class Received:
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """OTLP receiver of spans, in order of arrival."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self._arrived = threading.Condition()
        self.port = 0
        self.n_requests = 0

    def Export(self, request: Any, context: Any) -> Any:
        with self._arrived:
            self.n_requests += 1
            for resource in request.resource_spans:
                service = _attributes(resource.resource.attributes).get("service.name", "")
                for scope in resource.scope_spans:
                    self.spans += [_received(service, span) for span in scope.spans]
            self._arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[Received]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def wait_for(self, trace_id: str, enough: Any, timeout_s: float = 30.0) -> list[Received]:
        """Return the trace's spans as soon as `enough(spans)` holds."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: enough(self.of(trace_id)), timeout_s), [
                s.name for s in self.of(trace_id)
            ]
            return self.of(trace_id)


def tree(spans: list[Received]) -> str:
    """Return the spans as an indented tree, siblings by start: `service: name`, with the steps that a span links to."""
    names = {span.span_id: span.name for span in spans}
    steps = {span.span_id: span.attributes.get("podium.step") for span in spans}

    def lines(parent_id: str, depth: int) -> list[str]:
        out: list[str] = []
        children = [s for s in spans if s.parent_id == parent_id or (depth == 0 and s.parent_id not in names)]
        for span in sorted(children, key=lambda span: span.start_ns):
            reads = sorted(steps[link] for link in span.links if link in steps)
            step = span.attributes.get("podium.step")
            details = f" step {step}" if step is not None else ""
            details += f" reads {reads}" if reads else ""
            out += [f"{'  ' * depth}{span.service}: {span.name}{details}", *lines(span.span_id, depth + 1)]
        return out

    return "\n".join(lines("", 0))


@contextmanager
def receiving(most_bytes: int | None = None) -> Iterator[Receiver]:
    """Run a receiver on a free loopback port. Default limit of a message: 4 MiB."""
    receiver = Receiver()
    options = [] if most_bytes is None else [("grpc.max_receive_message_length", most_bytes)]
    server = grpc.server(ThreadPoolExecutor(4), options=options)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


@contextmanager
def receiving_http(most_bytes: int = 4_194_304) -> Iterator[Receiver]:
    """Run a receiver over HTTP. A longer body gets status 413."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            status = 413 if len(body) > most_bytes or self.path != "/v1/traces" else 200
            if status == 200:
                receiver.Export(trace_service_pb2.ExportTraceServiceRequest.FromString(body), None)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _attributes(pairs: Any) -> dict[str, Any]:
    def value(any_value: Any) -> Any:
        kind = any_value.WhichOneof("value")
        if kind == "array_value":
            return [value(each) for each in any_value.array_value.values]
        return getattr(any_value, kind) if kind else None

    return {pair.key: value(pair.value) for pair in pairs}


def _received(service: str, span: Any) -> Received:
    return Received(
        service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
        tuple(link.span_id.hex() for link in span.links), _attributes(span.attributes),
        span.start_time_unix_nano, span.end_time_unix_nano,
    )  # fmt: skip
