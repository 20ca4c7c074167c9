"""Jobs over one batch whose steps run elsewhere: each in a process that shares nothing with the run worker.

It has another parent, working directory and environment, and no way to reach SQS, as a container of Kubernetes, Docker
or ECS has. The launcher cannot end it. Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import os
import subprocess
import sys
import tempfile
import time
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

from sqs_lease.dagster.executor import sqs_lease_executor
from tests.dagster.evidence import DIRECTORY_VARIABLE, note
from tests.dagster.executor_jobs import BY_EXCEPTION, QUEUE, check, leased, load, report

ROOT = Path(__file__).resolve().parents[3]
VISIBILITY_SECONDS = 20
NEVER_SECONDS = 600.0
REFUSED = "refused"
"""A step of this name is not launched."""


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
        if key == REFUSED:
            raise ConnectionError("the cluster is away")
        elsewhere = tempfile.mkdtemp(prefix="elsewhere-")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": elsewhere,
            "PYTHONPATH": str(ROOT),
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            DIRECTORY_VARIABLE: os.environ[DIRECTORY_VARIABLE],
            # The name of the queue, as every process of a code location knows it.
            "ORDERS_QUEUE": os.environ["ORDERS_QUEUE"],
            "LOG": f"{os.environ[DIRECTORY_VARIABLE]}/{key}.log",
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


def executor(workspace: str | None = None) -> dg.ExecutorDefinition:
    return sqs_lease_executor(
        QUEUE,
        # Only the run worker reads it.
        workspace=workspace or os.environ.get("ORDERS_WORKSPACE", "/var/lib/orders"),
        wait=2,
        linger=0,
        visibility=VISIBILITY_SECONDS,
        on_failure=BY_EXCEPTION,
        around=elsewhere,
    )


def orders() -> dg.JobDefinition:
    @dg.job(executor_def=executor())
    def orders() -> None:
        """Two steps at a time, then one."""
        report(check(), load())

    return orders


def unreached() -> dg.JobDefinition:
    # A path that is another directory for each process, as one of the local disk is for each container.
    @dg.job(executor_def=executor("/proc/self/cwd/workspace"))
    def unreached() -> None:
        """Its steps do not reach its messages."""
        load()

    return unreached


@dg.op
def obedient(context: dg.OpExecutionContext) -> None:
    with leased(context):
        try:
            # Within: once this is written, the step may be interrupted.
            note("obedient", "received")
            time.sleep(NEVER_SECONDS)
        finally:
            note("obedient", "interrupted")


@dg.op
def stubborn(context: dg.OpExecutionContext) -> None:
    with leased(context):
        note("stubborn", "received")
        while True:
            try:
                time.sleep(NEVER_SECONDS)
            except BaseException:  # noqa: BLE001 - no step should, and some libraries do
                note("stubborn", "goes on")


@dg.op(ins={"after": dg.In(dg.Nothing)})
def never() -> None:
    """Comes after what does not end."""


@dg.op
def soon(context: dg.OpExecutionContext) -> None:
    """Ends when the other step works on the messages."""
    while not (Path(os.environ[DIRECTORY_VARIABLE]) / "obedient.jsonl").exists():
        time.sleep(0.1)


@dg.op(name=REFUSED, ins={"after": dg.In(dg.Nothing)})
def refused() -> None:
    """Cannot be launched."""


def endless() -> dg.JobDefinition:
    @dg.job(executor_def=executor())
    def endless() -> None:
        """Works until somebody ends it, and one step goes on even then."""
        never(after=[obedient(), stubborn()])

    return endless


def broken() -> dg.JobDefinition:
    @dg.job(executor_def=executor())
    def broken() -> None:
        """Its executor fails while a step works."""
        obedient()
        refused(after=soon())

    return broken
