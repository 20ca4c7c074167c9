"""In a task process, the plugin's listener reports to the keeper how work ended, and disturbs nothing."""

from __future__ import annotations

import sys
import threading
from importlib.metadata import entry_points
from threading import Event
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetTaskStates, PutVariable, SetXCom, TaskStatesResult
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from sqs_lease.airflow import SqsLeaseKeeperOperator, failures, sqs_lease
from sqs_lease.airflow.airflow_api.polling import FailureSignals
from sqs_lease.airflow.failures import FAILURE_KEY, SKIP_KEY, FailureReport
from sqs_lease.airflow.plugin import SqsLeasePlugin
from sqs_lease.airflow.provider_info import get_provider_info
from sqs_lease.core.failure_rules import MessageFailed, failed_by_exception

DEADLINE_SECONDS = 60.0


class WorkerComms:
    """A task process's way to its supervisor, as far as the listener uses it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.state: str | None = "running"
        self.broken = False
        self.answering = Event()
        self.answering.set()

    def send(self, msg: Any) -> Any:
        self.answering.wait(DEADLINE_SECONDS)
        if self.broken:
            raise RuntimeError("the supervisor is gone")
        if isinstance(msg, GetTaskStates):
            return TaskStatesResult(task_states={"run": {"the task": self.state}})
        self.sent.append(msg)
        return None

    async def asend(self, msg: Any) -> None:
        raise AssertionError("a task process is synchronous")


class InlineComms(WorkerComms):
    """The supervisor's connection in `dag.test()`."""

    asend = property()


@pytest.fixture
def comms(monkeypatch: pytest.MonkeyPatch) -> WorkerComms:
    made = WorkerComms()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
    return made


@pytest.fixture
def dag() -> DAG:
    @task
    def load(messages: Any = None) -> None: ...

    with DAG("shop", schedule=None) as opened:
        with sqs_lease("orders", queue_url="orders") as orders:
            load.override(task_id="check").expand(messages=orders)
            load(orders)
            with sqs_lease("details", queue_url="details") as details:
                load.override(task_id="inner")(details)
        load.override(task_id="outside")()
    return opened


def failed(dag: DAG, task_id: str, *, state: str = "failed", map_index: int = -1, **more: Any) -> Any:
    """A task instance as the listener gets it."""
    made = RuntimeTaskInstance.model_construct(
        id=uuid4(),
        task_id=task_id,
        dag_id=dag.dag_id,
        run_id="run",
        try_number=1,
        map_index=map_index,
        task=SimpleNamespace(task_id=task_id, dag=dag, returns_dag_result=False),
        state=state,
    )
    for name, value in more.items():
        object.__setattr__(made, name, value)
    return made


def tell(instance: Any, error: object = None) -> None:
    failures.on_task_instance_failed(previous_state=None, task_instance=instance, error=error)


def tell_of_skip(instance: Any) -> None:
    failures.on_task_instance_skipped(previous_state=None, task_instance=instance)


def signals_to(dag: DAG, keeper: str) -> FailureSignals:
    keeping = dag.task_dict[keeper]
    assert isinstance(keeping, SqsLeaseKeeperOperator)
    return FailureSignals.to(dag.dag_id, "run", keeper, keeping.work_task_ids)


def test_the_report_is_left_before_the_signal(comms: WorkerComms, dag: DAG) -> None:
    tell(failed(dag, "check", map_index=7), KeyError("a secret of the message"))
    report, signal = comms.sent
    assert isinstance(report, SetXCom)
    assert (report.key, report.task_id, report.map_index) == (FAILURE_KEY, "check", 7)
    plain: Any = report.value
    assert plain["errors"][:2] == ["builtins.KeyError", "builtins.LookupError"]
    assert "secret" not in str(comms.sent)
    assert isinstance(signal, PutVariable)
    assert signals_to(dag, "orders_keeper").instance(signal.key) == ("check", 7)


def test_the_messages_that_the_exception_names_are_reported(comms: WorkerComms, dag: DAG) -> None:
    tell(failed(dag, "load"), MessageFailed(["m1", "m2"]))
    assert comms.sent[0].value["message_ids"] == ["m1", "m2"]


def test_work_of_two_leases_is_reported_to_both_keepers(comms: WorkerComms, dag: DAG) -> None:
    tell(failed(dag, "inner"))
    keys = {signal.key for signal in comms.sent[1:]}
    assert keys == {signals_to(dag, keeper).key("inner", -1) for keeper in ("orders_keeper", "details_keeper")}


def test_work_that_skips_itself_says_so_without_a_signal(comms: WorkerComms, dag: DAG) -> None:
    tell_of_skip(failed(dag, "check", state="skipped", map_index=7))
    (report,) = comms.sent
    assert isinstance(report, SetXCom)
    assert (report.key, report.task_id, report.map_index) == (SKIP_KEY, "check", 7)


@pytest.mark.parametrize("task_id", ["outside", "orders"])
def test_other_skips_are_not_reported(comms: WorkerComms, dag: DAG, task_id: str) -> None:
    tell_of_skip(failed(dag, task_id, state="skipped"))
    assert comms.sent == []


def test_a_task_that_a_user_acted_on_while_it_skipped_itself_says_nothing(comms: WorkerComms, dag: DAG) -> None:
    comms.state = "restarting"
    tell_of_skip(failed(dag, "load", state="skipped"))
    assert comms.sent == []


