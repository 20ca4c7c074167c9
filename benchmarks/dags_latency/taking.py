"""The DAGs of the latency benchmark: sqs-lease and the stock classes, each by a sensor that waits and by events.

Each DAG takes from the queue of its own name, except the runs of sensors, which are told their queue. The work writes a
line for each message: when it was sent, and when the work began.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow.providers.amazon.aws.sensors.sqs import SqsSensor
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher, Param, dag, get_current_context, task

from sqs_lease.airflow import SqsLeaseTrigger, sqs_lease

RECORDS = Path(os.environ["LATENCY_RECORDS"])
QUEUES = os.environ["LATENCY_QUEUES"]
"""The beginning of the URL of each queue."""
WORK_SECONDS = 3.0
MOST_A_RUN = 100
RUNS_AT_ONCE = 4
POLL_SECONDS = 2
"""The default of sqs-lease. The stock classes ask once a minute unless they are told otherwise."""


def note(messages: Iterable[Any], seconds: float = WORK_SECONDS) -> None:
    """Note when each message was sent and when its work began, and work."""
    context: Any = get_current_context()
    began = time.time()
    lines = [
        f"{json.loads(message['Body'])['sent']} {began} {context['run_id']} {message['MessageId']}\n"
        for message in messages
    ]
    with (RECORDS / context["dag"].dag_id).open("a") as record:
        record.write("".join(lines))
    time.sleep(seconds)


@task(do_xcom_push=False)
def work(messages: Any) -> None:
    """Work on a batch."""
    note(messages)


@task(do_xcom_push=False)
def work_on_events(triggering_asset_events: Any = None) -> None:
    """Work on the messages that the stock trigger put into its events."""
    note(
        message
        for events in triggering_asset_events.values()
        for event in events
        for message in event.extra["payload"]["message_batch"]
    )


@dag(schedule=None, max_active_runs=16, params={"queue_url": Param("", type="string")})
def sensor_of_sqs_lease() -> None:
    """Wait for one message with a lease."""
    with sqs_lease("receive", queue_url="{{ params.queue_url }}", max_messages=1) as messages:
        work(messages)


@dag(schedule=None, max_active_runs=16, params={"queue_url": Param("", type="string")})
def sensor_of_the_provider() -> None:
    """Wait for one message with the stock sensor, which deletes it."""
    receive = SqsSensor(
        task_id="receive",
        sqs_queue="{{ params.queue_url }}",
        max_messages=1,
        deferrable=True,
        poke_interval=POLL_SECONDS,
    )
    output: Any = receive.output
    work(output["messages"])


def watched(name: str, trigger: Any) -> Asset:
    """An asset with a watcher."""
    return Asset(name, watchers=[AssetWatcher(f"{name}_watcher", trigger=trigger)])


counted = watched("events_of_sqs_lease", SqsLeaseTrigger(f"{QUEUES}/events_of_sqs_lease"))
read = watched(
    "events_of_the_provider",
    MessageQueueTrigger(
        scheme="sqs",
        sqs_queue=f"{QUEUES}/events_of_the_provider",
        max_messages=10,
        num_batches=MOST_A_RUN // 10,
        waiter_delay=POLL_SECONDS,
    ),
)


@dag(schedule=counted, max_active_runs=RUNS_AT_ONCE)
def events_of_sqs_lease() -> None:
    """Runs that messages start, with a lease."""
    with sqs_lease("receive", event=counted, max_messages=MOST_A_RUN) as messages:
        work(messages)


@dag(schedule=read, max_active_runs=RUNS_AT_ONCE)
def events_of_the_provider() -> None:
    """Runs that the stock trigger starts, which has deleted the messages by then."""
    work_on_events()


sensor_of_sqs_lease()
sensor_of_the_provider()
events_of_sqs_lease()
events_of_the_provider()
