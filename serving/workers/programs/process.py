"""The process in which the programs answer.

A regular expression or a calculation can take hours for a question of one line. Python can interrupt neither of
them in a thread, and both block the other threads. The operating system ends this process when a question has
used `CPU_S`. The next question starts a new process.

The router writes questions to standard input, as pickles, and reads one line of JSON for each.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from traceback import extract_tb
from types import TracebackType

CPU_S = 3.0
"""Seconds of CPU after which a question ends the process. Ordinary questions take less than 0.1 s, and
the first one loads packages and data in about 1 s."""
NICE = 10
"""The router and its engines go first."""


class NotForProgram(Exception):
    """The program cannot answer the question. The message is the reason, as a sentence for the record of the run."""


class ProgramProcess:
    """Answers one question at a time, for one thread, in a process that it starts when it is needed."""

    def __init__(self, cpu_s: float = CPU_S) -> None:
        self._cpu_s = cpu_s
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, answer: Callable[[], str]) -> str:
        """Return the result of `answer`, which is pickled. Raise NotForProgram if it does, or takes too long."""
        if self._process is None or self._process.poll() is not None:
            self._process = _start(self._cpu_s)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            pickle.dump(answer, stdin)
            stdin.flush()
        except BrokenPipeError:
            pass
        line = stdout.readline()
        if not line:
            is_slow = self._process.wait() == -signal.SIGPROF
            raise NotForProgram(
                "The question takes too long." if is_slow else "The program failed. The log says why."
            )
        text, why = json.loads(line)
        if text is None:
            raise NotForProgram(why)
        return text


def _start(cpu_s: float) -> subprocess.Popen[bytes]:
    """Start the process. It ends when this process does, because its standard input ends."""
    command = [sys.executable, "-c", f"from {__name__} import main; main({cpu_s})"]
    environment = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TZ") if name in os.environ}
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment | path, start_new_session=True
    )


def main(cpu_s: float) -> None:
    """Answer the questions on standard input until it ends."""
    sys.excepthook = _report
    os.nice(NICE)
    questions, answers = sys.stdin.buffer, sys.stdout
    sys.stdout = sys.stderr
    while True:
        try:
            answer = pickle.load(questions)  # noqa: S301 # the router wrote it
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # SIGPROF ends the process
        try:
            line = [answer(), ""]
        except NotForProgram as reason:
            line = [None, str(reason)]
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(line), file=answers, flush=True)


def _report(kind: type[BaseException], _: BaseException, trace: TracebackType | None) -> None:
    """Write the type and the place of an exception. Its message may quote the user's text."""
    place = extract_tb(trace)[-1]
    sys.stderr.write(f"A program failed: {kind.__name__} in {place.filename}, line {place.lineno}.\n")
