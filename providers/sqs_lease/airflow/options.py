"""The options of this package in Airflow's configuration. Airflow imports it while it reads its configuration."""

from __future__ import annotations

from typing import Final

CONFIG_SECTION: Final = "sqs_lease"
REPORT_FAILURES_OPTION: Final = "report_failures"

PAYLOAD_OPTION: Final = "payload"
"""Where batches are stored that are too large for XCom."""
