"""Callbacks of the trainer: curves, a progress bar, and stopping on a signal."""
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
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from podium.command_line.terminal import console, progress
from training.run_dir import write_atomically

SHOWN = {
    "reward": "reward",
    "plan/right": "right",
    "plan/parsed": "parsed",
    "plan/steps": "steps",
    "loss": "loss",
}


def tensorboard(folder: Path) -> TensorBoardCallback:
    """Return a callback that writes live curves, shown by `tensorboard --logdir FOLDER`."""
    return TensorBoardCallback(SummaryWriter(str(folder / "tensorboard")))


class CurveLog(TrainerCallback):
    """Writes the trainer's log, an object per logged step. The trainer restores it when a run resumes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            lines = [{"step": each["step"]} | each for each in state.log_history if "loss" in each]
            write_atomically(self._path, "".join(json.dumps(line) + "\n" for line in lines))


class ProgressBar(TrainerCallback):
    def __init__(self, title: str) -> None:
        self._title = title
        self._progress = progress(console(), "figures")
        self._task: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._progress.start()
            self._task = self._progress.add_task(
                self._title, total=state.max_steps, completed=state.global_step, figures=""
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if self._task is not None and logs:
            figures = [
                f"{label} {float(logs[name]):.2f}"
                for name, label in SHOWN.items()
                if logs.get(name) is not None
            ]
            self._progress.update(self._task, figures=" ".join(figures))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._progress.stop()


class StopSignal(TrainerCallback):
    """On Ctrl-C or SIGTERM, finish the step, write a checkpoint and stop. A second signal interrupts the
    step.

    Only the main thread of a process receives signals. Ray Train runs its training in another thread and
    stops its workers itself, so no handler is installed there.
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
        """Stop if any process received a signal, so that all processes stop at the same step."""
        processes: Any = PartialState()
        if processes.num_processes > 1:
            requests: list[bool] = gather_object([self.requested])
            self.requested = any(requests)
        if self.requested:
            control.should_save = control.should_training_stop = True
