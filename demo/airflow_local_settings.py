"""Imports for the scheduler: Airflow's processes import the module of this name at their start.

The scheduler starts tasks by forking itself. Each needs half a second less of the processor if these modules are
loaded already, and a run of the end-to-end tests has hundreds of tasks.
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
