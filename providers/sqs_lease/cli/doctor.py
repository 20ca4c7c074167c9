"""`sqs-lease doctor`: finds problems before they happen, without receiving a message."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sqs_lease.cli import airflow_checks, dagster_checks
from sqs_lease.cli.findings import Finding, SubjectReport, show
from sqs_lease.cli.options import EndpointUrl, Json, Profile, Queues, Region, aws_access, not_empty
from sqs_lease.cli.output import CommandError, ExitCode, console, print_json
from sqs_lease.cli.queue_access import (
    MOVING,
    RECEIVING,
    SENDING,
    Answer,
    Permission,
    Permit,
    QueueCaller,
    permission_of,
    probe,
)
from sqs_lease.cli.queue_checks import QueueContext, QueueState, clock_finding, queue_findings
from sqs_lease.cli.session import (
    aws_words,
    client_credentials,
    credentials_source,
    endpoint_of,
    is_at,
    is_off_aws,
)
from sqs_lease.cli.versions import base_versions
from sqs_lease.sqs.classification import redacted
from sqs_lease.sqs.client import AwsAccess, make_client
from sqs_lease.sqs.client_transport import check_region
from sqs_lease.sqs.errors import CredentialsError, QueueNotFoundError, SqsError
from sqs_lease.sqs.validation import dead_letter_queue_url, name_in_arn, queue_reference

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


@dataclass(frozen=True, slots=True)
class _Hosts:
    airflow: bool
    dagster: bool
    connection: str


def doctor(
    queues: Queues,
    airflow: Annotated[
        bool, typer.Option("--airflow", help="Check this installation of Airflow, too, and use its connection.")
    ] = False,
    dagster: Annotated[bool, typer.Option("--dagster", help="Check this installation of Dagster, too.")] = False,
    connection: Annotated[
        str | None,
        typer.Option(
            "--connection",
            callback=not_empty,
            help="With --airflow: the connection that the DAGs use; aws_default by default.",
        ),
    ] = None,
    as_json: Json = False,
    region: Region = None,
    profile: Profile = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Find problems before they happen.

    It checks access, permissions, the settings of the queues and this installation. It changes nothing and receives no
    messages: permissions are probed by calls that have no effect.

    Exit code: 0 without problems; 1 with problems, such as a queue that cannot be reached; 2 if an argument or the
    installation is unusable.
    """
    access = aws_access(region, profile, endpoint_url)
    hosts = _Hosts(airflow, dagster, connection or "aws_default")
    if connection is not None and not airflow:
        raise CommandError("--connection is for --airflow: it names a connection of Airflow")
    if airflow and (profile is not None or endpoint_url is not None):
        raise CommandError(
            "--profile and --endpoint-url cannot be used with --airflow: its connection (--connection) has these "
            "settings"
        )
    # Airflow and Dagster may log to standard output, but that is for the result.
    with redirect_stdout(sys.stderr):
        examined = list(_examined(list(dict.fromkeys(queues)), access, hosts))
    problems = sum(about.problems for about in examined)
    if as_json:
        print_json({"examined": [about.plain() for about in examined], "problems": problems})
    else:
        screen = console()
        show(examined, screen)
        screen.print(_summary(problems))
    raise typer.Exit(ExitCode.TROUBLE if problems else ExitCode.FINE)


def _examined(queues: Sequence[str], access: AwsAccess, hosts: _Hosts) -> Iterator[SubjectReport]:
    if hosts.airflow:
        airflow_checks.require_airflow()
    if hosts.dagster:
        dagster_checks.require_dagster()
    attempts = dagster_checks.run_attempts() if hosts.dagster else {}
    around = QueueContext(waits_for_queue=hosts.dagster or not hosts.airflow, attempts=attempts)
    for queue in queues:
        yield _examine(queue, access, hosts, around)
    yield SubjectReport(subject="This installation", detail="", findings=tuple(_installation(hosts)))


def _summary(problems: int) -> str:
    if not problems:
        return "[green]No problems found.[/]"
    return f"[bold red]{problems} {'problem' if problems == 1 else 'problems'} found.[/]"


def _installation(hosts: _Hosts) -> Iterator[Finding]:
    yield base_versions()
    if hosts.airflow:
        yield from airflow_checks.airflow_findings()
        yield from airflow_checks.connection_finding(hosts.connection)
    if hosts.dagster:
        yield from dagster_checks.dagster_findings()


def _client(queue: str, access: AwsAccess, hosts: _Hosts) -> SQSClient:
    if hosts.airflow:
        return airflow_checks.connection_client(hosts.connection, queue, access.region_name)
    return make_client(access, queue=queue)


