"""Messages that go to different runs, when evaluations fail, processes die, definitions change, or order matters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sqs_lease import Message, dead_letter
from sqs_lease.core.messages import Receipt
from sqs_lease.dagster.lease_sensor import host as lease_host
from sqs_lease.dagster.lease_sensor.dispatch import RUN, Destination, Dispatch, Dispatcher, divided
from sqs_lease.dagster.lease_sensor.host import LeaseHost
from sqs_lease.dagster.lease_sensor.settings import Request
from sqs_lease.dagster.run_batch import lease_files
from sqs_lease.dagster.run_batch.folder import SETTLING, BatchFolder
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster.dispatch_ground import JOBS, Evaluations, body, kind
from tests.dagster.lease_ground import Ground, eventually, kill

Status = dg.DagsterRunStatus


class AnyRun(Dispatcher):
    """A dispatcher for which there can be every run that its functions ask for."""

    def why_not(self, destination: Destination) -> str:
        return ""


def dispatcher(**functions: Any) -> Dispatcher:
    return AnyRun(
        dg.SensorDefinition("any", evaluation_fn=lambda _: None, job_name="loading"),
        Dispatch(**functions),
        dg.build_sensor_context(),
    )


def table(message: Message) -> dict[str, str]:
    if message.body == "unknown":
        raise LookupError
    return {"table": message.body.partition(" ")[0]}


BY_TABLE = dispatcher(run_tags=table)


@pytest.fixture
def ground(instance: dg.DagsterInstance, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(instance, tmp_path)
    yield made
    for host in made.hosts:
        host.end()


def tables(requests: Any) -> list[str]:
    return [request.destination.run_tags["table"] for request in requests]


def asked_anew(ground: Ground, host: LeaseHost) -> Request:
    """What is asked for once the host has stopped holding what was settled."""
    found: list[Request] = []

    def is_asked() -> bool:
        found.extend(asked(ground, host))
        return bool(found)

    eventually(is_asked, "another run is asked for")
    return found[0]


def asked(ground: Ground, host: LeaseHost) -> list[Request]:
    tick = host.tick(BY_TABLE)
    assert tick is not None
    return list(tick.requests)


def await_settled(ground: Ground, request: Request) -> None:
    eventually(lambda: request.batch_id not in ground.batches(), "the batch is settled, and removed")


# Evaluations


def test_nothing_is_held_where_one_of_several_batches_could_not_be_written_down(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.queue.send("a", "b")
    host = ground.host(max_batches=5)
    write = lease_files.write_leases
    written: list[str] = []

    def refuse_the_second(folder: BatchFolder, *arguments: Any) -> None:
        if written:
            raise OSError("no space left")
        written.append(str(folder))
        write(folder, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(lease_host, "write_leases", refuse_the_second)
        with pytest.raises(OSError, match="no space left"):
            host.tick(BY_TABLE)
    assert (sorted(ground.queue.visible), ground.batches()) == (["a", "b"], [])
    assert sorted(tables(asked(ground, host))) == ["a", "b"]


def test_a_function_that_hangs_fails_the_evaluation_and_what_was_received_comes_back(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_host, "TICK_SECONDS", 1.0)
    ground.queue.send("a")
    host = ground.host()
    goes_on = threading.Event()
    with pytest.raises(TimeoutError, match=r"the evaluation of sensor orders .* took longer than 1 s"):
        host.tick(dispatcher(run_tags=lambda _: {"waited": str(goes_on.wait(600))}))
    assert (ground.queue.visible, ground.batches()) == (["a"], [])
    goes_on.set()
    monkeypatch.undo()
    assert len(asked(ground, host)) == 1


def test_a_run_that_cannot_be_made_holds_up_no_other(ground: Ground) -> None:
    """Dagster gives up an evaluation's runs at the first that it cannot make: the rest was asked for in vain."""
    ground.queue.send(*"abcdef")
    host = ground.host(max_batches=6)
    rounds = [tables(asked(ground, host)) for _ in range(9)]
    assert [len(each) for each in rounds] == [3, 3, 2, 1, 1, 1, 1, 1, 1]
    fresh = [*rounds[0], *rounds[1][:2], *rounds[2][:1]]
    assert sorted(fresh) == list("abcdef")
    in_vain = [one for each in rounds[3:] for one in each]
    assert sorted(in_vain) == list("abcdef"), "each alone, in its turn"


