"""The steps of docker/README.md, done: both orchestrators, a killed triggerer, and every example."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Final

import httpx
from deltalake import DeltaTable

from demo.airflow_api import AirflowApi
from demo.dagster_api import DagsterApi
from demo.flights import bodies
from demo.processes import ROOT
from sqs_lease.airflow.page.site import URL_PREFIX
from sqs_lease.spark.columns import MESSAGE_ID
from tests.docker.check.stack import LAST, Stack
from tests.docker.dashboard import expressions

MESSAGES: Final = 3000
FEW_MESSAGES: Final = 20

FLIGHTS_DAG: Final = "flights_to_delta"
LONG_WORK_SECONDS: Final = 240
"""Longer than the visibility timeout with which Airflow receives: without a keeper, messages would come back."""

DAGS: Final[Mapping[str, tuple[str, str]]] = {
    "orders_in_one_batch": ("orders-in-one-batch", "success"),
    "json_to_delta": ("json-to-delta", "success"),
    "queue_to_postgres": ("queue-to-postgres", "success"),
    "orders_one_by_one": ("orders-one-by-one", "failed"),
    "orders_with_partial_failures": ("orders-with-partial-failures", "failed"),
    "orders_with_backoff": ("orders-with-backoff", "failed"),
    "bookings_in_order": ("bookings-in-order.fifo", "failed"),
}
"""The examples on Airflow: their queues, and how their runs end on messages some of which cannot be worked on."""

EVENT_DAG: Final = ("orders_that_start_runs", "orders-that-start-runs")
"""The one that messages start."""

JOBS: Final = {"bookings_in_order": "dagster-bookings.fifo", "orders_in_steps": "dagster-orders"}
"""The jobs on Dagster that are started by hand, and their queues."""


CARRIER: Final = "/var/lib/sqs-lease/lake/dagster/carrier"
"""Where deliveries go: their job fails until it is there."""


class CheckError(RuntimeError):
    """Something is not as docker/README.md says."""


def use(stack: Stack, show: Callable[[str], None]) -> None:
    """Do it all.

    Raises:
        CheckError: Something came out otherwise.
    """
    shutil.copytree(ROOT / "dags", LAST / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    began = time.monotonic()
    stack.up(["airflow", "metrics"])
    with stack.airflow() as airflow:
        _run_the_dag_of_the_readme(stack, airflow)
        show(f"the README's DAG has worked, {time.monotonic() - began:.0f} s after `up`")
        _examine_the_queues(stack, show)
        stack.up(["airflow", "metrics", "dagster", "spark"])
        _flights_on_both(stack, airflow)
        show(f"{MESSAGES} messages are in the tables of Airflow and of Dagster")
        with stack.dagster() as dagster:
            _failover_and_examples(stack, airflow, dagster, show)
        _look_at_the_dashboard(stack, show)
    for line in stack.command("look").splitlines():
        show(line)
    flights = sum(not body.is_malformed for body in bodies(MESSAGES))
    more = sum(not body.is_malformed for body in bodies(MESSAGES // 6))
    _require_table(stack, "airflow/flights", flights + more)
    _require_table(stack, "dagster/flights", flights)


def _run_the_dag_of_the_readme(stack: Stack, airflow: AirflowApi) -> None:
    """Put the DAG of the README into the DAG files as it stands there, and run it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    code = next((block for block in blocks if "def orders()" in block), None)
    if code is None:
        raise CheckError("The README has no DAG `orders` any more.")
    (LAST / "dags" / "orders.py").write_text(code)
    stack.publish(FEW_MESSAGES, "orders")
    stack.wait("airflow-dag-processor", lambda: airflow.has_dag("orders"), "done with the README's DAG")
    _require_state("orders", stack.wait_for_run(airflow, "orders", airflow.trigger("orders")), "success")
    if left := stack.counts("orders").total:
        raise CheckError(f"The README's DAG left {left} messages.")


