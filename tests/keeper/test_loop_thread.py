"""Whoever is interrupted while a coroutine runs in the other thread leaves none behind that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest

from sqs_lease.keeper.loop_thread import LoopThread


@pytest.fixture
def host() -> Iterator[LoopThread]:
    running = LoopThread("under test")
    yield running
    running.stop()


class Work:
    """A coroutine that never ends by itself, and what became of it."""

    def __init__(self) -> None:
        self.begun = Event()
        self.ended = Event()

    async def run(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


def interrupted_once(
    monkeypatch: pytest.MonkeyPatch, host: LoopThread, ask: Callable[[Callable[[], Any]], Any]
) -> None:
    """Interrupt the first who asks the loop for something, before or after it is asked."""
    loop: Any = host._loop
    real = loop.call_soon_threadsafe

    def interrupted(callback: Any, *arguments: Any) -> None:
        monkeypatch.setattr(loop, "call_soon_threadsafe", real)
        ask(lambda: real(callback, *arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)


def test_one_who_is_interrupted_before_he_waits_waits_for_the_end_of_what_began_meanwhile(
    host: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()

    def ask(request: Callable[[], Any]) -> None:
        request()
        assert work.begun.wait(60)

    interrupted_once(monkeypatch, host, ask)
    with pytest.raises(KeyboardInterrupt):
        host.run(work.run())
    assert work.ended.is_set()


def test_what_was_not_asked_for_before_the_interruption_never_begins(
    host: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    interrupted_once(monkeypatch, host, lambda request: None)
    with pytest.raises(KeyboardInterrupt):
        host.run(work.run())
    assert not work.begun.is_set()
