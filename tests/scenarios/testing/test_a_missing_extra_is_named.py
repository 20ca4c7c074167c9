"""An import without a host's extra says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("missing", "line", "extra"),
    [
        ("airflow", "from sqs_lease.airflow import sqs_lease", "airflow"),
        ("dagster", "from sqs_lease.dagster import SqsQueueResource", "dagster"),
        ("pyarrow", "from sqs_lease.spark import ingest", "spark"),
    ],
)
def test_the_error_names_the_extra(missing: str, line: str, extra: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; {line}"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith(f'pip install "sqs-lease[{extra}]"')
