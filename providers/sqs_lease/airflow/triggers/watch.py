"""The trigger of an asset's watcher: counts the messages of a queue, and fires an event while there are any.

It receives nothing and holds nothing. The run that Airflow makes of an event has a sensor of its own, which receives
the messages that are visible by then (``sqs_lease(..., event=asset)``). So it does not matter where the trigger runs,
how often it is started, or whether an event is lost: the messages stay in the queue, and the same counts lead to the
next event (``pace.py``).

Watchers of one queue that count equally often share one poll, by the shared streams of Airflow: for each key of
:meth:`SqsLeaseTrigger.shared_stream_key` the triggerer runs one :meth:`SqsLeaseTrigger.open_shared_stream`, and gives
each count to all of them.

The poll never ends by itself: an error is logged, and the count is tried again after a while.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

from airflow.sdk import Asset
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from sqs_lease.airflow.connection import AwsConnection
from sqs_lease.airflow.dag_file import check_queue, refuse_sensor_options
from sqs_lease.airflow.triggers.pace import Pace, QueueCounts
from sqs_lease.airflow.triggers.shared import (
    PollAge,
    SharedKeeper,
    TriggererKeepers,
    triggerer_keepers,
)
from sqs_lease.clock import Clock
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.sqs.classification import translate_client_errors
from sqs_lease.sqs.errors import QueueNotFoundError, SqsError

logger = logging.getLogger(__name__)

DEFAULT_POLL_INTERVAL: Final = timedelta(seconds=2)
"""1.3 million requests a month for each queue, 0.52 USD at 0.40 USD a million."""

DEFAULT_SHORTEST_PAUSE: Final = timedelta(seconds=5)
"""The usual time from an event until its run has received. A second event before that would find no messages."""

DEFAULT_LONGEST_PAUSE: Final = timedelta(minutes=5)

FIRST_WAIT_SECONDS: Final = 5.0
LONGEST_WAIT_SECONDS: Final = 300.0
"""Pauses after an error: the first, doubled each time up to the longest."""

LONGEST_MISSING_SECONDS: Final = 30.0
"""The longest pause while the queue does not exist: it is often made after the DAG, and then messages wait in it."""

LONGEST_SILENCE_SECONDS: Final = 3600.0
"""Longest time between two log lines about an error that goes on; the time doubles up to this."""


class SqsLeaseTrigger(BaseEventTrigger):
    """The trigger that starts runs when there are messages: use it in an ``AssetWatcher`` of the DAG's asset.

    For example::

        orders_queue = Asset("orders", watchers=[AssetWatcher("orders", trigger=SqsLeaseTrigger("orders"))])

        @dag(schedule=orders_queue)
        def process_orders():
            with sqs_lease("orders", event=orders_queue, max_messages=100) as orders:
                load(orders)

    It only counts the messages. The run receives them, by the options of its ``sqs_lease()``.

    Args:
        queue_url: The queue's URL, name or ARN.
        poll_interval: How often the messages are counted: seconds or a ``timedelta``, 2 s by default, 1 s at least.
            Each count is one request: every 2 s is 1.3 million a month, 0.52 USD.
        shortest_pause: The shortest time between two events, 5 s by default. While runs take messages and there are
            more, a DAG gets a new run this often, up to its ``max_active_runs``.
        longest_pause: The longest time between two events while there are messages, 5 minutes by default. The time
            grows up to it while events have no effect: slots are missing, or the messages fail again and again.
        aws_conn_id: The Airflow connection; None for boto3's default credentials.
        region_name: The AWS region; None takes the connection's.
        verify: Whether, or by which certificates, TLS is verified; None takes the connection's.
        botocore_config: Arguments of ``botocore.config.Config``, as a mapping or as JSON.

    Raises:
        ValueError: A value is out of range, or ``queue_url`` is not a queue name, URL or ARN.
        TypeError: A value cannot be sent to the triggerer, or an option says how messages are received.
    """

    def __new__(cls, *queue_url: Any, **options: Any) -> Self:
        """Refuse options of the sensor, and a missing queue; Python would not say what to write instead."""
        refuse_sensor_options(cls.__name__, options)
        if not queue_url and "queue_url" not in options:
            raise TypeError(f"{cls.__name__} needs queue_url, the queue's URL, name or ARN: {cls.__name__}('orders')")
        return super().__new__(cls)

    def __init__(
        self,
        queue_url: str,
        *,
        poll_interval: Duration = DEFAULT_POLL_INTERVAL,
        shortest_pause: Duration = DEFAULT_SHORTEST_PAUSE,
        longest_pause: Duration = DEFAULT_LONGEST_PAUSE,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: Mapping[str, Any] | str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A stored botocore_config is a string. DAG files give a mapping, so their authors see each error as it is.
        with _only_type_errors() if isinstance(botocore_config, str) else nullcontext():
            check_queue(queue_url)
            self.queue_url = queue_url
            self.poll_seconds = seconds_of(poll_interval, name="poll_interval", minimum=1)
            self.shortest_pause_seconds = seconds_of(shortest_pause, name="shortest_pause", minimum=1)
            self.longest_pause_seconds = seconds_of(
                longest_pause, name="longest_pause", minimum=self.shortest_pause_seconds
            )
            given = json.loads(botocore_config or "{}") if isinstance(botocore_config, str) else botocore_config
            self.connection = AwsConnection.of(aws_conn_id, region_name, verify, given, queue=queue_url)
        self.botocore_config: dict[str, Any] | None = dict(given) if given else None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, for Airflow."""
        return (
            f"{SqsLeaseTrigger.__module__}.{SqsLeaseTrigger.__qualname__}",
            {
                "queue_url": self.queue_url,
                "poll_interval": self.poll_seconds,
                "shortest_pause": self.shortest_pause_seconds,
                "longest_pause": self.longest_pause_seconds,
                "aws_conn_id": self.connection.aws_conn_id,
                "region_name": self.connection.region_name,
                "verify": self.connection.verify,
                "botocore_config": self.connection.botocore_config,
            },
        )

    def shared_stream_key(self) -> Hashable:
        """Return the key of the poll that watchers share: the same queue, connection and interval."""
        return type(self).__qualname__, self.queue_url, self.connection, self.poll_seconds

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[CountedQueue]:
        """Count for all watchers of one key, until Airflow ends it.

        Args:
            kwargs: The arguments of any of them.
        """
        watcher = cls(**kwargs)
        keepers = triggerer_keepers()
        await keepers.ready()
        poll = _Poll(watcher, keepers)
        try:
            while True:
                if (counted := await poll.count()) is not None:
                    yield counted
                    await asyncio.sleep(watcher.poll_seconds)
        finally:
            await poll.close()

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Fire events by the counts of a poll."""
        clock = triggerer_keepers().clock
        pace = Pace(
            shortest_pause_seconds=self.shortest_pause_seconds, longest_pause_seconds=self.longest_pause_seconds
        )
        async for counted in shared_stream:
            if pace.fires(counted.counts, clock.now()):
                yield TriggerEvent(counted.payload())  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Count for this watcher alone, if its poll is not shared."""
        async for event in self.filter_shared_stream(self.open_shared_stream(self.serialize()[1])):
            yield event


