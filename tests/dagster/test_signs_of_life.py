"""Signs of life of the run worker, and when a step that hears no more of them must end."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event

import pytest

from sqs_lease.dagster.run_batch import elsewhere, signs_of_life
from sqs_lease.dagster.run_batch.elsewhere import recent_sign
from sqs_lease.dagster.run_batch.folder import BatchFolder, BatchFolderError
from sqs_lease.dagster.run_batch.signs_of_life import (
    ALIVE,
    SILENCE,
    Listening,
    SignOfLife,
    next_sign_seconds,
    read_sign,
    this_process,
)

MARGIN = 4.0


def sign(number: int, lasting: float = 30.0, every: float = 3.0, written_at: float = 0.0) -> SignOfLife:
    return SignOfLife("another", "worker", number, written_at, lasting, every)


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path)


def test_work_goes_on_as_long_as_signs_come_however_near_the_end_of_the_leases_is() -> None:
    listening = Listening(sign(1, lasting=5.0, every=1.0), now=0.0)
    for number in range(2, 100):
        listening.see(sign(number, lasting=0.5, every=1.0), looked_at=float(number))
        assert not listening.is_over(float(number), MARGIN)


def test_without_signs_work_ends_when_the_leases_are_about_to() -> None:
    listening = Listening(sign(1), now=0.0)
    listening.see(sign(2, lasting=60.0), looked_at=10.0)
    # It was written between the looks at 0 and 10, so that the leases last until 60 at least.
    listening.see(sign(2, lasting=60.0), looked_at=11.0)
    assert not listening.is_over(55.9, MARGIN)
    assert listening.is_over(56.1, MARGIN)


def test_without_signs_work_goes_on_until_the_next_one_is_overdue() -> None:
    listening = Listening(sign(1, lasting=2.0, every=3.0), now=0.0)
    assert not listening.is_over(SILENCE * 3.0, MARGIN)
    assert listening.is_over(SILENCE * 3.0 + 0.1, MARGIN)


def test_the_first_sign_may_be_as_old_as_a_recent_one() -> None:
    listening = Listening(sign(1, lasting=60.0, every=3.0), now=100.0)
    assert listening.is_over(100.0 + 60.0 - SILENCE * 3.0 - MARGIN, MARGIN)


def test_signs_of_a_run_worker_that_took_over_count() -> None:
    listening = Listening(sign(7), now=0.0)
    listening.see(SignOfLife("a third", "worker", 7, 0.0, 600.0, 10.0), looked_at=5.0)
    assert not listening.is_over(590.0, MARGIN)


@pytest.mark.parametrize(("lasting", "seconds"), [(0.0, 1.0), (30.0, 3.0), (3600.0, 10.0)])
def test_the_nearer_the_end_of_the_leases_the_sooner_comes_the_next_sign(lasting: float, seconds: float) -> None:
    assert next_sign_seconds(lasting) == seconds


def test_signs_are_written_when_the_block_begins_when_one_is_due_and_when_the_leases_were_extended(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signs_of_life, "LOOK_SECONDS", 0.01)
    until = [time.monotonic() + 600.0]
    asked = Event()

    def answer() -> float:
        asked.set()
        return until[0] - time.monotonic()

    with signs_of_life.signs_of_life(folder, answer):
        first = read_sign(folder)
        assert first is not None
        assert (first.process, first.number) == (this_process(), 1)
        asked.clear()
        assert asked.wait(600)
        assert read_sign(folder) == first
        until[0] += 300.0
        while (second := read_sign(folder)) == first:
            time.sleep(0.01)
        assert second is not None
        assert second.number == 2
        assert first.lasting_seconds < 600.0 < second.lasting_seconds


def test_a_sign_that_cannot_be_written_is_logged_once_and_tried_again(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signs_of_life, "LOOK_SECONDS", 0.01)
    tries, enough = [0], Event()

    def refuse(*_: object) -> None:
        tries[0] += 1
        if tries[0] == 3:
            enough.set()
        raise PermissionError

    with signs_of_life.signs_of_life(folder, lambda: None):
        monkeypatch.setattr(BatchFolder, "put", refuse)
        monkeypatch.setattr(signs_of_life, "next_sign_seconds", lambda _: 0.0)
        assert enough.wait(600)
    assert caplog.text.count("cannot be written (PermissionError") == 1


def test_a_recent_sign_is_taken_at_once(folder: BatchFolder) -> None:
    recent = sign(1, written_at=time.time())
    assert recent_sign(folder, recent) is recent


def test_where_the_clocks_differ_the_next_sign_is_waited_for(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "LOOK_SECONDS", 0.01)
    ahead = sign(1, written_at=time.time() + 3600)
    with signs_of_life.signs_of_life(folder, lambda: 600.0):
        newer = recent_sign(folder, ahead)
    assert newer.process == this_process()


def test_a_run_worker_that_gives_no_sign_is_named(folder: BatchFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "LOOK_SECONDS", 0.01)
    old = sign(1, every=0.01, written_at=time.time() - 3600)
    with pytest.raises(BatchFolderError, match=r"run worker on worker, .* gives no sign of life"):
        recent_sign(folder, old)


def test_what_is_not_a_sign_is_none(folder: BatchFolder) -> None:
    assert read_sign(folder) is None
    folder.put(ALIVE, b'{"process": "x"}')
    with pytest.raises(ValueError, match="not a sign of life"):
        read_sign(folder)