def test_a_redelivered_message_gets_a_run_of_its_own(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host()
    (first,) = asked(ground, host)
    ground.end(ground.run(first, Status.STARTED), Status.CANCELED)
    eventually(ground.is_settled, "the batch is settled")
    second = asked_anew(ground, host)
    assert second.batch_id != first.batch_id
    assert second.destination == first.destination


# Processes that die


def test_a_run_that_was_asked_for_in_vain_is_asked_for_again_as_the_same_run(ground: Ground) -> None:
    ground.queue.send("a", "b")
    host = ground.host(max_batches=5)
    before = {request.batch_id: request for request in asked(ground, host)}
    kill(host)
    again = {request.batch_id: request for request in asked(ground, ground.host(max_batches=5))}
    assert before == again
    assert len(again) == 2
    assert sorted(ground.queue.invisible) == ["a", "b"]


def test_a_batch_without_its_run_is_given_back_and_received_anew(ground: Ground) -> None:
    """As of a sensor that had no functions of a message when it received it."""
    ground.queue.send("a")
    host = ground.host()
    first = ground.request(host)
    kill(host)
    successor = ground.host()
    assert asked(ground, successor) == []
    eventually(ground.is_settled, "the batch is given back")
    second = asked_anew(ground, successor)
    assert second.batch_id != first.batch_id
    assert second.destination is not None


def test_the_run_is_in_the_directory_for_as_long_as_the_leases_are() -> None:
    assert lease_files.LEASES < RUN < SETTLING, "files are removed in the order of their names"


def test_a_batch_for_a_job_that_the_sensor_has_no_longer_is_received_anew(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", visibility_seconds=600)
    queue.send(body(kind="invoices"))
    evaluations = Evaluations(instance, tmp_path, JOBS, job=kind)
    (request,) = evaluations.tick()
    assert request.job_name == "invoices"
    evaluations.define(JOBS[:1], job=lambda message: "orders")

    def received_anew() -> bool:
        found = evaluations.tick()
        return bool(found) and found[0].job_name == "orders"

    eventually(received_anew, "the new definitions say where the message goes")
    assert len(queue.invisible) == 1


# Order


@pytest.fixture
def fifo(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders.fifo")
    ground.queue = ground.queues.create("orders.fifo", visibility_seconds=600)
    return ground.queue


def test_messages_of_a_group_that_go_to_different_runs_are_worked_on_in_their_order(
    ground: Ground, fifo: LeasedQueue
) -> None:
    fifo.send("a 1", "b 2", "a 3", message_group_id="group")
    host = ground.host(max_batches=5)
    for number, expected in enumerate(("a", "b", "a"), 1):
        (request,) = asked(ground, host)
        assert request.destination is not None
        assert request.destination.run_tags == {"table": expected}
        assert asked(ground, host) == [request], "the later ones wait"
        assert ground.work(request).success
        await_settled(ground, request)
        assert fifo.deleted == number
    assert fifo.visible == []


def test_groups_do_not_wait_for_one_another(ground: Ground, fifo: LeasedQueue) -> None:
    fifo.send("a 1", message_group_id="one")
    fifo.send("b 1", message_group_id="two")
    fifo.send("a 2", message_group_id="two")
    assert tables(asked(ground, ground.host(max_batches=5))) == ["a", "b"]


def test_what_waits_behind_a_message_that_came_back_comes_back_after_it(ground: Ground, fifo: LeasedQueue) -> None:
    fifo.send("a 1", "b 2", message_group_id="group")
    host = ground.host(max_batches=5)
    (request,) = asked(ground, host)
    ground.end(ground.run(request, Status.STARTED), Status.CANCELED)
    eventually(ground.is_settled, "both are settled")
    assert fifo.visible == ["a 1", "b 2"]


@pytest.mark.parametrize("killed", ["while the first is worked on", "after the first was done"])
def test_the_order_outlives_the_process(ground: Ground, fifo: LeasedQueue, killed: str) -> None:
    fifo.send("a 1", "b 2", message_group_id="group")
    host = ground.host(max_batches=5)
    (request,) = asked(ground, host)
    if killed == "after the first was done":
        assert ground.work(request).success
        await_settled(ground, request)
    kill(host)
    successor = ground.host(max_batches=5)
    (again,) = asked(ground, successor)
    if killed == "after the first was done":
        assert again.batch_id != request.batch_id
    else:
        assert again == request
        assert ground.work(request).success
        await_settled(ground, request)
        (again,) = asked(ground, successor)
    assert tables([again]) == ["b"]
    assert fifo.invisible == ["b 2"]


def test_what_is_behind_a_message_that_goes_nowhere_comes_back_with_it_unless_that_is_dead_lettered(
    ground: Ground, fifo: LeasedQueue
) -> None:
    fifo.send("a 1", "unknown", "a 3", message_group_id="group")
    host = ground.host(max_batches=5)
    (request,) = asked(ground, host)
    assert request.messages == 1
    eventually(lambda: fifo.visible == ["unknown", "a 3"], "both are given back")
    assert ground.work(request).success
    eventually(ground.is_settled, "the batch is settled")
    host.end()

    (request,) = asked(ground, ground.host(max_batches=5, on_failure=dead_letter()))
    assert request.messages == 1
    # It is sent there before it is deleted here.
    eventually(lambda: (fifo.dead_letters, fifo.invisible) == (["unknown"], ["a 3"]), "the message is dead-lettered")


def message(number: int, group: str | None) -> Message:
    return Message(Receipt(str(number), ""), "", {} if group is None else {"MessageGroupId": group})


@pytest.mark.parametrize("is_fifo", [True, False])
def test_parts_are_few_and_come_after_what_they_wait_for(is_fifo: bool) -> None:
    sent = [("x", "a"), ("y", "a"), ("x", "b"), ("y", "b"), ("y", "a"), ("x", "a"), ("x", None)]
    a, b = Destination(job="x"), Destination(job="y")
    pairs = [(message(number, group), {"x": a, "y": b}[job]) for number, (job, group) in enumerate(sent)]
    parts = divided(pairs, is_fifo=is_fifo)
    ids = [[each.message_id for each in part.messages] for part in parts]
    if not is_fifo:
        assert ids == [["0", "2", "5", "6"], ["1", "3", "4"]]
        return
    assert ids == [["0", "2"], ["1", "3", "4"], ["5", "6"]]
    assert [part.after for part in parts] == [set(), {0}, {1}]
