"""The Airflow plugin of this package, found by the entry point ``airflow.plugins`` in every process of Airflow."""

from __future__ import annotations

from airflow.sdk.plugins_manager import AirflowPlugin

from sqs_lease.airflow.failures import listener


class SqsLeasePlugin(AirflowPlugin):
    """Registers the listener that reports failed work to its keeper."""

    name = "sqs_lease"
    listeners = [listener]  # noqa: RUF012 - as Airflow declares it
