"""Checks of this installation of Airflow: the effects of its configuration on leases.

Airflow is imported in these functions only: the command works without it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqs_lease.cli.durations import shown_duration
from sqs_lease.cli.findings import Finding
from sqs_lease.cli.output import CommandError
from sqs_lease.cli.versions import extra_versions
from sqs_lease.core.policies import Growing

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

_HEARTBEATS: Final = 3
"""How many heartbeats of a triggerer may be missed before it may count as dead."""

_LONG_TAKEOVER_SECONDS: Final = 300.0

_KEY: Final = "AIRFLOW__CORE__FERNET_KEY"
_NEW_KEY: Final = (
    f'export {_KEY}=$(python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())")'
)


def require_airflow() -> None:
    """Check that Airflow is installed.

    Raises:
        CommandError: It is not.
    """
    # Airflow sets up its logging when it is imported. Its log lines are not wanted: problems become findings.
    os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "CRITICAL"
    try:
        import airflow.sdk  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandError(
            f"--airflow needs Airflow, and {error.name} is not installed here: run the command where a triggerer runs, "
            'or pip install "sqs-lease[airflow]"'
        ) from None


def connection_client(connection: str, queue: str, region: str | None) -> SQSClient:
    """Make a client from a connection, as Airflow's tasks and triggers do.

    Args:
        connection: The connection's id. If the connection does not exist, boto3's usual credentials are used, as in the
            amazon provider.
        queue: The queue's name, URL or ARN; its region is the last resort.
        region: The region; None takes the connection's.

    Raises:
        sqs_lease.sqs.errors.SqsError: The client cannot be made.
    """
    from sqs_lease.airflow.connection import AwsConnection, make_blocking_client
    from sqs_lease.sqs.classification import translate_client_errors

    with translate_client_errors(queue):
        return make_blocking_client(AwsConnection.of(connection, region, None, None, queue=queue))


def connection_finding(connection: str) -> Iterator[Finding]:
    """Report a connection that is not defined."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException

    try:
        BaseHook.get_connection(connection)
    except AirflowException:
        yield Finding.note(
            "connection",
            f"there is no connection {connection}",
            why="The amazon provider then uses boto3's usual credentials: environment variables, files, the machine's "
            "role. Triggerers and workers may have other credentials than this shell.",
        )


def airflow_findings() -> Iterator[Finding]:
    """Yield all findings about this installation, in the order in which people read them."""
    from airflow.configuration import AIRFLOW_HOME

    yield Finding.fine("airflow_home", f"AIRFLOW_HOME is {AIRFLOW_HOME}")
    yield from extra_versions("airflow")
    yield from _plugin()
    yield from _takeover()
    yield from _triggerer_queues()
    yield from _payload()
    yield from _fernet_key()
    yield from _failure_reports()


def _plugin() -> Iterator[Finding]:
    if not list(entry_points(group="airflow.plugins", name="sqs_lease")):
        yield Finding.harm(
            "plugin",
            "Airflow does not find the plugin of sqs-lease",
            why="The package is on the path but not installed. So tasks do not report failures to their keepers, and "
            "failure rules by exception and MessageFailed have no effect.",
            command='pip install "sqs-lease[airflow]"',
        )


def _takeover() -> Iterator[Finding]:
    from airflow.sdk.configuration import conf

    from sqs_lease.airflow.triggers.receive import (
        TAKEOVER_MARGIN_SECONDS,
        default_visibility_seconds,
        takeover_seconds,
    )

    takeover = takeover_seconds()
    threshold = takeover - TAKEOVER_MARGIN_SECONDS
    visibility = default_visibility_seconds(Growing())
    heartbeat = conf.getfloat("triggerer", "job_heartbeat_sec", fallback=5.0)
    if threshold < _HEARTBEATS * heartbeat:
        yield Finding.harm(
            "takeover",
            f"a triggerer counts as dead after {threshold:g} s, and its heartbeat comes every {heartbeat:g} s",
            why="A triggerer that is only slow loses its triggers to another one, and both hold the same messages for "
            "a while.",
            change=f"Set [triggerer] triggerer_health_check_threshold to {_HEARTBEATS} heartbeats or more; 30 is the "
            "default.",
            command="export AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD=30",
        )
        return
    what = (
        f"another triggerer takes over within {shown_duration(takeover)}; sensors receive with "
        f"{shown_duration(visibility)}, or the queue's visibility timeout if that is longer"
    )
    if takeover <= _LONG_TAKEOVER_SECONDS:
        yield Finding.fine("takeover", what)
        return
    yield Finding.note(
        "takeover",
        what,
        why="When all triggerers die, messages stay invisible for that long. With a shorter visibility= in a DAG, "
        "others can receive messages during a takeover.",
        change="Lower [triggerer] triggerer_health_check_threshold.",
    )


def _triggerer_queues() -> Iterator[Finding]:
    from airflow.sdk.configuration import conf

    if conf.getboolean("triggerer", "queues_enabled", fallback=False):
        default = conf.get("operators", "default_queue", fallback="default")
        yield Finding.note(
            "triggerer_queues",
            "[triggerer] queues_enabled is on",
            why="A triggerer without --queues runs no sensors and no keepers. One with them runs no asset watchers.",
            change=f"Run triggerers with --queues {default} and with each queue= of a lease, and one without --queues "
            "for watchers.",
        )


