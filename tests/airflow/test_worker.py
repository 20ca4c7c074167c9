"""Sensors that receive in their own process, here from a queue in memory, and hand over the batch.

tests/processes/airflow/test_worker_lease.py has a real SQS server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, PokeReturnValue, task, timezone
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk.execution_time.comms import SetXCom

from sqs_lease.airflow import SqsLeaseSensor, sqs_lease, worker
from sqs_lease.airflow.airflow_api.requests import RETURN_VALUE_KEY, RunOfTask
from sqs_lease.airflow.handover import HANDED_KEY, LEASE_KEY, HandedLease
from sqs_lease.airflow.triggers.receive import SqsLeaseReceiveTrigger
from sqs_lease.airflow.worker import GivenBackError, give_back_what_is_left, receive_locally, settle_locally
from sqs_lease.core.failure_rules import discard, release
from sqs_lease.core.policies import Fixed
from sqs_lease.testing import (
    NO_FAULT,
    AuditKind,
    Fault,
    LeasedQueue,
    LeasedQueues,
    MemoryTransport,
    Operation,
    TransportCall,
)
from sqs_lease.testing.service_errors import ACCESS_DENIED, THROTTLED
from tests.airflow.contexts import context_of
from tests.airflow.scripted_comms import ScriptedComms

RECEIVING = RunOfTask("shop", "run", "orders")


class TaskInstance(SimpleNamespace):
    """A task instance as an operator sees it, which keeps what is pushed."""

    def __init__(self) -> None:
        super().__init__(
            dag_id=RECEIVING.dag_id,
            run_id=RECEIVING.run_id,
            task_id=RECEIVING.task_id,
            map_index=-1,
            try_number=1,
        )
        self.pushed: dict[str, Any] = {}
        self.error: Exception | None = None

    def xcom_push(self, *, key: str, value: Any) -> None:
        if self.error is not None:
            raise self.error
        self.pushed[key] = value

    def get_first_reschedule_date(self, context: Any) -> Any:
        return timezone.utcnow()


@pytest.fixture
def queue(leased_queues: LeasedQueues, supervisor: ScriptedComms) -> LeasedQueue:
    return leased_queues.create("orders")


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("shop", schedule=None) as opened:
        yield opened


@task
def load(messages: Any) -> None: ...


def sensor(dag: DAG, queue_url: str, **options: Any) -> SqsLeaseSensor:
    arguments = {"visibility": 300, "timeout": 3600, "linger": 0, "poke_interval": 0.1, "deferrable": False, **options}
    with sqs_lease("orders", queue_url=queue_url, **arguments) as orders:
        load(orders)
    made = dag.task_dict["orders"]
    assert isinstance(made, SqsLeaseSensor)
    return made


def execute(made: SqsLeaseSensor, task_instance: TaskInstance) -> Any:
    return SqsLeaseSensor.execute.__wrapped__(made, {"ti": task_instance})  # type: ignore[attr-defined]


def test_the_messages_are_returned_and_the_lease_is_left_for_the_keeper(dag: DAG, queue: LeasedQueue) -> None:
    queue.send("a", "b")
    task_instance = TaskInstance()
    messages = execute(sensor(dag, queue.url), task_instance)
    assert sorted(message["Body"] for message in messages) == ["a", "b"]
    assert all("ReceiptHandle" not in message for message in messages)
    leases = HandedLease.decode(task_instance.pushed[LEASE_KEY], RECEIVING).leases
    assert [lease.receipt.message_id for lease in leases] == [message["MessageId"] for message in messages]


def test_the_leases_last_for_the_hand_off_without_further_extensions(
    dag: DAG, queue: LeasedQueue, leased_queues: LeasedQueues
) -> None:
    queue.send("a")
    task_instance = TaskInstance()
    clock = leased_queues.sqs.clock
    began_at, began = clock.wall(), clock.now()
    execute(sensor(dag, queue.url, handoff_timeout=3000), task_instance)
    handed = HandedLease.decode(task_instance.pushed[LEASE_KEY], RECEIVING)
    assert began_at + 2999 < handed.leases[0].deadline < clock.wall() + 3001
    assert handed.policy.visibility_seconds == 300
    last = leased_queues.sqs.trail().entries()[-1]
    assert (last.kind, queue.invisible) == (AuditKind.CHANGED, ["a"])
    assert last.until is not None
    assert last.until >= began + 3000


def test_leases_that_are_never_to_be_extended_are_not(
    dag: DAG, queue: LeasedQueue, leased_queues: LeasedQueues
) -> None:
    queue.send("a")
    task_instance = TaskInstance()
    execute(sensor(dag, queue.url, policy="never", handoff_timeout=3000), task_instance)
    (lease,) = HandedLease.decode(task_instance.pushed[LEASE_KEY], RECEIVING).leases
    assert lease.deadline - leased_queues.sqs.clock.wall() <= 300
    assert of_kind(leased_queues, AuditKind.CHANGED) == 0


def test_messages_are_extended_while_more_are_waited_for(
    dag: DAG, queue: LeasedQueue, leased_queues: LeasedQueues
) -> None:
    queue.send("a")
    # It waits for as long as the test takes to see enough.
    policy = Fixed(visibility=600, every=0.2)
    made = sensor(dag, queue.url, linger=120, max_messages=2, policy=policy, visibility=None)
    task_instance = TaskInstance()
    with ThreadPoolExecutor() as threads:
        executed = threads.submit(execute, made, task_instance)
        wait_until(lambda: of_kind(leased_queues, AuditKind.CHANGED) >= 3)
        assert not executed.done()
        assert (queue.visible, queue.invisible) == ([], ["a"])
        queue.send("b")
        assert [message["Body"] for message in executed.result(600)] == ["a", "b"]
    assert LEASE_KEY in task_instance.pushed
    assert of_kind(leased_queues, AuditKind.EXPIRED, AuditKind.RELEASED) == 0


def test_messages_that_airflow_does_not_take_are_visible_again_at_once(dag: DAG, queue: LeasedQueue) -> None:
    queue.send("a")
    task_instance = TaskInstance()
    task_instance.error = RuntimeError("no XCom today")
    with pytest.raises(RuntimeError, match="no XCom today"):
        execute(sensor(dag, queue.url), task_instance)
    assert queue.visible == ["a"]


def test_a_task_that_is_killed_gives_back_what_it_received(dag: DAG, queue: LeasedQueue) -> None:
    queue.send("a")
    made = sensor(dag, queue.url, linger=120, max_messages=2)
    with ThreadPoolExecutor() as threads:
        executed = threads.submit(execute, made, TaskInstance())
        wait_until(lambda: queue.invisible == ["a"])
        made.on_kill()
        wait_until(lambda: queue.visible == ["a"])
        assert isinstance(executed.exception(600), GivenBackError)


def test_a_task_that_is_killed_gives_back_what_was_on_its_way_and_receives_no_more(
    dag: DAG, queue: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    received, killed = Event(), Event()

    class LateAnswers(MemoryTransport):
        async def receive(self, *arguments: Any, **options: Any) -> Any:
            answer = await super().receive(*arguments, **options)
            received.set()
            await asyncio.to_thread(killed.wait, 600)
            return answer

    monkeypatch.setattr(worker, "make_transport", lambda connection: LateAnswers(leased_queues.sqs))
    queue.send("a")
    made = sensor(dag, queue.url, linger=120, max_messages=2)
    with ThreadPoolExecutor() as threads:
        executed = threads.submit(execute, made, TaskInstance())
        assert received.wait(600)
        assert queue.invisible == ["a"]
        made.on_kill()
        killed.set()
        assert isinstance(executed.exception(600), GivenBackError)
    assert queue.visible == ["a"]
    with pytest.raises(AirflowFailException, match="was killed"):
        execute(made, TaskInstance())


def test_an_empty_queue_is_looked_at_until_the_time_is_up(dag: DAG, queue: LeasedQueue) -> None:
    with pytest.raises(AirflowSensorTimeout):
        execute(sensor(dag, queue.url, timeout=1), TaskInstance())


def test_with_soft_fail_only_the_time_out_is_a_reason_to_skip(dag: DAG, queue: LeasedQueue) -> None:
    with pytest.raises(AirflowSkipException):
        execute(sensor(dag, queue.url, timeout=1, soft_fail=True), TaskInstance())


@pytest.mark.parametrize("soft_fail", [False, True])
def test_a_queue_that_does_not_exist_fails_the_task_for_good(dag: DAG, queue: LeasedQueue, soft_fail: bool) -> None:
    with pytest.raises(
        AirflowFailException, match=r"task 'orders' of DAG 'shop': .*no-such-queue.*Check its name"
    ) as e:
        execute(sensor(dag, "no-such-queue", soft_fail=soft_fail), TaskInstance())
    assert type(e.value) is AirflowFailException


@pytest.mark.parametrize("options", [{}, {"mode": "reschedule"}, {"deferrable": True}], ids=str)
def test_with_never_fail_a_missing_queue_is_a_skip_that_names_it_in_the_log(
    dag: DAG, queue: LeasedQueue, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    with pytest.raises(AirflowSkipException, match=r"never_fail: task 'orders' .*no-such-queue.*Check its name"):
        execute(sensor(dag, "no-such-queue", never_fail=True, **options), TaskInstance())
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "no-such-queue" in line]
    assert "[error " in line


def test_with_never_fail_the_time_out_is_a_skip_too(dag: DAG, queue: LeasedQueue) -> None:
    with pytest.raises(AirflowSkipException, match="never_fail"):
        execute(sensor(dag, queue.url, timeout=0, never_fail=True), TaskInstance())


def test_with_silent_fail_errors_that_may_pass_are_waited_out_and_others_fail_at_once(
    dag: DAG, queue: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AirflowFailException, match="no-such-queue"):
        execute(sensor(dag, "no-such-queue", silent_fail=True, soft_fail=True), TaskInstance())
    refused: list[TransportCall] = []

    def fault(call: TransportCall) -> Fault:
        if call.operation is Operation.QUEUE_ATTRIBUTES and not refused:
            refused.append(call)
            return Fault(error=THROTTLED)
        return NO_FAULT

    monkeypatch.setattr(worker, "make_transport", lambda connection: MemoryTransport(leased_queues.sqs, faults=fault))
    queue.send("a")
    with DAG("other", schedule=None) as other:
        messages = execute(sensor(other, queue.url, silent_fail=True), TaskInstance())
    assert [message["Body"] for message in messages] == ["a"]
    assert refused


def test_in_reschedule_mode_the_worker_is_free_between_two_looks(dag: DAG, queue: LeasedQueue) -> None:
    made = sensor(dag, queue.url, mode="reschedule", timeout=3600)
    made.timeout = 1  # one look, and not the twenty seconds of it
    looked = made.poke(context_of(TaskInstance()))
    assert looked is False
    made.timeout = 3600
    made.poke = lambda context: False  # type: ignore[method-assign]
    with pytest.raises(AirflowRescheduleException):
        execute(made, TaskInstance())


def test_messages_that_do_not_match_are_settled_by_the_rule(dag: DAG, queue: LeasedQueue) -> None:
    queue.send("wanted", "unwanted")
    made = sensor(
        dag,
        queue.url,
        message_filtering="literal",
        message_filtering_match_values=["wanted"],
        unmatched=discard(),
    )
    looked = made.poke(context_of(TaskInstance()))
    assert isinstance(looked, PokeReturnValue)
    assert [message["Body"] for message in looked.xcom_value or ()] == ["wanted"]
    assert (queue.visible, queue.invisible, queue.deleted) == ([], ["wanted"], 1)


def test_a_message_that_airflow_refuses_is_settled_by_itself_and_the_others_go_on(
    dag: DAG, queue: LeasedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(TaskInstance):
        def xcom_push(self, *, key: str, value: Any) -> None:
            if "poison" in str(value):
                raise RuntimeError("500")
            super().xcom_push(key=key, value=value)

    queue.send("a", "poison", "b", "c")
    task_instance = Refusing()
    messages = execute(sensor(dag, queue.url), task_instance)
    assert sorted(message["Body"] for message in messages) == ["a", "b", "c"]
    assert task_instance.pushed["return_value"] == messages
    leases = HandedLease.decode(task_instance.pushed[LEASE_KEY], RECEIVING).leases
    assert [lease.receipt.message_id for lease in leases] == [message["MessageId"] for message in messages]
    # Given back, but not at once: Airflow would refuse it again.
    assert sorted(queue.invisible) == ["a", "b", "c", "poison"]
    assert "Airflow refused it, and took others" in caplog.text


def test_messages_that_airflow_does_not_take_are_not_left_for_the_next_try_to_give_back_again(
    dag: DAG, queue: LeasedQueue, supervisor: ScriptedComms
) -> None:
    class Refusing(TaskInstance):
        def xcom_push(self, *, key: str, value: Any) -> None:
            if key == RETURN_VALUE_KEY:
                raise RuntimeError("500")
            super().xcom_push(key=key, value=value)

    queue.send("a")
    with pytest.raises(RuntimeError, match="500"):
        execute(sensor(dag, queue.url), Refusing())
    assert queue.visible == ["a"]
    assert supervisor.xcoms == {}


def test_messages_that_are_handed_on_can_be_found_by_the_next_try(
    dag: DAG, queue: LeasedQueue, supervisor: ScriptedComms
) -> None:
    queue.send("a")
    task_instance = TaskInstance()
    execute(sensor(dag, queue.url), task_instance)
    assert supervisor.xcoms == {("run", "orders_keeper", -1, HANDED_KEY): task_instance.pushed[LEASE_KEY]}


def test_messages_that_a_killed_task_gave_back_are_not_left_for_the_next_try_to_give_back_again(
    dag: DAG, queue: LeasedQueue, supervisor: ScriptedComms
) -> None:
    class Killing(TaskInstance):
        def xcom_push(self, *, key: str, value: Any) -> None:
            super().xcom_push(key=key, value=value)
            if key == RETURN_VALUE_KEY:
                made.on_kill()

    queue.send("a")
    made = sensor(dag, queue.url)
    with pytest.raises(AirflowFailException, match="killed"):
        execute(made, Killing())
    assert queue.visible == ["a"]
    assert supervisor.xcoms == {}


def test_messages_are_handed_on_although_it_cannot_be_known_whether_the_next_try_would_find_them(
    dag: DAG, queue: LeasedQueue, supervisor: ScriptedComms
) -> None:
    def store_and_fail(request: object) -> None:
        if isinstance(request, SetXCom) and request.key == HANDED_KEY:
            supervisor.xcoms["run", "orders_keeper", -1, HANDED_KEY] = request.value
            raise ConnectionError("the answer was lost")

    supervisor.on_request = store_and_fail
    queue.send("a")
    messages = execute(sensor(dag, queue.url), TaskInstance())
    assert [message["Body"] for message in messages] == ["a"]
    # Given back here, they would be given back once more by the next try.
    assert queue.invisible == ["a"]


class LaterTry(TaskInstance):
    """A task instance of the second or a later try, which finds what earlier tries left."""

    def __init__(self, supervisor: ScriptedComms, try_number: int) -> None:
        super().__init__()
        self.try_number = try_number
        self._supervisor = supervisor

    def xcom_pull(self, *, task_ids: str, key: str) -> Any:
        return self._supervisor.xcoms.get((self.run_id, task_ids, -1, key))

    def get_task_states(self, **_: Any) -> dict[str, Any]:
        return {}


def test_leases_of_an_earlier_try_are_given_back_once_and_then_belong_to_others(
    dag: DAG, queue: LeasedQueue, leased_queues: LeasedQueues, supervisor: ScriptedComms
) -> None:
    queue.send("a")
    made = sensor(dag, queue.url, timeout=0, soft_fail=True)
    execute(made, TaskInstance())
    made.poke = lambda context: False  # type: ignore[method-assign]
    with pytest.raises(AirflowSkipException):
        execute(made, LaterTry(supervisor, 2))
    assert queue.visible == ["a"]
    assert len(leased_queues.sqs.receive(queue.url, max_messages=1, visibility_seconds=600)) == 1
    # In mode="reschedule" each look begins so, in the same try.
    for try_number in (2, 3):
        with pytest.raises(AirflowSkipException):
            execute(made, LaterTry(supervisor, try_number))
    assert queue.visible == []


def test_leases_of_an_earlier_try_stay_where_they_are_if_they_cannot_be_removed_and_this_try_goes_on(
    dag: DAG, queue: LeasedQueue, supervisor: ScriptedComms
) -> None:
    queue.send("a")
    made = sensor(dag, queue.url)
    execute(made, TaskInstance())
    queue.send("b")
    supervisor.refusing = True
    assert [message["Body"] for message in execute(made, LaterTry(supervisor, 2))] == ["b"]
    assert queue.invisible == ["a", "b"]


# Before a sensor defers


def deferring(dag: DAG, queue_url: str, **options: Any) -> SqsLeaseSensor:
    return sensor(dag, queue_url, deferrable=True, **options)


def deferred(made: SqsLeaseSensor, task_instance: TaskInstance) -> SqsLeaseReceiveTrigger:
    """The trigger with which the sensor defers."""
    with pytest.raises(TaskDeferred) as raised:
        execute(made, task_instance)
    assert isinstance(raised.value.trigger, SqsLeaseReceiveTrigger)
    return raised.value.trigger


def answering_with(
    monkeypatch: pytest.MonkeyPatch, leased_queues: LeasedQueues, operation: Operation, error: Any
) -> None:
    """Have all calls of one kind fail."""

    def fault(call: TransportCall) -> Fault:
        return Fault(error=error) if call.operation is operation else NO_FAULT

    monkeypatch.setattr(worker, "make_transport", lambda connection: MemoryTransport(leased_queues.sqs, faults=fault))


def test_waiting_messages_are_received_in_the_worker_without_the_way_to_a_triggerer(
    dag: DAG, queue: LeasedQueue
) -> None:
    queue.send("a", "b")
    task_instance = TaskInstance()
    messages = execute(deferring(dag, queue.url), task_instance)
    assert sorted(message["Body"] for message in messages) == ["a", "b"]
    assert HandedLease.decode(task_instance.pushed[LEASE_KEY], RECEIVING).leases
    assert queue.invisible == ["a", "b"]


def test_where_nothing_is_there_the_sensor_defers(
    dag: DAG, empty_queue: LeasedQueue, supervisor: ScriptedComms
) -> None:
    task_instance = TaskInstance()
    trigger = deferred(deferring(dag, "orders"), task_instance)
    assert trigger.options.queue == "orders"
    assert task_instance.pushed == {}


def test_messages_that_do_not_match_are_not_in_the_batch(
    dag: DAG, empty_queue: LeasedQueue, supervisor: ScriptedComms
) -> None:
    empty_queue.send("unwanted")
    options = {"message_filtering": "literal", "message_filtering_match_values": ["wanted"], "unmatched": discard()}
    deferred(deferring(dag, "orders", **options), TaskInstance())
    assert (empty_queue.visible, empty_queue.deleted) == ([], 1)


def test_a_sensor_that_lingers_for_long_lingers_in_the_triggerer(dag: DAG, queue: LeasedQueue) -> None:
    queue.send("a")
    deferred(deferring(dag, queue.url, linger=60), TaskInstance())
    assert queue.visible == ["a"]


@pytest.mark.parametrize("operation", [Operation.QUEUE_ATTRIBUTES, Operation.RECEIVE])
@pytest.mark.parametrize("error", [THROTTLED, ACCESS_DENIED], ids=["throttled", "denied"])
def test_errors_that_may_pass_or_concern_this_worker_alone_are_left_to_the_trigger(
    dag: DAG,
    empty_queue: LeasedQueue,
    supervisor: ScriptedComms,
    leased_queues: LeasedQueues,
    monkeypatch: pytest.MonkeyPatch,
    operation: Operation,
    error: Any,
) -> None:
    empty_queue.send("a")
    answering_with(monkeypatch, leased_queues, operation, error)
    deferred(deferring(dag, "orders"), TaskInstance())
    assert empty_queue.visible == ["a"]


def test_an_error_that_no_retry_mends_fails_the_sensor_before_it_defers(dag: DAG, queue: LeasedQueue) -> None:
    with pytest.raises(AirflowFailException, match=r"task 'orders' of DAG 'shop': .*no-such-queue.*Check its name"):
        execute(deferring(dag, "no-such-queue"), TaskInstance())


def test_a_sensor_that_is_killed_before_it_defers_gives_back_what_it_received(dag: DAG, queue: LeasedQueue) -> None:
    queue.send("a")
    made = deferring(dag, queue.url, linger=10, max_messages=2)
    with ThreadPoolExecutor() as threads:
        executed = threads.submit(execute, made, TaskInstance())
        wait_until(lambda: queue.invisible == ["a"])
        made.on_kill()
        wait_until(lambda: queue.visible == ["a"])
        assert isinstance(executed.exception(600), GivenBackError)


# In dag.test(); test_dag_test.py runs it as a whole


def test_messages_that_a_dag_test_does_not_settle_are_given_back_when_its_process_ends(
    dag: DAG, queue: LeasedQueue
) -> None:
    queue.send("a")
    received = receive_locally(sensor(dag, queue.url)._options(), 60, RECEIVING)
    assert received is not None
    assert queue.visible == []
    give_back_what_is_left()
    assert queue.visible == ["a"]


def test_a_keeper_in_dag_test_says_when_its_process_holds_no_such_batch() -> None:
    keeper, receiving = RunOfTask("shop", "run", "keep"), RunOfTask("shop", "run", "receive")
    with pytest.raises(AirflowFailException, match="this process does not hold that batch"):
        settle_locally(keeper, receiving, "unknown", [], release(), ordered=True)


def of_kind(queues: LeasedQueues, *kinds: AuditKind) -> int:
    """How often such things happened to messages."""
    return sum(entry.kind in kinds for entry in queues.sqs.trail().entries())


def wait_until(condition: Any, seconds: float = 600.0) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not come to that"
        Event().wait(0.02)
