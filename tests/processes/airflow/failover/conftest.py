"""Leaves only the figures in the log that `make chaos` shows."""

from __future__ import annotations

import logging

for chatty in ("botocore", "httpx"):
    logging.getLogger(chatty).setLevel(logging.WARNING)
