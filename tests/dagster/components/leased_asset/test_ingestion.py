"""A table declared in YAML: what is made of it, and what is wrong with it; without Spark."""

from pathlib import Path

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]

from sqs_lease.core.failure_rules import BackoffRule, DeadLetterRule
from sqs_lease.core.specs import resolve_failure_rule
from sqs_lease.dagster import SqsIngestionComponent
from sqs_lease.testing import LeasedQueues
from tests.dagster.spark.test_job import reporting
from tests.ingestion.job_program import JobProgram

YAML = """
queue:
  name: orders
lease:
  max_messages: 2
  wait_seconds: 0
  linger_seconds: 0
  visibility_seconds: 60
  on_failure: dead_letter
source:
  kind: json
  schema: id BIGINT
sink:
  kind: delta
  path: /data/orders
workspace: /data/batches
asset:
  key: shop/orders
"""


def component(changes: str = "", without: str = "") -> SqsIngestionComponent:
    attributes = {**yaml.safe_load(YAML), **(yaml.safe_load(changes) or {})}
    attributes.pop(without, None)
    made: SqsIngestionComponent = SqsIngestionComponent.resolve_from_dict(attributes)
    return made


def definitions(made: SqsIngestionComponent) -> dg.Definitions:
    return made.build_defs(dg.ComponentTree.for_test().load_context)


def asset_of(made: SqsIngestionComponent) -> dg.AssetsDefinition:
    (asset,) = definitions(made).assets or []
    assert isinstance(asset, dg.AssetsDefinition)
    return asset


def test_a_materialization_ingests_a_batch_as_the_yaml_says(leased_queues: LeasedQueues, tmp_path: Path) -> None:
    queue = leased_queues.create("orders", "body 0", "body 1", "body 2")
    program = JobProgram(tmp_path)
    reporting(queue, program, rejected="body 1")
    made = component(f"python: {program.path}\nspark: 'local[1]'\nrejects: {{kind: parquet, path: /data/rejected}}")
    result = dg.materialize([asset_of(made)])
    assert program.bodies() == [["body 0", "body 1"]]
    assert program.spec() == {
        "version": 1,
        "source": {"kind": "json", "schema": "id BIGINT"},
        "sink": {"kind": "delta", "path": "/data/orders"},
        "rejects": {"kind": "parquet", "path": "/data/rejected"},
        "workspace": "/data/batches",
        "spark_conf": {},
    }
    assert "local[1]" in program.noted()["argv"]
    assert queue.dead_letters == ["body 1"]
    assert queue.visible == ["body 2"]
    (materialization,) = result.asset_materializations_for_node("shop__orders")
    assert materialization.asset_key == dg.AssetKey(["shop", "orders"])
    assert materialization.metadata["ingestion/rows"].value == 2
    assert materialization.metadata["sqs/failed"].value == 1


def test_the_asset_is_what_its_spec_says() -> None:
    asset = asset_of(component("asset: {key: orders, group_name: shop, kinds: [deltalake], owners: [team:shop]}"))
    (spec,) = asset.specs
    assert (spec.key, spec.group_name, spec.kinds, spec.owners) == (
        dg.AssetKey("orders"),
        "shop",
        {"deltalake"},
        ["team:shop"],
    )


def test_an_asset_without_kinds_gets_some() -> None:
    assert asset_of(component()).specs_by_key[dg.AssetKey(["shop", "orders"])].kinds == {"sqs", "pyspark", "delta"}


def test_retries_are_those_of_the_step() -> None:
    assert asset_of(component()).op.retry_policy is None
    retried = asset_of(component("retries: {max_retries: 3, delay_seconds: 5}")).op.retry_policy
    assert retried == dg.RetryPolicy(max_retries=3, delay=5)


def test_a_sensor_starts_runs_of_the_asset_where_it_is_asked_for(leased_queues: LeasedQueues) -> None:
    assert not definitions(component()).sensors
    leased_queues.create("orders", "body 0", "body 1", "body 2")
    made = definitions(component("backlog_sensor: {min_messages: 3, running: true}"))
    sensor = made.get_sensor_def("shop__orders_backlog")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance, sensor_name=sensor.name, definitions=made)
        assert len(sensor.evaluate_tick(context).run_requests or []) == 1


