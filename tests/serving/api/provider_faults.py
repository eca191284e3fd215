"""What a provider can do wrong, and what a client of ours may see then: the table of `test_fault_suite.py`.

How it is played is `play_faults.py`'s.
"""

from dataclasses import dataclass
from typing import Any

from tests.wires.faults import BROKEN_FRAMING, COMMENTS, NOT_HTTP, SILENT, Fault
from tests.wires.server import Answer, sse

TEXT = "It is four."
FIRST = "It"
FIRST_WORD = 1
WHOLE = f"200 {TEXT}"
INSTEAD = "200 Instead."


@dataclass(frozen=True)
class Case:
    """One fault.

    Args:
        does: what the server plays: answers one after another (the last again and again), bytes, or an address
            where nothing is.
        code: what an error says of it; empty where the answer is whole.
        speaks: whether some of the answer comes before it.
        is_mended: whether the call made once more succeeds, before its first word (a retry) or, unseen, after it.
    """

    does: tuple[Answer, ...] | Fault | str
    code: str = "worker_unavailable"
    speaks: bool = False
    is_mended: bool = False
    is_silent: bool = False

    @property
    def status(self) -> int:
        return {"worker_busy": 503, "context_length_exceeded": 400, "content_filter": 400}.get(self.code, 502)

    def outcomes(self, position: str, *, stream: bool) -> set[str]:
        """What the client may see. A stream that has begun ends with an error event, one that has not is a status; which it is, whether a
        word that came just before a fault was read before it, and whether a retry or a fallback was sooner,
        is up to the machine.
        """
        if position == "conductor":
            return {INSTEAD}
        whole = "200 Whole." if position == "middle" else WHOLE
        if not self.code:
            return {whole}
        may_show = self.speaks and stream and position != "middle"
        shown = {f"200 {FIRST}… then {self.code}"} if may_show else set[str]()
        if position == "backed":
            return shown | {INSTEAD} | ({whole} if self.is_mended else set())
        paid = {400} if position == "middle" or self.speaks or self.is_silent else set[int]()
        unpaid = (
            set[int]() if position == "middle" else {self.status}
        )  # how much was read is up to the machine
        errors = {f"{status} {self.code}" for status in paid | unpaid}
        errors |= {f"200 … then {self.code}"} if stream else set()
        return shown | ({whole} if self.is_mended else errors)


def _status(status: int, code: str = "worker_unavailable", **more: Any) -> Case:
    return Case((Answer(status=status, **more),), code)


REFUSED, BUSY = "worker_refused", "worker_busy"
SOON, LATE = {"retry-after": "0"}, {"retry-after": "60"}
STATUSES = {
    **{f"{status}": _status(status) for status in (408, 409, 425, 499, 500, 501, 502, 503, 504, 520)},
    **{f"{status}": _status(status, REFUSED) for status in (400, 401, 402, 403, 404, 405, 418, 422, 451)},
    **{f"{status}": _status(status, REFUSED, headers={"location": "/"}) for status in (301, 307)},
    "413": _status(413, "context_length_exceeded"),
    "429": _status(429, BUSY),
    "429, Retry-After 0": _status(429, BUSY, headers=SOON),
    "429, Retry-After 60": _status(429, BUSY, headers=LATE),
    "429, Retry-After is no time": _status(429, BUSY, headers={"retry-after": "soon"}),
    "429, out of credit": _status(429, REFUSED, error_code="insufficient_quota"),
    "503, Retry-After 60": _status(503, BUSY, headers=LATE),
    "529": _status(529, BUSY),
    "400, a content filter": _status(400, "content_filter", error_code="content_filter"),
    "400, the prompt is too long": _status(400, "context_length_exceeded", error="maximum context length"),
    "500, a page of HTML": _status(500, body=b"<html>Oh no</html>"),
    "503, no body": _status(503, body=b""),
    "500, half of a JSON": _status(500, body=b'{"error": {"mess'),
}
STREAMS = {
    "a reset before the first word": Case((Answer(cut_after=FIRST_WORD),)),
    "a reset in the middle": Case((Answer(cut_after=2),), speaks=True),
    "an end before the first word": Case((Answer(end_after=FIRST_WORD),)),
    "an end in the middle": Case((Answer(end_after=2),), speaks=True),
    "silence before the first word": Case((Answer(stall_after=FIRST_WORD),), is_silent=True),
    "silence in the middle": Case((Answer(stall_after=2),), speaks=True, is_silent=True),
    "no JSON before the first word": Case((Answer(garble_after=FIRST_WORD),)),
    "no JSON in the middle": Case((Answer(garble_after=2),), speaks=True),
    "an error event before the first word": Case((Answer(error_after=FIRST_WORD),), REFUSED),
    "no event at all": Case((Answer(end_after=0),)),
    "a finish reason that nobody knows": Case((Answer(finish="tired"),), speaks=True),
    "an event that is a list": Case((Answer(instead=(sse([1]),)),)),
    "choices that are no list": Case((Answer(instead=(sse({"choices": 7}),)),)),
}
LIES = {
    "a usage below zero": Case((Answer(output_tokens=-5),), ""),
    "a usage of 10^30": Case((Answer(output_tokens=10**30),), ""),
    "a usage of nothing": Case((Answer(input_tokens=0, output_tokens=0),), ""),
    "a model's name of a megabyte": Case((Answer(model="m" * 2**20),), ""),
    "the connection cut after the finish": Case((Answer(cut_after=5),), ""),
}
FLAPS = {
    "500, then well": Case((Answer(status=500), Answer()), is_mended=True),
    "429 with Retry-After 0, then well": Case(
        (Answer(status=429, headers=SOON), Answer()), BUSY, is_mended=True
    ),
    "a reset before the first word, then well": Case((Answer(cut_after=1), Answer()), is_mended=True),
    "no JSON before the first word, then well": Case((Answer(garble_after=1), Answer()), is_mended=True),
    "a reset in the middle, then well": Case((Answer(cut_after=2), Answer()), speaks=True, is_mended=True),
    "an end in the middle, then well": Case((Answer(end_after=2), Answer()), speaks=True, is_mended=True),
    "no JSON in the middle, then well": Case((Answer(garble_after=2), Answer()), speaks=True, is_mended=True),
}
PLACES = {
    "nobody listens": Case("http://127.0.0.1:{closed}"),
    "a name that leads nowhere": Case("http://nowhere.invalid"),
    "TLS where there is none": Case("https://127.0.0.1:{plain}"),
}
CASES: dict[str, Case] = {
    **STATUSES,
    **STREAMS,
    **LIES,
    **FLAPS,
    **PLACES,
    **{name: Case(fault, is_silent=True) for name, fault in (NOT_HTTP | SILENT).items()},
    **{f"{name}, at once": Case(Fault(tail=tail), is_silent=True) for name, tail in BROKEN_FRAMING.items()},
    **{f"{name}, at once": Case(Fault(drips=drip), is_silent=True) for name, drip in COMMENTS.items()},
    **{
        f"{name}, with the first word": Case(Fault(speaks=True, tail=tail), is_silent=True)
        for name, tail in BROKEN_FRAMING.items()
    },
    **{
        f"{name}, in the middle": Case(Fault(speaks=True, drips=drip), speaks=True, is_silent=True)
        for name, drip in COMMENTS.items()
    },
}
POSITIONS = ("alone", "backed", "middle", "conductor")
"""Asked by its name; with a fallback; the middle one of three steps; as the conductor."""
