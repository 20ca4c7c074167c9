"""Questions of triggers to Airflow: their time limit, and the parts of Airflow that they rely on."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from airflow.models.trigger import handle_event_submit
from airflow.sdk import BaseXCom
from airflow.sdk._shared.listeners.spec import taskinstance
from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TaskSkippedEvent, TaskSuccessEvent

from sqs_lease.airflow.airflow_api.requests import (
    CommsError,
    RunOfTask,
    delete_variable,
    publish,
    pull,
    pull_plain_mapping,
    seal,
    task_states,
    triggers_are_supported,
    unseal,
    variable_keys,
)
from sqs_lease.testing import run_virtual
from tests.airflow.scripted_comms import ScriptedComms, supervised_by

RUN = RunOfTask("dag", "run", "keep")


def test_a_task_process_tells_listeners_of_a_failure_after_it_set_the_final_state() -> None:
    assert list(inspect.signature(taskinstance.on_task_instance_failed).parameters) == [
        "previous_state",
        "task_instance",
        "error",
    ]
    assert "state" in RuntimeTaskInstance.model_fields


def test_keys_of_variables_are_read_by_their_prefix_and_deleted(supervisor: ScriptedComms) -> None:
    supervisor.variables = {"a.1", "a.2", "b.1"}

    async def read_and_delete() -> list[str]:
        await delete_variable("a.1")
        return await variable_keys("a.")

    assert run_virtual(read_and_delete) == ["a.2"]


def test_triggers_learn_their_task_instance_and_may_end_it() -> None:
    assert isinstance(BaseTrigger.task_instance, property)
    assert {"dag_id", "run_id", "task_id", "map_index"} <= set(RuntimeTaskInstance.model_fields)
    for event in (TaskSuccessEvent(), TaskSkippedEvent()):
        handler = handle_event_submit.dispatch(type(event))
        assert handler is not handle_event_submit.dispatch(object)


def test_states_are_asked_for_many_runs_at_once(supervisor: ScriptedComms) -> None:
    supervisor.states = {
        "a": {"load": "running", "other": "success"},
        "b": {"load_0": "failed", "load_1": None},
        "c": {"other": "success"},
    }
    answer = run_virtual(lambda: _states(["a", "b", "c"], ["load"]))
    assert answer == {"a": {"load": "running"}, "b": {"load_0": "failed", "load_1": None}}
    assert supervisor.count(GetTaskStates) == 1


def test_a_published_value_can_be_mapped_over_and_read_again(supervisor: ScriptedComms) -> None:
    messages = [{"MessageId": "m0", "Body": "x"}, {"MessageId": "m1", "Body": "y"}]

    async def publish_and_pull() -> Any:
        await publish(RUN, "return_value", messages, mapped_length=2)
        return await pull(RUN, "return_value")

    assert run_virtual(publish_and_pull) == messages
    assert supervisor.mapped_lengths["run", "keep", -1, "return_value"] == 2


def test_an_xcom_that_is_not_there_is_null(supervisor: ScriptedComms) -> None:
    assert run_virtual(lambda: pull(RUN, "nothing")) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"batchItemFailures": []}, {"batchItemFailures": []}),
        ("text", {}),
        ([1, 2], {}),
        (None, None),
    ],
    ids=repr,
)
def test_only_a_plain_mapping_is_read_of_what_work_returns(
    supervisor: ScriptedComms, value: Any, expected: Any
) -> None:
    supervisor.xcoms["run", "load", 3, "return_value"] = value

    assert run_virtual(lambda: pull_plain_mapping(RUN, ("load", 3))) == expected


class BrokenBackend(BaseXCom):
    """A backend whose service cannot be reached."""

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        raise OSError("the object store is away")


def test_a_value_that_the_users_backend_cannot_read_is_an_answer_that_cannot_be_had(
    supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqs_lease.airflow.airflow_api.requests.XCom", BrokenBackend)
    supervisor.xcoms["run", "keep", -1, "return_value"] = "a reference"

    async def read() -> None:
        with pytest.raises(CommsError, match=r"BrokenBackend cannot read 'return_value'.*store is away"):
            await pull(RUN, "return_value")
        with pytest.raises(CommsError, match=r"BrokenBackend cannot read 'return_value'.*store is away"):
            await pull_plain_mapping(RUN, ("keep", -1))

    asyncio.run(read())


def test_a_request_that_is_never_answered_ends_with_an_error_after_ten_seconds(supervisor: ScriptedComms) -> None:
    supervisor.silent = True

    async def ask() -> float:
        with pytest.raises(CommsError, match="no answer about the states of tasks within 10 s"):
            await _states(["a"], ["load"])
        return asyncio.get_running_loop().time()

    assert run_virtual(ask) == 10.0


def test_a_refusal_says_what_was_refused(supervisor: ScriptedComms) -> None:
    supervisor.refusing = True

    async def ask() -> None:
        with pytest.raises(CommsError, match="refused a request about the states of tasks"):
            await _states(["a"], ["load"])

    run_virtual(ask)


def test_sealed_leases_cannot_be_read_but_by_airflows_own_key() -> None:
    sealed = seal("a receipt handle")
    assert "receipt" not in sealed
    assert unseal(sealed) == "a receipt handle"


def test_triggers_are_supported_where_requests_can_be_sent_asynchronously(supervisor: ScriptedComms) -> None:
    assert triggers_are_supported()


async def _states(run_ids: list[str], task_ids: list[str]) -> Any:
    return await task_states("dag", run_ids, task_ids)


# In dag.test(), whose supervisor answers the task's own thread


class LocalComms:
    """Answers at once and in line, or fails, as Airflow's supervisor of `dag.test()` does."""

    def __init__(self, answer: Any = None, error: Exception | None = None) -> None:
        self.answer = answer
        self.error = error

    def send(self, request: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.answer


def test_in_dag_test_requests_are_answered_in_line() -> None:
    answer = TaskStatesResult(task_states={"run": {"load": "success"}})
    with supervised_by(LocalComms(answer)):
        assert not triggers_are_supported()
        assert run_virtual(task_states("dag", ["run"], ["load"])) == {"run": {"load": "success"}}


@pytest.mark.parametrize("comms", [LocalComms(None), LocalComms(error=RuntimeError("404"))], ids=["empty", "error"])
def test_in_dag_test_a_missing_answer_is_an_error_of_airflows(comms: LocalComms) -> None:
    with supervised_by(comms), pytest.raises(CommsError):
        run_virtual(task_states("dag", ["run"], ["load"]))


def test_the_supervisor_of_dag_test_answers_in_line_and_not_from_the_event_loop() -> None:
    assert list(inspect.signature(InProcessSupervisorComms.send).parameters) == ["self", "msg"]
    assert not hasattr(InProcessSupervisorComms, "asend")
