"""`sqs-lease abandon`: give up the batch that a table can never take, so that later ones go on."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqs_lease.cli.options import Json
from sqs_lease.cli.output import CommandError, ExitCode, Mark, console, print_json
from sqs_lease.cli.remarks import print_remarks

if TYPE_CHECKING:
    from sqs_lease.spark.ledger import Abandoned, Ledger


def abandon(
    ledger: Annotated[
        str, typer.Argument(metavar="LEDGER", help="The directory or address of the ledger, as the error names it.")
    ],
    batch: Annotated[
        str | None, typer.Argument(metavar="[BATCH]", help="The id of the batch, as the error names it.")
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--storage-option",
            metavar="KEY=VALUE",
            help="How an address is reached, as deltalake takes it: AWS_REGION=eu-west-1. May be repeated.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be given up.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it is given up.")] = False,
    as_json: Json = False,
) -> None:
    """Give up a batch of a Spark ingestion that its table can never take.

    Only where every ingestion into the table fails with an error about this batch. Stop all ingestions into the table
    first. Nothing of the batch is in the table afterwards, and its messages are unknown to it: they are ingested when
    the queue delivers them again. Without a batch, the command says which one could be given up.
    """
    found = _ledger(ledger, _storage_options(options or ()))
    try:
        waiting = found.newest()
    except Exception as error:
        raise _unusable(ledger, error) from error
    if batch is None or dry_run or waiting is None or waiting.batch_id != batch:
        _tell(ledger, batch, waiting, as_json=as_json)
        return
    if not yes:
        if not sys.stdin.isatty():
            raise CommandError("give --yes to give the batch up where nobody can be asked")
        typer.confirm(
            f"Give up {len(waiting.message_ids):,} messages of batch {batch}? Nothing ingests into the table now?",
            default=False,
            abort=True,
            err=True,
        )
    try:
        given_up = found.abandon(batch)
    except Exception as error:
        raise _unusable(ledger, error) from error
    if as_json:
        print_json(_as_json(ledger, given_up, given_up=True))
        return
    print_remarks(
        console(),
        [
            (Mark.GOOD, f"Batch {batch} was given up: {len(given_up.message_ids):,} messages, which may come again."),
            (Mark.NOTE, f"Its rows stay where they were staged: {given_up.location}"),
        ],
    )


def _ledger(address: str, storage_options: dict[str, str]) -> Ledger:
    if not address.strip():
        # An empty path would be the directory that the command runs in.
        raise CommandError("LEDGER is empty: give the directory or address of the ledger, as the error names it")
    try:
        from sqs_lease.spark.ledger import Ledger
    except ModuleNotFoundError as error:
        raise CommandError(f'this command needs {error.name}: pip install "sqs-lease[cli,spark]"') from error
    return Ledger(address, storage_options or None)


def _storage_options(given: Iterable[str]) -> dict[str, str]:
    pairs = [option.partition("=") for option in given]
    if any(not key or not sign for key, sign, _ in pairs):
        # Not quoted: its value may be a secret.
        raise CommandError("--storage-option must be KEY=VALUE, such as AWS_REGION=eu-west-1")
    return {key: value for key, _, value in pairs}


def _unusable(address: str, error: Exception) -> CommandError:
    from sqs_lease.spark.errors import TableError

    if not isinstance(error, TableError):
        raise error
    return CommandError(str(error) or f"the ledger {address} cannot be used", ExitCode.TROUBLE)


def _tell(address: str, batch: str | None, waiting: Abandoned | None, *, as_json: bool) -> None:
    """Say what could be given up.

    Raises:
        CommandError: Another batch was named than the one that can be.
    """
    if batch is not None and (waiting is None or waiting.batch_id != batch):
        why = (
            "no batch may wait for the table" if waiting is None else f"only {waiting.batch_id} may wait for the table"
        )
        raise CommandError(f"batch {batch} of {address} cannot be given up: {why}")
    if as_json:
        print_json(_as_json(address, waiting, given_up=False))
        return
    if waiting is None:
        print_remarks(console(), [(Mark.NOTE, f"No batch of {address} has rows that wait for the table.")])
        return
    print_remarks(
        console(),
        [
            (
                Mark.NOTE,
                f"The newest batch is {waiting.batch_id}: {len(waiting.message_ids):,} messages, staged at "
                f"{waiting.location}. The table may have taken it.",
            ),
            (
                Mark.WARNING,
                "Give it up only if every ingestion into the table fails with an error about it: messages of a batch "
                "that the table has taken would be in it twice.",
            ),
        ],
    )


def _as_json(address: str, batch: Abandoned | None, *, given_up: bool) -> dict[str, Any]:
    found = (
        None
        if batch is None
        else {"batch_id": batch.batch_id, "message_ids": list(batch.message_ids), "staged_at": batch.location}
    )
    return {"ledger": address, "given_up": given_up, "batch": found}
