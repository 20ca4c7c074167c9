"""A code location with a backlog sensor that is switched on, for a real daemon iteration in the process of the test."""

import dagster as dg

from sqs_lease.dagster import SqsQueueResource, build_sqs_backlog_sensor


@dg.asset
def orders() -> None: ...


defs = dg.Definitions(
    assets=[orders],
    sensors=[
        build_sqs_backlog_sensor(
            "orders_backlog",
            SqsQueueResource(queue="orders"),
            orders,
            default_status=dg.DefaultSensorStatus.RUNNING,
        )
    ],
)
