"""Calls of a user's listener for events of leases, in a separate thread: it may block, raise, or ask the batch.

The listener may be a method of what owns the lease, and a thread keeps alive what it refers to: a dropped lease
would be extended for as long as its thread lived. So only the owner of the lease refers to the listener, by a
:class:`Listener`, and the thread looks it up for each event.
"""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from queue import SimpleQueue

from sqs_lease.core.events import LeaseEvent
from sqs_lease.core.functions import require_function
from sqs_lease.keeper.batch import EventListener

logger = logging.getLogger(__name__)


def check_listener(listener: object) -> None:
    """Refuse a listener that would do nothing when it is called.

    Raises:
        TypeError: It is not a function, or it is one for an event loop, and the thread that calls it has no loop.
    """
    if listener is not None:
        instead = "give a plain function, which is called in a separate thread and may call loop.call_soon_threadsafe()"
        require_function(listener, "on_event", instead=instead)


def _check_done(returned: object) -> None:
    if inspect.isawaitable(returned):
        raise TypeError(f"on_event returned its work undone, as a {type(returned).__name__}")


class Listener:
    """A user's listener, for as long as the owner of the lease keeps this."""

    def __init__(self, listener: EventListener) -> None:
        self.call = listener


class ListenerThread:
    """A thread that calls a listener for one event after the other. It starts with the first event.

    Args:
        listener: The listener. Its first failure is logged, and it still gets the events that follow. When its owner
            is gone, nothing more is told.
        queue: The queue, for the log.
    """

    def __init__(self, listener: Listener, queue: str) -> None:
        self._listener = weakref.ref(listener)
        self._queue = queue
        self._events: SimpleQueue[LeaseEvent | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed = False

    def tell(self, event: LeaseEvent) -> None:
        """Pass on an event, without waiting for the listener. Called in the keeper's event loop."""
        if self._thread is None:
            # A daemon: a listener that blocks must not keep the interpreter from ending.
            self._thread = threading.Thread(target=self._run, name=f"sqs-lease events {self._queue}", daemon=True)
            self._thread.start()
        self._events.put(event)

    def end(self, seconds: float) -> None:
        """Stop passing on new events; wait for the earlier ones for some seconds at most (0 does not wait)."""
        self._events.put(None)
        if self._thread is None or self._thread is threading.current_thread() or not seconds:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning(
                "The listener of a lease of %s is still busy %g s after the block has ended; it is not waited for",
                self._queue,
                seconds,
            )

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            self._tell(event)
            # An event refers to no object of the user's, but it is not kept either while the next one is awaited.
            del event

    def _tell(self, event: LeaseEvent) -> None:
        listener = self._listener()
        if listener is None:
            return
        try:
            returned: object = listener.call(event)
            _check_done(returned)
        except BaseException:
            # SystemExit, too: it would end this thread, and the listener would miss all later events.
            if not self._failed:
                self._failed = True
                logger.exception(
                    "The listener of a lease of %s failed on %s; its further failures are not logged",
                    self._queue,
                    type(event).__name__,
                )
