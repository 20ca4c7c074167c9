"""The keeper of a lease sensor: what it holds, settles, adopts and survives, on an in-memory SQS and real runs."""

import json
import logging
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import enumerate as threads
from typing import Any

import dagster as dg
import msgspec
import pytest
from dagster._core.test_utils import create_run_for_test

from sqs_lease import kept_leases
from sqs_lease.batch_folder import BatchFolder, BatchFolderError
from sqs_lease.core.policies import Fixed
from sqs_lease.core.settlements import dead_letter, release
from sqs_lease.dagster import batch_settler, lease_host
from sqs_lease.dagster.host_settings import HostSettings, Request, Tick
from sqs_lease.dagster.lease_host import HostIsOverError, LeaseHost
from sqs_lease.dagster.leased_batch import BATCH_TAG, leased_batch
from sqs_lease.ownership import ForeignOwnerError, Ownership
from sqs_lease.testing import AuditKind, LeasedQueues, MemoryTransport, ScriptedFaults

Status = dg.DagsterRunStatus


@dg.op
def load(context: dg.OpExecutionContext) -> None:
    with leased_batch(context) as batch:
        for message in batch:
            if message.body == "bad":
                batch.fail(message, "it is bad")
            if message.body == "raise":
                raise ZeroDivisionError


@dg.job(executor_def=dg.in_process_executor)
def loading() -> None:
    load()


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture(scope="module")
def retrying_instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test({"run_retries": {"enabled": True}}) as made:
        yield made


