"""The tasks, edges and roles that `sqs_lease` adds to a DAG, and errors while the DAG is parsed."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, XComArg, setup, task, task_group, teardown
from airflow.sdk import dag as define_dag
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.serialization.serialized_objects import DagSerialization

from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsLeaseSensor, sqs_lease
from sqs_lease.airflow.settlement.rules import WorkTask, work_tasks
from sqs_lease.core.failure_rules import backoff
from sqs_lease.core.policies import Fixed, Threshold

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("shop", schedule=None) as opened:
        yield opened


@task
def load(messages: list[Any]) -> Any:
    return messages


@task
def check(message: Any) -> Any:
    return message


@task
def step(value: Any = None) -> Any:
    return value


def work_of(dag: DAG, keeper_id: str = "orders_keeper") -> list[WorkTask]:
    keeper = dag.task_dict[keeper_id]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    return work_tasks(dag, keeper.work_task_ids, keeper.receive_task_id, keeper.task_id)


def test_a_sensor_and_a_keeper_are_put_around_the_work(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load(orders)
    assert sorted(dag.task_ids) == ["load", "orders", "orders_keeper"]
    assert isinstance(dag.task_dict["orders"], SqsLeaseSensor)
    assert isinstance(dag.task_dict["orders_keeper"], SqsLeaseKeeperOperator)


def test_the_keeper_is_a_teardown_that_starts_with_the_work_and_not_after_it(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load(orders)
    sensor, keeper = dag.task_dict["orders"], dag.task_dict["orders_keeper"]
    assert (sensor.is_setup, keeper.is_teardown) == (True, True)
    assert keeper.upstream_task_ids == {"orders"}
    assert keeper.downstream_task_ids == set()
    assert dag.task_dict["load"].upstream_task_ids == {"orders"}
    assert sensor.downstream_task_ids == {"load", "orders_keeper"}


def test_tasks_that_do_not_use_the_messages_wait_for_them_all_the_same(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        step.override(task_id="prepare")() >> load(orders)
        step.override(task_id="alone")()
    assert dag.task_dict["prepare"].upstream_task_ids == {"orders"}
    assert dag.task_dict["alone"].upstream_task_ids == {"orders"}
    assert [task.task_id for task in work_of(dag)] == ["prepare", "load", "alone"]


def test_tasks_outside_the_body_do_not_count_as_work(dag: DAG) -> None:
    before = step.override(task_id="before")()
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        loaded = load(orders)
    before >> loaded >> step.override(task_id="after")()
    assert [task.task_id for task in work_of(dag)] == ["load"]
    assert dag.task_dict["load"].upstream_task_ids == {"orders", "before"}


def test_a_task_that_depends_on_one_before_the_body_still_waits_for_the_messages(dag: DAG) -> None:
    before = step.override(task_id="before")()
    with sqs_lease("orders", queue_url=QUEUE):
        step.override(task_id="inside")(before)
    assert dag.task_dict["inside"].upstream_task_ids == {"orders", "before"}


def test_a_task_over_the_batch_concerns_all_messages(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load(orders)
    assert work_of(dag) == [WorkTask("load", mapped=False, per_message=False)]


def test_a_task_mapped_over_the_messages_concerns_one_each(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        check.expand(message=orders)
    assert work_of(dag) == [WorkTask("check", mapped=True, per_message=True)]


def test_so_does_one_mapped_over_a_function_of_each_message(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        check.expand(message=orders.map(lambda message: message["Body"]))
    assert work_of(dag) == [WorkTask("check", mapped=True, per_message=True)]


def test_so_does_one_mapped_over_arguments_made_of_each_message(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        check.expand_kwargs(orders.map(lambda message: {"message": message["Body"]}))
    assert work_of(dag) == [WorkTask("check", mapped=True, per_message=True)]


def test_so_do_the_tasks_of_a_group_mapped_over_the_messages(dag: DAG) -> None:
    @task_group
    def process(message: Any) -> None:
        check(message) >> step()

    with sqs_lease("orders", queue_url=QUEUE) as orders:
        process.expand(message=orders)
    assert work_of(dag) == [
        WorkTask("process.check", mapped=True, per_message=True),
        WorkTask("process.step", mapped=True, per_message=True, skipped_behind=("process.check",)),
    ]


def test_a_task_mapped_over_something_else_concerns_all_messages(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        step.override(task_id="chunk").expand(value=load(orders))
        check.expand(message=[1, 2])
    assert work_of(dag) == [
        WorkTask("load"),
        WorkTask("chunk", mapped=True, skipped_behind=("load",)),
        WorkTask("check", mapped=True),
    ]


def test_a_task_mapped_over_messages_and_something_else_concerns_all_messages(dag: DAG) -> None:
    @task
    def pair(message: Any, region: str) -> None: ...

    with sqs_lease("orders", queue_url=QUEUE) as orders:
        pair.expand(message=orders, region=["eu", "us"])
    assert work_of(dag) == [WorkTask("pair", mapped=True, returns=False)]


@pytest.mark.filterwarnings("ignore:.* drops what load, check")
def test_a_task_that_leaves_no_return_value_is_known_to_name_no_failures(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load.override(do_xcom_push=False)(orders)
        check.override(do_xcom_push=False).expand(message=orders)
    assert [task.returns for task in work_of(dag)] == [False, False]


def test_a_function_that_says_it_returns_nothing_is_known_to_name_no_failures(dag: DAG) -> None:
    @task
    def store(message: Any) -> None:
        """Annotated, as a text in this module."""

    def evaluated(message: Any) -> None:
        """Annotated, and the annotation was evaluated."""

    evaluated.__annotations__["return"] = None

    def naming_failures(function: Any) -> Any:
        @wraps(function)
        def wrapper(message: Any) -> dict[str, Any]:
            function(message)
            return {"batchItemFailures": []}

        return wrapper

    @task
    @naming_failures
    def wrapped(message: Any) -> None:
        """Annotated, but a decorator returns something."""

    @task
    def says_nothing(message):  # type: ignore[no-untyped-def]
        """Not annotated: a function's code is not looked at."""

    @task.branch
    def choose(message: Any) -> Any:
        return message

    with sqs_lease("orders", queue_url=QUEUE) as orders:
        store.expand(message=orders)
        store.override(task_id="all")(orders)
        task(evaluated)(orders)
        wrapped(orders)
        says_nothing(orders)
        choose(orders)
        choose.override(task_id="each").expand(message=orders)
    returning = {task.task_id for task in work_of(dag) if task.returns}
    assert returning == {"wrapped", "says_nothing"}