@contextmanager
def _only_type_errors() -> Iterator[None]:
    """Raise a TypeError in place of any other error.

    If the class of a trigger raises a TypeError, Airflow's triggerer logs it, gives that trigger up, and goes on. Any
    other error ends the triggerer and all its triggers, again after each restart, because the arguments are still in
    the database. They were valid when the DAG was parsed, but may not be in the triggerer: another release of this
    package may run there.
    """
    try:
        yield
    except TypeError:
        raise
    except Exception as error:
        raise TypeError(
            "SqsLeaseTrigger cannot be made from its stored arguments in this triggerer, which must run the same "
            f"release of sqs-lease, with the same extras, as the DAG processor: {error!r}"
        ) from error


@dataclass(frozen=True, slots=True)
class CountedQueue:
    """One count, as watchers get it.

    Attributes:
        queue_url: The queue.
        counts: Its numbers of messages.
    """

    queue_url: str
    counts: QueueCounts

    def payload(self) -> dict[str, Any]:
        """Return the payload of an event. Airflow logs it and keeps it for good, so it has no part of the messages."""
        return {"queue_url": self.queue_url, "messages": self.counts.visible}


class _Poll:
    """The repeated count of one queue.

    Args:
        watcher: One of the watchers.
        keepers: The clients of this process.
    """

    def __init__(self, watcher: SqsLeaseTrigger, keepers: TriggererKeepers) -> None:
        self._queue = watcher.queue_url
        self._connection = watcher.connection
        self._keepers = keepers
        self._shared_keeper: SharedKeeper | None = None
        self._queue_url: str | None = None
        self._outage = _Outage(self._queue, keepers.clock)
        self._age = PollAge(self._queue, keepers.clock)
        self._showing = asyncio.create_task(self._age.show(), name=f"sqs-lease poll age of {self._queue}")

    async def count(self) -> CountedQueue | None:
        """Count once; after an error wait for a while, and return None."""
        try:
            counted = await self._count()
        except Exception as error:
            # Any error is caught, because the end of a poll would end all its watchers.
            if not isinstance(error, SqsError | OSError):
                logger.exception("Counting the messages of %s failed unexpectedly", self._queue)
            await self._outage.wait(error)
            return None
        self._outage.is_over()
        self._age.answered()
        return counted

    async def close(self) -> None:
        """Give up the client."""
        self._showing.cancel()
        if self._shared_keeper is not None:
            await self._keepers.release(self._shared_keeper)

    async def _count(self) -> CountedQueue:
        if self._shared_keeper is None:
            with translate_client_errors(self._queue):
                self._shared_keeper = await self._keepers.acquire(self._connection)
        transport = self._shared_keeper.keeper.transport
        if self._queue_url is None:
            self._queue_url = await transport.queue_url(self._queue)
        counted = await transport.queue_attributes(self._queue_url)
        return CountedQueue(self._queue_url, QueueCounts(counted.visible, counted.in_flight, counted.delayed))


