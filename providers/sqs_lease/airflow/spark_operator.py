"""The task that brings the messages of a lease into a table by Spark, each exactly once.

The job is a process of the task, or one that ``spark-submit`` starts through the hook of Airflow's own Spark provider.
Task and job exchange files: manifests for the job, and its result.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import uuid4

from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook
from airflow.sdk import BaseHook, BaseOperator, ObjectStoragePath, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from sqs_lease.airflow.dag_file import check_type, named
from sqs_lease.airflow.held_guard import any_held, keeper_of_work
from sqs_lease.airflow.payload import MANIFEST_EXTRAS, MANIFESTS, BatchValue
from sqs_lease.batch_files.manifest_extra import require_manifests
from sqs_lease.batch_files.manifests import temporary_manifest
from sqs_lease.ingestion.job import (
    ERROR,
    JobError,
    JobProcess,
    job_arguments,
    job_command,
    job_environment,
    read_result,
)
from sqs_lease.ingestion.lost_watch import ending_when_lost
from sqs_lease.ingestion.result import StoredResult
from sqs_lease.ingestion.spec import IngestionSpec, SpecError

if TYPE_CHECKING:
    from airflow.sdk import Context

END_SECONDS: Final = 4.0
"""How long a job that is told to end may take; Airflow kills the task's process five seconds after it said so."""


