"""Mistakes of DAG authors: each is an error when the DAG is parsed, which names the argument and says what to write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, cast

import pytest
from airflow.sdk import DAG, task

from sqs_lease import backoff, by_exception, dead_letter, discard, expire, release
from sqs_lease.airflow import (
    SqsLeaseKeeperOperator,
    SqsLeaseSensor,
    SqsLeaseTrigger,
    SqsToSparkOperator,
    read_messages,
    require_held,
    sqs_lease,
    still_held,
)
from sqs_lease.core.failure_rules import FailureRule, Settlement

DURATION = "must be a number of seconds or a timedelta"
RULES = "must be release(), release(delay), backoff(), expire(), dead_letter() or by_exception(), each of sqs_lease"
QUEUE = "must be the queue's URL, name or ARN"
WORDS = "must be 'warn', 'raise' or an AsyncCallback of airflow.sdk"
KINDS = "must be one of literal, jsonpath, jsonpath-ext, attribute, callable"
POLICIES = "must be one of growing, threshold, buffered, fixed, never or a policy object"


class OwnRule(FailureRule):
    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        raise NotImplementedError


def check_body(message: Any) -> bool:
    return bool(message)


@dataclass(frozen=True)
class Mistakes:
    """Values that an argument does not take.

    Attributes:
        argument: The argument.
        remedy: The error's advice to the author.
        values: The values.
        beside: Arguments that are given as well.
    """

    argument: str
    remedy: str
    values: tuple[object, ...]
    beside: dict[str, Any]


def mistakes(argument: str, remedy: str, *values: object, **beside: Any) -> Mistakes:
    return Mistakes(argument, remedy, values, beside)


SPEC: dict[str, Any] = {
    "version": 1,
    "source": {"kind": "json", "schema": "id BIGINT"},
    "sink": {"kind": "delta", "path": "/data/orders"},
    "workspace": "/data/batches",
}

NO_DURATIONS = ("soon", None, True, [5])

OF_THE_SENSOR = [
    mistakes("queue_url", QUEUE, 5, "", None, "a b", "https://x/", "arn:aws:sns:eu-west-1:1:orders"),
    mistakes(
        "queue", "say queue_url=", "https://sqs.eu-west-1.amazonaws.com/1/orders", "arn:aws:sqs:eu-west-1:1:orders"
    ),
    mistakes("max_messages", "must be an integer from 1 to 120000", 0, -1, 2.5, True, None, "ten", 120_001),
    mistakes("max_messages", "lower max_messages", 2_001),
    mistakes("linger", DURATION, *NO_DURATIONS),
    mistakes("linger", "must be at least 0 seconds", -1, timedelta(-1)),
    mistakes("policy", POLICIES, "often", 5, object),
    mistakes("visibility", DURATION, "soon", True, [5]),
    mistakes("visibility", "must be between 1 and 43200 seconds", 0, -1, 43_201),
    mistakes("payload", "a URI or an absolute path", 5, ["s3://bucket"]),
    mistakes("payload", "absolute path that all workers and triggerers share", "batches", "./batches"),
    mistakes("deferrable", "must be True or False", "yes", 1, None),
    mistakes("handoff_timeout", DURATION, *NO_DURATIONS),
    mistakes("handoff_timeout", "must be between 0 and 43200 seconds", -1, timedelta(days=1)),
    mistakes("aws_conn_id", "must be the id of an Airflow connection, or None", 5, ["aws_default"]),
    mistakes("region_name", "must be the name of an AWS region, or None", 5, ["eu-west-1"]),
    mistakes("verify", "must be True, False, the path of a CA bundle, or None", 5, []),
    mistakes(
        "botocore_config", "must be a mapping with arguments of botocore.config.Config", 5, "retries", ["retries"]
    ),
    mistakes("botocore_config", "must hold plain values", {"signature_version": object()}),
    mistakes("botocore_config", "an argument that botocore.config.Config does not take", {"nope": 1}),
    mistakes("botocore_config", "refused by botocore.config.Config", {"retries": {"max_attempts": -1}}),
    mistakes("message_filtering", KINDS, 5, "regex", ["literal"]),
    mistakes(
        "message_filtering_match_values", "must be a list or a set", "a", b"a", {"a": 1}, 5, message_filtering="literal"
    ),
    mistakes(
        "message_filtering_match_values", "must hold JSON values", [b"a"], [object()], message_filtering="literal"
    ),
    mistakes("message_filtering_match_values", "must be strings", [5], ["a", None], message_filtering="literal"),
    mistakes("message_filtering_match_values", "give the values to match", [], set(), message_filtering="literal"),
    mistakes(
        "message_filtering_match_values",
        "give the values to match",
        [],
        message_filtering="attribute",
        message_filtering_config="kind",
    ),
    mistakes("message_filtering_match_values", "message_filtering must be one of", ["a"]),
    mistakes("message_filtering_config", "message_filtering must be one of", "kind"),
    mistakes(
        "message_filtering_config",
        "needs a JSONPath expression",
        5,
        "",
        None,
        message_filtering="jsonpath",
    ),
    mistakes("message_filtering_config", "not a JSONPath expression", "a[", message_filtering="jsonpath-ext"),
    mistakes("message_filtering_config", "needs the name of a message attribute", 5, message_filtering="attribute"),
    mistakes("message_filtering_config", "the dotted path of a function", check_body, message_filtering="callable"),
    mistakes(
        "message_filtering_config",
        "give the path of a function",
        "no_such.function",
        "json",
        message_filtering="callable",
    ),
    mistakes(
        "message_filtering_config",
        "the bodies to match are message_filtering_match_values",
        "body",
        message_filtering="literal",
        message_filtering_match_values=["a"],
    ),
    mistakes(
        "unmatched",
        "must be expire(), release(delay), dead_letter() or discard()",
        "discard",
        5,
        discard,
        message_filtering="literal",
        message_filtering_match_values=["a"],
    ),
    mistakes(
        "unmatched",
        "give it a delay",
        release(),
        message_filtering="literal",
        message_filtering_match_values=["a"],
    ),
    mistakes("unmatched", "needs message_filtering", discard()),
]

OF_THE_KEEPER = [
    mistakes("on_failure", RULES, "release", 5, release, object(), OwnRule(), discard(), ["release"]),
    mistakes("on_lost", WORDS, "fail", "explode", 5, None, check_body),
    mistakes("ordered", "must be True or False", "yes", 1, None),
]

OF_THE_LEASE = [
    mistakes("name", "must be a task id, of letters, digits, dashes, dots and underscores", 5, "", "or ders", None),
    mistakes("event", "must be the Asset that the DAG is scheduled on", "orders", 5, [5]),
    mistakes("keeper_arguments", "must be a dict such as {'pool': 'large'}", 5, ["pool"], "pool"),
    mistakes(
        "keeper_arguments",
        "give these to sqs_lease() itself",
        {"max_messages": 3},
        {"on_failure": release()},
        {"work_task_ids": ["a"]},
        {"task_id": "keep"},
    ),
    mistakes("task_id", "its name is the task id of its sensor", "orders"),
    mistakes("max_mesages", "did you mean max_messages?", 3),
    mistakes("on_failed", "did you mean on_failure?", release()),
    mistakes("retry_forever", "SqsLeaseSensor's docstring has all of them", True),
]

OF_A_KEEPER_BY_ITSELF = [
    mistakes("receive_task_id", "must be the task id of an SqsLeaseSensor", 5, "", None),
    mistakes("work_task_ids", "must be a list of task ids", "load", 5, None, [5], [""]),
    mistakes("work_task_ids", "name the tasks that work on them", [], ()),
    mistakes("handoff_timeout", DURATION, *NO_DURATIONS),
    *OF_THE_KEEPER,
]

OF_SPARK = [
    mistakes("messages", "must be what sqs_lease(...) gives", [], "orders", None),
    mistakes("spec", "must be a mapping", 5, "spec.json", None, []),
    mistakes("spec", "this release reads 1", {}),
    mistakes("spec", "has no 'sink'", {"version": 1, "source": {"kind": "json"}}),
    mistakes("spec", "must have a 'kind' of", {**SPEC, "source": {"kind": "csv"}}),
    mistakes("spark", "must be a Spark master such as 'local[2]'", 5, "", None, ["local"]),
    mistakes("python", "must be the path of a Python", 5, "", None),
    mistakes(
        "connections",
        "must be a dict of environment variables and ids of Airflow connections",
        5,
        "warehouse",
        ["warehouse"],
        {"WAREHOUSE": 5},
        {5: "warehouse"},
    ),
    mistakes("aws_conn_id", "must be the id of an Airflow connection, or None", 5, ["aws_default"]),
    mistakes("submit_conn_id", "must be the id of a Spark connection, or None", 5, ["spark_default"]),
    mistakes("submit_options", "must be a dict of arguments of SparkSubmitHook", 5, "conf", submit_conn_id="spark"),
    mistakes("submit_options", "needs submit_conn_id", {"conf": {}}),
    mistakes("submit_options", "Leave it out", {"yarn_track_via_rm_api": True}, submit_conn_id="spark"),
    mistakes("connections", "give the cluster its secrets in its own way", {"A": "b"}, submit_conn_id="spark"),
    mistakes("aws_conn_id", "give the cluster its secrets in its own way", "aws_default", submit_conn_id="spark"),
]

OF_THE_WATCHER = [
    mistakes("queue_url", QUEUE, 5, "", None, "a b"),
    mistakes("poll_interval", DURATION, *NO_DURATIONS),
    mistakes("poll_interval", "must be at least 1 seconds", 0, -1),
    mistakes("shortest_pause", DURATION, *NO_DURATIONS),
    mistakes("shortest_pause", "must be at least 1 seconds", 0),
    mistakes("longest_pause", DURATION, *NO_DURATIONS),
    mistakes("longest_pause", "must be at least 5 seconds", 0),
    mistakes("aws_conn_id", "must be the id of an Airflow connection, or None", 5),
    mistakes("region_name", "must be the name of an AWS region, or None", 5),
    mistakes("verify", "must be True, False, the path of a CA bundle, or None", 5),
    mistakes("botocore_config", "must be a mapping with arguments of botocore.config.Config", 5, ["retries"]),
    mistakes("botocore_config", "an argument that botocore.config.Config does not take", {"nope": 1}),
    mistakes("max_messages", "Give them to the lease in the DAG that the messages start", 5),
]


def each(table: list[Mistakes]) -> list[Any]:
    return [
        pytest.param(one, value, id=f"{one.argument}={value!r}"[:60].replace(" at 0x", ""))
        for one in table
        for value in one.values
    ]


@task
def load(messages: list[Any]) -> None: ...


@pytest.fixture(autouse=True)
def dag() -> Iterator[DAG]:
    with DAG("shop", schedule=None) as opened:
        yield opened


def assert_refused(call: Callable[[], object], argument: str, remedy: str, *, task_id: str = "") -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        call()
    said = str(refused.value)
    assert re.search(rf"\b{argument}\b", said)
    assert remedy in said
    assert task_id in said


def lease(*args: Any, **arguments: Any) -> None:
    with sqs_lease(*args, **arguments) as messages:
        load(messages)


@pytest.mark.parametrize(("mistake", "value"), each([*OF_THE_SENSOR, *OF_THE_KEEPER, *OF_THE_LEASE]))
def test_a_wrong_argument_of_a_lease_is_named_with_the_remedy(mistake: Mistakes, value: Any) -> None:
    arguments = {"name": "orders", "queue_url": "orders", **mistake.beside, mistake.argument: value}
    assert_refused(lambda: lease(**arguments), mistake.argument, mistake.remedy)


@pytest.mark.parametrize(("mistake", "value"), each(OF_THE_SENSOR))
def test_a_wrong_argument_of_a_sensor_is_named_with_the_remedy_and_the_task(mistake: Mistakes, value: Any) -> None:
    arguments = {"queue_url": "orders", **mistake.beside, mistake.argument: value}
    assert_refused(
        lambda: SqsLeaseSensor(task_id="take_orders", **arguments),
        mistake.argument,
        mistake.remedy,
        task_id="take_orders",
    )


@pytest.mark.parametrize(("mistake", "value"), each(OF_A_KEEPER_BY_ITSELF))
def test_a_wrong_argument_of_a_keeper_is_named_with_the_remedy(mistake: Mistakes, value: Any) -> None:
    arguments: dict[str, Any] = {"receive_task_id": "receive", "work_task_ids": ["load"], mistake.argument: value}
    assert_refused(
        lambda: SqsLeaseKeeperOperator(task_id="keep_orders", **arguments),
        mistake.argument,
        mistake.remedy,
        task_id="keep_orders",
    )


@pytest.mark.parametrize(("mistake", "value"), each(OF_THE_WATCHER))
def test_a_wrong_argument_of_a_watcher_is_named_with_the_remedy(mistake: Mistakes, value: Any) -> None:
    arguments = {"queue_url": "orders", mistake.argument: value}
    assert_refused(lambda: SqsLeaseTrigger(**arguments), mistake.argument, mistake.remedy)


@pytest.mark.parametrize(("mistake", "value"), each(OF_SPARK))
def test_a_wrong_argument_of_an_ingestion_is_named_with_the_remedy_and_the_task(mistake: Mistakes, value: Any) -> None:
    with sqs_lease("orders", queue_url="orders") as messages:
        load(messages)
    arguments: dict[str, Any] = {"messages": messages, "spec": SPEC, **mistake.beside, mistake.argument: value}
    assert_refused(
        lambda: SqsToSparkOperator(task_id="load_orders", **arguments),
        mistake.argument,
        mistake.remedy,
        task_id="load_orders",
    )


@pytest.mark.parametrize("name", [5, None, ["orders"], [{"MessageId": "m"}]])
def test_a_lease_that_is_asked_for_by_something_else_than_its_name(name: Any) -> None:
    with pytest.raises(TypeError, match="lease must be the name of an sqs_lease"):
        still_held(name)
    with pytest.raises(TypeError, match="lease must be the name of an sqs_lease"):
        require_held(name, "m")


@pytest.mark.parametrize("message_ids", [5, None, [5], [None], {"MessageId": "m"}, [{"MessageId": "m"}]])
def test_messages_that_are_asked_for_by_something_else_than_their_ids(message_ids: Any) -> None:
    with pytest.raises(TypeError, match=r"message_ids must be .* message\['MessageId'\]"):
        require_held("orders", message_ids)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: lease("orders", "orders"), "write sqs_lease('orders', queue_url=...)"),
        (lambda: lease(queue_url="orders"), "sqs_lease() needs a name, the task id of its sensor"),
        (lambda: lease(queue="orders"), "write sqs_lease('orders', queue_url=...)"),
        (lambda: lease("orders"), "queue_url must be the queue's URL, name or ARN, and is missing"),
        (lambda: lease("orders", queue="orders"), "is missing (queue is Airflow's name for a queue of workers)"),
        (lambda: SqsLeaseSensor(task_id="receive"), "queue_url must be the queue's URL, name or ARN"),
        (SqsLeaseTrigger, "needs queue_url, the queue's URL, name or ARN"),
        (lambda: read_messages([5]), "read_messages() takes the value of a lease"),  # type: ignore[list-item]
        (lambda: read_messages("body"), "read_messages() takes the value of a lease"),  # type: ignore[arg-type]
        (lambda: read_messages({"a": 1}), "read_messages() takes the value of a lease"),
    ],
)
def test_missing_and_misplaced_arguments_are_named_with_the_remedy(call: Callable[[], object], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        call()


@pytest.mark.parametrize(
    "lease_without_with",
    [
        lambda: sqs_lease("orders", queue_url="orders"),
        lambda: load(cast("Any", sqs_lease("orders", queue_url="orders"))),
        lambda: SqsLeaseSensor(task_id="orders", queue_url="orders"),
    ],
)
def test_a_lease_without_with_is_refused_when_the_dag_was_parsed(
    dag: DAG, lease_without_with: Callable[[], object]
) -> None:
    lease_without_with()
    with pytest.raises(ValueError, match=r"'orders' has no SqsLeaseKeeperOperator .* write with sqs_lease\('orders'"):
        dag.resolve_template_files()  # type: ignore[no-untyped-call]


def test_right_arguments_are_taken(dag: DAG) -> None:
    rules = [release(), release(60), backoff(), expire(), dead_letter(), by_exception({"KeyError": expire()})]
    for number, rule in enumerate(rules):
        lease(f"orders_{number}", queue_url="orders", on_failure=rule, handoff_timeout=timedelta(minutes=1))
    lease(
        name="orders",
        queue_url="{{ params.queue }}",
        aws_conn_id="{{ params.connection }}",
        botocore_config={"retries": {"max_attempts": 3}},
        keeper_arguments={"pool": "large"},
        on_lost="raise",
        ordered=False,
        verify=False,
    )
    assert {"orders", "orders_keeper", "orders_5_keeper"} <= set(dag.task_dict)


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (SqsLeaseSensor, OF_THE_SENSOR),
        (SqsLeaseKeeperOperator, OF_A_KEEPER_BY_ITSELF),
        (SqsLeaseTrigger, OF_THE_WATCHER),
        (SqsToSparkOperator, OF_SPARK),
        (sqs_lease, [*OF_THE_SENSOR, *OF_THE_KEEPER, *OF_THE_LEASE]),
    ],
)
def test_every_argument_of_our_own_has_its_mistakes(kind: Any, table: list[Mistakes]) -> None:
    function = vars(kind)["__init__"] if isinstance(kind, type) else kind
    # Airflow checks those that every task has.
    ours = inspect.signature(function).parameters.keys() - {
        "self",
        "kwargs",
        "arguments",
        "priority_weight",
        "weight_rule",
    }
    assert ours <= {one.argument for one in table}
