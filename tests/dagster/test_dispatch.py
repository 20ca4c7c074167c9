"""A router whose runs are functions of a message: one queue to many jobs, partitions and configurations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sqs_lease import Message, by_exception, dead_letter, expire, lease
from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.dagster import DispatchError, RouterError, SqsQueueResource, build_sqs_router
from sqs_lease.dagster.run_batch.batch_of_run import ROUTED_TAG
from sqs_lease.dagster.run_batch.folder import BatchFolder
from sqs_lease.testing import LeasedQueue, LeasedQueues, MemoryTransport
from tests.dagster.dispatch_ground import (
    JOBS,
    Evaluations,
    Load,
    body,
    by_both,
    by_customer,
    by_day,
    configured,
    field,
    invoices,
    kind,
    orders,
    other,
    plain,
)


@pytest.fixture
def queue(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", visibility_seconds=600)


def bodies(request: dg.RunRequest) -> list[str]:
    return [message.body for message in BatchFolder(Path(request.tags[ROUTED_TAG])).manifest().messages]


def by_job(requests: list[dg.RunRequest]) -> dict[str | None, list[str]]:
    return {request.job_name: bodies(request) for request in requests}


ORDER, INVOICE = body(kind="orders"), body(kind="invoices")


# Where messages go


def test_one_queue_feeds_many_jobs_with_a_batch_for_each(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    evaluations = Evaluations(instance, tmp_path, JOBS, job=kind)
    queue.send(ORDER, INVOICE, ORDER)
    requests = evaluations.tick()
    assert by_job(requests) == {"orders": [ORDER, ORDER], "invoices": [INVOICE]}
    assert len({request.run_key for request in requests}) == 2
    for request in requests:
        assert evaluations.work(request).success
    assert queue.deleted == 3


def test_messages_of_a_group_that_are_behind_one_for_another_run_come_when_that_is_done(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders.fifo", visibility_seconds=600)
    sent = (("orders", "ann"), ("invoices", "ann"), ("orders", "ann"), ("invoices", "bob"))
    texts = [body(kind=job, number=number) for number, (job, _) in enumerate(sent)]
    for text, (_, group) in zip(texts, sent, strict=True):
        queue.send(text, message_group_id=group)
    requests = Evaluations(instance, tmp_path, JOBS, job=kind, queue="orders.fifo").tick()
    assert by_job(requests) == {"orders": [texts[0]], "invoices": [texts[3]]}
    assert queue.invisible == [texts[0], texts[3]]
    with lease("orders.fifo", wait=0, linger=0) as others:
        assert len(others) == 0


def test_a_job_itself_names_it_as_well(queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    queue.send(ORDER, INVOICE)
    choose = {"orders": orders, "invoices": invoices}
    evaluations = Evaluations(instance, tmp_path, JOBS, job=lambda message: choose[kind(message)])
    assert {request.job_name for request in evaluations.tick()} == {"orders", "invoices"}


def test_the_failure_of_one_job_settles_its_messages_alone(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    failing = body(kind="orders", fails=True)
    evaluations = Evaluations(instance, tmp_path, JOBS, job=kind, on_failure=dead_letter())
    queue.send(failing, INVOICE)
    for request in evaluations.tick():
        evaluations.work(request)
    assert queue.dead_letters == [failing]
    assert queue.invisible == []


def test_a_message_goes_to_its_partition(queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    queue.send(body(day="monday"), body(day="tuesday"), body(day="monday", number=2))
    evaluations = Evaluations(instance, tmp_path, by_day, partition_key=lambda message: field(message, "day"))
    by_partition = {request.tags["dagster/partition"]: len(bodies(request)) for request in evaluations.tick()}
    assert by_partition == {"monday": 2, "tuesday": 1}


def test_a_partition_that_is_dynamic_is_added_by_the_evaluation_which_asks_for_its_run(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue.send(body(customer="ann"), body(customer="bob"))
    evaluations = Evaluations(instance, tmp_path, by_customer, partition_key=lambda message: field(message, "customer"))
    requests = evaluations.tick()
    assert evaluations.added == {"customers": ["ann", "bob"]}
    assert {request.tags["dagster/partition"] for request in requests} == {"ann", "bob"}
    assert all(evaluations.work(request).success for request in requests)
    assert queue.deleted == 2


def test_a_dimension_of_a_partition_may_be_dynamic(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    def key(message: Message) -> str:
        return dg.MultiPartitionKey({"customer": field(message, "customer"), "day": field(message, "day")})

    queue.send(body(customer="cid", day="monday"))
    evaluations = Evaluations(instance, tmp_path, by_both, partition_key=key)
    (request,) = evaluations.tick()
    assert evaluations.added == {"customers": ["cid"]}
    assert request.tags["dagster/partition"] == "cid|monday"


def test_assets_configuration_and_tags_may_depend_on_the_message(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue.send(body(asset="plain"), body(asset="other"))
    evaluations = Evaluations(
        instance,
        tmp_path,
        [plain, other],
        asset_selection=lambda message: [field(message, "asset")],
        run_tags=lambda message: {"asset": field(message, "asset")},
    )
    selected = {request.tags["asset"]: request.asset_selection for request in evaluations.tick()}
    assert selected == {"plain": [dg.AssetKey("plain")], "other": [dg.AssetKey("other")]}

    queue.send(body(table="returns"))
    evaluations = Evaluations(
        instance,
        tmp_path / "configured",
        orders,
        run_config=lambda message: dg.RunConfig(ops={"load": Load(table=field(message, "table"))}),
    )
    (request,) = evaluations.tick()
    assert request.run_config["ops"] == {"load": {"config": {"table": "returns"}}}
    assert evaluations.work(request).success


def test_values_that_are_not_functions_are_those_of_all_runs(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue.send("a", "b")
    (request,) = Evaluations(instance, tmp_path, by_day, partition_key="monday", run_tags={"team": "orders"}).tick()
    assert (request.tags["dagster/partition"], request.tags["team"]) == ("monday", "orders")
    assert bodies(request) == ["a", "b"]


# One message that cannot go anywhere


def refused(key: Any) -> Callable[[Message], Any]:
    return lambda message: key if field(message, "bad") else "monday"


def raising(message: Message) -> str:
    return str({"monday": "monday"}[field(message, "day")])


def leaving(message: Message) -> str:
    if field(message, "bad"):
        raise SystemExit
    return "monday"


GOOD, BAD = body(day="monday"), body(day="somewhere", bad=True)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raising, r"partition_key raised KeyError at test_dispatch.py:\d+: 1 messages dead-lettered"),
        (leaving, "partition_key raised SystemExit"),
        (refused("sunday"), "partition_key returned 'sunday', which is not a partition of the target"),
        (refused(7), "partition_key returned a value of type int: it must be a string"),
        (refused(""), "partition_key returned a value of type str: it must be a string"),
    ],
    ids=["raises", "exits", "unknown partition", "another type", "empty"],
)
def test_a_message_that_cannot_go_anywhere_is_settled_by_itself_and_the_others_go_on(
    queue: LeasedQueue,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    function: Callable[[Message], Any],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    evaluations = Evaluations(instance, tmp_path, by_day, partition_key=function, on_failure=dead_letter())
    queue.send(GOOD, BAD, GOOD)
    (request,) = evaluations.tick()
    assert bodies(request) == [GOOD, GOOD]
    # It is sent there before it is deleted here.
    assert (queue.dead_letters, queue.invisible) == ([BAD], [GOOD, GOOD])
    assert evaluations.work(request).success
    assert re.search(said, told := capsys.readouterr().err)
    assert "somewhere" not in told
    assert queue.invisible == []
    assert queue.visible == []
    assert evaluations.tick() == []


@pytest.mark.parametrize(
    ("target", "functions", "said"),
    [
        (JOBS, {"job": lambda _: "returns"}, "job returned 'returns', .*one of the sensor's jobs: orders, invoices"),
        (JOBS, {"job": lambda _: None}, "job returned None: it must be a job or a job's name"),
        (orders, {"run_config": lambda _: ["a"]}, "run_config returned a value of type list"),
        (orders, {"run_config": lambda _: {"ops": {object(): 1}}}, "run_config returned values that are not JSON"),
        (
            orders,
            {"run_config": lambda _: {"ops": {"load": {"config": {"table": ["secret"]}}}}},
            r"the run configuration does not fit the sensor's target \(.*ops:load:config:table",
        ),
        (
            configured,
            {"run_config": lambda _: {"number": "secret"}},
            r"the run configuration does not fit the sensor's target \(DagsterConfigMappingFunctionError\)",
        ),
        (orders, {"run_tags": lambda _: {"number": 1}}, "run_tags returned a value of type dict"),
        (orders, {"partition_key": lambda _: "monday"}, "partition_key returned 'monday', but .* is not partitioned"),
        (by_both, {"partition_key": lambda _: "monday"}, "cannot have a partition with this key"),
        (by_customer, {"partition_key": lambda _: "a\nb"}, "cannot have a partition with this key"),
        (plain, {"asset_selection": lambda _: ["other"]}, "'other', which the sensor's target does not have"),
        (plain, {"asset_selection": lambda _: "plain"}, "it must be a list of asset keys"),
        (plain, {"asset_selection": lambda _: []}, "asset_selection returned an empty list"),
        (plain, {"asset_selection": lambda _: [None]}, "it must be a list of asset keys"),
        (plain, {"asset_selection": lambda _: [["plain", 1]]}, "it must be a list of asset keys"),
        (
            orders,
            {"run_config": lambda _: {"ops": {"a": float("nan")}}},
            "run_config returned values that are not JSON",
        ),
        # JSON can say this as "\ud800", and no store of runs can take it.
        (by_customer, {"partition_key": lambda _: "\ud800"}, "partition_key returned text that is not Unicode"),
        (plain, {"asset_selection": lambda _: ["\ud800"]}, "asset_selection returned text that is not Unicode"),
        (orders, {"run_config": lambda _: {"ops": {"a": "\ud800"}}}, "run_config returned text that is not Unicode"),
        (orders, {"run_tags": lambda _: {"a": "\ud800"}}, "run_tags returned text that is not Unicode"),
        (JOBS, {"job": lambda _: "\ud800"}, "job returned text that is not Unicode"),
        # Postgres refuses this when the run is made, after the evaluation.
        (orders, {"run_tags": lambda _: {"a": "b\0"}}, "run_tags returned a tag with a NUL character"),
        (orders, {"run_tags": lambda _: {"a": "b" * 2_001}}, "run_tags returned a tag of more than 2000 bytes"),
        (by_customer, {"partition_key": lambda _: "b" * 2_001}, "partition_key returned .* of more than 2000 bytes"),
        # By these a run would find another batch than its own.
        (orders, {"run_tags": lambda _: {"sqs_lease/batch": "/etc"}}, "run_tags returned a tag that the router sets"),
    ],
    ids=lambda value: value.split()[-1] if isinstance(value, str) else "",
)
def test_an_answer_that_cannot_be_used_fails_the_evaluation_and_gives_the_messages_back(
    queue: LeasedQueue,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    target: Any,
    functions: dict[str, Any],
    said: str,
) -> None:
    evaluations = Evaluations(instance, tmp_path, target, **functions)
    queue.send("an order")
    with pytest.raises(RouterError, match=said) as raised:
        evaluations.tick()
    assert "secret" not in str(raised.value)
    assert queue.visible == ["an order"]


def test_a_message_that_cannot_go_anywhere_and_that_sqs_refuses_to_settle_is_told_by_an_evaluation(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def denied(_: object, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        return [EntryAnswer(change.receipt, Verdict.REFUSED, text="AccessDenied") for change in changes]

    monkeypatch.setattr(MemoryTransport, "change_visibility", denied)
    evaluations = Evaluations(instance, tmp_path, by_day, partition_key=refused("sunday"))
    queue.send(BAD)
    with pytest.raises(RouterError, match=r"could not be settled.*AccessDenied") as raised:
        evaluations.tick()
    assert "somewhere" not in str(raised.value)


def test_a_long_answer_is_cut_in_the_error(queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    queue.send("x" * 10_000)
    evaluations = Evaluations(instance, tmp_path, by_day, partition_key=lambda message: message.body)
    with pytest.raises(RouterError) as raised:
        evaluations.tick()
    assert len(str(raised.value)) < 500


def test_the_failure_rule_may_choose_by_what_the_function_raised(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    rule = by_exception({KeyError: dead_letter(), DispatchError: expire()})
    evaluations = Evaluations(
        instance,
        tmp_path,
        by_day,
        partition_key=lambda message: "sunday" if field(message, "sunday") else raising(message),
        on_failure=rule,
    )
    sunday = body(sunday=True)
    queue.send(BAD, sunday)
    with pytest.raises(RouterError, match="left to expire"):
        evaluations.tick()
    assert (queue.dead_letters, queue.invisible) == ([BAD], [sunday])


# Errors of all runs


def test_a_value_that_fits_no_run_fails_the_evaluation_before_anything_is_received(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue.send("an order")
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (by_day, {"partition_key": "sunday"}, "partition_key is 'sunday', which is not a partition"),
        (orders, {"run_config": {"ops": {"lod": {}}}}, "the run configuration does not fit"),
    ]
    for number, (target, options, said) in enumerate(cases):
        with pytest.raises(ValueError, match=said):
            Evaluations(instance, tmp_path / str(number), target, **options).tick()
    assert queue.visible == ["an order"]
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_configuration_that_fits_no_job_is_not_the_messages_fault(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue.send(ORDER)
    evaluations = Evaluations(
        instance, tmp_path, JOBS, job=kind, run_config={"ops": {"lod": {}}}, on_failure=dead_letter()
    )
    with pytest.raises(ValueError, match="the run configuration does not fit job orders"):
        evaluations.tick()
    assert (queue.visible, queue.dead_letters) == ([ORDER], [])


def test_functions_need_the_definitions_and_say_so(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue.send(ORDER)
    evaluations = Evaluations(instance, tmp_path, JOBS, job=kind)
    with pytest.raises(ValueError, match=r"build_sensor_context\(definitions=...\)"):
        evaluations.sensor.evaluate_tick(dg.build_sensor_context(instance))
    assert queue.visible == [ORDER]


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        (orders, {"run_tags": {"number": 1}}, "run_tags is a value of type dict"),
        (orders, {"run_tags": {"sqs_lease/router": "another"}}, "run_tags is a tag that the router sets"),
        (JOBS, {"job": kind, "run_tags": {"number": 1}}, "run_tags is a value of type dict"),
        (by_day, {"partition_key": "sunday", "run_tags": lambda _: {}}, "partition_key is 'sunday'"),
    ],
    ids=["tags", "tags of ours", "tags beside a function", "partition beside a function"],
)
def test_a_value_of_all_runs_that_cannot_be_used_is_not_the_messages_fault(
    queue: LeasedQueue, instance: dg.DagsterInstance, tmp_path: Path, target: Any, options: dict[str, Any], said: str
) -> None:
    queue.send(ORDER)
    evaluations = Evaluations(instance, tmp_path, target, on_failure=dead_letter(), **options)
    with pytest.raises(ValueError, match=said):
        evaluations.tick()
    assert (queue.visible, queue.dead_letters) == ([ORDER], [])


@pytest.mark.parametrize("options", [{"target": JOBS}, {"target": orders, "job": kind}, {"target": plain, "job": kind}])
def test_a_list_of_jobs_needs_a_function_that_chooses_and_nothing_else_does(options: dict[str, Any]) -> None:
    target = options.pop("target")
    with pytest.raises(ValueError, match="job="):
        build_sqs_router("router", SqsQueueResource(queue="orders"), target, workspace="/tmp/w", **options)
