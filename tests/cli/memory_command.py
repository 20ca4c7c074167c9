"""Runs `sqs-lease` on queues in memory, as a process of its own: what a test starts in a terminal.

The real SQS server of the other tests has no move tasks, and moves nothing slowly. Usage::

    python -m tests.cli.memory_command MESSAGES PER_SECOND COMMAND...

There is a queue ``orders``, whose dead-letter queue ``orders-dead-letters`` has so many messages, for two reasons in
turn. A move task moves so many of them in a second.
"""

from __future__ import annotations

import sys
from typing import Final

import pytest

from sqs_lease.cli.__main__ import main
from sqs_lease.keeper.driver import REASON_ATTRIBUTE
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from sqs_lease.testing.memory_transport import MemoryTransport

REASONS: Final = ("JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "TimeoutError: the shop did not answer")


def dead_letter(queues: LeasedQueues, queue: LeasedQueue, messages: int) -> None:
    """Put messages into a dead-letter queue, as ``dead_letter()`` does, for two reasons in turn."""
    for number in range(messages):
        reason = REASONS[number % len(REASONS)]
        attributes = {REASON_ATTRIBUTE: {"DataType": "String", "StringValue": reason}}
        queues.sqs.send(queue.dead_letter_url, f"order {number}", message_attributes=attributes)


def _run() -> None:
    messages, per_second = int(sys.argv[1]), int(sys.argv[2])
    queues = LeasedQueues()
    dead_letter(queues, queues.create("orders"), messages)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sqs_lease.sqs.client.make_client", lambda access=None, *, queue=None: None)
        patched.setattr("sqs_lease.blocking.open_transport", lambda client, queue: MemoryTransport(queues.sqs))
        patched.setattr("sqs_lease.testing.memory_sqs.MAX_MOVES_PER_SECOND", per_second)
        patched.setattr(sys, "argv", ["sqs-lease", *sys.argv[3:]])
        main()


if __name__ == "__main__":
    _run()
