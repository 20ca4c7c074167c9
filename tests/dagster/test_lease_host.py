"""The keeper of a lease sensor: what it receives, holds and settles, on an in-memory SQS and real runs."""

import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from sqs_lease.core.failure_rules import dead_letter
from sqs_lease.core.policies import Fixed
from sqs_lease.dagster import SqsQueueResource
from sqs_lease.dagster.lease_sensor import host as lease_host
from sqs_lease.dagster.lease_sensor import settler
from sqs_lease.dagster.run_batch import lease_files
from sqs_lease.dagster.run_batch.folder import BatchFolder, BatchFolderError, listed
from sqs_lease.dagster.run_batch.ownership import OWNER
from sqs_lease.dagster.run_batch.run_folders import workspace_path
from sqs_lease.testing.faults import Fault, Operation, ScriptedFaults
from sqs_lease.testing.service_errors import ACCESS_DENIED
from tests.dagster.instances import stored_instance
from tests.dagster.lease_ground import Ground, end_waiting_for_runs, eventually, kill, tags

Status = dg.DagsterRunStatus


@pytest.fixture(scope="module")
def retrying_instance() -> Iterator[dg.DagsterInstance]:
    with stored_instance(run_retries={"enabled": True}) as made:
        yield made


@pytest.fixture
def ground(instance: dg.DagsterInstance, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(instance, tmp_path)
    yield made
    for host in made.hosts:
        host.end()


# Receiving


def test_a_batch_is_received_written_down_and_asked_a_run_for_until_it_is_there(ground: Ground) -> None:
    ground.queue.send("a", "b")
    host = ground.host()
    first = ground.tick(host)
    assert (first.received, first.requests[0].messages) == (2, 2)
    ground.queue.send("c")
    again = ground.tick(host)
    assert (again.received, again.requests) == (0, first.requests)
    ground.run(first.requests[0], Status.STARTED)
    started = ground.tick(host)
    assert (started.requests, started.received) == ([], 0)
    assert "is started" in started.waiting[0]
    assert ground.queue.visible == ["c"]


def test_an_empty_queue_leaves_nothing_behind(ground: Ground) -> None:
    tick = ground.tick(ground.host())
    assert (tick.requests, tick.waiting, tick.received) == ([], [], 0)
    assert ground.batches() == []


def test_several_batches_are_held_where_that_is_allowed(ground: Ground) -> None:
    ground.queue.send("a", "b", "c")
    host = ground.host(max_batches=2, max_messages=1)
    counts = [len(ground.tick(host).requests) for _ in range(3)]
    # The second tick asks for the first run again, which nobody has made, and each tick for one such run at most.
    assert counts == [1, 2, 1]
    assert len(ground.batches()) == 2
    assert ground.queue.visible == ["c"]


def test_receipt_handles_are_in_one_file_alone_which_only_its_owner_can_read(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    ground.queue.send("a")
    # Nothing is settled, and its files removed, before they were looked at.
    host = ground.host(look_seconds=600.0)
    with caplog.at_level(logging.DEBUG):
        request = ground.request(host)
        assert ground.work(request).success
        path = ground.directory / request.batch_id
        ((_, handle, *_),) = json.loads(json.loads((path / lease_files.LEASES).read_bytes())["leases"])
        with_it = [file.name for file in path.iterdir() if handle.encode() in file.read_bytes()]
        assert with_it == [lease_files.LEASES]
        assert stat.S_IMODE((path / lease_files.LEASES).stat().st_mode) == 0o600
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        ground.tick(host)
        eventually(ground.is_settled, "the batch is settled")
    assert handle not in repr(request)
    assert handle not in caplog.text


def test_nothing_is_held_that_could_not_be_written_down(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.queue.send("a")
    host = ground.host()

    def refuse(*arguments: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(lease_host, "write_leases", refuse)
        with pytest.raises(OSError, match="no space left"):
            host.tick()
    assert ground.queue.visible == ["a"]
    assert ground.batches() == []
    assert ground.tick(host).received == 1


def test_messages_that_are_lost_while_a_run_works_are_told_of_once(ground: Ground) -> None:
    ground.queue.send("a", "b")
    host = ground.host(policy=Fixed(visibility=600, every=0.2))
    request = ground.request(host)
    ground.run(request, Status.STARTED)
    kept = lease_files.read_leases(BatchFolder(Path(request.uri)))
    assert kept is not None
    ground.queues.sqs.delete(ground.queue.url, [kept.leases[0].receipt])
    news: list[str] = []

    def told() -> bool:
        news.extend(text for text in ground.tick(host).news if "lost" in text)
        return bool(news)

    eventually(told, "the loss is told")
    assert len(news) == 1
    assert news[0].startswith(f"1 messages of batch {request.batch_id} were lost while it was held")
    assert ground.queue.invisible == ["b"]


# Settling


def test_what_no_step_failed_is_deleted_and_the_run_tells_of_it(ground: Ground) -> None:
    ground.queue.send("good", "bad")
    request = ground.request(ground.host(on_failure=dead_letter()))
    result = ground.work(request)
    eventually(ground.is_settled, "the batch is settled")
    assert (ground.queue.visible, ground.queue.invisible, ground.queue.dead_letters) == ([], [], ["bad"])
    told = [entry.message for entry in ground.instance.all_logs(result.run_id) if "Of 2 messages" in entry.message]
    assert len(told) == 1
    assert "1 deleted, 1 dead-lettered" in told[0]


def test_what_failed_for_good_meets_the_failure_rule(ground: Ground) -> None:
    ground.queue.send("good", "raise")
    request = ground.request(ground.host(on_failure=dead_letter()))
    assert not ground.work(request).success
    eventually(ground.is_settled, "the batch is settled")
    assert sorted(ground.queue.dead_letters) == ["good", "raise"]


def test_messages_behind_a_failed_one_of_their_group_come_back_with_it_in_order(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_QUEUE", "orders.fifo")
    ground.queue = ground.queues.create("orders.fifo", "good", "bad", "after", message_group_id="group")
    request = ground.request(ground.host())
    ground.work(request)
    eventually(ground.is_settled, "the batch is settled")
    assert (ground.queue.visible, ground.queue.deleted) == (["bad", "after"], 1)


def test_a_batch_can_be_kept_in_an_object_store(ground: Ground) -> None:
    uri = f"memory://{uuid4().hex}/orders"
    ground.queue.send("good", "bad")
    # It looks when it is asked only: all readers of a file of this store share one position in it.
    changed = {"uri": uri, "look_seconds": 600.0, "fence_seconds": 0.0}
    host = ground.host(**changed)
    request = ground.request(host)
    assert request.uri.startswith(uri)
    kill(host)
    successor = ground.host(**changed)
    assert ground.request(successor) == request
    assert ground.work(request).success
    ground.tick(successor)
    eventually(lambda: ground.queue.deleted == 1, "the batch is settled")
    eventually(lambda: ground.queue.visible == ["bad"], "the batch is settled")
    eventually(lambda: [path.name for path in listed(workspace_path(uri))] == [OWNER], "its files are removed")


def test_a_canceled_run_gives_its_messages_back_whatever_the_failure_rule(ground: Ground) -> None:
    ground.queue.send("a")
    request = ground.request(ground.host(on_failure=dead_letter()))
    run = ground.run(request, Status.STARTED)
    ground.end(run, Status.CANCELED)
    eventually(ground.is_settled, "the batch is settled")
    assert (ground.queue.visible, ground.queue.dead_letters) == (["a"], [])


def test_a_run_that_never_appears_is_not_waited_for_beyond_its_deadline(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host()
    ground.request(host)
    end_waiting_for_runs(host)
    eventually(ground.is_settled, "the batch is given back")
    assert ground.queue.visible == ["a"]


def test_a_run_that_comes_too_late_is_told_so(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    end_waiting_for_runs(host)
    eventually(ground.is_settled, "the batch is given back")
    result = ground.work(request)
    failure = result.failure_data_for_node("load")
    assert failure is not None
    assert failure.error is not None
    assert "is removed when the batch's messages were settled" in str(failure.error.cause)


def test_no_step_begins_on_a_batch_that_is_being_settled(ground: Ground) -> None:
    ground.queue.send("a")
    request = ground.request(ground.host())
    lease_files.begin_settling(BatchFolder(Path(request.uri)), [])
    context = dg.build_op_context(instance=ground.instance, run_tags=tags(request))
    with pytest.raises(BatchFolderError, match="came too late"), SqsQueueResource(queue="orders").lease(context):
        pass


def test_a_run_that_begins_while_its_batch_is_about_to_be_given_back_keeps_it(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.queue.send("a")
    begun: list[dg.DagsterRun] = []
    write = lease_files.begin_settling

    def begin(folder: BatchFolder, deleting: Any) -> None:
        write(folder, deleting)
        if not begun:
            begun.append(ground.run(request, Status.STARTED))

    monkeypatch.setattr(settler, "begin_settling", begin)
    host = ground.host()
    request = ground.request(host)
    end_waiting_for_runs(host)
    eventually(lambda: bool(begun), "the deadline has passed")
    eventually(lambda: any("is started" in text for text in ground.tick(host).waiting), "it is held again")
    assert not BatchFolder(Path(request.uri)).is_settling()
    assert ground.queue.invisible == ["a"]
    ground.end(begun[0], Status.CANCELED)
    eventually(ground.is_settled, "the batch is settled")
    assert ground.queue.visible == ["a"]


def test_a_settlement_that_met_an_error_is_tried_again(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.queue.send("a")
    request = ground.request(ground.host())
    errors = [OSError("the store is away")]
    write = lease_files.begin_settling

    def begin(folder: BatchFolder, deleting: Any) -> None:
        if errors:
            raise errors.pop()
        write(folder, deleting)

    monkeypatch.setattr(settler, "begin_settling", begin)
    ground.work(request)
    eventually(ground.is_settled, "the batch is settled")
    assert not errors
    assert ground.queue.deleted == 1


# Retries of runs


def test_a_batch_is_held_until_its_last_retry_ended(retrying_instance: dg.DagsterInstance, tmp_path: Path) -> None:
    ground = Ground(retrying_instance, tmp_path)
    ground.queue.send("a")
    try:
        host = ground.host()
        request = ground.request(host)
        first = ground.run(
            request,
            Status.STARTED,
        )
        ground.instance.add_run_tags(first.run_id, {"dagster/max_retries": "1"})
        ground.end(first, Status.FAILURE)
        assert "is going to repeat" in ground.tick(host).waiting[0]
        assert ground.queue.invisible == ["a"]
        retry = ground.run(
            request,
            Status.STARTED,
            parent_run_id=first.run_id,
            root_run_id=first.run_id,
            tags={"dagster/max_retries": "1", "dagster/retry_number": "1", "dagster/root_run_id": first.run_id},
        )
        ground.instance.add_run_tags(first.run_id, {"dagster/auto_retry_run_id": retry.run_id})
        assert f"run {retry.run_id} is started" in ground.tick(host).waiting[0]
        ground.end(retry, Status.FAILURE)
        eventually(ground.is_settled, "the batch is settled")
        assert ground.queue.visible == ["a"]
    finally:
        for each in ground.hosts:
            each.end()


# What an evaluation is to fail by


def failures(ground: Ground, host: lease_host.LeaseHost) -> list[str]:
    found: list[str] = []

    def told() -> bool:
        found.extend(ground.tick(host).failures)
        return bool(found)

    eventually(told, "a failure is told")
    return found


def test_messages_that_sqs_refuses_to_settle_are_told_with_the_reason(ground: Ground) -> None:
    ground.queue.send("a")
    ground.faults = ScriptedFaults(*[Fault(error=ACCESS_DENIED)] * 5, operation=Operation.DELETE)
    host = ground.host()
    request = ground.request(host)
    assert ground.work(request).success
    (told,) = failures(ground, host)
    assert f"1 messages of batch {request.batch_id} could not be settled" in told
    assert "sqs:DeleteMessage" in told
