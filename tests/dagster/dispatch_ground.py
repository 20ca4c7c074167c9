"""Jobs and assets that messages of one queue go to, and a router on them that is evaluated as Dagster does it.

Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import json
from pathlib import Path
from typing import Any

import dagster as dg

from sqs_lease import Message
from sqs_lease.dagster import SqsQueueResource, build_sqs_router

DAYS = dg.StaticPartitionsDefinition(["monday", "tuesday"])
CUSTOMERS = dg.DynamicPartitionsDefinition(name="customers")
BOTH = dg.MultiPartitionsDefinition({"customer": CUSTOMERS, "day": DAYS})


class Load(dg.Config):
    table: str = "orders"


@dg.op
def load(context: dg.OpExecutionContext, config: Load) -> None:
    with SqsQueueResource(queue="orders").lease(context, on_failure="dead_letter") as batch:
        for message in batch:
            if field(message, "fails"):
                raise ZeroDivisionError


@dg.job(executor_def=dg.in_process_executor)
def orders() -> None:
    load()


@dg.job(executor_def=dg.in_process_executor)
def invoices() -> None:
    load()


@dg.config_mapping(config_schema={"number": str})
def numbered(config: Any) -> dict[str, Any]:
    return {"load": {"config": {"table": f"orders_{int(config['number'])}"}}}


@dg.graph
def loads() -> None:
    load()


configured = loads.to_job(name="configured", config=numbered, executor_def=dg.in_process_executor)


def asset(name: str, partitions: dg.PartitionsDefinition[str] | None = None) -> dg.AssetsDefinition:
    @dg.asset(name=name, partitions_def=partitions)
    def made(context: dg.AssetExecutionContext) -> None:
        with SqsQueueResource(queue="orders").lease(context):
            pass

    return made


by_day, by_customer, by_both = asset("by_day", DAYS), asset("by_customer", CUSTOMERS), asset("by_both", BOTH)
plain, other = asset("plain"), asset("other")
ASSETS = [by_day, by_customer, by_both, plain, other]
JOBS = [orders, invoices]


def body(**fields: Any) -> str:
    return json.dumps(fields)


def field(message: Message, name: str) -> Any:
    return json.loads(message.body).get(name)


def kind(message: Message) -> str:
    return str(json.loads(message.body)["kind"])


class Evaluations:
    """A router on the queue `orders`, or another one, evaluated again and again."""

    def __init__(self, instance: dg.DagsterInstance, directory: Path, target: Any, **options: Any) -> None:
        self.instance = instance
        self.name = f"router_{directory.name}".replace("-", "_")
        self._options = {"max_batches": 10, "wait": 0, "linger": 0, "workspace": str(directory), **options}
        self.define(target)

    def define(self, target: Any, **options: Any) -> None:
        """Define the sensor, or define it again as a reload of the code location does."""
        options = {**self._options, **options}
        queue = SqsQueueResource(queue=options.pop("queue", "orders"))
        self.sensor = build_sqs_router(self.name, queue, target, **options)
        self.definitions = dg.Definitions(assets=ASSETS, jobs=JOBS, sensors=[self.sensor])

    def tick(self) -> list[dg.RunRequest]:
        """The runs that an evaluation asks for, as the daemon gets them; dynamic partitions are added as it does."""
        with dg.build_sensor_context(self.instance, definitions=self.definitions, sensor_name=self.name) as context:
            # The daemon's context has it; a test's context knows no instance to look for partitions in.
            context.__dict__["caching_dynamic_partitions_loader"] = self.instance
            data = self.sensor.evaluate_tick(context)
        self.skipped = data.skip_message
        self.added = {each.partitions_def_name: each.partition_keys for each in data.dynamic_partitions_requests or []}
        for name, keys in self.added.items():
            self.instance.add_dynamic_partitions(name, list(keys))
        return list(data.run_requests or [])

    def work(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """Execute the run that was asked for."""
        job = self.definitions.resolve_job_def(request.job_name or str(self.sensor.job_name))
        return job.execute_in_process(
            instance=self.instance,
            run_config=request.run_config,
            tags={**request.tags, "dagster/run_key": request.run_key or ""},
            asset_selection=request.asset_selection,
            raise_on_error=False,
        )
