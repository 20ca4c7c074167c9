"""A parser that says where it runs, and waits until it is stopped."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any


def wait_for_ever(messages: Any) -> Any:
    Path(os.environ["WAITING_PARSER"]).write_text(str(os.getpid()))
    Event().wait(600)
    raise AssertionError("it was not stopped")
