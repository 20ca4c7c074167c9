"""Native Delta and Iceberg, on the Spark that their jars support, in an environment of its own."""

from __future__ import annotations

import subprocess

import pytest

from demo.processes import ROOT

ENVIRONMENT = ROOT / ".table-formats"
TESTS = "tests/processes/spark/engines/table_formats"


@pytest.mark.processes
@pytest.mark.timeout(2400)
def test_native_delta_and_iceberg_pass_their_tests_on_a_spark_that_has_jars() -> None:
    # The first time it downloads some 600 MB: that Spark, and the jars.
    subprocess.run([ROOT / "requirements/environment.sh", "table-formats"], check=True, cwd=ROOT)
    command = [str(ENVIRONMENT / "bin/python"), "-m", "pytest", TESTS, "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
