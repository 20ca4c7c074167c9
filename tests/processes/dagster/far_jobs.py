"""Jobs whose steps run elsewhere: each in a process that shares nothing with the run worker.

It has another parent, working directory and environment, as a container of Kubernetes, Docker or ECS has. The launcher
cannot end it. Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.step_delegating import (
    CheckStepHealthResult,
    StepDelegatingExecutor,
    StepHandler,
    StepHandlerContext,
)

from tests.dagster.executor_jobs import check

ROOT = Path(__file__).resolve().parents[3]


class Launcher(StepHandler):
    """Starts the steps, and loses sight of them."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}

    @property
    def name(self) -> str:
        return "elsewhere"

    def launch_step(self, step_handler_context: StepHandlerContext) -> Iterator[dg.DagsterEvent]:
        arguments = step_handler_context.execute_step_args
        (key,) = arguments.step_keys_to_execute or ()
        elsewhere = tempfile.mkdtemp(prefix="elsewhere-")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": elsewhere,
            "PYTHONPATH": str(ROOT),
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            # The name of the queue and how to reach it, as every process of a code location knows it.
            **{name: value for name, value in os.environ.items() if name.startswith(("ORDERS_QUEUE", "AWS_"))},
            "LOG": f"{elsewhere}/{key}.log",
        }
        # The shell ends at once, so that the process has another parent.
        started = subprocess.run(
            ["sh", "-c", '"$@" >> "$LOG" 2>&1 & echo $!', "sh", sys.executable, "-m", *arguments.get_command_args()],
            env=environment,
            cwd=elsewhere,
            start_new_session=True,
            stdout=subprocess.PIPE,
            check=True,
        )
        self._pids[key] = int(started.stdout)
        yield from ()

    def check_step_health(self, step_handler_context: StepHandlerContext) -> CheckStepHealthResult:
        (key,) = step_handler_context.execute_step_args.step_keys_to_execute or ()
        if is_at_work(self._pids[key]):
            return CheckStepHealthResult.healthy()
        return CheckStepHealthResult.unhealthy("its process is gone")

    def terminate_step(self, step_handler_context: StepHandlerContext) -> Iterator[dg.DagsterEvent]:
        yield from ()


def is_at_work(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dg.executor(name="elsewhere", requirements=dg.multiple_process_executor_requirements())
def elsewhere(_: dg.InitExecutorContext) -> dg.Executor:
    return StepDelegatingExecutor(
        Launcher(), RetryMode.ENABLED, sleep_seconds=0.2, check_step_health_interval_seconds=3
    )


def leased_in_the_step() -> dg.JobDefinition:
    @dg.job(executor_def=elsewhere)
    def leased_in_the_step() -> None:
        """Its step receives and holds messages of its own."""
        check()

    return leased_in_the_step
