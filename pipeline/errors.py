"""Exit codes and last lines: 2 and one line for bad input, 1 and one line for a run that failed, no traceback for either."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


class BadInput(Exception):
    """What the user gave cannot be used; the message says what, where, and what would be right."""


class RunFailed(Exception):
    """A run that had begun cannot go on; the message says why and what is still good."""


class Stopped(BaseException):
    """The run was asked to stop (a signal) and did, after saving. Not an Exception: nothing but `guarded` may catch it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


running: Path | None = None
"""The run folder once training has begun: from there on a fault is the run's, not the input's."""


def begin(run_dir: Path) -> None:
    global running
    running = run_dir


def reason(error: BaseException) -> str:
    """What was said, on one line; where a parser only wrapped it, what was said first."""
    wrappers = ("compute_fn of link", "Does not validate against any of the Union")
    while error.__cause__ is not None and any(wrapper in str(error) for wrapper in wrappers):
        error = error.__cause__
    said = str(error)
    if "in DataLoader worker process" in said.partition("\n")[0]:  # the worker's whole traceback, whose end says it
        said = said.strip().rpartition("\n")[2].removeprefix("ValueError: ")
    text = " ".join(said.split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif not isinstance(error, BadInput | RunFailed | ValueError | FileNotFoundError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) < 2000 else text[:2000] + " ..."


def guarded(command: Callable[[], int | None]) -> int:
    """Runs a command and turns whatever ends it into an exit code and one last line on stderr."""
    try:
        return command() or 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Stopped as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return 130
    except BaseException as error:
        if os.environ.get("PIPELINE_DEBUG"):
            traceback.print_exc()
        if running is None:
            print(f"error: {reason(error)}", file=sys.stderr)
            return 2
        where = ""
        try:
            (running / "error.txt").write_text("".join(traceback.format_exception(error)))
            where = f" (traceback: {running / 'error.txt'})"
        except OSError:  # a full disk
            pass
        print(f"error: the run failed: {reason(error)}{where}", file=sys.stderr)
        return 1
