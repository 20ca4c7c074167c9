"""When an event trigger receives again, and when it fires again."""

from __future__ import annotations

from sqs_lease.airflow.batches.open_batches import ReceivePause, Reminder


def test_each_batch_that_comes_back_unused_doubles_the_pause_up_to_a_quarter_of_an_hour() -> None:
    pause = ReceivePause()
    assert [pause.unused(0.0) for _ in range(7)] == [30, 60, 120, 240, 480, 900, 900]


def test_a_batch_that_was_used_ends_the_doubling() -> None:
    pause = ReceivePause()
    pause.unused(0.0)
    pause.unused(0.0)
    pause.used()
    assert pause.unused(0.0) == 30


def test_a_later_shorter_pause_does_not_end_an_earlier_longer_one() -> None:
    pause = ReceivePause(times=5)
    pause.unused(0.0)
    pause.used()
    pause.unused(10.0)
    assert pause.ends_at == 900


def test_reminders_come_after_a_minute_and_then_ever_more_rarely() -> None:
    reminder = Reminder.from_now(0.0)
    due = []
    for _ in range(5):
        due.append(reminder.due_at)
        reminder.reminded(reminder.due_at)
    assert due == [60, 180, 420, 720, 1020]


def test_a_batch_that_was_missed_is_reminded_of_soon_but_not_later_than_it_would_be_anyway() -> None:
    reminder = Reminder.from_now(0.0)
    reminder.missed(55.0)
    assert reminder.due_at == 60
    reminder.missed(20.0)
    assert reminder.due_at == 30
