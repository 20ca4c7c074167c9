"""What AWS asks for requests to SQS."""

from __future__ import annotations

from typing import Final

DOLLARS_A_MILLION: Final = 0.40
"""What AWS asked in us-east-1 for a million requests to standard queues when this was written."""

FIFO_DOLLARS_A_MILLION: Final = 0.50
"""The same for FIFO queues."""
