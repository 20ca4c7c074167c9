"""Gives a trigger the content of messages again, from what the receiving task published: to dead-letter them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from sqs_lease.airflow.airflow_api.requests import RETURN_VALUE_KEY, RunOfTask, pull
from sqs_lease.airflow.handover.payload import in_thread, messages_of
from sqs_lease.core.messages import Message


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
