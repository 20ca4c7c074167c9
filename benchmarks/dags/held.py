"""The DAGs of the triggerer's benchmark: their runs are written into the database as if they had been deferred."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, BaseOperator, dag, task

from sqs_lease.airflow import sqs_lease

DAGS = int(os.environ.get("HELD_DAGS", "1"))
MAPPED = os.environ.get("HELD_MAPPED") == "1"


def held_dag(dag_id: str) -> DAG:
    """Make a DAG with a lease over one task, which is not started."""

    @dag(dag_id=dag_id, schedule=None)
    def held() -> None:
        @task(do_xcom_push=False)
        def load(messages: Any) -> None:
            """Never started: the benchmark writes its states."""

        with sqs_lease("orders", queue_url=dag_id) as orders:
            if MAPPED:
                load.expand(messages=orders)
            else:
                load(orders)

    return held()


with DAG("probe", schedule=None):
    BaseOperator(task_id="probe")
for number in range(DAGS):
    globals()[f"held_{number}"] = held_dag(f"held_{number}")