def _examine_the_queues(stack: Stack, show: Callable[[str], None]) -> None:
    """`docker compose run --rm sqs-lease doctor QUEUE ...`, which ends with 1 if it finds a problem."""
    said = stack.command("sqs-lease", "doctor", "flights", "bookings-in-order.fifo", entrypoint=1)
    if "No problems found" not in said:
        raise CheckError(f"The doctor did not find all well:\n{said}")
    show("the command sqs-lease is in the image, and its doctor finds no problems")


def _look_at_the_page(stack: Stack, airflow: AirflowApi, run_id: str) -> None:
    """Get the files of the page *SQS leases*, and what it shows of a run, as a browser does."""
    page = httpx.get(f"{stack.url('airflow-api-server')}{URL_PREFIX}/index.html", timeout=60.0)
    if page.status_code != httpx.codes.OK or "SQS leases" not in page.text:
        raise CheckError(f"Airflow answered {page.status_code} to the page of leases: {page.text[:200]}")
    if (FLIGHTS_DAG, run_id, "flights_keeper") not in airflow.keepers_at_work():
        raise CheckError("Airflow does not tell the page of leases of the keeper of flights.")


def _look_at_the_dashboard(stack: Stack, show: Callable[[str], None]) -> None:
    """Ask Prometheus all that the dashboard asks; each orchestrator has told of its flights."""
    prometheus = stack.prometheus()

    def told() -> bool:
        # At any time: the process that told of it may have ended before the five minutes that Prometheus looks back by
        # itself.
        airflow = prometheus.query('last_over_time(airflow_sqs_lease_settled_deleted_total{queue="flights"}[1d])')
        dagster = prometheus.query(
            'last_over_time(sqs_lease_settled_total{messaging_destination_name="dagster-flights"}[1d])'
        )
        return bool(airflow and dagster)

    stack.wait("prometheus", told, "told of the flights by Airflow and by Dagster")
    shown = {expression: prometheus.query(expression.text) for expression in expressions()}
    empty = sorted({expression.panel for expression, samples in shown.items() if not samples})
    show(f"Prometheus evaluates all of the dashboard; without a value: {', '.join(empty) or 'nothing'}")
    for panel in ("Settled", "Leases held, by queue", "Renewals, by queue", "Batches, by queue"):
        if panel in empty:
            raise CheckError(f"The dashboard has nothing to show as {panel}.")


def _flights_on_both(stack: Stack, airflow: AirflowApi) -> None:
    stack.publish(MESSAGES)
    for _ in range(2):
        stack.execute("airflow-scheduler", "airflow", "dags", "trigger", FLIGHTS_DAG)
    runs = airflow.run_states(FLIGHTS_DAG)
    for run_id in runs:
        _require_state(FLIGHTS_DAG, stack.wait_for_run(airflow, FLIGHTS_DAG, run_id), "success")
    wanted = sum(not body.is_malformed for body in bodies(MESSAGES))
    stack.wait(
        "dagster-daemon", lambda: len(_message_ids(stack, "dagster/flights")) >= wanted, "done with the flights", 600.0
    )


