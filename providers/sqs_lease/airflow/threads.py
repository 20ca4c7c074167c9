"""The threads in which triggers make calls that block, by what these wait for: no kind stops another."""

from __future__ import annotations

from typing import Final

from sqs_lease.daemon_threads import DaemonThreads

FILES: Final = DaemonThreads(16, "sqs-lease files")
"""For the files of batches: a file system that hangs takes all of them, and nobody else's."""

CLIENTS: Final = DaemonThreads(8, "sqs-lease clients")
"""For what makes AWS clients: Airflow's connections, which a secrets backend may look up, and botocore's models."""

XCOM_BACKEND: Final = DaemonThreads(16, "sqs-lease XCom backend")
"""For an XCom backend of the user's own."""

AIRFLOW: Final = DaemonThreads(16, "sqs-lease asking Airflow")
"""For questions to Airflow where greenback is missing: more than there are questions at once."""
