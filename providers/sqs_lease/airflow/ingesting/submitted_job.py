"""A job that ``spark-submit`` starts, through the hook of Airflow's own Spark provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from typing import Any, Final

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from sqs_lease.ingestion.job import ERROR, JobError

NOT_WAITING: Final = ("track_driver_via_k8s_api", "yarn_track_via_rm_api")
"""Options by which the hook returns as soon as the job is submitted; only the provider's operator waits then."""


def require_waiting(task_id: str, options: Mapping[str, Any]) -> None:
    """Check that the hook will wait for the end of the job, as its messages are kept only that long.

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
            # The hook tells of the whole command and the last lines of the output; in cluster mode, not of the job's.
            said = [line for line in str(error).splitlines() if line.startswith(ERROR)]
            if not said:
                raise
            raise JobError(said[-1].removeprefix(ERROR)) from error

    def end(self) -> None:
        """End it, in whatever way its cluster has."""
        self._is_ended = True
        self._hook.on_kill()
