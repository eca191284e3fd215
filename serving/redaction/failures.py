"""Descriptions of errors for log lines and spans. An error's message may quote a prompt or an answer: a
provider's does so to explain a rejection, and so may that of a parser of plans or answers.
"""

from conductor.errors import WorkerError
from conductor.model.failure import Attempt, Fact, Failure
from conductor.model.terms import Permit
from serving.redaction.personal import redactor_of

NAMES = ("reason", "worker", "param")
"""Facts of a failure that are texts but contain nothing of a prompt or an answer."""


def facts_without_words(failure: Failure) -> dict[str, Fact]:
    """Return the numbers and names in `failure`."""
    return {name: fact for name, fact in failure.facts.items() if not isinstance(fact, str) or name in NAMES}


def outline(error: Failure | Attempt) -> str:
    """Return the numbers and names of `error`, such as `worker: gpt, provider_status: 403`, without its class
    and message.
    """
    if isinstance(error, Failure):
        facts = facts_without_words(error)
    else:
        facts = {"worker": error.worker, "provider_status": error.provider_status}
    return ", ".join(f"{name}: {fact}" for name, fact in facts.items() if fact not in (None, ""))


def words_in_span(failure: Failure, permit: Permit, *, content: bool) -> str:
    """Return the description of `failure` for a span.

    If the settings (`content`) and `permit` allow texts in spans, that is its full explanation. Otherwise it
    is the outline, with the message of a worker's error, which is Podium's own text (decision 0020).
    """
    if content and permit.traces:
        return redactor_of(permit)(failure.explanation)
    is_ours = permit.traces and failure.is_a(WorkerError)
    return f"{failure.message} {outline(failure)}".rstrip() if is_ours else outline(failure)


def line_of(error: Failure | Attempt, *, has_words: bool) -> str:
    """Return `error` for the log: its class, and its message (`has_words`) or its outline."""
    if isinstance(error, Failure):
        code, words = error.code, error.explanation
    else:
        code, words = error.error, f"{error.message} {error.detail}".rstrip()
    return f"{code}: {words if has_words else outline(error)}".removesuffix(": ")
