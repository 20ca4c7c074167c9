"""Ingestions that never end by themselves, each from a queue of its own."""

from __future__ import annotations

import os

from airflow.sdk import dag

from sqs_lease.airflow import SqsToSparkOperator, sqs_lease

DIRECTORY = os.environ.get("INGESTIONS", "/tmp")


def waiting_ingestion(name: str) -> None:
    @dag(dag_id=name, schedule=None)
    def define() -> None:
        with sqs_lease("orders", queue_url=name, timeout=60) as orders:
            SqsToSparkOperator(
                task_id="load",
                messages=orders,
                spark="local[1]",
                spec={
                    "version": 1,
                    "source": {
                        "kind": "parser",
                        "function": "tests.spark.job.waiting_parser:wait_for_ever",
                        "schema": "id BIGINT",
                    },
                    "sink": {"kind": "delta", "path": f"{DIRECTORY}/{name}"},
                    "workspace": f"{DIRECTORY}/workspace",
                },
            )

    define()


for way in ("work_marked", "keeper_marked", "worker_killed"):
    waiting_ingestion(way)
