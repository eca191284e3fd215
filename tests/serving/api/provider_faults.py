"""Faults of a provider and what a client sees: the table of `test_fault_suite.py`. Each has one outcome, because the
client has read everything before the fault (`let_read`) and errors before the first word are statuses
(`limits.first_byte_s`). `fault_servers.py` plays them, and `play_faults.py` sends the requests.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.wires.faults import BROKEN_FRAMING, COMMENTS, NOT_HTTP, SILENT, Fault
from tests.wires.server import Answer, sse

TEXT = "It is four."
FIRST = "It"
FIRST_WORD = 1
MIDDLE = FIRST_WORD + 1
WHOLE = f"200 {TEXT}"
OTHER_TEXT = f"{TEXT} So says another."
"""Answer of a fallback. It can continue every beginning of `TEXT`, and differs from it."""
INSTEAD = f"200 {OTHER_TEXT}"
PLAN = '{"worker": 1, "subtask":"","access":[]}'  # as many words as TEXT
"""Plan of the faulty conductor while it works: the second of two workers answers. Without a plan, the first answers.
"""
PLANNED_TEXT = "It is as planned."
STATUS_OF = {"worker_busy": 503, "context_length_exceeded": 400, "content_filter": 400}
Place = Literal["good", "expired", "elsewhere", "closed", "nowhere", "plain", "mute"]


@dataclass(frozen=True)
class Case:
    """One fault.

    Args:
        does: what the server plays: answers in turn (the last repeats), or bytes.
        code: expected error code, or empty if the answer is complete.
        shows: part of the answer that arrives before the fault.
        is_mended: whether a second call succeeds, before the first word (a retry) or after it. A fallback then gives the
            same answer, because either can be faster.
        is_silent: whether only a silence reveals the fault. In other cases a long silence means a busy machine.
        is_paid: whether the model worked, so that the call is billed and clients must not retry.
        says_nothing: the answer ends normally without a word. It stands after a second try if there is no other worker.
        place: what is at its address: a certificate, or no proper server.
        burst: number of concurrent clients that fail. The server answers the next one.
    """

    does: tuple[Answer, ...] | Fault = (Answer(),)
    code: str = "worker_unavailable"
    shows: str = ""
    is_mended: bool = False
    is_silent: bool = False
    is_paid: bool = False
    says_nothing: bool = False
    place: Place | None = None
    burst: int = 0

    @property
    def fallback_text(self) -> str:
        return TEXT if self.is_mended else OTHER_TEXT

    def outcome(self, position: str, *, stream: bool) -> str:
        """Return what the client sees. For a burst, count it and add what the next client sees."""
        outcome = self._outcome(position, stream=stream)
        if not self.burst:
            return outcome
        if position == "conductor":  # its circuit is open, so a worker answers
            return f"{self.burst} times {outcome}, then {INSTEAD}"
        after = replace(self, code="", burst=0)
        return f"{self.burst} times {outcome}, then {after.outcome(position, stream=stream)}"

    def _outcome(self, position: str, *, stream: bool) -> str:
        if self.says_nothing and position == "alone":
            return "200 "
        if self.says_nothing and position == "backed":
            return INSTEAD
        # The client gets the error, without a fallback.
        if self.code == "content_filter" and position != "middle":
            return f"{400} {self.code}"
        if position == "conductor":
            has_plan = not (self.code or self.says_nothing) or (self.is_mended and not self.burst)
            return f"200 {PLANNED_TEXT}" if has_plan else INSTEAD
        if position == "backed" and self.code:
            return f"200 {self.fallback_text}"
        if not self.code or (self.is_mended and not self.burst):
            return "200 Whole." if position == "middle" else WHOLE
        if stream and self.shows and position == "alone":
            return f"200 {self.shows}… then {self.code}"
        status = STATUS_OF.get(self.code, 502)
        is_paid = position == "middle" or self.shows or self.is_paid  # the first of three steps was paid
        return f"{400 if is_paid else status} {self.code}"


def _status(status: int, code: str = "worker_unavailable", **more: Any) -> Case:
    return Case((Answer(status=status, **more),), code)


REFUSED, BUSY = "worker_refused", "worker_busy"
SOON, LATE = {"retry-after": "0"}, {"retry-after": "60"}
BY_STATUS = {
    **{f"{status}": _status(status) for status in (408, 409, 425, 499, 500, 501, 502, 503, 504, 520)},
    **{f"{status}": _status(status, REFUSED) for status in (400, 401, 402, 403, 404, 405, 418, 422, 451)},
    **{f"{status}": _status(status, REFUSED, headers={"location": "/"}) for status in (301, 307)},
    "413": _status(413, "context_length_exceeded"),
    "429": _status(429, BUSY),
    "429, Retry-After 0": _status(429, BUSY, headers=SOON),
    "429, Retry-After 60": _status(429, BUSY, headers=LATE),
    "429, invalid Retry-After": _status(429, BUSY, headers={"retry-after": "soon"}),
    "429, out of credit": _status(429, REFUSED, error_code="insufficient_quota"),
    "503, Retry-After 60": _status(503, BUSY, headers=LATE),
    "529": _status(529, BUSY),
    "400, content filter": _status(400, "content_filter", error_code="content_filter"),
    "400, prompt too long": _status(400, "context_length_exceeded", error="maximum context length"),
    "500, an HTML page": _status(500, body=b"<html>Oh no</html>"),
    "503, no body": _status(503, body=b""),
    "500, truncated JSON": _status(500, body=b'{"error": {"mess'),
}


def _in_the_middle(
    code: str = "worker_unavailable", *, well: bool = False, is_silent: bool = False, **breaks: Any
) -> Case:
    """Return a stream that breaks after its first word was read. With `well`, the next call succeeds."""
    does = (Answer(pause_after=MIDDLE, **breaks), *([Answer()] if well else []))
    return Case(does, code, shows=FIRST, is_mended=well, is_silent=is_silent)


STREAMS = {
    "a reset, early": Case((Answer(cut_after=FIRST_WORD),)),
    "a reset, late": _in_the_middle(cut_after=MIDDLE),
    "an end, early": Case((Answer(end_after=FIRST_WORD),)),
    "an end, late": _in_the_middle(end_after=MIDDLE),
    "silence, early": Case((Answer(stall_after=FIRST_WORD),), is_silent=True, is_paid=True),
    "silence, late": _in_the_middle(stall_after=MIDDLE, is_silent=True),
    "invalid JSON, early": Case((Answer(garble_after=FIRST_WORD),)),
    "invalid JSON, late": _in_the_middle(garble_after=MIDDLE),
    "an error event, early": Case((Answer(error_after=FIRST_WORD),), REFUSED),
    "an overload error event, late": _in_the_middle(
        BUSY, error_after=MIDDLE, error_code="rate_limit_exceeded"
    ),
    "a server error event, late": _in_the_middle(error_after=MIDDLE, extra={"type": "server_error"}),
    "no event at all": Case((Answer(end_after=0),)),
    "an unknown finish reason": Case((Answer(finish="tired", pause_after=4),), shows=TEXT),
    "a list as event": Case((Answer(instead=(sse([1]),)),)),
    "choices not a list": Case((Answer(instead=(sse({"choices": 7}),)),)),
    "a content filter, no text": Case(
        (Answer(text="", finish="content_filter"),), "content_filter", is_paid=True
    ),
}
NOTHING = Answer(text="", output_tokens=0)
LIES = {
    "an empty answer": Case((NOTHING,), "", says_nothing=True),
    "a negative usage": Case((Answer(output_tokens=-5),), ""),
    "a usage of 10^30": Case((Answer(output_tokens=10**30),), ""),
    "a usage of zero": Case((Answer(input_tokens=0, output_tokens=0),), ""),
    "a model name of 1 MB": Case((Answer(model="m" * 2**20),), ""),
    "a reset after the finish": Case((Answer(cut_after=5, pause_after=5),), ""),
}
LATE_S = 0.5
SLOW = {
    "headers after 0.5 s": Case((Answer(late_s=LATE_S),), ""),
    "the first word after 0.5 s": Case((Answer(pause_after=FIRST_WORD, late_s=LATE_S),), ""),
    "a pause of 0.5 s": Case((Answer(pause_after=MIDDLE, late_s=LATE_S),), ""),
}
FLAPS = {
    "an empty answer, then healthy": Case((NOTHING, Answer()), is_mended=True),
    "500, then healthy": Case((Answer(status=500), Answer()), is_mended=True),
    "429 with Retry-After 0, then healthy": Case(
        (Answer(status=429, headers=SOON), Answer()), BUSY, is_mended=True
    ),
    "a reset, early, then healthy": Case((Answer(cut_after=1), Answer()), is_mended=True),
    "invalid JSON, early, then healthy": Case((Answer(garble_after=1), Answer()), is_mended=True),
    "a reset, late, then healthy": _in_the_middle(cut_after=MIDDLE, well=True),
    "an end, late, then healthy": _in_the_middle(end_after=MIDDLE, well=True),
    "invalid JSON, late, then healthy": _in_the_middle(garble_after=MIDDLE, well=True),
}
STORMS = {
    "a burst of 503, then healthy": Case((Answer(status=503),), burst=8, is_mended=True),
    "a burst of 429, then healthy": Case((Answer(status=429),), BUSY, burst=8, is_mended=True),
}
PLACES = {
    "connection refused": Case(place="closed"),
    "an unknown host name": Case(place="nowhere"),
    "TLS to a plain port": Case(place="plain"),
    "a stalled TLS handshake": Case(place="mute", is_silent=True),
    "an expired TLS certificate": Case(place="expired"),
    "a TLS certificate for another host": Case(place="elsewhere"),
    "a valid TLS certificate": Case(code="", place="good"),
}
CASES: dict[str, Case] = {
    **BY_STATUS,
    **STREAMS,
    **LIES,
    **SLOW,
    **FLAPS,
    **STORMS,
    **PLACES,
    # aiohttp does not report an undecodable body while its connection stays open.
    **{name: Case(fault, is_silent=name == "a wrong content encoding") for name, fault in NOT_HTTP.items()},
    **{name: Case(fault, is_silent=True) for name, fault in SILENT.items()},
    **{f"{name}, early": Case(Fault(tail=tail)) for name, tail in BROKEN_FRAMING.items()},
    **{
        f"{name}, early": Case(Fault(drips=drip), is_silent=True, is_paid=True)
        for name, drip in COMMENTS.items()
    },
    **{
        f"{name}, late": Case(Fault(speaks=True, tail=tail), shows=FIRST)
        for name, tail in BROKEN_FRAMING.items()
    },
    **{
        f"{name}, late": Case(Fault(speaks=True, drips=drip), shows=FIRST, is_silent=True)
        for name, drip in COMMENTS.items()
    },
}
POSITIONS = ("alone", "backed", "middle", "conductor")
"""By name, with a fallback, as the middle one of three steps, and as the conductor."""
