"""What Airflow's processes import at their start, by this name: the scheduler, what every task needs.

It starts tasks by forking itself. Each of them takes half a second less of the processor when it finds these modules
there, and a run of the end-to-end tests has hundreds.
"""

import importlib
import sys

NEEDED_BY_TASKS = (
    "airflow.dag_processing.dagbag",
    "airflow.providers.amazon.aws.hooks.sqs",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "sqs_lease.airflow.context",
)

if "scheduler" in sys.argv:
    for name in NEEDED_BY_TASKS:
        importlib.import_module(name)
