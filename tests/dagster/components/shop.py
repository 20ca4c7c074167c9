"""A code location with a folder of components, declared in YAML."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

WORK = """
import dagster as dg

worked = []

def load(messages):
    worked.append([message.body for message in messages])

def load_with_context(context, messages):
    return dg.MaterializeResult(metadata={"bodies": [message.body for message in messages], "run": context.run_id})

def fail(messages):
    raise RuntimeError("no")

def value(messages):
    return [message.body for message in messages]

def checked(messages):
    return dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=False, check_name="complete")])

def of_another(messages):
    return dg.MaterializeResult(asset_key="other")

def generator(messages):
    yield 1

async def asynchronous(messages):
    pass

def without():
    pass

class Work:
    pass
"""

QUEUE = """
type: sqs_lease.dagster.SqsQueueComponent
attributes:
  resource_key: orders_queue
  queue: {name: orders}
"""

FUNCTION = """
type: sqs_lease.dagster.SqsFunctionComponent
attributes:
  function: shop_of_tests.work.load
  queue: {component: queues/orders}
  lease: {max_messages: 2, wait_seconds: 0, linger_seconds: 0}
  asset: {key: orders}
"""

SENSOR = """
type: sqs_lease.dagster.SqsBacklogSensorComponent
attributes:
  name: orders_waiting
  queue: {component: queues/orders}
  target: orders
  min_messages: 2
  run_tags: {team: shop}
  running: true
"""


class Shop:
    """A code location with a folder of definitions."""

    def __init__(self, root: Path) -> None:
        self.package = root / "shop_of_tests"
        self.defs = self.package / "defs"
        self.write("../work.py", WORK)
        self.write("../__init__.py", "")
        self.write("queues/orders/defs.yaml", QUEUE)

    def write(self, name: str, text: str) -> None:
        file = self.defs / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (self.defs / name).write_text(text)

    def definitions(self) -> dg.Definitions:
        return dg.load_from_defs_folder(path_within_project=self.package)

    def run(self, *, raise_on_error: bool = True) -> dg.ExecuteInProcessResult:
        job = self.definitions().resolve_implicit_global_asset_job_def()
        return job.execute_in_process(raise_on_error=raise_on_error)


def refused(shop: Shop) -> str:
    """Why the folder cannot be loaded: Dagster's own error, and what it was raised from."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - it differs by the release of Dagster
        shop.definitions().get_repository_def()
    causes: list[str] = []
    error: BaseException | None = raised.value
    while error is not None:
        causes.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(causes)
