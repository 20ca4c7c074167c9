"""The script of a Glue job that ingests one batch: `--manifest`, `--result` and `--spec` are arguments of the job.

Glue gives its jobs further arguments of its own, so those of the ingestion are picked out.
"""

from __future__ import annotations

import sys

# Only Glue has this module.
from awsglue.utils import getResolvedOptions

from sqs_lease.spark.job.main import main

NAMES = ("manifest", "result", "spec")

given = getResolvedOptions(sys.argv, list(NAMES))
# No exit() after a success: Glue may treat it as a failure, even with code 0.
if main([part for name in NAMES for part in (f"--{name}", given[name])]) != 0:
    raise SystemExit("the ingestion failed: its error is in the log")
