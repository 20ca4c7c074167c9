"""The two forms of the tests: the short one, and the full one, for which `make chaos` sets a variable."""

from __future__ import annotations

import os
from typing import Final

FULL_FORM: Final = os.environ.get("SQS_LEASE_CHAOS") == "1"
"""Whether tests run in their full form: with more keepers and examples, and Airflow's default settings."""

DAGSTER_DATABASES: Final = ["sqlite", "postgresql"] if FULL_FORM else ["sqlite"]
"""The databases of Dagster's instance."""
