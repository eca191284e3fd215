"""`python -m cluster.local.setup`, the command behind `make setup`: `.venv`, and the local models where they
are served. `install.py` does it.

Runs in whatever `python3` there is, before any package is installed. Its version is checked here, before
anything else of Podium is imported, so this file uses only what Python 3.6 can read.
"""

import argparse
import shutil
import signal
import sys

OLDEST_PYTHON = (3, 11)


def complaint() -> str:
    """Why this Python cannot run set-up, and what to run instead; empty where it can."""
    if sys.version_info >= OLDEST_PYTHON:
        return ""
    newer = [name for name in ("python3.11", "python3.12", "python3.13") if shutil.which(name)]
    remedy = (
        f"Run `make PYTHON={newer[0]} setup`."
        if newer
        else "Install Python 3.11, then `make PYTHON=python3.11 setup`."
    )
    return f"Python {sys.version.split()[0]} is too old: Podium needs 3.11 or newer.\n{remedy}"


def main() -> int:
    """Command line: 0 when everything is in place."""
    parser = argparse.ArgumentParser(
        prog="make setup", description="Build .venv, and the local models where they are served."
    )
    parser.add_argument("--settings", help="with what it takes to serve this file")
    parser.add_argument("--model", help="served in place of the file's local models")
    parser.add_argument("--conductor", help="the worker that leads in place of the file's conductor")
    parser.add_argument("--dev", action="store_true", help="with what checks and load tests need")
    parser.add_argument("--learning", action="store_true", help="with everything")
    parser.add_argument("--console", action="store_true", help="with the web console, or fail")
    parser.add_argument("--browser", action="store_true", help="with what drives a browser in tests")
    parser.add_argument("--site", action="store_true", help="with what builds the documentation site")
    options = parser.parse_args()
    why = complaint()
    if why:
        print("\nSet-up stopped. " + why, file=sys.stderr)
        return 1
    from cluster.local.install import SetupOptions, install

    given = {"--model": options.model, "--conductor": options.conductor}
    overrides = [f"{option}={value}" for option, value in given.items() if value]
    served = [options.settings, *overrides] if options.settings else []
    wanted = SetupOptions(options.dev, options.learning, options.console, options.browser, options.site)
    return install(served, wanted)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
