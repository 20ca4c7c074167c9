"""A Dagster code location with an example of each way to work on the messages of an SQS queue.

Start it with `dagster dev -m dagster_defs` (or `dg dev`) in the checkout. The examples are in `defs/`, one file each;
`settings.py` has the environment variables with their queues. SQS is called, and Spark is started, only when a sensor
or a run needs it.
"""

from pathlib import Path

import dagster as dg

from dagster_defs.telemetry import publish_metrics

# Set up before the first lease, which makes its instruments.
publish_metrics()


@dg.definitions
def examples() -> dg.Definitions:
    """Load `defs/`: assets, jobs and sensors of Python files, components of YAML files."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
