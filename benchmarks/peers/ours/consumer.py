"""sqs-lease in plain Python: one `Consumer`, at its defaults, for as long as the program runs."""

from __future__ import annotations

import os
from time import sleep, time

from sqs_lease import Consumer, LeasedBatch, Message

WORK_SECONDS = float(os.environ["WORK_SECONDS"])
FAILS = os.environ["FAILS"] == "1"
AT_ONCE = int(os.environ["AT_ONCE"])
WORKERS = 10
LINGER_SECONDS = 60
"""The default of a second is too short to receive thousands in."""


class WorkFailedError(Exception):
    """The work fails, as it was told to."""


def work(_: Message | LeasedBatch) -> None:
    if WORK_SECONDS:
        sleep(WORK_SECONDS)
    if FAILS:
        with open(os.environ["RECORD"], "a") as record:  # noqa: PTH123 - one line, appended at once
            record.write(f"failed {time()}\n")
        raise WorkFailedError


def main() -> None:
    if AT_ONCE > 100:
        # As many threads as messages would measure the threads.
        with Consumer(os.environ["QUEUE_URL"], max_messages=AT_ONCE, linger=LINGER_SECONDS) as consumer:
            consumer.run_batches(work)
    else:
        with Consumer(os.environ["QUEUE_URL"], max_messages=AT_ONCE) as consumer:
            consumer.run(work, concurrency=min(AT_ONCE, WORKERS))


if __name__ == "__main__":
    main()
