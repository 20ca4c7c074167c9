"""Will a run be repeated of which a step has failed? Where that is not known, no exception dead-letters a message."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from sqs_lease import by_exception, dead_letter, expire, release
from sqs_lease.core.failure_rules import FailureRule
from sqs_lease.dagster import SqsQueueResource
from sqs_lease.dagster.retries import DAGSTER_PLUS_VARIABLE, Repetition, failure_rule, repetition
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster.instances import stored_instance

NOT_PLUS: dict[str, str] = {}
PLUS = {DAGSTER_PLUS_VARIABLE: "prod"}


def run(**tags: str) -> dg.DagsterRun:
    return dg.DagsterRun("orders", tags={f"dagster/{name}": value for name, value in tags.items()})


@pytest.fixture(scope="module")
def repeating() -> Iterator[dg.DagsterInstance]:
    with stored_instance(run_retries={"enabled": True, "max_retries": 2}) as made:
        yield made


@pytest.fixture(scope="module")
def repeating_what_crashed() -> Iterator[dg.DagsterInstance]:
    settings = {"enabled": True, "max_retries": 2, "retry_on_asset_or_op_failure": False}
    with stored_instance(run_retries=settings) as made:
        yield made


@pytest.mark.parametrize(
    ("tags", "repeated"),
    [
        ({}, True),
        ({"retry_number": "1"}, True),
        ({"retry_number": "2"}, False),
        ({"max_retries": "0"}, False),
        ({"max_retries": "3", "retry_number": "2"}, True),
        ({"max_retries": "often"}, False),
        ({"max_retries": " 3", "retry_number": "2"}, True),
        ({"max_retries": "-1"}, False),
        ({"retry_number": "a lot"}, True),
        ({"retry_on_asset_or_op_failure": "false"}, False),
        ({"retry_on_asset_or_op_failure": "0"}, False),
    ],
    ids=str,
)
def test_a_run_is_repeated_as_often_as_the_instance_or_its_tag_says(
    repeating: dg.DagsterInstance, tags: dict[str, str], repeated: bool
) -> None:
    expected = Repetition.YES if repeated else Repetition.NO
    assert repetition(repeating, run(**tags), environment=NOT_PLUS) is expected


def test_an_instance_may_repeat_only_what_crashed(repeating_what_crashed: dg.DagsterInstance) -> None:
    assert repetition(repeating_what_crashed, run(), environment=NOT_PLUS) is Repetition.NO
    tagged = run(retry_on_asset_or_op_failure="true")
    assert repetition(repeating_what_crashed, tagged, environment=NOT_PLUS) is Repetition.YES
    refused = run(retry_on_asset_or_op_failure="None")
    assert repetition(repeating_what_crashed, refused, environment=NOT_PLUS) is Repetition.NO


def test_nothing_is_repeated_where_run_retries_are_off(instance: dg.DagsterInstance) -> None:
    assert repetition(instance, run(max_retries="3"), environment=NOT_PLUS) is Repetition.NO


@pytest.mark.parametrize(
    ("tags", "repeated"),
    [
        ({}, Repetition.UNKNOWN),
        ({"max_retries": "0"}, Repetition.NO),
        ({"max_retries": "2", "retry_number": "1"}, Repetition.YES),
        ({"max_retries": "2", "retry_number": "2"}, Repetition.NO),
        ({"retry_on_asset_or_op_failure": "false"}, Repetition.NO),
    ],
    ids=str,
)
def test_on_dagster_plus_only_the_tags_are_known_whatever_the_local_settings_say(
    instance: dg.DagsterInstance, tags: dict[str, str], repeated: Repetition
) -> None:
    assert repetition(instance, run(**tags), environment=PLUS) is repeated


@pytest.fixture
def messages(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", "a", "bad", visibility_seconds=600)


@dg.asset
def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    with queue.lease(context, wait=0, linger=0, on_failure="dead_letter") as batch:
        batch.fail([message for message in batch if message.body == "bad"], "it is bad")
        raise ConnectionError


@pytest.mark.parametrize(
    ("tags", "dead"), [({}, ["bad"]), ({"dagster/max_retries": "0"}, ["a", "bad"])], ids=["not known", "the last one"]
)
def test_on_dagster_plus_an_exception_dead_letters_nothing_unless_the_run_says_that_it_is_the_last(
    messages: LeasedQueue, monkeypatch: pytest.MonkeyPatch, tags: dict[str, Any], dead: list[str]
) -> None:
    monkeypatch.setenv(DAGSTER_PLUS_VARIABLE, "prod")
    resources = {"queue": SqsQueueResource(queue="orders")}
    assert not dg.materialize([orders], resources=resources, tags=tags, raise_on_error=False).success
    assert (sorted(messages.dead_letters), messages.invisible) == (dead, [])


@pytest.mark.parametrize(
    ("rule", "may"),
    [
        (dead_letter(), True),
        (failure_rule("dead_letter"), True),
        (by_exception({ValueError: dead_letter()}), True),
        (by_exception({ValueError: expire()}, otherwise=dead_letter()), True),
        (by_exception({ValueError: expire()}), False),
        (release(), False),
    ],
)
def test_a_rule_that_may_dead_letter_is_told_from_others(rule: FailureRule, may: bool) -> None:
    assert rule.may_dead_letter is may