def test_its_checks_warn_of_failed_messages_and_of_dead_letters(leased_queues: LeasedQueues, tmp_path: Path) -> None:
    queue = leased_queues.create("orders", "body 0", "body 1")
    program = JobProgram(tmp_path)
    reporting(queue, program)
    made = definitions(component(f"python: {program.path}\nbacklog_check: {{max_visible: 5}}"))
    result = made.resolve_implicit_global_asset_job_def().execute_in_process()
    failed = {each.check_name for each in result.get_asset_check_evaluations() if not each.passed}
    assert failed == {"sqs_lease", "sqs_backlog"}, "one message was rejected, and dead-lettered"
    assert result.success


def test_rules_of_failure_may_have_arguments() -> None:
    given = component("lease: {on_failure: {kind: backoff, initial: 30}}").lease.arguments()
    assert resolve_failure_rule(given["on_failure"]) == BackoffRule(initial=30)
    assert resolve_failure_rule(component().lease.arguments()["on_failure"]) == DeadLetterRule()


def test_the_environment_fills_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_QUEUE", "other-orders")
    monkeypatch.setenv("ORDERS_BATCH", "17")
    made = component('queue: {name: "{{ env.ORDERS_QUEUE }}"}\nlease: {max_messages: "{{ env.ORDERS_BATCH }}"}')
    assert made.queue.name == "other-orders"
    assert made.lease.max_messages == 17


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("queue: {name: ''}", "queue"),
        ("queue: {name: orders, region: eu-west-1}", "region"),
        ("lease: {max_messages: 0}", "max_messages must be an integer from 1 to 120000 .*, not 0"),
        ("lease: {max_messages: 120001}", "max_messages must be an integer from 1 to 120000 .*, not 120001"),
        ("lease: {wait_seconds: .nan}", "wait_seconds\n.*wait must be at least 0 seconds"),
        ("lease: {linger_seconds: .inf}", "linger_seconds\n.*linger must be at least 0 seconds"),
        ("backlog_sensor: {max_wait_seconds: .nan}", "max_wait_seconds must be at least 0, not nan"),
        ("lease: {wait_seconds: -1}", "wait_seconds\n.*wait must be at least 0 seconds, not -1"),
        (
            "lease: {on_failure: dead_lettr}",
            "lease.on_failure: on_failure must be one of .*dead_letter, not 'dead_lettr'",
        ),
        ("lease: {on_failure: {kind: backoff, inital: 3}}", "lease.on_failure: .*inital"),
        ("lease: {policy: fixed}", "lease.policy: the policy 'fixed' needs arguments"),
        ("lease: {policy: growin}", "lease.policy: .*not 'growin'"),
        ("lease: {visibility_seconds: 50000}", "lease.policy: visibility must be between 1 and 43200"),
        ("source: {kind: json, schema: a INT, inferred_schema: /s}", r"source \(json\) needs exactly one of 'schema'"),
        ("sink: {kind: delt, path: /data}", "sink must have a 'kind' of .*did you mean 'delta'"),
        ("rejects: {kind: delta}", r"rejects \(delta\) needs 'path'"),
        ("workspace: data", "workspace must be the absolute path of a directory"),
        ("spark_conf: {spark.jars: [a]}", r"spark_conf\['spark.jars'\] must be a string"),
        ("retries: {max_retries: -1}", "max_retries must be at least 0, not -1"),
        ("backlog_sensor: {min_messages: 0}", "min_messages must be at least 1, not 0"),
    ],
)
def test_a_wrong_setting_is_named_by_its_key_when_the_yaml_is_loaded(changes: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        component(changes)


@pytest.mark.parametrize("key", ["queue", "source", "sink", "workspace", "asset"])
def test_missing_settings_are_named(key: str) -> None:
    with pytest.raises(Exception, match=f"{key}.*\n.*Field required"):
        component(without=key)


def test_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(Exception, match=r"sink\.url has a password in it") as raised:
        component(f"sink: {{kind: postgres, url: 'postgresql://me:{SECRET}@host/shop', table: orders}}")
    assert SECRET not in str(raised.value)
