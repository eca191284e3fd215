"""Descriptions of errors for log lines and spans.

The message of an error may quote a prompt or an answer. For example, a provider quotes the prompt to explain
why it rejects it, and a parser quotes the text that it cannot parse.
"""

from conductor.errors import WorkerError
from conductor.model.failure import Attempt, Fact, Failure
from conductor.model.terms import Permit
from serving.redaction.texts import redactor_of

NAMES = ("reason", "worker", "param")
"""Names of text facts that never contain a part of a prompt or an answer."""


def facts_without_words(failure: Failure) -> dict[str, Fact]:
    """Return the facts of `failure` that cannot quote a prompt or an answer: its numbers and its names."""
    return {name: fact for name, fact in failure.facts.items() if not isinstance(fact, str) or name in NAMES}


def outline(error: Failure | Attempt) -> str:
    """Describe `error` by its numbers and names only, such as `worker: gpt, provider_status: 403`."""
    if isinstance(error, Failure):
        facts = facts_without_words(error)
    else:
        facts = {"worker": error.worker, "provider_status": error.provider_status}
    return ", ".join(f"{name}: {fact}" for name, fact in facts.items() if fact not in (None, ""))


def words_in_span(failure: Failure, permit: Permit, *, content: bool) -> str:
    """Return the full explanation of `failure` if settings (`content`) and `permit` allow it, else the
    outline.

    The outline follows the message of a worker's error if `permit` allows traces, because Podium wrote it
    (decision 0020).
    """
    if content and permit.traces:
        return redactor_of(permit)(failure.explanation)
    is_ours = permit.traces and failure.is_a(WorkerError)
    return f"{failure.message} {outline(failure)}".rstrip() if is_ours else outline(failure)


def line_of(error: Failure | Attempt, *, has_words: bool) -> str:
    """Describe `error` for the log: its class, then its message if `has_words`, else its outline."""
    if isinstance(error, Failure):
        code, words = error.code, error.explanation
    else:
        code, words = error.error, f"{error.message} {error.detail}".rstrip()
    return f"{code}: {words if has_words else outline(error)}".removesuffix(": ")