@dataclass(slots=True)
class _Outage:
    """The waits after errors, longer each time. A new error is logged at once, the same one less and less often."""

    queue_url: str
    clock: Clock
    seconds: float = FIRST_WAIT_SECONDS
    logged: str = ""
    silence_seconds: float = 0.0
    silent_until: float = 0.0

    async def wait(self, error: Exception) -> None:
        """Log the error, and wait."""
        longest = LONGEST_MISSING_SECONDS if isinstance(error, QueueNotFoundError) else LONGEST_WAIT_SECONDS
        seconds = min(self.seconds, longest)
        self.seconds = min(self.seconds * 2, LONGEST_WAIT_SECONDS)
        self._say(str(error), seconds)
        await asyncio.sleep(seconds)

    def _say(self, text: str, seconds: float) -> None:
        now = self.clock.now()
        if text != self.logged:
            self.logged, self.silence_seconds = text, FIRST_WAIT_SECONDS
        elif now < self.silent_until:
            return
        self.silent_until = now + self.silence_seconds
        self.silence_seconds = min(self.silence_seconds * 2, LONGEST_SILENCE_SECONDS)
        logger.error("No events of %s for %g s: %s", self.queue_url, seconds, text)

    def is_over(self) -> None:
        """Note that a call succeeded: the next error waits the shortest time again, and is logged."""
        self.seconds, self.logged = FIRST_WAIT_SECONDS, ""


def watchers_of(asset: Asset) -> list[SqsLeaseTrigger]:
    """Return the triggers of an asset's watchers that count queues, also those by ``MessageQueueTrigger``."""
    triggers = [getattr(watcher.trigger, "trigger", watcher.trigger) for watcher in asset.watchers]
    return [trigger for trigger in triggers if isinstance(trigger, SqsLeaseTrigger)]