def _failover_and_examples(stack: Stack, airflow: AirflowApi, dagster: DagsterApi, show: Callable[[str], None]) -> None:
    """Kill the triggerer that keeps a batch, and let the examples run until the work on it has ended."""
    for queue, _ in (*DAGS.values(), (EVENT_DAG[1], "")):
        stack.publish(FEW_MESSAGES, queue)
    for queue in (*JOBS.values(), "dagster-customers", "dagster-deliveries"):
        stack.publish(FEW_MESSAGES, queue)
    stack.publish(MESSAGES // 6, "flights")
    run_id = airflow.trigger(FLIGHTS_DAG, {"run_seconds": LONG_WORK_SECONDS})
    holder = ""

    def is_kept() -> bool:
        nonlocal holder
        holder = airflow.triggerer_of(FLIGHTS_DAG, run_id, "flights_keeper") or ""
        states = {task.task_id: task.state for task in airflow.task_states(FLIGHTS_DAG, run_id)}
        return bool(holder) and states.get("load") == "running"

    stack.wait("airflow-scheduler", is_kept, "at work on the flights")
    _look_at_the_page(stack, airflow, run_id)
    show("the page of leases is there, and Airflow tells it of the keeper at work")
    stack.containers.kill(holder)
    killed = time.monotonic()
    show(f"killed {holder}, which kept the messages")
    runs = {dag_id: airflow.trigger(dag_id) for dag_id in DAGS}
    jobs = {job: dagster.launch(job) for job in JOBS} | {"customers": dagster.materialize("customers")}
    stack.execute("dagster-code-server", "mkdir", "-p", CARRIER)
    dagster.start_sensor("deliveries_router")
    taken_over = _poll_while_it_works(stack, airflow, run_id, holder)
    show(
        f"another triggerer had them {taken_over - killed:.0f} s later; "
        f"no other consumer was given one while the work lasted, {LONG_WORK_SECONDS} s"
    )
    _require_state(FLIGHTS_DAG, stack.wait_for_run(airflow, FLIGHTS_DAG, run_id), "success")
    report = airflow.xcom(FLIGHTS_DAG, run_id, "flights_keeper", "lease_report")
    if report["lost"] or report["late"]:
        raise CheckError(f"The keeper lost messages: {report}.")
    for dag_id, (_, wanted) in DAGS.items():
        _require_state(dag_id, stack.wait_for_run(airflow, dag_id, runs[dag_id]), wanted)
    event_dag, event_queue = EVENT_DAG
    stack.wait(
        "airflow-scheduler", lambda: "success" in airflow.run_states(event_dag).values(), f"done with {event_dag}"
    )
    stack.wait("airflow-scheduler", lambda: stack.counts(event_queue).total == 0, f"done with {event_queue}")
    show(f"the examples on Airflow did what they do: {', '.join((*DAGS, event_dag))}")
    for job, job_run in jobs.items():
        _require_state(job, stack.wait_for_job(dagster, job_run), "SUCCESS")
    stack.wait("dagster-daemon", lambda: stack.counts("dagster-deliveries").total == 0, "done with the deliveries")
    show(f"the examples on Dagster did what they do: {', '.join((*jobs, 'deliveries'))}")
    stack.containers.await_health(stack.services[holder], 300.0)


def _poll_while_it_works(stack: Stack, airflow: AirflowApi, run_id: str, killed: str) -> float:
    """Ask the queue for messages until the work on them has ended; it must not give any.

    The triggerer that was killed is started again as soon as another one has the keeper.

    Returns:
        When another triggerer had the keeper.
    """
    sqs = stack.sqs()
    url = sqs.get_queue_url(QueueName="flights")["QueueUrl"]
    taken_over = 0.0
    while True:
        answer = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1, VisibilityTimeout=0)
        states = {task.task_id: task.state for task in airflow.task_states(FLIGHTS_DAG, run_id)}
        if states["load"] not in ("running", "up_for_retry", "scheduled", "queued"):
            return taken_over or time.monotonic()
        if answer.get("Messages"):
            raise CheckError("A second consumer was given messages on which the flights' DAG still worked.")
        if not taken_over and airflow.triggerer_of(FLIGHTS_DAG, run_id, "flights_keeper") not in (None, killed):
            taken_over = time.monotonic()
            stack.containers.start(stack.services[killed])


def _message_ids(stack: Stack, table: str) -> list[str]:
    path = stack.containers.volume("lake") / table
    if not (path / "_delta_log").exists():
        return []
    ids: list[str] = DeltaTable(path).to_pyarrow_table(columns=[MESSAGE_ID])[MESSAGE_ID].to_pylist()
    return ids


def _require_table(stack: Stack, table: str, rows: int) -> None:
    ids = _message_ids(stack, table)
    if (len(ids), len(set(ids))) != (rows, rows):
        raise CheckError(f"{table} has {len(ids)} rows of {len(set(ids))} messages, not {rows} of {rows}.")


def _require_state(what: str, state: str, wanted: str) -> None:
    if state != wanted:
        raise CheckError(f"The run of {what} ended as {state}, not {wanted}.")
