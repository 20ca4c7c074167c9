"""The settings of the examples, their queues and directories: environment variables, all but one with a default.

Those of the component are in its own file, `defs/customers/defs.yaml`.
The access to SQS is configured as usual with boto3: `AWS_DEFAULT_REGION`, `AWS_PROFILE`, `AWS_ENDPOINT_URL` and so on.
"""

import os
from pathlib import Path

import dagster as dg

FLIGHTS_QUEUE = dg.EnvVar("FLIGHTS_QUEUE")
"""The name, ARN or URL of the queue with the flights. There is no default: without it, runs and ticks of the sensor
fail and say that this variable is not set.
"""

FLIGHTS_RUN_SECONDS = int(os.environ.get("FLIGHTS_RUN_SECONDS", "0"))
"""For demonstrations: how long the work on a batch of flights takes at least."""

BOOKINGS_QUEUE = os.environ.get("BOOKINGS_QUEUE", "bookings-in-order.fifo")
ORDERS_QUEUE = os.environ.get("ORDERS_QUEUE", "orders")
DELIVERIES_QUEUE = os.environ.get("DELIVERIES_QUEUE", "deliveries")

LAKE = Path(os.environ.get("LAKE_DIRECTORY", "/tmp/lake"))  # noqa: S108 - for a first try only
"""A directory that all run workers reach."""
