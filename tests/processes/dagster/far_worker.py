"""The run worker of `far_jobs.endless` as a process that can be killed; the environment says on which instance."""

from __future__ import annotations

import dagster as dg

from tests.processes.dagster import far_jobs

if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        dg.execute_job(dg.reconstructable(far_jobs.endless), instance)
