"""``python -m sqs_lease.spark.job``; ``spark-submit`` takes this file as its script, too."""

from __future__ import annotations

import sys

from sqs_lease.spark.job.main import main

if __name__ == "__main__":
    sys.exit(main())
