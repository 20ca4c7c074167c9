"""sqs-lease in plain Python: one `with lease(...)` after the other, at its defaults."""

from __future__ import annotations

import logging
import os
from time import sleep, time

from sqs_lease import lease

WORK_SECONDS = float(os.environ["WORK_SECONDS"])
FAILS = os.environ["FAILS"] == "1"
AT_ONCE = int(os.environ["AT_ONCE"])
LINGER_SECONDS = 1 if AT_ONCE <= 100 else 60
"""The default where it is enough: thousands of messages take longer to receive than a second."""


class WorkFailedError(Exception):
    """The work fails, as it was told to."""


def work() -> None:
    sleep(WORK_SECONDS)
    if FAILS:
        with open(os.environ["RECORD"], "a") as record:  # noqa: PTH123 - one line, appended at once
            record.write(f"failed {time()}\n")
        raise WorkFailedError


def main() -> None:
    while True:
        try:
            with lease(os.environ["QUEUE_URL"], max_messages=AT_ONCE, linger=LINGER_SECONDS) as batch:
                if batch:
                    work()
        except WorkFailedError:
            logging.exception("Given back")


if __name__ == "__main__":
    main()