def _examine(queue: str, access: AwsAccess, hosts: _Hosts, around: QueueContext) -> SubjectReport:
    try:
        client = _client(queue, access, hosts)
        check_region(queue_reference(queue), queue, client.meta.region_name)
    except SqsError as error:
        return SubjectReport(subject=queue, detail="", findings=(_unreachable(error, queue),))
    with_client: Any = client
    endpoint = client.meta.endpoint_url
    try:
        if is_off_aws(queue) and not is_at(endpoint, queue):
            return SubjectReport(subject=queue, detail="", findings=(_elsewhere(queue, endpoint),))
        examination = _Examination(queue, client, access, hosts)
        return SubjectReport(subject=queue, detail=examination.url, findings=tuple(examination.findings(around)))
    finally:
        with_client.close()


def _elsewhere(queue_url: str, endpoint: str) -> Finding:
    return Finding.harm(
        "access",
        f"its URL is at {endpoint_of(queue_url)}, and calls go to {redacted(endpoint)}",
        why="AWS's clients call their configured endpoint, and ignore the host in a queue's URL. A lease would be on "
        "another queue, or the queue would not be found.",
        change="Set AWS_ENDPOINT_URL_SQS (in Airflow, the connection's endpoint_url), or give the queue's name.",
    )


def _unreachable(error: SqsError, queue: str) -> Finding:
    command = f"sqs-lease policy {queue}" if _is_denial(error) else ""
    return Finding.harm("access", str(error), command=command)


@dataclass(slots=True)
class _QueueAnswers:
    """The answers to the calls on a queue."""

    state: QueueState | None = None
    permissions: list[Permission] = field(default_factory=list)


class _Examination:
    """The examination of one queue."""

    def __init__(self, queue: str, client: Any, access: AwsAccess, hosts: _Hosts) -> None:
        self._queue = queue
        self._client = client
        self._caller = QueueCaller(client, queue)
        self._hosts = hosts
        given_url = queue_reference(queue).url
        # The package never asks SQS for a URL that the user gave.
        self._first = self._caller.url() if given_url is None else None
        self._url: str | None = given_url or (None if self._first is None else self._first.content.get("QueueUrl"))
        self._cli = aws_words(access, client.meta.region_name)

    @property
    def url(self) -> str:
        """The queue's URL; empty if it is unknown."""
        return self._url or ""

    def findings(self, around: QueueContext) -> Iterator[Finding]:
        """Yield all findings."""
        if self._url is None:
            if self._first is not None and self._first.error is not None:
                yield from self._clock(self._first)
                yield _unreachable(self._first.error, self._queue)
            return
        answer = self._caller.attributes(self._url)
        yield from self._reached(answer)
        yield from self._clock(answer)
        if answer.error is not None and not _is_denial(answer.error):
            return
        known = self._ask_queue(answer, self._url)
        yield from _permission_findings(self._queue, known.permissions)
        if known.state is None:
            return
        around, more = self._around(known.state, around)
        yield from more
        yield from queue_findings(known.state, around)

    def _reached(self, answer: Answer) -> Iterator[Finding]:
        credentials = self._credentials()
        if answer.error is not None and not _is_denial(answer.error):
            yield _unreachable(answer.error, self._queue)
            return
        endpoint = self._client.meta.endpoint_url
        yield Finding.fine(
            "access",
            f"{redacted(endpoint)} answered in {answer.seconds * 1000:.0f} ms, region {self._client.meta.region_name}, "
            f"credentials from {credentials}",
        )
        given = client_credentials(self._client)
        if given is not None and given.method == "env" and given.token:
            yield Finding.note(
                "credentials",
                "the credentials are temporary, and nothing renews them",
                why="They are in environment variables with a session token. When they expire, leases are no longer "
                "extended or settled. That is fine in a shell; a service needs a role.",
            )

    def _credentials(self) -> str:
        if self._hosts.airflow:
            return f"the connection {self._hosts.connection}"
        return credentials_source(self._client)

    def _clock(self, answer: Answer) -> Iterator[Finding]:
        if answer.clock_seconds is not None:
            yield clock_finding(answer.clock_seconds)

    def _ask_queue(self, attributes: Answer, url: str) -> _QueueAnswers:
        known = _QueueAnswers()
        if self._first is not None:
            known.permissions.append(permission_of("GetQueueUrl", self._first))
        known.permissions.append(permission_of("GetQueueAttributes", attributes))
        if attributes.error is None:
            known.state = QueueState(url, attributes.content["Attributes"], self._cli)
        known.permissions += probe(self._caller, RECEIVING, url=url, arn="")
        return known

    def _around(self, queue: QueueState, around: QueueContext) -> tuple[QueueContext, list[Finding]]:
        """Read the queue's context, its dead-letter queue or its sources; return it with the findings."""
        arn = queue.redrive.get("deadLetterTargetArn")
        if arn is None:
            answer = self._caller.dead_letter_sources(queue.url)
            sources = None if answer.error is not None else tuple(answer.content["queueUrls"])
            moving = _moving_findings(self._caller, queue.url, queue.arn, self._queue) if sources else []
            return replace(around, sources=sources), moving
        caller = QueueCaller(self._client, arn)
        dead_url = dead_letter_queue_url(queue.url, arn)
        sending = probe(caller, SENDING, url=dead_url, arn=arn)
        findings = [*_dead_letter_permissions(arn, sending), *_moving_findings(caller, dead_url, arn, self._queue)]
        attributes = caller.attributes(dead_url)
        if attributes.error is not None:
            return around, [*findings, _dead_letters_unknown(arn, attributes.error)]
        return replace(around, dead_letters=QueueState(dead_url, attributes.content["Attributes"], self._cli)), findings


