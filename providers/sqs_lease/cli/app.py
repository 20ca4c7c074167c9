"""The commands of `sqs-lease`, put together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from sqs_lease.cli.doctor import doctor
from sqs_lease.cli.output import ExitCode, errors_as_lines, print_error
from sqs_lease.cli.peek import peek
from sqs_lease.cli.plan import plan
from sqs_lease.cli.policy import policy
from sqs_lease.cli.redrive import redrive
from sqs_lease.cli.verify import verify

# The class of Typer's errors for unusable arguments: Click's in older releases, Typer's own in newer ones.
_USAGE_ERROR: Final[type[Exception]] = typer.BadParameter.__mro__[1]


class _Commands(TyperGroup):
    """The group of all commands: errors are one line, and without a command it prints the help."""

    def main(self, args: Sequence[str] | None = None, *others: Any, **settings: Any) -> Any:
        settings["standalone_mode"] = False
        given = sys.argv[1:] if args is None else list(args)
        with errors_as_lines():
            try:
                code = super().main(given or ["--help"], *others, **settings)
            except _USAGE_ERROR as error:
                context = getattr(error, "ctx", None)
                about = "sqs-lease" if context is None else context.command_path
                text = error.format_message().removesuffix(".")  # type: ignore[attr-defined]
                print_error(f"{text}. See `{about} --help`.")
                sys.exit(ExitCode.BAD_INPUT)
            except typer.Abort:
                sys.exit(ExitCode.INTERRUPTED)
        sys.exit(code if isinstance(code, int) else ExitCode.FINE)


app = typer.Typer(
    cls=_Commands,
    help="Look at Amazon SQS queues as sqs-lease uses them, and repair what went wrong.",
    # Plain text, so that the help fits any width, and is the same in a pipe.
    rich_markup_mode=None,
    # Typer's traceback would show the values of local variables, message bodies among them.
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sqs-lease {version('sqs-lease')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(doctor)
app.command()(policy)
app.command()(plan)
app.command()(peek)
app.command()(redrive)
app.command()(verify)
