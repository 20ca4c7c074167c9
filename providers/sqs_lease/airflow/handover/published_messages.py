"""Finds messages that Airflow refuses, and reads again what the receiving task published, to dead-letter messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sqs_lease.airflow.airflow_api.requests import RETURN_VALUE_KEY, NoAnswerError, RunOfTask, pull
from sqs_lease.airflow.handover.payload import BatchValue, in_thread, messages_of
from sqs_lease.core.messages import Message


async def find_refused(messages: Sequence[Message], put: Callable[[BatchValue], Awaitable[None]]) -> frozenset[str]:
    """Find the messages that Airflow refuses by themselves, after it refused all of them as one value.

    It halves the value again and again, so one message among 1 000 takes 20 requests.

    Args:
        messages: All of them.
        put: Publishes other messages in place of all. What it published last stands for nothing.

    Returns:
        Their ids; none where Airflow takes each of them.

    Raises:
        CommsError: Airflow takes nothing at all, or gave no answer.
    """

    async def search(some: Sequence[Message]) -> list[str]:
        try:
            await put([message.as_dict() for message in some])
        except NoAnswerError:
            raise
        except Exception:  # noqa: BLE001 - a back end of the user's own raises whatever fits
            if len(some) == 1:
                return [some[0].message_id]
            half = len(some) // 2
            return [*await search(some[:half]), *await search(some[half:])]
        return []

    await put([])
    return frozenset(await search(messages))


class PublishedMessages:
    """The messages of one batch, read when the first is asked for and kept from then on.

    Args:
        task: The receiving task in the run.
    """

    def __init__(self, task: RunOfTask) -> None:
        self._task = task
        self._messages: dict[str, Message] | None = None
        # Many messages that failed together are asked for together; a large batch is a large file.
        self._reading = asyncio.Lock()

    async def __call__(self, message_ids: Sequence[str]) -> Mapping[str, Message]:
        """Return messages by id; ids that are not of the batch are missing.

        Raises:
            CommsError: Airflow does not give what was published.
            PayloadError: It was stored in files, which cannot be read.
        """
        async with self._reading:
            if self._messages is None:
                messages = await in_thread(messages_of, await pull(self._task, RETURN_VALUE_KEY))
                self._messages = {message.message_id: message for message in messages}
        return {name: self._messages[name] for name in message_ids if name in self._messages}
