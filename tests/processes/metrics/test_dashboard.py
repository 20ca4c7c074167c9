"""The dashboard on a real Prometheus: a program with leases and a real Airflow publish to it, both by OTLP.

One story is measured, while batches are held and after they ended: each test looks at its part. Needs Go, with which
Prometheus is built once, or a Prometheus 3 that the environment variable PROMETHEUS names.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from demo.airflow_stack import AirflowStack, airflow_stack, migrated_postgres
from demo.postgres import postgres_server
from demo.processes import ServerProcess, start_process, wait_until
from demo.prometheus import Prometheus, QueryError, Sample, prometheus_server
from demo.queues import counts
from demo.sqs_server import SqsServer
from tests.docker.compose_model import COMPOSE_FILE
from tests.docker.dashboard import Expression, expressions
from tests.docker.services import SERVICES

pytestmark = [pytest.mark.processes, pytest.mark.timeout(3600)]

HERE = Path(__file__).parent
LIMIT_SECONDS = 600.0

MESSAGES = {
    "airflow-orders": ["one", "two", "bad"],
    "program-orders": ["one", "two", "bad"],
    "program-late": ["one"],
    "program-lost": ["one"],
}
QUEUES = {*MESSAGES, "airflow-watched"}

PLACES = ("--config.file", "--storage.tsdb.path")
"""Options of the service whose paths are those of its container."""

HELD, ENDED = "held", "ended"


def options_of_the_stack() -> list[str]:
    """How compose.yaml starts Prometheus, but for paths."""
    return [option for option in SERVICES["prometheus"]["command"] if not option.startswith(PLACES)]


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers of Prometheus: the samples of each expression while batches were held, and after their end."""

    answers: dict[str, dict[str, list[Sample]]]
    names: set[str]

    def values(self, panel: str, when: str = ENDED) -> dict[str, float]:
        """The values of a panel, by its legends filled in."""
        return {
            expression.legend.replace("{{queue}}", sample.labels.get("queue", "")): sample.value
            for expression in expressions()
            if expression.panel == panel
            for sample in self.answers[when][expression.text]
        }


class Story:
    """Has a program and Airflow work, and asks Prometheus.

    Args:
        server: The SQS server.
        prometheus: Where both publish.
        stack: Airflow.
        home: A directory for this.
    """

    def __init__(self, server: SqsServer, prometheus: Prometheus, stack: AirflowStack, home: Path) -> None:
        self._server, self._prometheus, self._stack = server, prometheus, stack
        self._gate, self._home = home / "gate", home
        self._sqs = server.sqs_client()

    def play(self) -> Measured:
        """Play it."""
        program = self._start_program()
        run_id = self._stack.api.trigger("orders")
        # Each has failed one message of three, and has extended those that it holds.
        self._wait(program, lambda: self._released("airflow-orders"), "published of Airflow's keeper")
        self._wait(program, lambda: self._released("program-orders"), "published of the program")
        self._wait(program, lambda: self._reads("airflow_sqs_lease_watcher_poll_age"), "published of the watcher")
        for prefix, label in (("airflow_", "queue"), ("", "messaging_destination_name")):
            queue = "airflow-orders" if prefix else "program-orders"
            expression = f'{prefix}sqs_lease_extended_total{{{label}="{queue}"}} > 0'
            self._wait(program, lambda asked=expression: self._reads(asked), f"extending {queue}")  # type: ignore[misc]
            # Airflow's gauges are read every ten seconds.
            held = f'{prefix}sqs_lease_held{{{label}="{queue}"}} == 2'
            self._wait(program, lambda asked=held: self._reads(asked), f"published of {queue}")  # type: ignore[misc]
        held_answers = self._answers()
        self._gate.touch()
        self._let_the_leases_end(program)
        self._stack.wait_for_run("orders", run_id, LIMIT_SECONDS)
        ended = 'airflow_sqs_lease_held{queue="airflow-orders"} == 0'
        self._wait(None, lambda: self._reads(ended), "published of the end")
        return Measured({HELD: held_answers, ENDED: self._answers()}, self._prometheus.metric_names())

    def _start_program(self) -> ServerProcess:
        return start_process(
            "the program",
            [sys.executable, HERE / "program.py", str(self._gate)],
            log_path=self._home / "program.log",
            environment={"PATH": os.environ["PATH"], **self._server.environment, **self._prometheus.environment},
            directory=self._home,
        )

    def _let_the_leases_end(self, program: ServerProcess) -> None:
        """Twice the program stands still until its message is visible again; another consumer takes the second one."""
        stopped = psutil.Process(program.pid)
        for queue in ("program-late", "program-lost"):
            url = self._sqs.get_queue_url(QueueName=queue)["QueueUrl"]

            def stands_still(url: str = url) -> bool:
                return stopped.status() == psutil.STATUS_STOPPED and counts(self._sqs, url).visible == 1

            self._wait(program, stands_still, f"standing still with {queue}")
            if queue == "program-lost":
                (message,) = self._sqs.receive_message(QueueUrl=url)["Messages"]
                self._sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            os.kill(program.pid, signal.SIGCONT)
        self._wait(None, lambda: not program.is_running, "at its end")

    def _released(self, queue: str) -> bool:
        airflow = f'airflow_sqs_lease_settled_released_total{{queue="{queue}"}}'
        program = f'sqs_lease_settled_total{{sqs_lease_outcome="released", messaging_destination_name="{queue}"}}'
        return self._reads(f"({airflow} or {program}) == 1")

    def _reads(self, expression: str) -> bool:
        return bool(self._prometheus.query(expression))

    def _answers(self) -> dict[str, list[Sample]]:
        return {expression.text: self._prometheus.query(expression.text) for expression in expressions()}

    def _wait(self, program: ServerProcess | None, ready: Callable[[], bool], what: str) -> None:
        processes = [self._stack.processes["triggerer"], *([] if program is None else [program])]
        wait_until(ready, processes=processes, what=what, deadline_seconds=LIMIT_SECONDS)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    configuration = COMPOSE_FILE.parent / "prometheus" / "prometheus.yaml"
    with prometheus_server(tmp_path_factory.mktemp("prometheus"), configuration, options_of_the_stack()) as running:
        yield running


