"""The exception by which a task says which messages failed."""

from __future__ import annotations

from collections.abc import Iterable


class MessageFailed(Exception):  # noqa: N818 - named by what happened, like AirflowFailException
    """Some messages failed; the others that the task was concerned with count as done by it.

    For example, in a task over the whole batch::

        failed = [message["MessageId"] for message in messages if not load(message)]
        if failed:
            raise MessageFailed(failed)

    While the task has retries left it is simply retried, with all of its messages held. When it fails for good, only
    the messages named are settled by ``on_failure``. Unlike a return value with ``batchItemFailures``, it
    makes the task and the run fail visibly.

    The ids travel to the keeper through the plugin of this package in the worker: with ``[sqs_lease]
    report_failures`` switched off, or in a task whose process is killed, every message of the task fails.

    Args:
        message_ids: The ``MessageId`` of each message that failed (or just one). Naming none, or one that the task
            was not concerned with, fails all of the task's messages.
    """

    def __init__(self, message_ids: str | Iterable[str]) -> None:
        self.message_ids = (message_ids,) if isinstance(message_ids, str) else tuple(message_ids)
        super().__init__(f"{len(self.message_ids)} messages failed: {', '.join(map(str, self.message_ids[:10]))}")
