"""A parser that fails with a text that quotes what a message says."""

from __future__ import annotations

from typing import Any


def quote(messages: Any) -> Any:
    raise ValueError(f"what is this: {messages.column('body').to_pylist()[0]}")