@pytest.mark.parametrize(
    ("rule", "behind", "all_of_them"),
    [
        *((rule, ("check", "load"), False) for rule in ("all_success", "none_skipped", "all_done_min_one_success")),
        *((rule, ("check", "load"), True) for rule in ("one_success", "one_done", "none_failed_min_one_success")),
        *((rule, (), False) for rule in ("none_failed", "all_done", "always")),
        *((rule, None, False) for rule in ("all_failed", "one_failed", "all_skipped", "all_done_setup_success")),
    ],
)
def test_for_which_tasks_a_task_is_skipped_follows_from_its_trigger_rule(
    dag: DAG, rule: str, behind: tuple[str, ...] | None, all_of_them: bool
) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        before = [load(orders), check(orders)]
        before >> step.override(trigger_rule=rule)()
    found = work_of(dag)[-1]
    assert (found.task_id, found.skipped_behind, found.skipped_behind_all) == ("step", behind, all_of_them)


@pytest.mark.parametrize("rule", ["one_success", "one_done", "none_failed_min_one_success"])
def test_where_the_sensors_success_is_enough_a_task_is_skipped_for_no_other(dag: DAG, rule: str) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load(orders) >> step.override(trigger_rule=rule)(orders)
    assert work_of(dag)[-1].skipped_behind == ()