def eventually(seen: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not seen():
        assert time.monotonic() < deadline, f"not within 30 s: {what}"
        time.sleep(0.02)


class Ground:
    """A queue, a directory, and the hosts on them."""

    def __init__(self, instance: dg.DagsterInstance, directory: Path) -> None:
        self.instance = instance
        self.directory = directory / "sensor"
        self.queues = LeasedQueues()
        self.queue = self.queues.create("orders", visibility_seconds=30)
        self.hosts: list[LeaseHost] = []
        self.faults = ScriptedFaults()

    def host(self, **changed: Any) -> LeaseHost:
        settings = HostSettings(
            sensor="orders",
            deployment="ours",
            uri=str(self.directory),
            directory=self.directory,
            queue=self.queue.url,
            policy=Fixed(visibility=20, every=10),
            on_failure=release(),
            max_messages=10,
            wait_seconds=0,
            linger_seconds=0,
            max_batches=1,
            run_deadline_seconds=60,
            look_seconds=0.05,
            fence_seconds=0.2,
        )
        instance = dg.DagsterInstance.from_ref(self.instance.get_ref())
        host = LeaseHost(
            replace(settings, **changed), instance, lambda: MemoryTransport(self.queues.sqs, faults=self.faults)
        )
        self.hosts.append(host)
        return host

    def tick(self, host: LeaseHost) -> Tick:
        tick = host.tick()
        assert tick is not None
        return tick

    def request(self, host: LeaseHost) -> Request:
        (request,) = self.tick(host).requests
        return request

    def work(self, request: Request) -> dg.ExecuteInProcessResult:
        """Execute the run that was asked for."""
        return loading.execute_in_process(instance=self.instance, tags=tags(request), raise_on_error=False)

    def run(self, request: Request, status: Status, **more: Any) -> dg.DagsterRun:
        """A run as Dagster would have it, of which nothing is executed."""
        run: dg.DagsterRun = create_run_for_test(
            self.instance, "loading", status=status, tags={**tags(request), **more.pop("tags", {})}, **more
        )
        return run

    def end(self, run: dg.DagsterRun, status: Status) -> None:
        event = {
            Status.FAILURE: dg.DagsterEventType.RUN_FAILURE,
            Status.CANCELED: dg.DagsterEventType.RUN_CANCELED,
            Status.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
        }[status]
        from dagster._core.events import DagsterEvent

        self.instance.report_dagster_event(DagsterEvent(event.value, run.job_name), run.run_id)

    def batches(self) -> list[str]:
        return [path.name for path in self.directory.iterdir() if path.is_dir()]

    def is_settled(self) -> bool:
        return not self.batches()


def tags(request: Request) -> dict[str, str]:
    return {BATCH_TAG: request.uri, "dagster/run_key": request.batch_id}


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
    assert counts == [1, 2, 2]
    assert ground.queue.visible == ["c"]


def test_receipt_handles_are_in_one_file_alone_which_only_its_owner_can_read(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    ground.queue.send("a")
    host = ground.host()
    with caplog.at_level(logging.DEBUG):
        request = ground.request(host)
        assert ground.work(request).success
        path = ground.directory / request.batch_id
        ((_, handle, *_),) = json.loads(json.loads((path / kept_leases.LEASES).read_bytes())["leases"])
        with_it = [file.name for file in path.iterdir() if handle.encode() in file.read_bytes()]
        assert with_it == [kept_leases.LEASES]
        assert stat.S_IMODE((path / kept_leases.LEASES).stat().st_mode) == 0o600
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
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


def test_a_canceled_run_gives_its_messages_back_whatever_the_failure_rule(ground: Ground) -> None:
    ground.queue.send("a")
    request = ground.request(ground.host(on_failure=dead_letter()))
    run = ground.run(request, Status.STARTED)
    ground.end(run, Status.CANCELED)
    eventually(ground.is_settled, "the batch is settled")
    assert (ground.queue.visible, ground.queue.dead_letters) == (["a"], [])


def test_a_run_that_never_appears_is_not_waited_for_beyond_its_deadline(ground: Ground) -> None:
    ground.queue.send("a")
    ground.request(ground.host(run_deadline_seconds=0.5))
    eventually(ground.is_settled, "the batch is given back")
    assert ground.queue.visible == ["a"]


def test_a_run_that_comes_too_late_is_told_so(ground: Ground) -> None:
    ground.queue.send("a")
    request = ground.request(ground.host(run_deadline_seconds=0.5))
    eventually(ground.is_settled, "the batch is given back")
    result = ground.work(request)
    failure = result.failure_data_for_node("load")
    assert failure is not None
    assert failure.error is not None
    assert "is removed when the batch's messages were settled" in str(failure.error.cause)


def test_no_step_begins_on_a_batch_that_is_being_settled(ground: Ground) -> None:
    ground.queue.send("a")
    request = ground.request(ground.host())
    kept_leases.begin_settling(BatchFolder(Path(request.uri)), [])
    context = dg.build_op_context(instance=ground.instance, run_tags=tags(request))
    with pytest.raises(BatchFolderError, match="came too late"), leased_batch(context):
        pass


def test_a_run_that_begins_while_its_batch_is_about_to_be_given_back_keeps_it(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.queue.send("a")
    begun: list[dg.DagsterRun] = []
    write = kept_leases.begin_settling

    def begin(folder: BatchFolder, deleting: Any) -> None:
        write(folder, deleting)
        if not begun:
            begun.append(ground.run(request, Status.STARTED))

    monkeypatch.setattr(batch_settler, "begin_settling", begin)
    host = ground.host(run_deadline_seconds=0.5)
    request = ground.request(host)
    eventually(lambda: bool(begun), "the deadline has passed")
    eventually(lambda: not BatchFolder(Path(request.uri)).is_settling(), "it is held again")
    assert "is started" in ground.tick(host).waiting[0]
    assert ground.queue.invisible == ["a"]
    ground.end(begun[0], Status.CANCELED)
    eventually(ground.is_settled, "the batch is settled")
    assert ground.queue.visible == ["a"]


def test_a_settlement_that_met_an_error_is_tried_again(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.queue.send("a")
    request = ground.request(ground.host())
    errors = [OSError("the store is away")]
    write = kept_leases.begin_settling

    def begin(folder: BatchFolder, deleting: Any) -> None:
        if errors:
            raise errors.pop()
        write(folder, deleting)

    monkeypatch.setattr(batch_settler, "begin_settling", begin)
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


# Crashes


def kill(host: LeaseHost) -> None:
    """End a host as the death of its process does: nothing is called, and its claim stays."""
    host._ownership.leave = lambda: None  # type: ignore[method-assign]
    host.end()


def test_a_batch_whose_leases_were_not_written_was_nobodys_and_is_removed(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    kill(host)
    (ground.directory / request.batch_id / kept_leases.LEASES).unlink()
    assert ground.tick(ground.host()).requests == []
    assert ground.batches() == []


def test_a_run_that_was_asked_for_in_vain_is_asked_for_again_by_the_same_key(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    kill(host)
    assert ground.request(ground.host()) == request
    assert ground.queue.invisible == ["a"]


def test_a_batch_taken_over_is_extended_at_once_and_settled_after_the_fence(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host(policy=Fixed(visibility=20, every=10))
    request = ground.request(host)
    eventually((Path(request.uri) / kept_leases.HELD_UNTIL).exists, "the deadline is written down")
    kill(host)
    run = ground.run(request, Status.STARTED)
    ground.end(run, Status.CANCELED)
    began = time.monotonic()
    successor = ground.host(fence_seconds=0.7)
    ground.tick(successor)
    eventually(lambda: ground.queues.sqs.trail().entries()[-1].kind is AuditKind.CHANGED, "it is extended")
    assert ground.queue.invisible == ["a"]
    eventually(ground.is_settled, "the batch is settled")
    assert time.monotonic() - began >= 0.7
    assert ground.queue.visible == ["a"]


def test_a_batch_that_was_extended_before_its_process_died_can_be_released_by_the_next_one(ground: Ground) -> None:
    """What was written when it was received has run out; a lease that had would not be released, but left to expire."""
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    folder = BatchFolder(Path(request.uri))
    eventually((Path(request.uri) / kept_leases.HELD_UNTIL).exists, "the deadline is written down")
    kill(host)
    kept = kept_leases.read_leases(folder)
    assert kept is not None
    old = [msgspec.structs.replace(lease, deadline=lease.received_at) for lease in kept.leases]
    kept_leases.write_leases(folder, kept.batch_id, kept.queue_url, old)
    ground.end(ground.run(request, Status.STARTED), Status.CANCELED)
    ground.tick(ground.host())
    eventually(ground.is_settled, "the batch is settled")
    assert ground.queue.visible == ["a"]


def test_a_settlement_that_a_crash_cut_off_deletes_what_was_done_and_touches_nothing_else(ground: Ground) -> None:
    ground.queue.send("good", "bad")
    host = ground.host()
    request = ground.request(host)
    kill(host)
    folder = BatchFolder(Path(request.uri))
    good = next(message.message_id for message in folder.manifest().messages if message.body == "good")
    kept_leases.begin_settling(folder, [good])
    before = len(ground.queues.sqs.trail().entries())
    ground.tick(ground.host())
    eventually(ground.is_settled, "the batch is settled")
    touched = {entry.message_id for entry in ground.queues.sqs.trail().entries()[before:]}
    assert touched == {good}
    assert (ground.queue.invisible, ground.queue.deleted) == (["bad"], 1)


def test_a_batch_that_others_received_meanwhile_and_no_run_works_on_is_dropped(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host(policy=Fixed(visibility=1, every=0.5))
    ground.request(host)
    kill(host)
    eventually(lambda: ground.queue.visible == ["a"], "the lease has run out")
    other = ground.queues.sqs.receive(ground.queue.url, max_messages=1, visibility_seconds=60)
    ground.queues.sqs.delete(ground.queue.url, [message.receipt for message in other])
    successor = ground.host()
    successor.tick()
    eventually(ground.is_settled, "the batch is dropped")
    assert ground.tick(successor).requests == []


# The end of the process


def test_a_process_that_ends_extends_what_goes_on_and_settles_what_is_over(ground: Ground) -> None:
    ground.queue.send("a", "b")
    host = ground.host(max_batches=2, max_messages=1, look_seconds=60.0)
    going_on, over = [ground.tick(host) for _ in range(2)][-1].requests
    ground.run(going_on, Status.STARTED)
    ground.end(ground.run(over, Status.STARTED), Status.CANCELED)
    before = len(ground.queues.sqs.trail().entries())
    host.leave()
    kinds = [entry.kind for entry in ground.queues.sqs.trail().entries()[before:]]
    assert sorted(kinds, key=str) == [AuditKind.CHANGED, AuditKind.RELEASED]
    assert ground.batches() == [going_on.batch_id]
    assert keepers() == 0
    assert BatchFolder(ground.directory / going_on.batch_id).get(kept_leases.HELD_UNTIL) is not None
    assert ground.tick(ground.host()).waiting


def test_what_is_not_of_a_sensor_is_left_alone_in_its_directory(ground: Ground) -> None:
    (ground.directory / "mine").mkdir(parents=True)
    (ground.directory / "mine" / "notes.txt").write_text("keep this")
    ground.tick(ground.host())
    assert (ground.directory / "mine" / "notes.txt").exists()


# One keeper


def keepers() -> int:
    return sum(thread.name == "sqs-lease sensor orders" for thread in threads())


def test_a_host_that_another_one_followed_drops_what_it_holds_and_its_thread_ends(ground: Ground) -> None:
    ground.queue.send("a")
    former = ground.host()
    request = ground.request(former)
    ground.run(request, Status.STARTED)
    newer = ground.host()
    assert ground.tick(newer).waiting
    eventually(lambda: former.is_over, "the former one has noticed")
    eventually(lambda: keepers() == 1, "its thread has ended")
    with pytest.raises(HostIsOverError):
        former.tick()
    assert ground.queue.invisible == ["a"]
    assert ground.tick(newer).waiting


def test_a_host_that_was_followed_does_not_settle(ground: Ground) -> None:
    """It finds out by itself before it calls, even if it had no time to look."""
    ground.queue.send("a")
    former = ground.host(look_seconds=1.0)
    request = ground.request(former)
    run = ground.run(request, Status.STARTED)
    Ownership(ground.directory, "ours").take()
    ground.end(run, Status.CANCELED)
    before = len(ground.queues.sqs.trail().entries())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(former, "_give_up", lambda why: None)
        former.tick()
        eventually(lambda: not BatchFolder(Path(request.uri)).is_settling(), "it has stopped")
        time.sleep(0.2)
    assert len(ground.queues.sqs.trail().entries()) == before
    assert ground.batches() == [request.batch_id]


def test_what_came_after_another_host_took_over_is_given_back(ground: Ground) -> None:
    ground.queue.send("a")
    former = ground.host(look_seconds=60.0)
    Ownership(ground.directory, "ours").take()
    with pytest.raises(HostIsOverError):
        former.tick()
    assert ground.queue.visible == ["a"]
    assert ground.batches() == []


def test_a_host_that_holds_nothing_and_is_not_asked_ends(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_host, "IDLE_SECONDS", 0.2)
    host = ground.host()
    ground.tick(host)
    eventually(lambda: keepers() == 0, "its thread has ended")
    assert host.is_over
    assert list(ground.directory.iterdir()) == []


def test_the_directory_of_another_dagster_is_refused(ground: Ground) -> None:
    ground.host()
    with pytest.raises(ForeignOwnerError, match="give each its own directory"):
        ground.host(deployment="theirs")
