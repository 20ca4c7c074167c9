"""The work of the DAGs of production shapes: what becomes of a message stands in its body, and the test says when.

The first word of a body is its kind: a `good` one is done at once, a `long` one when the test opens the gate `finish`,
and a `bad` one fails for good when it opens the gate `fail`. Each start leaves a line in a file that is named like the
body, with the process and its session.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from time import time
from typing import Any, Final

from airflow.sdk.exceptions import AirflowFailException

PLACE: Final = "GATED_WORK"
"""The environment variable with the directory of gates and starts."""

LOOK_SECONDS: Final = 0.2


def do(message: Mapping[str, Any], error: type[Exception] = AirflowFailException) -> None:
    """Do what the message's body says; a bad one raises this error."""
    body = str(message["Body"])
    place = Path(os.environ[PLACE])
    with (place / "started" / body).open("a") as file:
        file.write(f"{os.getpid()} {os.getsid(0)} {time()}\n")
    kind = body.split(maxsplit=1)[0]
    if kind == "long":
        _wait_for(place / "finish")
    if kind == "bad":
        _wait_for(place / "fail")
        (place / "failed" / body).write_text(str(time()))
        raise error(body)


def _wait_for(gate: Path) -> None:
    while not gate.exists():
        Event().wait(LOOK_SECONDS)
