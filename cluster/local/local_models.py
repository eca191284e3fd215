"""`python -m cluster.local.local_models [NAME ...]`: make the local models that do not exist yet.

Set-up runs this inside `.venv`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.local import conductor_model, model
from serving import DATA

BASE, CONDUCTOR = "models/smollm2-135m", "models/smollm2-135m-conductor"
LOCAL_MODELS = (BASE, CONDUCTOR)
"""Names, in settings, of the models that set-up makes. Each is made from the one before it."""


def is_ready(name: str, folder: Path) -> bool:
    """Return whether `folder` contains the complete model."""
    if name == CONDUCTOR:
        return conductor_model.is_ready(folder, conductor_model.default_adapter())
    return model.is_ready(folder)


def missing(names: Sequence[str]) -> list[str]:
    """Return the models in `names`, and those from which they are made, that do not exist yet.

    Raises:
        ModelError: the checkout lacks the shipped adapter.
    """
    to_make = set(names) & set(LOCAL_MODELS)
    if CONDUCTOR in to_make and not is_ready(CONDUCTOR, DATA / CONDUCTOR):
        to_make.add(BASE)
    return [name for name in LOCAL_MODELS if name in to_make and not is_ready(name, DATA / name)]


def main(names: Sequence[str]) -> int:
    """Make the models and return the exit code. Errors are printed on standard error."""
    try:
        for name in missing(names or LOCAL_MODELS):
            if name == CONDUCTOR:
                print("merging the shipped adapter into the model's weights", flush=True)
                conductor_model.make(model.FOLDER, conductor_model.default_adapter(), conductor_model.FOLDER)
            else:
                model.make(model.FOLDER)
    except model.ModelError as error:
        print(f"The local model could not be created: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"The local model could not be written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
