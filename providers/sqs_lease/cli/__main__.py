"""The entry point of `sqs-lease` and `python -m sqs_lease.cli`; it also works if the extra `cli` is not installed."""

from __future__ import annotations

import io
import signal
import sys
from typing import Final

_LIBRARIES: Final = frozenset({"typer", "rich"})


def main() -> None:
    """Run the command, or print one line about the missing extra; never return."""
    # Before a command begins and after it ended, Ctrl-C ends the process at once, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from sqs_lease.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _LIBRARIES:
            raise
        sys.stderr.write(
            f'Error: the command sqs-lease needs {missing}, which is not installed: pip install "sqs-lease[cli]"\n'
        )
        sys.exit(2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot show must not end a command that has moved messages.
        sys.stdout.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app(prog_name="sqs-lease")
    except KeyboardInterrupt:
        # Ctrl-C while Typer put the command together.
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