class SqsToSparkOperator(BaseOperator):
    """Brings the messages of a lease into a table by Spark, each exactly once.

    For example::

        with sqs_lease("orders", queue_url="orders", max_messages=2000) as orders:
            SqsToSparkOperator(
                task_id="load",
                messages=orders,
                spec={
                    "version": 1,
                    "source": {"kind": "json", "schema": "order_id BIGINT NOT NULL, total DOUBLE"},
                    "sink": {"kind": "delta", "path": "/data/orders"},
                    "workspace": "/data/batches",
                },
            )

    It runs ``python -m sqs_lease.spark.job`` in a separate process, or submits that. It does not import Spark, which
    may be in another environment (``python=``); beside Airflow it needs ``sqs-lease[airflow,manifest]``. Its log has
    the job's output, with the progress of the Spark jobs.

    It succeeds when the batch is in the table, and names messages that are not valid records in its return value
    (``batchItemFailures``, each with its ``reason``): the keeper settles those by ``on_failure``. With ``rejects`` in
    the spec they go to that table instead, and are deleted like the others. A failed try may be repeated, and so may
    one that was killed: messages that are in the table already are not stored twice.

    When the task is ended, its Spark jobs are cancelled. The same happens when all its messages were settled or lost,
    because the keeper ended or all leases were lost; the task then fails without a retry. As long as some are held it
    goes on: those that were lost are found in the table when they are received again.

    Args:
        messages: The value of ``sqs_lease``, with or without ``payload``. It is not a template field, so that bodies do
            not appear among the rendered fields.
        spec: Source, sink and workspace, see ``sqs_lease/ingestion/spec.py`` (templated). It is checked when the DAG is
            parsed, and holds no secrets.
        spark: Where Spark runs: ``local[2]`` (the default: in the job's process on the worker, with that many cores),
            another master (``spark://host:7077``), or a Connect server (``sc://host:15002``) (templated).
        python: The Python of an environment with ``sqs-lease[spark]``; by default the one that runs Airflow
            (templated).
        connections: Environment variables of the job that hold the URI of an Airflow connection, by name: for
            ``{"env": "NAME"}`` in the spec.
        aws_conn_id: An Airflow connection whose credentials, region and endpoint the job gets; None, the default,
            leaves that to the worker's environment.
        submit_conn_id: Submits the job by this Spark connection instead: to a standalone cluster, YARN or Kubernetes.
            It needs ``apache-airflow-providers-apache-spark``, a ``workspace`` that the worker and the driver reach,
            and ``sqs-lease[spark-cluster]`` on the cluster; secrets are the cluster's own affair.
        submit_options: Further arguments of that provider's ``SparkSubmitHook``, for example ``{"conf": {...}}``.
        kwargs: As for any operator.

    Raises:
        ModuleNotFoundError: A package that writes manifests is not installed.
        SpecError: The spec cannot be used.
        TypeError: ``messages`` comes from no task, or another argument has the wrong type.
        ValueError: Arguments contradict one another.
    """

    template_fields = ("spec", "spark", "python")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json"}
    ui_color = "#fdebd0"

    def __init__(
        self,
        *,
        messages: Any,
        spec: Mapping[str, Any],
        spark: str = "local[2]",
        python: str = sys.executable,
        connections: Mapping[str, str] | None = None,
        aws_conn_id: str | None = None,
        submit_conn_id: str | None = None,
        submit_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(messages, XComArg):
            raise TypeError(
                f"messages of {self.task_id!r} must be what sqs_lease(...) gives, not a {type(messages).__name__}"
            )
        with named(repr(self.task_id)):
            _check_types(spark, python, connections, aws_conn_id, submit_conn_id, submit_options)
        if submit_conn_id is None and submit_options is not None:
            raise ValueError(f"submit_options of {self.task_id!r} needs submit_conn_id")
        if submit_conn_id is not None and (connections or aws_conn_id):
            raise ValueError(
                f"{self.task_id!r} is submitted to a cluster, where connections= and aws_conn_id= would be arguments "
                "of a command and show in logs: give the cluster its secrets in its own way"
            )
        require_waiting(self.task_id, submit_options or {})
        require_manifests(f"the ingestion {self.task_id!r}", MANIFEST_EXTRAS, "call ingest() in a task of your own")
        try:
            IngestionSpec.parse(spec)
        except SpecError as error:
            raise SpecError(f"spec of {self.task_id!r}: {error}") from error
        self.messages = messages
        self.spec = dict(spec)
        self.spark = spark
        self.python = python
        self.connections = dict(connections or {})
        self.aws_conn_id = aws_conn_id
        self.submit_conn_id = submit_conn_id
        self.submit_options = dict(submit_options or {})
        self._job: JobProcess | SubmittedJob | None = None
        self._killed = False
        XComArg.apply_upstream_relationship(self, messages)

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job and return the outcomes of the messages."""
        spec = IngestionSpec.parse(self.spec)
        # The SDK gives the resolved value the type of the unresolved one.
        messages: Any = self.messages.resolve(context)
        task_instance = context["ti"]
        number = messages["messages"] if isinstance(messages, Mapping) else len(messages)
        keeper = keeper_of_work(self.dag, self.task_id, self.messages)

        def held() -> bool:
            return keeper is None or any_held(task_instance, keeper, number)

        if not held():
            raise AirflowFailException(self._not_held())
        run = f"{task_instance.dag_id} {task_instance.run_id} {self.task_id}"
        with ending_when_lost(held, self.on_kill) as lost:
            try:
                result = self._run(messages, run) if self.submit_conn_id is None else self._submit(messages, spec, run)
            except Exception as error:
                if lost.is_set():
                    raise AirflowFailException(self._not_held()) from error
                raise
        self.log.info(
            "%d messages: %d ingested (%d rows), %d empty, %d duplicates, %d rejected; version %s of the table",
            result.received,
            result.ingested,
            result.rows,
            result.empty,
            result.duplicates,
            result.rejected,
            result.table_version,
        )
        return asdict(result)

    def on_kill(self) -> None:
        """End the job, which cancels its Spark jobs."""
        # A job that is being started at this moment is not known yet, and is ended as soon as it is.
        self._killed = True
        if self._job is not None:
            self._job.end()

    def _run(self, messages: Any, run: str) -> StoredResult:
        with tempfile.TemporaryDirectory(prefix="sqs-lease-") as temporary:
            directory = Path(temporary)
            result = directory / "result.json"
            arguments = job_arguments(self.spec, map(str, local_manifests(messages, directory, run)), str(result))
            command = job_command(self.python, self.spark, arguments)
            self._job = job = JobProcess(command, self._environment(), grace_seconds=END_SECONDS)
            if self._killed:
                job.end()
            self.log.info("Ingesting on %s by process %d", self.spark, job.pid)
            try:
                job.follow(self._hand_on)
                return read_result(result)
            except JobError as error:
                raise AirflowException(str(error)) from error.__cause__

    def _submit(self, messages: Any, spec: IngestionSpec, run: str) -> StoredResult:
        uri = f"{spec.workspace.rstrip('/')}/results/{uuid4().hex}.json"
        result = shared_path(uri)
        with shared_manifests(messages, spec.workspace, run) as manifests:
            try:
                self._job = job = SubmittedJob(
                    job_arguments(self.spec, manifests, uri), str(self.submit_conn_id), self.submit_options
                )
                if self._killed:
                    job.end()
                job.run()
                return read_result(result)
            except JobError as error:
                raise AirflowException(str(error)) from error.__cause__
            finally:
                result.unlink(missing_ok=True)

    def _hand_on(self, line: str) -> None:
        """Write a line of the job to the log."""
        level, _, text = line.partition(" ")
        if level in ("ERROR", "CRITICAL"):
            self.log.error("%s", text)
        elif level == "WARNING":
            self.log.warning("%s", text)
        elif line:
            self.log.info("%s", line.removeprefix("INFO "))

    def _environment(self) -> dict[str, str]:
        """Return the job's environment: the worker's without Airflow's variables, and the chosen connections."""
        environment = job_environment(os.environ, leave_out="AIRFLOW")
        for name, conn_id in self.connections.items():
            environment[name] = BaseHook.get_connection(conn_id).get_uri()
        if self.aws_conn_id is not None:
            environment |= _aws_environment(self.aws_conn_id)
        return environment

    def _not_held(self) -> str:
        return (
            f"the messages of {self.task_id!r} are no longer held, so its work was stopped: all were settled or lost. "
            "Committed rows are in the table, and are not stored twice. Clear the sensor to receive again"
        )


def _check_types(
    spark: object,
    python: object,
    connections: object,
    aws_conn_id: object,
    submit_conn_id: object,
    submit_options: object,
) -> None:
    """Refuse arguments of other types, which would else show when the job is started."""
    places = {"spark": (spark, "a Spark master such as 'local[2]'"), "python": (python, "the path of a Python")}
    for name, (value, said) in places.items():
        check_type(value or None, (str,), name=name, expected=said)
    text = (str, type(None))
    check_type(aws_conn_id, text, name="aws_conn_id", expected="the id of an Airflow connection, or None")
    check_type(submit_conn_id, text, name="submit_conn_id", expected="the id of a Spark connection, or None")
    if connections is not None and not (
        isinstance(connections, Mapping) and all(isinstance(one, str) for item in connections.items() for one in item)
    ):
        raise TypeError(
            "connections must be a dict of environment variables and ids of Airflow connections, such as "
            f"{{'WAREHOUSE': 'warehouse'}}, not {connections!r}"
        )
    check_type(
        submit_options,
        (Mapping, type(None)),
        name="submit_options",
        expected="a dict of arguments of SparkSubmitHook, or None",
    )


def _aws_environment(conn_id: str) -> dict[str, str]:
    hook: Any = AwsGenericHook(aws_conn_id=conn_id)
    credentials = hook.get_credentials()
    found = {
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_SESSION_TOKEN": credentials.token,
        "AWS_DEFAULT_REGION": hook.region_name,
        "AWS_ENDPOINT_URL": hook.conn_config.endpoint_url,
    }
    return {name: value for name, value in found.items() if value}


def manifests_of(messages: BatchValue) -> list[str] | None:
    """Return where the messages of a batch are stored; None if they are values.

    Raises:
        TypeError: ``messages`` is not the value of a lease.
    """
    if isinstance(messages, Mapping):
        if MANIFESTS not in messages:
            raise TypeError("messages is a mapping that is not the value of a lease")
        return list(messages[MANIFESTS])
    if isinstance(messages, str | bytes) or not all(isinstance(message, Mapping) for message in messages):
        raise TypeError("messages is not the value of a lease: a list of mappings with MessageId and Body")
    return None


def local_manifests(messages: BatchValue, directory: Path, name: str) -> list[Path]:
    """Write the messages of a batch to files of this machine, from XCom or from a store.

    Args:
        messages: The value of the lease.
        directory: Where the files go.
        name: Names the batch in the manifest, where it has none yet.

    Raises:
        FileNotFoundError: The batch's files are gone.
        OSError: Files cannot be read or written.
        TypeError: ``messages`` is not the value of a lease.
    """
    stored = manifests_of(messages)
    if stored is None:
        path = directory / "messages.parquet"
        # Imported here: it needs pyarrow, and parsing a DAG does not need it.
        from sqs_lease.batch_files.manifest import write_manifest

        write_manifest(path, batch_id=name, queue_url="", messages=_listed(messages))
        return [path]
    paths = []
    for number, uri in enumerate(stored):
        paths.append(directory / f"messages-{number}.parquet")
        stored_at: Any = ObjectStoragePath(uri)
        with stored_at.open("rb") as source, paths[-1].open("wb") as copy:
            copyfileobj(source, copy)
    return paths


@contextmanager
def shared_manifests(messages: BatchValue, workspace: str, name: str) -> Iterator[list[str]]:
    """Keep the messages of a batch in files that other machines reach too, for the time of the block.

    Args:
        messages: The value of the lease.
        workspace: A directory that those machines reach, as a path or URI.
        name: Names the batch in the manifest, where it has none yet.

    Yields:
        The URIs of the manifests.

    Raises:
        OSError: The file cannot be written.
        TypeError: ``messages`` is not the value of a lease.
    """
    stored = manifests_of(messages)
    if stored is not None:
        yield stored
        return
    uri = f"{workspace.rstrip('/')}/manifests/{uuid4().hex}.parquet"
    with temporary_manifest(shared_path(uri), _listed(messages), batch_id=name):
        yield [uri]


def shared_path(uri: str) -> Any:
    """Return the file at a URI; its directory is made if it is in a file system."""
    path: Any = ObjectStoragePath(uri)
    if path.protocol in ("", "file"):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _listed(messages: BatchValue) -> list[Mapping[str, Any]]:
    listed: list[Any] = list(messages)
    return listed


NOT_WAITING: Final = ("track_driver_via_k8s_api", "yarn_track_via_rm_api")
"""Options by which the hook returns as soon as the job is submitted; only the provider's operator waits then."""


def require_waiting(task_id: str, options: Mapping[str, Any]) -> None:
    """Check that the hook will wait for the end of the job, because messages are kept only while it waits.

    Args:
        task_id: The task that submits it.
        options: Further arguments of the provider's ``SparkSubmitHook``.

    Raises:
        ValueError: It will not.
    """
    for name in NOT_WAITING:
        if options.get(name):
            raise ValueError(
                f"submit_options of {task_id!r} has {name}, by which the hook does not wait for the end of the job: "
                "its result would be missed. Leave it out, so that spark-submit waits"
            )


class SubmittedJob:
    """A job for ``spark-submit``.

    Args:
        arguments: The job's arguments.
        conn_id: The Spark connection.
        options: Further arguments of the provider's ``SparkSubmitHook``.

    Raises:
        AirflowFailException: The provider is not installed.
    """

    def __init__(self, arguments: Sequence[str], conn_id: str, options: Mapping[str, Any]) -> None:
        try:
            hooks = import_module("airflow.providers.apache.spark.hooks.spark_submit")
        except ImportError as error:
            raise AirflowFailException(
                "submit_conn_id needs Airflow's Spark provider: "
                "pip install --no-deps apache-airflow-providers-apache-spark "
                "(its dependency pyspark-client would overwrite files of pyspark)"
            ) from error
        self._hook = hooks.SparkSubmitHook(
            **{"name": "sqs-lease", **options}, conn_id=conn_id, application_args=list(arguments)
        )
        self._is_ended = False

    def run(self) -> None:
        """Submit it and wait for its end; its output goes to the hook's log.

        Raises:
            JobError: It failed, and said why; or it was ended before.
            Exception: It failed in another way; the hook says how.
        """
        if self._is_ended:
            raise JobError("the task was ended before its job was submitted")
        try:
            self._hook.submit(str(files("sqs_lease") / "spark" / "job" / "__main__.py"))
        except AirflowException as error:
            # The hook's error has the whole command and the last lines of the output; in cluster mode, not the job's.
            said = [line for line in str(error).splitlines() if line.startswith(ERROR)]
            if not said:
                raise
            raise JobError(said[-1].removeprefix(ERROR)) from error

    def end(self) -> None:
        """End it, in whatever way its cluster has."""
        self._is_ended = True
        self._hook.on_kill()
