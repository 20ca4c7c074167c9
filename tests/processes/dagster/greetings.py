"""Definitions for the tests of the stack: an asset with a check, a job, a failing job, and a sensor."""

import os
import time

import dagster as dg


@dg.asset
def greeting(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    text = f"Good morning from {os.environ['CITY']}"
    context.log.info(text)
    return dg.MaterializeResult(metadata={"words": 4, "text": text, "share": 0.5, "by": {"Ada": 1}})


@dg.asset_check(asset=greeting)
def polite() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True, metadata={"bows": 2})


@dg.op(config_schema={"seconds": float})
def nap(context: dg.OpExecutionContext) -> None:
    time.sleep(context.op_config["seconds"])


@dg.job(executor_def=dg.multiprocess_executor)
def sleeping() -> None:
    nap()


@dg.op
def fail() -> None:
    raise ValueError("out of greetings")


@dg.job
def failing() -> None:
    fail()


@dg.sensor(job=failing, minimum_interval_seconds=5)
def every_tick(context: dg.SensorEvaluationContext) -> dg.RunRequest:
    return dg.RunRequest(run_key="once", tags={"asked": "by sensor"})


defs = dg.Definitions(
    assets=[greeting],
    asset_checks=[polite],
    jobs=[sleeping, failing],
    sensors=[every_tick],
    # Without a process for each step, which takes seconds to start.
    executor=dg.in_process_executor,
)
