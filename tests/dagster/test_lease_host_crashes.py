"""The keeper of a lease sensor: what it takes over from another process, and leaves to the next one."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import msgspec
import pytest

from sqs_lease.core.calls import VisibilityChange
from sqs_lease.dagster.lease_sensor import host as lease_host
from sqs_lease.dagster.lease_sensor import settler
from sqs_lease.dagster.lease_sensor.host import HostIsOverError
from sqs_lease.dagster.run_batch import lease_files
from sqs_lease.dagster.run_batch.folder import BatchFolder
from sqs_lease.dagster.run_batch.lease_files import stop_settling
from sqs_lease.dagster.run_batch.ownership import ForeignOwnerError, Ownership
from sqs_lease.testing import AuditKind
from tests.dagster.lease_ground import Ground, eventually, is_closed, keepers, kill

Status = dg.DagsterRunStatus


@pytest.fixture
def ground(instance: dg.DagsterInstance, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(instance, tmp_path)
    yield made
    for host in made.hosts:
        host.end()


def let_deadlines_pass(folder: BatchFolder) -> lease_files.RecordedLeases:
    """Have the deadlines of when a batch was received in the past; return what was written down of it before."""
    kept = lease_files.read_leases(folder)
    assert kept is not None
    old = [msgspec.structs.replace(lease, deadline=lease.received_at) for lease in kept.leases]
    lease_files.write_leases(folder, kept.batch_id, kept.queue_url, old)
    return kept


# Crashes


def test_a_batch_whose_leases_were_not_written_was_nobodys_and_is_removed(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    kill(host)
    (ground.directory / request.batch_id / lease_files.LEASES).unlink()
    assert ground.tick(ground.host()).requests == []
    assert ground.batches() == []


def test_a_run_that_was_asked_for_in_vain_is_asked_for_again_by_the_same_key(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    kill(host)
    assert ground.request(ground.host()) == request
    assert ground.queue.invisible == ["a"]


def test_a_batch_taken_over_costs_no_call_and_is_settled_after_the_fence(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    eventually((Path(request.uri) / lease_files.HELD_UNTIL).exists, "the deadline is written down")
    kill(host)
    run = ground.run(request, Status.STARTED)
    ground.end(run, Status.CANCELED)
    before = len(ground.queues.sqs.trail().entries())
    began = time.monotonic()
    ground.tick(ground.host(fence_seconds=0.7))
    eventually(ground.is_settled, "the batch is settled")
    assert time.monotonic() - began >= 0.7
    assert ground.queue.visible == ["a"]
    assert [entry.kind for entry in ground.queues.sqs.trail().entries()[before:]] == [AuditKind.RELEASED]


@pytest.mark.parametrize("left_seconds", [-1, 30])
def test_a_batch_taken_over_when_little_is_left_or_none_is_extended_at_once(
    ground: Ground, left_seconds: float
) -> None:
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    kill(host)
    folder = BatchFolder(Path(request.uri))
    (folder.path / lease_files.HELD_UNTIL).unlink(missing_ok=True)
    kept = lease_files.read_leases(folder)
    assert kept is not None
    ends_at = time.time() + left_seconds
    old = [msgspec.structs.replace(lease, received_at=ends_at - 180, deadline=ends_at) for lease in kept.leases]
    lease_files.write_leases(folder, kept.batch_id, kept.queue_url, old)
    ground.run(request, Status.STARTED)
    before = len(ground.queues.sqs.trail().entries())
    ground.tick(ground.host())
    eventually(lambda: len(ground.queues.sqs.trail().entries()) > before, "it is extended")
    assert [entry.kind for entry in ground.queues.sqs.trail().entries()[before:]] == [AuditKind.CHANGED]


def test_a_batch_that_was_extended_before_its_process_died_can_be_released_by_the_next_one(ground: Ground) -> None:
    """What was written when it was received has run out; a lease that had would not be released, but left to expire."""
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    folder = BatchFolder(Path(request.uri))
    eventually((Path(request.uri) / lease_files.HELD_UNTIL).exists, "the deadline is written down")
    kill(host)
    let_deadlines_pass(folder)
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
    lease_files.begin_settling(folder, [good])
    before = len(ground.queues.sqs.trail().entries())
    ground.tick(ground.host())
    eventually(ground.is_settled, "the batch is settled")
    touched = {entry.message_id for entry in ground.queues.sqs.trail().entries()[before:]}
    assert touched == {good}
    assert (ground.queue.invisible, ground.queue.deleted) == (["bad"], 1)


def test_a_settled_batch_whose_removal_a_crash_cut_off_is_not_held_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    kill(host)
    folder = BatchFolder(Path(request.uri))
    lease_files.begin_settling(folder, [])
    removed: list[str] = []
    unlink = Path.unlink

    def cut_off(path: Path, missing_ok: bool = False) -> None:
        if lease_files.LEASES in removed:
            raise OSError("killed")
        removed.append(path.name)
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", cut_off)
        with pytest.raises(OSError, match="killed"):
            folder.remove()
    assert folder.is_settling()
    before = len(ground.queues.sqs.trail().entries())
    assert ground.tick(ground.host()).requests == []
    assert len(ground.queues.sqs.trail().entries()) == before
    assert ground.batches() == []


def test_a_batch_that_others_received_meanwhile_and_no_run_works_on_is_dropped(ground: Ground) -> None:
    ground.queue.send("a")
    host = ground.host()
    request = ground.request(host)
    kill(host)
    folder = BatchFolder(Path(request.uri))
    (Path(request.uri) / lease_files.HELD_UNTIL).unlink(missing_ok=True)
    (lease,) = let_deadlines_pass(folder).leases
    sqs = ground.queues.sqs
    sqs.change_visibility(ground.queue.url, [VisibilityChange(lease.receipt, 0)])
    other = sqs.receive(ground.queue.url, max_messages=1, visibility_seconds=600)
    sqs.delete(ground.queue.url, [message.receipt for message in other])
    successor = ground.host()
    successor.tick()
    eventually(ground.is_settled, "the batch is dropped")
    assert ground.tick(successor).requests == []


# The end of the process


def test_a_process_that_ends_extends_what_goes_on_and_settles_what_is_over(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy the machine is, the last calls have the time they take.
    monkeypatch.setattr(lease_host, "LAST_SECONDS", 600.0)
    ground.queue.send("a", "b")
    host = ground.host(max_batches=2, max_messages=1, look_seconds=600.0)
    going_on, over = [ground.tick(host) for _ in range(2)][-1].requests
    ground.run(going_on, Status.STARTED)
    ground.end(ground.run(over, Status.STARTED), Status.CANCELED)
    before = len(ground.queues.sqs.trail().entries())
    host.leave()
    kinds = [entry.kind for entry in ground.queues.sqs.trail().entries()[before:]]
    assert sorted(kinds, key=str) == [AuditKind.CHANGED, AuditKind.RELEASED]
    assert ground.batches() == [going_on.batch_id]
    assert keepers() == 0
    assert BatchFolder(ground.directory / going_on.batch_id).get(lease_files.HELD_UNTIL) is not None
    assert ground.tick(ground.host()).waiting


def test_what_is_not_of_a_sensor_is_left_alone_in_its_directory(ground: Ground) -> None:
    (ground.directory / "mine").mkdir(parents=True)
    (ground.directory / "mine" / "notes.txt").write_text("keep this")
    ground.tick(ground.host())
    assert (ground.directory / "mine" / "notes.txt").exists()


# One keeper


def test_a_host_that_another_one_followed_drops_what_it_holds_and_its_thread_ends(ground: Ground) -> None:
    ground.queue.send("a")
    former = ground.host()
    request = ground.request(former)
    ground.run(request, Status.STARTED)
    newer = ground.host()
    assert ground.tick(newer).waiting
    eventually(lambda: is_closed(former), "the former one has noticed, and ended")
    assert keepers() == 1
    with pytest.raises(HostIsOverError):
        former.tick()
    assert ground.queue.invisible == ["a"]
    assert ground.tick(newer).waiting


def test_a_host_that_was_followed_does_not_settle(ground: Ground) -> None:
    """It finds out by itself before it calls, even if it had no time to look."""
    ground.queue.send("a")
    former = ground.host(look_seconds=600.0)
    request = ground.request(former)
    run = ground.run(request, Status.STARTED)
    Ownership(ground.directory, "ours").take()
    ground.end(run, Status.CANCELED)
    before = len(ground.queues.sqs.trail().entries())
    gave_way = threading.Event()

    def stop(folder: BatchFolder) -> None:
        stop_settling(folder)
        gave_way.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settler, "stop_settling", stop)
        former.tick()
        assert gave_way.wait(600)
        former.end()
    assert len(ground.queues.sqs.trail().entries()) == before
    assert ground.batches() == [request.batch_id]


def test_what_came_after_another_host_took_over_is_given_back(ground: Ground) -> None:
    ground.queue.send("a")
    former = ground.host(look_seconds=600.0)
    Ownership(ground.directory, "ours").take()
    with pytest.raises(HostIsOverError):
        former.tick()
    assert ground.queue.visible == ["a"]
    assert ground.batches() == []


def test_a_host_that_holds_nothing_and_is_not_asked_ends(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ground.host()
    ground.tick(host)
    monkeypatch.setattr(lease_host, "IDLE_SECONDS", 0.2)
    eventually(lambda: is_closed(host), "it has ended")
    assert keepers() == 0
    assert list(ground.directory.iterdir()) == []


def test_the_directory_of_another_dagster_is_refused(ground: Ground) -> None:
    ground.host()
    with pytest.raises(ForeignOwnerError, match="give each its own directory"):
        ground.host(deployment="theirs")
