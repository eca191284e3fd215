"""What is seen of a run in progress: a bar and curves; and how it is stopped."""
# The types of accelerate and transformers are partial.
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false, reportUnknownVariableType=false

import json
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from training.run_dir import write_atomically

SHOWN = {
    "reward": "reward",
    "plan/right": "right",
    "plan/parsed": "parsed",
    "plan/steps": "steps",
    "loss": "loss",
}


def tensorboard(folder: Path) -> TensorBoardCallback:
    """Live curves: `tensorboard --logdir FOLDER`."""
    return TensorBoardCallback(SummaryWriter(str(folder / "tensorboard")))


class CurveLog(TrainerCallback):
    """One JSON object a step. A resumed run continues after the step it resumes from."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        kept = [line for line in lines if (step := _step(line)) is not None and step <= state.global_step]
        if state.is_world_process_zero:
            write_atomically(self._path, "".join(line + "\n" for line in kept))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """See `TrainerCallback`."""
        if state.is_world_process_zero and logs and "loss" in logs:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def _step(line: str) -> int | None:
    """The step of a line of curves; None for a line that was cut off when the run was killed."""
    try:
        return int(json.loads(line)["step"])
    except ValueError:
        return None


class ProgressBar(TrainerCallback):
    """A progress bar with the newest figures."""

    def __init__(self, title: str) -> None:
        self._title = title
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[figures]}"))
        self._task: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        if state.is_world_process_zero:
            self._progress.start()
            self._task = self._progress.add_task(
                self._title, total=state.max_steps, completed=state.global_step, figures=""
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        if self._task is not None:
            self._progress.update(self._task, completed=state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """See `TrainerCallback`."""
        if self._task is not None and logs:
            shown = [
                f"{label} {float(logs[name]):.2f}"
                for name, label in SHOWN.items()
                if logs.get(name) is not None
            ]
            self._progress.update(self._task, figures=" ".join(shown))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        self.close()

    def close(self) -> None:
        """Restore the terminal, however the run ended."""
        self._progress.stop()


class StopSignal(TrainerCallback):
    """Ctrl-C or SIGTERM: finish the step, write a checkpoint, and stop. A second signal interrupts at once.

    Signals reach a process's main thread only. Ray Train runs a worker's part in another thread and stops its
    workers itself; no handler is installed there.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`. Processes that train together stop at the same step."""
        processes: Any = PartialState()
        if processes.num_processes > 1:
            requests: list[bool] = gather_object([self.requested])
            self.requested = any(requests)
        if self.requested:
            control.should_save = control.should_training_stop = True
