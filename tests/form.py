"""The two forms of the tests: the short one of every run, and the full one, for which `make chaos` sets a variable."""

from __future__ import annotations

import os
from typing import Final

import pytest

FULL_FORM: Final = os.environ.get("SQS_LEASE_CHAOS") == "1"
"""Whether everything runs in its full form: all moments, engines and databases, and Airflow's default settings."""

in_full_form: Final = pytest.mark.skipif(not FULL_FORM, reason="in the full form: make chaos")
"""Marks a test that only the full form has."""

DAGSTER_DATABASES: Final = ["sqlite", "postgresql"] if FULL_FORM else ["sqlite"]
"""What Dagster's instance is on."""
