"""A job that ``spark-submit`` starts, through the hook of Airflow's own Spark provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from typing import Any

from airflow.sdk.exceptions import AirflowFailException


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
                "submit_conn_id needs Airflow's Spark provider: pip install apache-airflow-providers-apache-spark"
            ) from error
        self._hook = hooks.SparkSubmitHook(
            **{"name": "sqs-lease", **options}, conn_id=conn_id, application_args=list(arguments)
        )

    def run(self) -> None:
        """Submit it and wait for its end; its output goes to the hook's log.

        Raises:
            Exception: It failed; the hook says how.
        """
        self._hook.submit(str(files("sqs_lease") / "spark" / "job" / "__main__.py"))

    def end(self) -> None:
        """End it, in whatever way its cluster has."""
        self._hook.on_kill()