@pytest.mark.parametrize(
    "change",
    [{"state": "up_for_retry"}, {"task_id": "outside"}, {"task_id": "orders"}, {"_terminal_state_send_failed": True}],
    ids=["will be tried again", "is not work", "is the sensor", "counts as something else in Airflow"],
)
def test_other_failures_are_not_reported(comms: WorkerComms, dag: DAG, change: dict[str, Any]) -> None:
    tell(failed(dag, **{"task_id": "load", **change}), ValueError())
    assert comms.sent == []


@pytest.mark.parametrize("state", ["restarting", "failed", "success", "up_for_retry", "scheduled", None])
def test_a_process_that_was_ended_because_a_user_acted_on_its_task_did_not_fail(
    comms: WorkerComms, dag: DAG, state: str | None
) -> None:
    comms.state = state
    tell(failed(dag, "load"), ValueError())
    assert comms.sent == []


def test_events_of_other_processes_are_ignored(comms: WorkerComms, dag: DAG) -> None:
    tell(SimpleNamespace(task_id="load", dag_id="shop", run_id="run", map_index=-1, state="failed"), "marked")
    assert comms.sent == []


def test_one_setting_switches_it_off(comms: WorkerComms, dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SQS_LEASE__REPORT_FAILURES", "False")
    tell(failed(dag, "load"), ValueError())
    tell_of_skip(failed(dag, "load", state="skipped"))
    assert comms.sent == []


def test_nothing_is_imported_for_a_dag_without_a_lease(
    comms: WorkerComms, dag: DAG, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "sqs_lease.airflow.operators")
    tell(failed(dag, "load"), ValueError())
    assert comms.sent == []
    assert "sqs_lease.airflow.operators" not in sys.modules


def test_an_error_while_reporting_is_logged_and_goes_no_further(
    comms: WorkerComms, dag: DAG, caplog: pytest.LogCaptureFixture
) -> None:
    comms.broken = True
    tell(failed(dag, "load"), ValueError())
    assert "could not be reported" in caplog.text


def test_a_task_does_not_wait_for_an_answer_that_never_comes(
    comms: WorkerComms, dag: DAG, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failures, "REPORT_SECONDS", 0.05)
    comms.answering.clear()
    tell(failed(dag, "load"), ValueError())
    # A task that waited would get the answer in the end, and would log no warning.
    assert "did not take the report" in caplog.text
    assert comms.sent == []
    comms.answering.set()
    # It goes on where it stood, and must not find the supervisor of another test.
    for thread in threading.enumerate():
        if thread.name == "sqs-lease report":
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()


def test_in_a_dag_test_there_is_a_report_but_no_signal(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    inline = InlineComms()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", inline, raising=False)
    tell(failed(dag, "load"), ValueError())
    assert [type(one) for one in inline.sent] == [SetXCom]


def test_with_several_teams_there_is_a_report_but_no_signal_because_it_could_not_be_deleted(
    comms: WorkerComms, dag: DAG, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    tell(failed(dag, "load"), ValueError())
    assert SetXCom in map(type, comms.sent)
    assert PutVariable not in map(type, comms.sent)


def test_airflow_finds_the_plugin_and_its_setting() -> None:
    (found,) = (one for one in entry_points(group="airflow.plugins") if one.name == "sqs_lease")
    assert found.load() is SqsLeasePlugin
    assert SqsLeasePlugin.listeners == [failures]
    assert get_provider_info()["config"]["sqs_lease"]["options"]["report_failures"]["default"] == "True"


@pytest.mark.parametrize("plain", [None, "text", {}, {"errors": 1}, {"errors": None, "message_ids": []}], ids=repr)
def test_another_value_than_a_report_counts_as_missing(plain: Any) -> None:
    assert FailureReport.decode(plain) is None


@pytest.mark.parametrize("error", [None, "a text", KeyError("x"), MessageFailed(["m0", "m1"]), MessageFailed("m0")])
def test_a_report_comes_back_as_it_was_and_never_has_the_exceptions_text(error: Any) -> None:
    made = FailureReport.of(error)
    assert FailureReport.decode(made.encode()) == made
    assert "x" not in made.errors
    assert (made.message_ids is None) == (not isinstance(error, MessageFailed))


@pytest.mark.parametrize("unknown", [None, 5, {"MessageId": "m1"}, ["m1"]], ids=repr)
def test_an_id_that_is_not_a_string_fails_all_messages_so_that_no_failed_one_is_deleted(
    comms: WorkerComms, dag: DAG, unknown: Any
) -> None:
    class Failed(MessageFailed):
        """An exception of the author's own, with ids that the package has not checked."""

        def __init__(self) -> None:
            super().__init__(["m0"])
            self.message_ids = ("m0", unknown)

    tell(failed(dag, "load"), Failed())
    report = FailureReport.decode(comms.sent[0].value)
    assert report is not None
    assert failed_by_exception(report.message_ids, ["m0", "m1"]) == {"m0", "m1"}


def test_a_group_of_message_failed_reports_the_messages_of_all() -> None:
    group = ExceptionGroup("two tasks failed", [MessageFailed("m0"), MessageFailed("m1")])
    assert FailureReport.of(group).message_ids == ("m0", "m1")
    assert FailureReport.of(ExceptionGroup("", [MessageFailed("m0"), ValueError()])).message_ids is None
