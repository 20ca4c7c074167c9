"""The service's own limits, as constants: each names the rule of Amazon SQS that it comes from."""

from typing import Final

MAX_VISIBILITY_SECONDS: Final = 43_200
"""Longest visibility timeout, 12 hours: ``ChangeMessageVisibility`` accepts 0 to 43 200 seconds.

It is also the longest time a message can stay invisible altogether, counted from the ``ReceiveMessage``
that returned it; an extension that would pass that is rejected, never shortened.
"""

DEFAULT_VISIBILITY_SECONDS: Final = 30
"""Visibility timeout of a queue that was created without one."""

MAX_BATCH_ENTRIES: Final = 10
"""Most entries in one batch call, and most messages that one ``ReceiveMessage`` returns."""

MAX_WAIT_SECONDS: Final = 20
"""Longest long poll of one ``ReceiveMessage``."""

MAX_IN_FLIGHT: Final = 120_000
"""Most messages of one queue that may be in flight.

A standard queue then answers ``OverLimit``; a FIFO queue gives no error, simply no messages.
"""

MAX_DELAY_SECONDS: Final = 900
"""Longest ``DelaySeconds`` of a message that is sent."""

RECEIVE_ATTEMPT_SECONDS: Final = 300
"""How long a FIFO queue remembers a ``ReceiveRequestAttemptId``: repeated within it, it returns the same messages."""
