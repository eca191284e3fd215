"""What is said of an error in a log line or a span. Its words may quote a prompt or an answer: a provider's do, where it
says what it did not like, and so may those of whoever read a plan or an answer.
"""

from conductor.errors import WorkerError
from conductor.model.failure import Attempt, Fact, Failure
from conductor.model.terms import Permit
from serving.redaction.personal import redactor_of

NAMES = ("reason", "worker", "param")
"""Facts of a failure that are texts, and are of our own making."""


def facts_without_words(failure: Failure) -> dict[str, Fact]:
    """The numbers and names in `failure`."""
    return {name: fact for name, fact in failure.facts.items() if not isinstance(fact, str) or name in NAMES}


def outline(error: Failure | Attempt) -> str:
    """`error` without its words: its numbers and names, such as `worker: gpt, provider_status: 403`. Its class is said
    beside it.
    """
    if isinstance(error, Failure):
        facts = facts_without_words(error)
    else:
        facts = {"worker": error.worker, "provider_status": error.provider_status}
    return ", ".join(f"{name}: {fact}" for name, fact in facts.items() if fact not in (None, ""))


def words_in_span(failure: Failure, permit: Permit, *, content: bool) -> str:
    """What a span says of `failure`: its words where texts are put into spans, by the settings (`content`) and by `permit`;
    else its outline, and of a worker's error the message, which is of our own making (decision 0020).
    """
    if content and permit.traces:
        return redactor_of(permit)(failure.explanation)
    is_ours = permit.traces and failure.is_a(WorkerError)
    return f"{failure.message} {outline(failure)}".rstrip() if is_ours else outline(failure)


def line_of(error: Failure | Attempt, *, has_words: bool) -> str:
    """`error` in the log: its class, and its words or, without them, its outline."""
    if isinstance(error, Failure):
        code, words = error.code, error.explanation
    else:
        code, words = error.error, f"{error.message} {error.detail}".rstrip()
    return f"{code}: {words if has_words else outline(error)}".removesuffix(": ")