@pytest.fixture(scope="module")
def measured(server: SqsServer, prometheus: Prometheus, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    home = tmp_path_factory.mktemp("metrics")
    sqs = server.sqs_client()
    for queue in QUEUES:
        url = sqs.create_queue(QueueName=queue)["QueueUrl"]
        for body in MESSAGES.get(queue, ()):
            sqs.send_message(QueueUrl=url, MessageBody=body)
    environment = {
        "AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection,
        "METRICS_GATE": str(home / "gate"),
        **prometheus.environment,
        **{
            name: SERVICES["triggerer-1"]["environment"][name]
            for name in ("AIRFLOW__METRICS__OTEL_ON", "OTEL_SERVICE_NAME")
        },
    }
    with ExitStack() as exits:
        database = exits.enter_context(postgres_server(migrated_postgres()))
        stack = exits.enter_context(
            airflow_stack(home / "airflow", HERE / "dags", environment, database_url=database.url)
        )
        stack.wait_for_dag("orders")
        return Story(server, prometheus, stack, home).play()


def test_leases_and_batches_of_programs_and_of_airflow_are_shown_by_queue_while_they_are_held(
    measured: Measured,
) -> None:
    assert measured.values("Leases held, by queue", HELD) == {"airflow-orders": 2, "program-orders": 2}
    assert measured.values("Leases held", HELD) == {"": 4}
    assert measured.values("Batches, by queue", HELD) == {"airflow-orders": 1, "program-orders": 1}
    assert measured.values("Batches", HELD) == {"": 2}


def test_nothing_is_held_after_the_end(measured: Measured) -> None:
    assert measured.values("Leases held") == {"": 0}
    assert measured.values("Batches") == {"": 0}


def test_renewals_are_shown_by_queue(measured: Measured) -> None:
    renewals = measured.values("Renewals, by queue", HELD)
    assert renewals["airflow-orders"] > 0
    assert renewals["program-orders"] > 0


def test_late_and_lost_are_zero_until_a_lease_is_late_and_lost(measured: Measured) -> None:
    assert measured.values("Late", HELD) == measured.values("Lost", HELD) == {"": 0}
    assert measured.values("Late") == measured.values("Lost") == {"": 1}
    assert {name for name, value in measured.values("Late and lost, by queue").items() if value} == {
        "late: program-late",
        "lost: program-lost",
    }


def test_settlements_are_shown_by_outcome(measured: Measured) -> None:
    settled = measured.values("Settlements, by outcome")
    assert {outcome for outcome, value in settled.items() if value} <= {"deleted", "released", "uncertain"}
    # Two of Airflow's and three of the program's were deleted, and one of each was released.
    assert settled["deleted"] > settled["released"] > 0
    # The late one was deleted, too.
    assert measured.values("Settled") == {"": 7}


def test_release_latencies_are_shown_in_seconds(measured: Measured) -> None:
    latencies = measured.values("Release latency")
    assert latencies.keys() == {f"{p} {who}" for p in ("p50", "p95") for who in ("Airflow", "Dagster and programs")}
    assert [value for value in latencies.values() if not 0 < value < 60] == []


def test_metrics_that_airflow_alone_publishes_are_shown(measured: Measured) -> None:
    assert measured.values("Oldest lease on Airflow, by queue", HELD)["airflow-orders"] > 0
    assert measured.values("Watchers on Airflow: time since the last count", HELD).keys() == {"airflow-watched"}


def test_every_queue_with_leases_can_be_chosen(measured: Measured) -> None:
    (choice,) = [expression for expression in expressions() if expression.panel == "choice of queues"]
    assert {sample.labels["queue"] for sample in measured.answers[ENDED][choice.text]} == set(MESSAGES)


@pytest.mark.parametrize("expression", expressions(), ids=lambda expression: f"{expression.panel} {expression.legend}")
def test_prometheus_evaluates_each_expression_without_a_warning(expression: Expression, measured: Measured) -> None:
    assert {expression.text} <= measured.answers[ENDED].keys()


def test_a_malformed_expression_is_refused(prometheus: Prometheus) -> None:
    with pytest.raises(QueryError, match="parse error"):
        prometheus.query("sum(")