def _is_denial(error: SqsError) -> bool:
    return permission_of("", Answer({}, error, None, 0.0)).permit is Permit.DENIED


_NEEDED_FOR: Final = {
    "GetQueueUrl": "The queue can then be given by its URL only.",
    "GetQueueAttributes": "Leases, sensors and checks first read the queue's settings and counts.",
    "ReceiveMessage": "Messages cannot be received.",
    "ChangeMessageVisibility": "Leases cannot be extended or released: messages are visible again while the work runs.",
    "DeleteMessage": "Work succeeds, but its messages come back: the run fails when it settles them.",
}


def _permission_findings(queue: str, permissions: Sequence[Permission]) -> Iterator[Finding]:
    for permission in permissions:
        if permission.permit is Permit.DENIED:
            yield _denied(
                permission,
                why=_NEEDED_FOR[permission.action],
                change="Allow it in the caller's IAM policy, or in the queue's policy. This prints all permissions:",
                command=f"sqs-lease policy {queue}",
            )
        elif permission.permit is Permit.UNKNOWN:
            what = f"sqs:{permission.action} could not be probed: {_answer_text(permission)}"
            yield Finding.note(f"permission:{permission.action}", what)
    yield from _allowed("permissions", permissions)


def _denied(permission: Permission, *, where: str = "", why: str, change: str, command: str = "") -> Finding:
    """Return the finding of a denied action. ``where`` names another queue than the examined one."""
    return Finding.harm(
        f"permission:{permission.action}",
        f"sqs:{permission.action} is denied{where}",
        why=f"{why} SQS says: {_answer_text(permission)}",
        change=change,
        command=command,
    )


def _answer_text(permission: Permission) -> str:
    return "" if permission.error is None else permission.error.text


def _allowed(check: str, permissions: Sequence[Permission]) -> Iterator[Finding]:
    by_permit = {
        permit: [each.action for each in permissions if each.permit is permit]
        for permit in (Permit.ALLOWED, Permit.NOT_DENIED)
    }
    allowed, not_denied = by_permit[Permit.ALLOWED], by_permit[Permit.NOT_DENIED]
    parts = [f"allowed: {', '.join(allowed)}"] if allowed else []
    # SQS may check the request before the permission: see queue_access.
    parts += [f"not denied, but only a real call would prove more: {', '.join(not_denied)}"] if not_denied else []
    if parts:
        yield Finding.fine(check, "; ".join(parts))


def _dead_letter_permissions(arn: str, permissions: Sequence[Permission]) -> Iterator[Finding]:
    name = name_in_arn(arn)
    for permission in permissions:
        if permission.permit is Permit.DENIED:
            yield _denied(
                permission,
                where=f" on the dead-letter queue {name}",
                why="on_failure=dead_letter() cannot send: the run fails, and its messages come back.",
                change=f"Allow sqs:{permission.action} on it, unless no lease uses dead_letter().",
            )


def _moving_findings(caller: QueueCaller, url: str, arn: str, named: str) -> list[Finding]:
    """Report a denied redrive, which does not affect leases. ``named`` is the queue as the user named it."""
    permissions = probe(caller, MOVING, url=url, arn=arn)
    denied = [each.action for each in permissions if each.permit is Permit.DENIED]
    name = name_in_arn(arn)
    if not denied:
        return []
    return [
        Finding.note(
            "permission:redrive",
            f"redriving {name} is not allowed: {', '.join(denied)} denied",
            why="Leases do not need it; moving messages out of the dead-letter queue does.",
            command=f"sqs-lease policy {named} --redrive",
        )
    ]


def _dead_letters_unknown(arn: str, error: SqsError) -> Finding:
    if isinstance(error, QueueNotFoundError):
        return Finding.harm(
            "dead_letter_queue",
            f"its dead-letter queue {name_in_arn(arn)} does not exist, or this caller may not see it",
            why="If it does not exist, SQS moves nothing: messages that always fail stay in this queue. dead_letter() "
            "cannot send.",
            change="Create that queue again, or name another one in the redrive policy.",
        )
    finding = Finding.harm if isinstance(error, CredentialsError) else Finding.note
    return finding(
        "dead_letter_queue",
        f"its dead-letter queue {name_in_arn(arn)} cannot be read: {error.text or error}",
        why="dead_letter() needs sqs:SendMessage on it.",
    )
