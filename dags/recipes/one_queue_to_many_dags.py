"""One queue, many DAGs: each message starts a run of the DAG for its content, and is held until that run ends.

The message of a run that succeeds is deleted, and the message of a run that fails is visible again. While it waits for
the runs, the task is deferred, so that no worker slot is taken. A DAG for all messages is the same with one entry in
the table.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Asset, AssetWatcher, dag, literal, task
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease.airflow import SqsLeaseTrigger, sqs_lease

arriving_documents = Asset(
    "arriving_documents",
    watchers=[AssetWatcher("arriving_documents_watcher", trigger=SqsLeaseTrigger("documents"))],
)

# A table, because with the DAG's id in the message its sender could start any DAG.
DAG_OF_KIND = {"invoice": "book_invoice", "refund": "pay_refund"}


def run_of(message: Any) -> dict[str, Any]:
    """Return the arguments of a message's run."""
    document = json.loads(message["Body"])
    return {
        "trigger_dag_id": DAG_OF_KIND[document["kind"]],
        # The same each time the message comes, so that it never has two runs.
        "trigger_run_id": f"message-{message['MessageId']}",
        # Without `literal`, Airflow would render the sender's text as a template, with access to connections.
        "conf": literal({"document": document}),
    }


@dag(schedule=arriving_documents, max_active_runs=8)
def documents_to_dags() -> None:
    """Start a run for each document, and wait for all of them."""
    with sqs_lease("documents", event=arriving_documents, max_messages=25) as documents:
        TriggerDagRunOperator.partial(
            task_id="run",
            reset_dag_run=True,  # a message that comes again runs its run again
            wait_for_completion=True,
            deferrable=True,
            poke_interval=20,
        ).expand_kwargs(documents.map(run_of))


@dag(schedule=None)
def book_invoice() -> None:
    """Work on one invoice."""

    @task(retries=2)
    def book(dag_run: Any = None) -> None:
        document = dag_run.conf["document"]
        if document["amount"] < 0:
            raise AirflowFailException("an invoice has no negative amount")
        print(f"booking {document['amount']}")

    book()


@dag(schedule=None)
def pay_refund() -> None:
    """Work on one refund."""

    @task(retries=2)
    def pay(dag_run: Any = None) -> None:
        print(f"paying {dag_run.conf['document']['amount']}")

    pay()


documents_to_dags()
book_invoice()
pay_refund()