def _payload() -> Iterator[Finding]:
    from airflow.sdk import ObjectStoragePath

    from sqs_lease.airflow.payload import INLINE_BYTES, default_payload

    try:
        location = default_payload()
    except (ModuleNotFoundError, TypeError, ValueError) as error:
        yield Finding.harm("payload", str(error), why="Sensors fail when they begin.")
        return
    if location is None:
        yield Finding.note(
            "payload",
            "[sqs_lease] payload is not set",
            why=f"Batches end at {INLINE_BYTES // 2**20} MiB, and more than 2 000 messages are refused, unless a "
            "sensor has payload=.",
            change="For larger batches name a place that workers and triggerers share.",
            command="export AIRFLOW__SQS_LEASE__PAYLOAD=s3://aws_default@bucket/leases",
        )
        return
    if location.startswith("/"):
        yield _local_payload(Path(location))
        return
    try:
        place: Any = ObjectStoragePath(location)
        place.fs.ls(place.path)
    except PermissionError:
        yield Finding.note(
            "payload",
            f"[sqs_lease] payload, {location}, may not be listed, so it was not checked further",
            why="Batches need the permission to read, write and delete there, but not to list.",
        )
        return
    except Exception as error:  # noqa: BLE001 - of any file system; fsspec's have no common class
        # An object store has no empty directories, so a missing one is fine. The error of a missing bucket has a cause.
        if not isinstance(error, FileNotFoundError) or error.__cause__ is not None:
            yield _unusable_payload(
                f"{location}, cannot be read: {type(error).__name__}: {error}",
                change="Check its connection, its permissions, and that the packages of its scheme are installed.",
            )
            return
    yield Finding.fine("payload", f"large batches are stored at {location}, which can be read")


def _local_payload(directory: Path) -> Finding:
    if directory.is_dir() and os.access(directory, os.W_OK):
        return Finding.note(
            "payload",
            f"large batches are stored in {directory}",
            why="All workers and triggerers must see the same directory there.",
        )
    return _unusable_payload(
        f"{directory}, is not a directory that this user may write to",
        change="Create it, on a file system that all workers and triggerers share, or name an object store.",
    )


def _unusable_payload(what: str, *, change: str) -> Finding:
    return Finding.harm(
        "payload",
        f"[sqs_lease] payload, {what}",
        why="A batch that is stored there is released again, and its sensor fails.",
        change=change,
    )


def _fernet_key() -> Iterator[Finding]:
    # Not the SDK's configuration: in a new AIRFLOW_HOME it has no key before Airflow has written one.
    from airflow.configuration import AIRFLOW_HOME, conf
    from cryptography.fernet import Fernet

    check = "fernet_key"
    keys = conf.get("core", "fernet_key", fallback="") or ""
    if not keys and not Path(AIRFLOW_HOME, "airflow.cfg").exists():
        yield Finding.note(
            check,
            "there is no Fernet key yet",
            why="Airflow has not run in this AIRFLOW_HOME, or this is the wrong one. When it first runs, it writes an "
            "airflow.cfg with a new key, different on each machine. Triggerers with different keys cannot read each "
            "other's leases.",
            change="Set the same key for all processes of Airflow:",
            command=_NEW_KEY,
        )
        return
    if not keys:
        yield Finding.harm(
            check,
            "[core] fernet_key is empty",
            why="Airflow stores connections and leases as plain text; with these, other people can delete messages.",
            change="Set the same key for all processes of Airflow:",
            command=_NEW_KEY,
        )
        return
    first = keys.split(",")[0].strip()
    try:
        Fernet(first)
    except ValueError:
        yield Finding.harm(
            check,
            "[core] fernet_key is not a Fernet key",
            why="Leases cannot be encrypted: every sensor fails when it hands its messages on.",
            change=f"It must be 32 bytes in URL-safe Base64. Set the same for all processes of Airflow in {_KEY}.",
        )
        return
    print_of_key = hashlib.sha256(first.encode()).hexdigest()[:8]
    what = f"the fingerprint of the Fernet key is {print_of_key}"
    if any(name in os.environ for name in (_KEY, f"{_KEY}_CMD", f"{_KEY}_SECRET")):
        yield Finding.fine(check, f"{what}; it must be the same on all machines")
        return
    yield Finding.note(
        check,
        f"{what}; it is in the airflow.cfg of this machine",
        why="Airflow makes a new key for each AIRFLOW_HOME. A triggerer with another key cannot read the leases of "
        "this one.",
        change=f"Compare the fingerprint on all machines, or set the key by {_KEY}.",
    )


def _failure_reports() -> Iterator[Finding]:
    from airflow.sdk.configuration import conf

    from sqs_lease.airflow.provider_info import CONFIG_SECTION, REPORT_FAILURES_OPTION

    if not conf.getboolean(CONFIG_SECTION, REPORT_FAILURES_OPTION, fallback=True):
        yield Finding.harm(
            "failure_reports",
            f"[{CONFIG_SECTION}] {REPORT_FAILURES_OPTION} is off",
            why="Failure rules by exception and MessageFailed have no effect, failed messages are visible after up to "
            "six seconds instead of one, and if a run is marked, messages may be deleted although their work had not "
            "begun.",
            change="Remove the setting, on workers and on triggerers.",
        )