def test_a_task_may_be_skipped_for_one_that_does_not_count_as_work_and_for_one_that_chooses(dag: DAG) -> None:
    outside = step.override(task_id="outside")()

    @task.short_circuit
    def choose(messages: Any) -> bool:
        return bool(messages)

    with sqs_lease("orders", queue_url=QUEUE) as orders:
        outside >> load(orders)
        choose(orders) >> check(orders)
        choose.override(task_id="choose_each").expand(messages=orders) >> step.override(trigger_rule="none_failed")()
    behind = {task.task_id: task.skipped_behind for task in work_of(dag)}
    assert behind == {"load": None, "choose": (), "check": None, "choose_each": (), "step": None}


def test_a_task_may_be_skipped_for_a_setup_further_before_it(dag: DAG) -> None:
    start = setup(step.override(task_id="start").function)
    stop = teardown(step.override(task_id="stop").function)
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        started = start()
        started >> load(orders) >> check(orders) >> stop().as_teardown(setups=started)
    assert [task.skipped_behind for task in work_of(dag)] == [None, None]


def chained_work(dag: DAG) -> dict[str, tuple[bool, bool]]:
    return {task.task_id: (task.per_message, task.chained) for task in work_of(dag)}


def test_a_chain_of_mapped_tasks_works_on_the_messages_one_by_one(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        checked = check.expand(message=orders)
        loaded = check.override(task_id="load").expand(message=checked.map(lambda value: value))
        step.expand(value=loaded)
    assert chained_work(dag) == {"check": (True, False), "load": (True, True), "step": (True, True)}


def test_so_does_a_task_mapped_over_the_results_of_a_mapped_group(dag: DAG) -> None:
    @task_group
    def process(message: Any) -> Any:
        return check(message)

    with sqs_lease("orders", queue_url=QUEUE) as orders:
        results: Any = process.expand(message=orders)
        step.expand(value=results)
    assert chained_work(dag) == {"process.check": (True, False), "step": (True, True)}


def test_results_zipped_with_others_belong_to_no_message_in_particular(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        checked = check.expand(message=orders)
        step.expand(value=checked.zip(orders))
        step.override(task_id="join").expand(value=checked.concat(orders))
    assert chained_work(dag) == {"check": (True, False), "step": (False, False), "join": (False, False)}


def test_two_leases_in_a_dag_have_their_own_work(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load(orders)
    with sqs_lease("returns", queue_url=QUEUE) as returns:
        check.expand(message=returns)
    assert work_of(dag) == [WorkTask("load")]
    keeper = dag.task_dict["returns_keeper"]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    assert keeper.work_task_ids == ["check"]
    assert dag.task_dict["returns"].upstream_task_ids == set()


def test_the_work_of_an_inner_lease_is_work_of_both_but_not_its_sensor_and_keeper(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load(orders)
        with sqs_lease("details", queue_url=QUEUE) as details:
            check.expand(message=details)
    assert work_of(dag) == [WorkTask("load"), WorkTask("check", mapped=True, skipped_behind=None)]
    inner = dag.task_dict["details_keeper"]
    assert isinstance(inner, SqsLeaseKeeperOperator)
    assert inner.work_task_ids == ["check"]
    assert dag.task_dict["details"].upstream_task_ids == {"orders"}
    assert dag.task_dict["details_keeper"].upstream_task_ids == {"details"}


def test_the_run_fails_with_the_keeper(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load(orders)
    assert dag.task_dict["orders_keeper"].on_failure_fail_dagrun


async def tell_somebody(context: Any) -> None:
    """A callback."""


@pytest.mark.parametrize(
    ("on_lost", "error", "text"),
    [
        ("explode", ValueError, "on_lost must be 'warn', 'raise' or an AsyncCallback"),
        ("fail", ValueError, "on_lost must be 'warn', 'raise' or an AsyncCallback"),
        (AsyncCallback("asyncio.create_subprocess_shell", {"cmd": "true"}), ValueError, "a parameter 'context'"),
        (AsyncCallback("no_such_package.tell"), ValueError, "on_lost, no_such_package.tell, cannot be imported"),
        (tell_somebody, TypeError, "AsyncCallback of airflow.sdk"),
        (AsyncCallback(tell_somebody, {"to": object()}), TypeError, "plain values"),
        (AsyncCallback("unusual_prefix_0123_dag.tell"), ValueError, "defined in a DAG file"),
    ],
    ids=["word", "old word", "program", "no module", "function", "arguments", "DAG file"],
)
def test_an_impossible_rule_for_lost_leases_is_an_error(
    dag: DAG, on_lost: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text), sqs_lease("orders", queue_url=QUEUE, on_lost=on_lost) as orders:
        load(orders)


def test_setups_and_teardowns_in_the_body_do_not_count_as_work_but_wait_for_the_messages(dag: DAG) -> None:
    @setup
    def start_cluster() -> None: ...

    @teardown
    def stop_cluster() -> None: ...

    with sqs_lease("orders", queue_url=QUEUE) as orders:
        start_cluster() >> load(orders) >> stop_cluster()
    assert [task.task_id for task in work_of(dag)] == ["load"]
    assert dag.task_dict["start_cluster"].upstream_task_ids == {"orders"}


def test_two_leases_in_one_dag_have_a_sensor_and_a_keeper_each(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load(orders)
    with sqs_lease("refunds", queue_url="refunds") as refunds:
        load.override(task_id="load_refunds")(refunds)
    assert {"orders", "orders_keeper", "refunds", "refunds_keeper"} <= set(dag.task_ids)
    assert [task.task_id for task in work_of(dag)] == ["load"]


def test_the_tasks_take_the_prefix_of_the_group_they_are_in(dag: DAG) -> None:
    @task_group
    def shop() -> None:
        with sqs_lease("orders", queue_url=QUEUE) as orders:
            load(orders)

    shop()
    keeper = dag.task_dict["shop.orders_keeper"]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    assert (keeper.receive_task_id, keeper.work_task_ids) == ("shop.orders", ["shop.load"])


def test_the_dag_survives_serialisation(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE, policy=Threshold(visibility=30), on_failure=backoff()) as orders:
        check.expand(message=orders)
        load(orders)
    restored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert sorted(restored.task_dict) == ["check", "load", "orders", "orders_keeper"]
    keeper = restored.get_task("orders_keeper")
    assert keeper.is_teardown
    assert restored.get_task("orders").is_setup
    assert keeper.upstream_task_ids == {"orders"}


def test_the_keeper_is_started_before_the_work_when_slots_are_few(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        load(orders)
    assert dag.task_dict["orders_keeper"].priority_weight > 100 * dag.task_dict["load"].priority_weight


def test_a_body_without_tasks_is_an_error(dag: DAG) -> None:
    lease = sqs_lease("orders", queue_url=QUEUE)
    with pytest.raises(ValueError, match=r"body of sqs_lease\('orders'\) in DAG 'shop' has no tasks"), lease:
        pass


def test_an_error_in_the_body_is_raised_as_it_is(dag: DAG) -> None:
    with pytest.raises(KeyError, match="typo"), sqs_lease("orders", queue_url=QUEUE):
        raise KeyError("typo")


def test_a_lease_outside_a_dag_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="inside a DAG"), sqs_lease("orders", queue_url=QUEUE):
        pass


def test_a_task_named_like_an_instance_of_a_mapped_one_is_an_error(dag: DAG) -> None:
    def define() -> None:
        with sqs_lease("orders", queue_url=QUEUE) as orders:
            check.expand(message=orders)
            step.override(task_id="check_1")()

    with pytest.raises(ValueError, match="'check_1' is named like an instance of the mapped task 'check'"):
        define()


def each(messages: Any) -> Iterator[Any]:
    yield from messages


async def each_later(messages: Any) -> AsyncIterator[Any]:
    for message in messages:
        yield message


@pytest.mark.parametrize("mapped", [False, True], ids=["whole batch", "mapped"])
@pytest.mark.parametrize("function", [each, each_later, partial(each)], ids=["generator", "async generator", "partial"])
def test_work_that_airflow_would_not_run_is_an_error(dag: DAG, function: Any, mapped: bool) -> None:
    def define() -> None:
        with sqs_lease("orders", queue_url=QUEUE) as orders:
            if mapped:
                work: Any = PythonOperator.partial(task_id="work", python_callable=function, do_xcom_push=False)
                work.expand(op_args=orders.map(lambda message: [message]))
            else:
                PythonOperator(task_id="work", python_callable=function, do_xcom_push=False, op_args=[orders])

    with pytest.raises(ValueError, match=r"function of work task 'work' .* would be deleted without any work"):
        define()


def returns_a_report(messages: Any):  # type: ignore[no-untyped-def]
    return {"batchItemFailures": [{"itemIdentifier": message["MessageId"]} for message in messages]}


def returns_nothing(messages: Any) -> None: ...


@pytest.mark.parametrize("function", [returns_a_report, partial(returns_a_report)])
def test_an_author_is_warned_of_work_whose_report_of_failed_messages_would_be_dropped(dag: DAG, function: Any) -> None:
    warned = pytest.warns(UserWarning, match="drops what work of the lease 'orders' in DAG 'shop' return: batchItem")
    with warned, sqs_lease("orders", queue_url=QUEUE, visibility=900) as orders:
        PythonOperator(task_id="work", python_callable=function, do_xcom_push=False, op_args=[orders])


def test_work_that_can_report_or_returns_nothing_gives_no_warning(dag: DAG) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sqs_lease("orders", queue_url=QUEUE, visibility=900) as orders:
            PythonOperator(task_id="a", python_callable=returns_a_report, op_args=[orders])
            PythonOperator(task_id="b", python_callable=returns_nothing, do_xcom_push=False, op_args=[orders])
            BashOperator(task_id="c", bash_command="true", do_xcom_push=False)
            task.short_circuit(task_id="d", do_xcom_push=False)(lambda: True)()


def test_a_generator_runs_where_airflow_stores_its_values(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE) as orders:
        PythonOperator(task_id="work", python_callable=each, op_args=[orders])
    assert {"orders", "work", "orders_keeper"} == set(dag.task_dict)


@pytest.mark.parametrize("names", [("check_1", "orders_keeper"), ("orders", "check_1")])
def test_a_sensor_or_keeper_named_like_an_instance_of_a_mapped_task_is_an_error(
    dag: DAG, names: tuple[str, str]
) -> None:
    sensor_id, keeper_id = names
    sensor = SqsLeaseSensor(task_id=sensor_id, queue_url=QUEUE)
    check.expand(message=XComArg(sensor))
    keeper = SqsLeaseKeeperOperator(task_id=keeper_id, receive_task_id=sensor_id, work_task_ids=["check"])
    keeper.as_teardown(setups=sensor)
    with pytest.raises(ValueError, match="'check_1' is named like an instance of the mapped task 'check'"):
        work_of(dag, keeper_id)


def test_more_messages_than_airflow_can_map_over_are_an_error(dag: DAG) -> None:
    def define() -> None:
        with sqs_lease("orders", queue_url=QUEUE, max_messages=1025) as orders:
            check.expand(message=orders)

    with pytest.raises(ValueError, match=r"'check' is mapped over up to 1025 messages.*max_map_length"):
        define()


def test_as_many_messages_as_wanted_can_be_taken_by_one_task(dag: DAG) -> None:
    with sqs_lease("orders", queue_url=QUEUE, max_messages=2000) as orders:
        load(orders)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"queue_url": "not a queue"}, ValueError, "is not a queue name"),
        ({"queue_url": "ftp://somewhere/orders"}, ValueError, "not the URL of an SQS queue"),
        ({"visibility": 43_201}, ValueError, "visibility must be between 1 and 43200 seconds"),
        ({"visibility": timedelta(hours=13)}, ValueError, "visibility must be between 1 and 43200 seconds"),
        ({"visibility": 0}, ValueError, "visibility must be between"),
        ({"max_messages": 0}, ValueError, "'orders': max_messages must be an integer from 1"),
        ({"max_messages": 120_001}, ValueError, "from 1 to 120000"),
        ({"max_messages": 2.5}, ValueError, "must be an integer"),
        ({"max_messages": True}, ValueError, "must be an integer"),
        ({"linger": -1}, ValueError, "linger must be"),
        ({"handoff_timeout": -1}, ValueError, "handoff_timeout must be"),
        ({"policy": "sometimes"}, ValueError, "policy must be one of growing"),
        ({"policy": "fixed"}, TypeError, "needs arguments"),
        ({"policy": Fixed(visibility=30, every=10), "visibility": 60}, ValueError, "contradicts"),
        ({"botocore_config": {"x": b"bytes"}}, TypeError, "plain values"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_bad_input_is_an_error_while_the_dag_is_parsed(
    dag: DAG, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text), sqs_lease("orders", **{"queue_url": QUEUE, **arguments}) as orders:
        load(orders)


@pytest.mark.parametrize("queue", ["orders", "orders.fifo", QUEUE, "arn:aws:sqs:eu-west-1:123456789012:orders"])
def test_a_queue_is_given_by_name_url_or_arn(dag: DAG, queue: str) -> None:
    with sqs_lease("orders", queue_url=queue) as orders:
        load(orders)


def test_a_templated_queue_is_looked_at_when_it_is_known(dag: DAG) -> None:
    with sqs_lease("orders", queue_url="{{ var.value.orders_queue }}") as orders:
        load(orders)
    assert "queue_url" in dag.task_dict["orders"].template_fields


TEMPLATED = ("queue_url", "max_messages", "payload", "message_filtering_config")
STATEMENT = "{% if params.large %}a{% else %}b{% endif %}"


def lease_with(**arguments: Any) -> None:
    filtering = {"message_filtering": "jsonpath"} if "message_filtering_config" in arguments else {}
    with sqs_lease("orders", **{"queue_url": QUEUE, **filtering, **arguments}) as orders:
        load(orders)


@pytest.mark.parametrize("field", TEMPLATED)
def test_a_template_of_statements_alone_is_looked_at_when_it_is_known(dag: DAG, field: str) -> None:
    lease_with(**{field: STATEMENT})
    assert field in dag.task_dict["orders"].template_fields


@pytest.mark.parametrize("field", TEMPLATED)
def test_the_result_of_another_task_is_looked_at_when_it_is_known(dag: DAG, field: str) -> None:
    lease_with(**{field: step.override(task_id="choose")()})
    assert dag.task_dict["orders"].upstream_task_ids == {"choose"}


@pytest.mark.parametrize("field", TEMPLATED)
def test_a_parameter_of_the_dag_is_looked_at_when_it_is_known(field: str) -> None:
    @define_dag(schedule=None)
    def shop(chosen: Any = None) -> None:
        lease_with(**{field: chosen})

    assert "orders" in shop().task_ids


def test_a_dag_file_loads_no_library_for_aws() -> None:
    # They take a third of a second, in every process that parses the file. A process of its own, because others here
    # have imported them.
    program = """
import sys
from sqs_lease.airflow import SqsLeaseSensor, sqs_lease
print(sorted({"boto3", "aiobotocore", "airflow.providers.amazon.aws.hooks.base_aws"} & sys.modules.keys()))
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"
