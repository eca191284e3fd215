"""`python -m cluster.local.setup`, the command behind `make setup`: create `.venv` and the local models.

It runs in any `python3`, before any package is installed. It checks the version of Python first, and then
imports `install.py`, which does the work. So this file uses only syntax that Python 3.6 can read.
"""

import argparse
import shutil
import signal
import sys

OLDEST_PYTHON = (3, 11)


def complaint() -> str:
    """Return why this Python cannot run set-up, and what to run instead, or "" if it can."""
    if sys.version_info >= OLDEST_PYTHON:
        return ""
    newer = [name for name in ("python3.11", "python3.12", "python3.13") if shutil.which(name)]
    remedy = (
        f"Run `make PYTHON={newer[0]} setup`."
        if newer
        else "Install Python 3.11, then run `make PYTHON=python3.11 setup`."
    )
    return f"Python {sys.version.split()[0]} is too old. Podium needs Python 3.11 or newer.\n{remedy}"


def main() -> int:
    """Run set-up and return the exit code, which is 0 if set-up succeeded."""
    parser = argparse.ArgumentParser(
        prog="make setup", description="Create .venv, and the local models if the settings serve them."
    )
    parser.add_argument("--settings", help="settings file to serve; also installs everything that it needs")
    parser.add_argument("--model", help="model to serve instead of the local models in the settings file")
    parser.add_argument(
        "--conductor", help="worker that writes the plans, instead of the conductor in the settings file"
    )
    parser.add_argument(
        "--dev", action="store_true", help="also install the packages for checks and load tests"
    )
    parser.add_argument(
        "--learning",
        action="store_true",
        help="install all packages, including those for training and evaluation",
    )
    parser.add_argument(
        "--console", action="store_true", help="also build the web console, and fail if that is not possible"
    )
    parser.add_argument(
        "--browser", action="store_true", help="also install the packages that control a browser in tests"
    )
    parser.add_argument(
        "--site", action="store_true", help="also install the packages that build the documentation site"
    )
    options = parser.parse_args()
    why = complaint()
    if why:
        print("\nSet-up stopped. " + why, file=sys.stderr)
        return 1
    from cluster.local.install import SetupOptions, install

    values = {"--model": options.model, "--conductor": options.conductor}
    overrides = [f"{option}={value}" for option, value in values.items() if value]
    served = [options.settings, *overrides] if options.settings else []
    setup_options = SetupOptions(
        options.dev, options.learning, options.console, options.browser, options.site
    )
    return install(served, setup_options)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
