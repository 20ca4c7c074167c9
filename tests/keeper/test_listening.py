"""A user's listener may do what it likes."""

from __future__ import annotations

import sys
from threading import Event, current_thread

import pytest

from sqs_lease.core.events import LeaseEvent, Lost
from sqs_lease.core.messages import Receipt
from sqs_lease.keeper.listening import Listener, ListenerThread

EVENTS = [Lost(Receipt(f"m{number}", "handle"), "gone") for number in range(3)]


def test_it_is_told_of_all_events_in_their_order_before_the_end() -> None:
    told: list[LeaseEvent] = []
    listener = Listener(told.append)
    listening = ListenerThread(listener, "orders")
    for event in EVENTS:
        listening.tell(event)
    listening.end(60)
    assert told == EVENTS


@pytest.mark.parametrize("fails", [lambda: 1 / 0, lambda: sys.exit("no")], ids=["raises", "exits"])
def test_one_that_fails_is_told_of_the_rest_and_its_first_error_alone_is_logged(
    fails: object, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[LeaseEvent] = []

    def listen(event: LeaseEvent) -> None:
        told.append(event)
        assert callable(fails)
        fails()

    listener = Listener(listen)
    listening = ListenerThread(listener, "orders")
    for event in EVENTS:
        listening.tell(event)
    listening.end(60)
    assert told == EVENTS
    (record,) = caplog.records
    assert record.getMessage() == (
        "The listener of a lease of orders failed on Lost; its further failures are not logged"
    )


def test_one_that_blocks_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    goes_on, begun = Event(), Event()

    def listen(_: LeaseEvent) -> None:
        begun.set()
        goes_on.wait(60)

    listener = Listener(listen)
    listening = ListenerThread(listener, "orders")
    listening.tell(EVENTS[0])
    assert begun.wait(60)
    listening.end(0.01)
    assert "still busy" in caplog.text
    goes_on.set()


def test_one_that_ends_what_it_listens_to_does_not_wait_for_itself() -> None:
    ended = Event()

    def listen(_: LeaseEvent) -> None:
        listening.end(60)
        assert current_thread().name == "sqs-lease events orders"
        ended.set()

    listener = Listener(listen)
    listening = ListenerThread(listener, "orders")
    listening.tell(EVENTS[0])
    assert ended.wait(60)


def test_without_an_event_there_is_no_thread() -> None:
    listener = Listener(lambda event: None)
    listening = ListenerThread(listener, "orders")
    listening.end(60)
    assert listening._thread is None
