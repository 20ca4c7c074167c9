"""A DAG for each queue, by the peer: sqs-lease, or the SqsSensor of Airflow's Amazon provider in two ways."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from airflow.providers.amazon.aws.hooks.sqs import SqsHook
from airflow.providers.amazon.aws.sensors.sqs import SqsSensor
from airflow.sdk import DAG, dag, task

from sqs_lease.airflow import sqs_lease

PEER = os.environ["PEER"]
JOBS: list[dict[str, Any]] = json.loads(os.environ["PEER_JOBS"])


def consumer(job: dict[str, Any]) -> DAG:
    """A DAG that receives a batch, works on it as a whole, and settles it as its peer does."""

    @dag(dag_id=job["name"], schedule=None, max_active_runs=16, default_args={"retries": 0})
    def consume() -> None:
        @task(do_xcom_push=False)
        def work(messages: Any) -> None:
            time.sleep(job["work_seconds"])
            if job["fails"]:
                with Path(job["record"]).open("a") as record:
                    record.write(f"failed {time.time()}\n")
                raise RuntimeError(f"the work on {len(messages)} messages fails, as it was told to")

        @task(do_xcom_push=False)
        def delete(messages: Any) -> None:
            sqs: Any = SqsHook(aws_conn_id=job["connection"]).conn
            for start in range(0, len(messages), 10):
                entries = [
                    {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                    for number, message in enumerate(messages[start : start + 10])
                ]
                sqs.delete_message_batch(QueueUrl=job["queue_url"], Entries=entries)

        if PEER == "ours-airflow":
            with sqs_lease(
                "receive",
                queue_url=job["queue_url"],
                aws_conn_id=job["connection"],
                max_messages=job["a_run"],
                visibility=job["visibility_seconds"],
                # The default of a second is too short to receive hundreds in.
                linger=1 if job["a_run"] <= 100 else 60,
            ) as messages:
                work(messages)
            return
        receive = SqsSensor(
            task_id="receive",
            sqs_queue=job["queue_url"],
            aws_conn_id=job["connection"],
            max_messages=10,
            num_batches=-(-job["a_run"] // 10),
            deferrable=True,
            delete_message_on_reception=PEER == "sqs-sensor",
        )
        output: Any = receive.output
        received = output["messages"]
        done = work(received)
        if PEER == "sqs-sensor-kept":
            done >> delete(received)

    return consume()


for number, each in enumerate(JOBS):
    globals()[f"consumer_{number}"] = consumer(each)
