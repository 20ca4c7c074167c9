"""`sqs-lease verify`: checks of the behaviour that this package relies on, on queues that it makes and deletes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sqs_lease.cli.contract.checks import CheckResult, Outcome, Requests
from sqs_lease.cli.contract.client import ContractTransport
from sqs_lease.cli.contract.running import CHECKS, PREFIX, MadeQueues, check_all
from sqs_lease.cli.message_text import harmless, one_line
from sqs_lease.cli.options import EndpointUrl, Json, Profile, Region, aws_access
from sqs_lease.cli.output import CommandError, ExitCode, Mark, console, marked, print_error, print_json
from sqs_lease.cli.permissions import VERIFY, VERIFY_ANYWHERE
from sqs_lease.cli.prices import DOLLARS_A_MILLION, FIFO_DOLLARS_A_MILLION
from sqs_lease.cli.remarks import print_remarks
from sqs_lease.cli.session import Session, aws_words, client_credentials, credentials_source
from sqs_lease.clock import SystemClock
from sqs_lease.sqs.classification import redacted
from sqs_lease.sqs.client import make_client
from sqs_lease.sqs.errors import AccessDeniedError, SqsError

ABOUT_REQUESTS: Final = Requests(standard=200, fifo=50)
"""About as many requests as a run takes; more where counts and move tasks lag behind."""

_MARKS: Final = {
    Outcome.HOLDS: Mark.GOOD,
    Outcome.HARMLESS: Mark.NOTE,
    Outcome.DIFFERS: Mark.BAD,
    Outcome.NOT_CHECKED: Mark.WARNING,
}


def verify(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before queues are made.")] = False,
    region: Region = None,
    profile: Profile = None,
    endpoint_url: EndpointUrl = None,
    as_json: Json = False,
) -> None:
    """Check that SQS, or a server that speaks its API, does what leases rely on.

    It makes queues of its own, two at most at a time, works on them for one to four minutes, and deletes them. Before
    that it says where, and what it costs, and asks.

    Exit code: 0 if all is as relied on; 1 if a difference breaks a promise; 2 if the command or a check could not run.
    """
    access = aws_access(region, profile, endpoint_url)
    client: Any = make_client(access)
    cli = aws_words(access, client.meta.region_name)
    aside = Console(stderr=True, highlight=False)
    with Session(ContractTransport(client)) as session:
        print_remarks(aside, [(Mark.NOTE, _where(client)), (Mark.NOTE, _price())])
        left_before = _left_before(session, aside, cli)
        if not yes:
            if not sys.stdin.isatty():
                raise CommandError("It makes queues, and cannot ask here whether it may: give --yes")
            typer.confirm("Make queues there?", abort=True, err=True)
        queues = MadeQueues(session.transport)
        with _naming_what_is_left(queues, cli), aside.status("Making queues ...") as status:
            found = session.run(
                check_all(
                    session.transport,
                    SystemClock(),
                    queues,
                    checks=CHECKS,
                    on_begin=lambda check: status.update(f"{check.name} ..."),
                )
            )
        requests = session.transport.requests
    if as_json:
        print_json(_as_json(client, found, requests, left_before))
    else:
        _show(console(), found, requests)
    raise typer.Exit(_exit_code(found))


def _where(client: Any) -> str:
    given = client_credentials(client)
    account = getattr(given, "account_id", None)
    in_account = f"account {account}, " if account else ""
    return (
        f"Where: {redacted(client.meta.endpoint_url)}, region {client.meta.region_name}, {in_account}credentials from "
        f"{credentials_source(client)}. Queues with names that begin with {PREFIX} are made there, and deleted."
    )


def _price() -> str:
    about = ABOUT_REQUESTS.standard + ABOUT_REQUESTS.fifo
    return f"Price: about {about} requests, ${_dollars(ABOUT_REQUESTS):.4f} at AWS's price in us-east-1."


def _dollars(requests: Requests) -> float:
    return (requests.standard * DOLLARS_A_MILLION + requests.fifo * FIFO_DOLLARS_A_MILLION) / 1e6


def _left_before(session: Session[ContractTransport], aside: Console, cli: Sequence[str]) -> Sequence[str]:
    """Return the queues of earlier runs that were killed; a run that is still going has some, too."""
    try:
        left = session.run(session.transport.queue_urls(PREFIX))
    except AccessDeniedError as error:
        print_remarks(aside, [(Mark.NOTE, f"Queues of an earlier run were not looked for. {error.remedy}")])
        return []
    except SqsError as error:
        raise CommandError(str(error)) from error
    if left:
        what = "Left by an earlier run, unless one goes on right now. Delete:"
        print_remarks(aside, [(Mark.WARNING, what)])
        for url in left:
            aside.print(Text(harmless(f"  $ {_deletion(url, cli)}"), style="cyan"), soft_wrap=True)
    return left


def _deletion(queue: str, cli: Sequence[str]) -> str:
    """Return the command that deletes a queue, given by its URL, or by its name if the URL is not known."""
    aws = shlex.join(["aws", *cli, "sqs"])
    if "://" in queue:
        return f"{aws} delete-queue --queue-url {shlex.quote(queue)}"
    return f'{aws} delete-queue --queue-url "$({aws} get-queue-url --queue-name {queue} --output text)"'


@contextmanager
def _naming_what_is_left(queues: MadeQueues, cli: Sequence[str]) -> Iterator[None]:
    """Print the queues that could not be deleted, and the permissions of a caller that may not make queues."""
    try:
        yield
    except AccessDeniedError as error:
        anywhere = ", ".join(sorted(VERIFY_ANYWHERE))
        needed = ", ".join(sorted(VERIFY | {"sqs:TagQueue"}))
        raise CommandError(
            f"{error} Run it with a profile that may make queues (--profile), or allow on arn:aws:sqs:*:*:{PREFIX}*: "
            f"{needed}; and {anywhere} on *."
        ) from error
    except SqsError as error:
        raise CommandError(str(error)) from error
    finally:
        for queue in queues.left:
            print_error(f"A queue that was made could not be deleted. Delete it: {_deletion(queue, cli)}")


def _exit_code(found: Sequence[CheckResult]) -> ExitCode:
    outcomes = {checked.outcome for checked in found}
    if Outcome.DIFFERS in outcomes:
        return ExitCode.TROUBLE
    return ExitCode.BAD_INPUT if Outcome.NOT_CHECKED in outcomes else ExitCode.FINE


def _show(screen: Console, found: Sequence[CheckResult], requests: Requests) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    for checked in found:
        told = Text(_sentence(checked.found))
        if checked.outcome in {Outcome.DIFFERS, Outcome.HARMLESS}:
            told.append(f"\nRelied on: {checked.check.relied_on}", style="dim")
        if checked.outcome is Outcome.DIFFERS:
            told.append(f"\nOtherwise: {checked.check.otherwise}")
        table.add_row(marked(_MARKS[checked.outcome], screen), checked.check.name, told)
    screen.print(table)
    counts = [(outcome, sum(checked.outcome is outcome for checked in found)) for outcome in Outcome]
    said = "; ".join(f"{outcome.value}: {count}" for outcome, count in counts if count)
    price = f"{requests.standard + requests.fifo} requests, ${_dollars(requests):.4f} at AWS's price in us-east-1"
    print_remarks(screen, [(Mark.NOTE, f"Checks {said}."), (Mark.NOTE, f"{price}. All queues were deleted.")])


def _sentence(found: str) -> str:
    """Return an observation as a sentence on one line."""
    line = one_line(found)
    return line[:1].upper() + line[1:] + ("" if line.endswith((".", "]")) else ".")


def _as_json(
    client: Any, found: Sequence[CheckResult], requests: Requests, left_before: Sequence[str]
) -> dict[str, Any]:
    return {
        "endpoint_url": redacted(client.meta.endpoint_url),
        "region": client.meta.region_name,
        "checks": [
            {
                "check": checked.check.name,
                "outcome": checked.outcome.value,
                "found": checked.found,
                "relied_on": checked.check.relied_on,
                "otherwise": checked.check.otherwise,
            }
            for checked in found
        ],
        "requests": {"standard": requests.standard, "fifo": requests.fifo},
        "dollars": round(_dollars(requests), 7),
        "left_by_earlier_runs": list(left_before),
    }
