"""Prices of requests to SQS."""

from __future__ import annotations

from typing import Final

DOLLARS_A_MILLION: Final = 0.40
"""The price of a million requests to standard queues in us-east-1 when this was written."""

FIFO_DOLLARS_A_MILLION: Final = 0.50
"""The price of a million requests to FIFO queues, likewise."""
