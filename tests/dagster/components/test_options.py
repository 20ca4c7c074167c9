"""The key of a component's YAML that `dg check yaml` marks: it checks the schema, and shows the place of each error."""

from __future__ import annotations

from inspect import signature
from typing import Any

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from sqs_lease.dagster import (
    SqsBacklogSensorComponent,
    SqsFunctionComponent,
    SqsIngestionComponent,
    SqsQueueComponent,
    build_sqs_backlog_sensor,
)
from sqs_lease.dagster.components.options import BacklogSensorOptions, LeaseOptions, QueueOptions
from sqs_lease.dagster.resource import SqsQueueResource
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, DEFAULT_WAIT_SECONDS

YAML = """
queue: {name: orders}
source: {kind: json, schema: id BIGINT}
sink: {kind: delta, path: /data/orders}
workspace: /data/batches
asset: {key: orders}
"""


def errors(changes: str) -> list[tuple[str, str]]:
    """The place of each error, and what it says."""
    attributes: dict[str, Any] = {**yaml.safe_load(YAML), **(yaml.safe_load(changes) or {})}
    found = Draft202012Validator(SqsIngestionComponent.model().model_json_schema()).iter_errors(attributes)
    return [(".".join(map(str, error.absolute_path)), error.message) for error in found]


def test_right_options_have_no_errors() -> None:
    assert errors("") == []
    assert errors("rejects: {kind: delta, path: /data/rejected}") == []


@pytest.mark.parametrize("table", ["source", "sink", "rejects"])
def test_a_kind_and_its_keys_are_checked(table: str) -> None:
    ((place, said),) = errors(f"{table}: {{kind: delt}}")
    assert place == f"{table}.kind"
    assert "'delt' is not one of" in said


def test_an_unknown_key_of_a_table_is_marked() -> None:
    unknown = "Additional properties are not allowed ('pth' was unexpected)"
    assert ("rejects", unknown) in errors("rejects: {kind: delta, path: /data/rejected, pth: /data}")
    assert ("sink", unknown) in errors("sink: {kind: delta, path: /data/orders, pth: /data}")


@pytest.mark.parametrize(
    ("block", "keys"),
    [
        ("queue", "name: orders, "),
        ("lease", "max_messages: 5, "),
        ("asset", "key: orders, "),
        ("retries", ""),
        ("backlog_check", ""),
        ("backlog_sensor", "min_messages: 5, "),
    ],
)
def test_an_unknown_key_is_marked_and_not_its_block(block: str, keys: str) -> None:
    # `dg` marks the key that this says, of the block that it says it of.
    unknown = "Additional properties are not allowed ('region' was unexpected)"
    assert errors(f"{block}: {{{keys}region: eu-west-1}}") == [(block, unknown)]


def test_a_wrong_value_is_marked_and_not_its_block() -> None:
    ((place, _),) = errors("lease: {max_messages: []}")
    assert place == "lease.max_messages"


def test_a_missing_key_is_named() -> None:
    assert errors("queue: {}") == [("queue", "'name' is a required property")]


@pytest.mark.parametrize("block", ["queue", "lease", "asset", "retries", "backlog_check", "backlog_sensor", "sink"])
def test_a_block_may_be_a_template(block: str) -> None:
    assert errors(f"{block}: '{{{{ shop.{block} }}}}'") == []


@pytest.mark.parametrize(
    ("component", "attributes"),
    [
        (SqsQueueComponent, {"resource_key": "orders_queue", "queue": {"name": "orders"}}),
        (SqsFunctionComponent, {"function": "shop.load", "queue": {"component": "orders"}, "asset": {"key": "orders"}}),
        (SqsBacklogSensorComponent, {"name": "waiting", "queue": {"name": "orders"}, "target": "orders"}),
    ],
)
def test_the_other_components_are_checked_in_the_same_way(
    component: type[dg.Model], attributes: dict[str, Any]
) -> None:
    validator = Draft202012Validator(component.model().model_json_schema())  # type: ignore[attr-defined]

    def found(**changes: Any) -> list[tuple[str, str]]:
        errors = validator.iter_errors({**attributes, **changes})
        return [(".".join(map(str, error.absolute_path)), error.message) for error in errors]

    unknown = "Additional properties are not allowed ('region' was unexpected)"
    assert found() == []
    assert found(region="eu-west-1") == [("", unknown)]
    assert found(queue={"name": "orders", "region": "eu-west-1"}) == [("queue", unknown)]
    assert found(queue={}) == [("queue", "'name' is a required property")]


def test_a_block_must_not_be_a_list_or_a_number() -> None:
    assert [place for place, _ in errors("lease: []")] == ["lease"]
    assert [place for place, _ in errors("queue: 5")] == ["queue"]


def test_the_defaults_in_yaml_are_those_in_python() -> None:
    options = LeaseOptions()
    assert (options.max_messages, options.wait_seconds, options.linger_seconds) == (
        DEFAULT_MAX_MESSAGES,
        DEFAULT_WAIT_SECONDS,
        DEFAULT_LINGER_SECONDS,
    )


def test_yaml_has_the_settings_of_the_resource_with_the_same_defaults() -> None:
    of_python = {name: field.default for name, field in SqsQueueResource.model_fields.items() if name != "queue"}
    of_yaml = {name: field.default for name, field in QueueOptions.model_fields.items()}
    assert {name: default for name, default in of_yaml.items() if name not in ("name", "component")} == of_python


def test_yaml_has_the_rules_of_the_backlog_sensor_with_the_same_defaults() -> None:
    in_yaml = BacklogSensorOptions().arguments()
    rules = {name: each.default for name, each in signature(build_sqs_backlog_sensor).parameters.items()}
    # A component names its assets; functions of the backlog need Python.
    elsewhere = {"name", "queue", "target", "messages_per_run", "run_tags"}
    only_python = {"queue_asset", "partition_key", "run_config", "description", "tags"}
    assert in_yaml == {name: default for name, default in rules.items() if name not in elsewhere | only_python}
