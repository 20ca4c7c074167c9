"""The way to write a lease into a DAG: a context whose tasks are the work.

:class:`~sqs_lease.airflow.sensor.SqsLeaseSensor` documents the arguments. Airflow's ``BaseOperator`` and
``BaseSensorOperator`` document those of every task and sensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast

from airflow.sdk import Asset, XComArg

from sqs_lease.airflow.airflow_api.requests import default_args_of_open_dag
from sqs_lease.airflow.dag_file import STOCK_OPTIONS, is_final, refuse_stock_options, warn_author
from sqs_lease.airflow.operators import DEFAULT_HANDOFF_TIMEOUT, SqsLeaseKeeperOperator
from sqs_lease.airflow.sensor import SqsLeaseSensor
from sqs_lease.airflow.settlement.lost_leases import OnLost
from sqs_lease.airflow.settlement.rules import result_is_dropped, work_tasks
from sqs_lease.airflow.triggers.watch import watchers_of
from sqs_lease.core.durations import Duration
from sqs_lease.core.failure_rules import FailureRule
from sqs_lease.sqs.validation import queue_reference

EVENT_SECONDS: Final = 3.0
"""How long the sensor waits for a message in a run that messages started: they are there, or another run took them."""

_LOOKING_ONCE: Final = {
    "deferrable": False,
    "timeout": EVENT_SECONDS,
    "poke_interval": EVENT_SECONDS,
    "soft_fail": True,
}
"""Arguments of the sensor of such a run: it receives in its worker, and is skipped if there is no message."""

_OF_BOTH_TASKS: Final = ("queue", "pool", "executor", "retries", "priority_weight", "owner")

_NOT_TO_WAIT: Final = {
    "depends_on_past": False,
    "wait_for_downstream": False,
    "max_active_tis_per_dag": None,
    "max_active_tis_per_dagrun": None,
    "retry_delay": timedelta(seconds=5),
    "retry_exponential_backoff": 0,
    "retry_policy": None,
}
"""Arguments that a keeper does not take from ``default_args``.

The messages of a keeper that waits for another run's keeper, perhaps for hours, would be given back meanwhile. So would
those of one that failed to start and waits for its next try: Airflow's delay of 5 minutes is as long as
``handoff_timeout``.
"""


_TASK_ID: Final = re.compile(r"[\w.-]+", re.ASCII)

_OF_OPERATORS: Final = ("on_failure", "on_lost", "ordered", "handoff_timeout")
"""Arguments of a lease that are arguments of its two operators, too, so that they may stand in ``default_args``."""

_OF_LEASE: Final = (*_OF_OPERATORS, "event", "keeper_arguments")

_Arguments = ParamSpec("_Arguments")
_Lease = TypeVar("_Lease")


class TaskArguments(TypedDict, total=False):
    """Arguments that every task takes."""

    owner: str
    email: str | Sequence[str] | None
    email_on_retry: bool
    email_on_failure: bool
    retries: int | None
    retry_delay: timedelta | float
    retry_exponential_backoff: float
    max_retry_delay: timedelta | float | None
    retry_policy: Any
    start_date: datetime | None
    end_date: datetime | None
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    wait_for_downstream: bool
    params: MutableMapping[str, Any] | None
    default_args: dict[str, Any] | None
    priority_weight: int
    weight_rule: WeightRuleParam
    queue: str
    pool: str | None
    pool_slots: int
    execution_timeout: timedelta | None
    on_execute_callback: Callback
    on_failure_callback: Callback
    on_success_callback: Callback
    on_retry_callback: Callback
    on_skipped_callback: Callback
    pre_execute: Callable[[Any], None] | None
    post_execute: Callable[[Any, Any], None] | None
    trigger_rule: str
    resources: dict[str, Any] | None
    run_as_user: str | None
    map_index_template: str | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: dict[str, Any] | None
    do_xcom_push: bool
    multiple_outputs: bool
    inlets: Any
    outlets: Any
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    task_display_name: str | None
    logger_name: str | None
    allow_nested_operators: bool
    render_template_as_native_obj: bool | None


class ReceiveArguments(TaskArguments, total=False):
    """Arguments of the sensor of a lease, besides its task id and ``handoff_timeout``."""

    queue_url: str
    max_messages: int | str
    linger: Duration
    policy: RenewalPolicy | str | None
    visibility: Duration | None
    payload: str | None
    message_filtering: str | None
    message_filtering_match_values: Iterable[Any] | None
    message_filtering_config: str | None
    unmatched: UnmatchedRule | None
    deferrable: bool
    poke_interval: timedelta | float
    timeout: timedelta | float | None
    soft_fail: bool
    mode: Literal["poke", "reschedule"]
    exponential_backoff: bool
    max_wait: timedelta | float | None
    silent_fail: bool
    never_fail: bool
    aws_conn_id: str | None
    region_name: str | None
    verify: bool | str | None
    botocore_config: dict[str, Any] | None


def _called_by_name(lease: Callable[_Arguments, _Lease]) -> Callable[_Arguments, _Lease]:
    """Refuse positional arguments other than the lease's name; Python would not say what to write instead.

    Arguments that are not given come from ``default_args``, as those of operators do.
    """

    @wraps(lease)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Lease:
        if len(args) > 1:
            raise TypeError(
                f"sqs_lease() takes only its name as a positional argument, not {args[1]!r} as well: write "
                f"sqs_lease({args[0]!r}, queue_url=...)"
            )
        if not args and "name" not in kwargs:
            raise TypeError(
                "sqs_lease() needs a name, the task id of its sensor: write sqs_lease('orders', queue_url=...)"
            )
        defaults = {**default_args_of_open_dag(), **cast("Mapping[str, Any]", kwargs.get("default_args") or {})}
        for argument in _OF_OPERATORS:
            if argument in defaults:
                kwargs.setdefault(argument, defaults[argument])
        return lease(*args, **kwargs)

    return call


@_called_by_name
def sqs_lease(
    name: str,
    *,
    on_failure: FailureRule | None = None,
    on_lost: OnLost = "warn",
    ordered: bool = True,
    handoff_timeout: Duration = DEFAULT_HANDOFF_TIMEOUT,
    event: Asset | None = None,
    keeper_arguments: TaskArguments | None = None,
    **arguments: Unpack[ReceiveArguments],
) -> AbstractContextManager[Any]:
    """Receive messages and keep them invisible while the tasks in the body work on them.

    For example::

        with sqs_lease("orders", queue_url=..., max_messages=500) as orders:
            load(orders)                      # one task over the whole batch, or
            check.expand(message=orders)      # one mapped task a message, settled one by one, or
            process.expand(message=orders)    # a mapped task group: a chain a message, settled one by one

    It makes two tasks: ``name``, which receives, and ``name_keeper``, which runs beside the work. The keeper extends
    the leases, deletes a message when its work has succeeded, and settles the others by ``on_failure``. Every task in
    the body that has no other task of the body before it is set behind ``name``.

    A task in the body concerns all messages, unless it is mapped over ``orders`` itself, or over what such a task
    returned (``load.expand(row=check.expand(message=orders))``). A task that succeeds may still name messages that
    failed, by returning ``{"batchItemFailures": [{"itemIdentifier": message_id}, ...]}``; this is not looked up for a
    function that never returns a value, by its annotation. A task that fails may
    ``raise MessageFailed(message_ids)`` to fail no others. ``settlement/rules.py`` has the rules. Tasks that run even
    if single messages failed (a summary, say) belong outside the body, or need a trigger rule of their own:
    ``upstream_failed`` counts as failed. In a chain of mapped tasks one failed message makes the next task
    ``upstream_failed`` for all; in a mapped task group it does so for itself alone.

    Setups and teardowns in the body are set behind ``name`` like others, but are not work: their failure alone gives
    back no messages. The same is true of the two tasks of a lease inside the body. The work of such an inner lease
    is work of both: the outer messages are deleted when it is done too, and all of them fail when one of its
    tasks does. If the messages of two leases have nothing to do with one another, write the leases side by side.

    As for every task, arguments that are not given come from ``default_args`` of the DAG, of the task group or of the
    lease: ``queue_url``, ``on_failure``, ``handoff_timeout`` and so on.

    Args:
        name: The task id of the sensor, within the current task group.
        on_failure: How a message is settled when its work failed for good: ``release()`` (the default), ``backoff()``,
            ``expire()``, ``dead_letter()`` or a choice of these ``by_exception()``; see
            ``sqs_lease.core.failure_rules``.
        on_lost: The action when a lease is lost, lapses or nears its end: ``"warn"`` (the default), ``"raise"``,
            which fails the run as messages that cannot be settled always do, or an ``AsyncCallback``; see
            :class:`~sqs_lease.airflow.operators.SqsLeaseKeeperOperator`.
        ordered: Keep the order of messages within the groups of a FIFO queue (the default), or settle each message
            by itself.
        handoff_timeout: How long the messages are held for ``name_keeper`` until a worker starts it.
        event: In a DAG that messages start: the asset that it is scheduled on. The queue and the connection are
            those of the asset's :class:`~sqs_lease.airflow.triggers.watch.SqsLeaseTrigger`; if the asset only refers
            to one of another file, ``queue_url`` gives the queue. ``name`` looks once, for 3 s and in its worker,
            and is skipped with its work if there is no message: another run took them. ``timeout`` and ``soft_fail``
            change that.
        keeper_arguments: Arguments for ``name_keeper`` alone, out of those that every task takes.
        arguments: Arguments of :class:`~sqs_lease.airflow.sensor.SqsLeaseSensor`. ``queue``, ``pool``, ``executor``,
            ``retries``, ``priority_weight`` and ``owner`` go to ``name_keeper`` as well, unless ``keeper_arguments``
            has others for it. ``depends_on_past``, ``wait_for_downstream``, ``max_active_tis_per_dag`` and
            ``retry_delay`` (5 s there) go there by ``keeper_arguments`` alone, not by ``default_args``: a keeper that
            waits for another run's, or long for its next try, loses its messages.

    Returns:
        A context for ``with``, whose value is the messages as an ``XComArg`` (typed as Any, like what it stands for at
        run time): a list of mappings with ``MessageId``, ``Body``, ``Attributes`` and ``MessageAttributes``. Without
        ``with`` there is no keeper, and Airflow refuses the DAG when it parses it.

    Raises:
        ValueError: The body has no work, an argument is out of range, the lease is in a mapped task group, more
            messages may be received than Airflow can map over, or nothing says which queue ``event`` stands for.
        TypeError: There is an argument of the amazon provider's ``SqsSensor`` that has another name here, or
            ``event`` is not an asset.
        RuntimeError: It is used outside a DAG.
    """
    given = cast("dict[str, Any]", arguments)
    _check_names(name, given, keeper_arguments)
    defaults = default_args_of_open_dag()
    if event is not None:
        given = {**_LOOKING_ONCE, **_of_watcher(name, event, given, defaults), **given}
    elif "queue_url" not in given and "queue_url" not in defaults:
        refuse_stock_options(name, defaults)
    try:
        sensor = SqsLeaseSensor(task_id=name, handoff_timeout=handoff_timeout, **given)
    except TypeError as error:
        _refuse_unknown(name, given, error)
        raise
    if not sensor.has_dag():  # type: ignore[no-untyped-call]
        raise RuntimeError(f"sqs_lease({name!r}) must be used inside a DAG")
    of_keeper: dict[str, Any] = {argument: given[argument] for argument in _OF_BOTH_TASKS if argument in given}
    of_keeper |= _NOT_TO_WAIT
    of_keeper |= cast("dict[str, Any]", keeper_arguments or {})
    of_keeper |= {"on_failure": on_failure, "on_lost": on_lost, "ordered": ordered, "handoff_timeout": handoff_timeout}
    return _around_work(name, sensor, of_keeper)


@contextmanager
def _around_work(name: str, sensor: SqsLeaseSensor, of_keeper: Mapping[str, Any]) -> Iterator[Any]:
    """Set the tasks of the body behind the sensor, and a keeper beside them."""
    dag = sensor.dag
    before = set(dag.task_dict)
    yield XComArg(sensor)
    body = [task for task_id, task in dag.task_dict.items() if task_id not in before]
    _set_behind(sensor, body)
    work_task_ids = [task.task_id for task in body if not (task.is_setup or task.is_teardown)]
    if not work_task_ids:
        raise ValueError(
            f"the body of sqs_lease({name!r}) in DAG {dag.dag_id!r} has no tasks: its messages would never be settled"
        )
    keeper_task_id = f"{name}_keeper"
    work_tasks(dag, work_task_ids, sensor.task_id, keeper_task_id)  # it refuses tasks that it cannot tell apart
    if dropped := [task_id for task_id in work_task_ids if result_is_dropped(dag.task_dict[task_id])]:
        warn_author(
            f"with do_xcom_push=False Airflow drops what {', '.join(dropped)} of the lease {name!r} in DAG "
            f"{dag.dag_id!r} return: batchItemFailures are not seen, nor a coroutine or generator that was never run, "
            "and the messages are deleted. Leave do_xcom_push out, or annotate a function that returns nothing with "
            "-> None",
            UserWarning,
        )
    sensor.check_mapped(sensor.max_messages)
    keeper = SqsLeaseKeeperOperator(
        task_id=keeper_task_id, receive_task_id=sensor.task_id, work_task_ids=work_task_ids, **of_keeper
    )
    keeper.as_teardown(setups=sensor)


def _check_names(name: object, given: Mapping[str, Any], keeper_arguments: object) -> None:
    if not isinstance(name, str) or not _TASK_ID.fullmatch(name):
        raise ValueError(
            f"the name of sqs_lease() must be a task id, of letters, digits, dashes, dots and underscores, not {name!r}"
        )
    if "task_id" in given:
        raise TypeError(f"sqs_lease({name!r}) takes no task_id: its name is the task id of its sensor")
    if keeper_arguments is None:
        return
    if not isinstance(keeper_arguments, Mapping):
        raise TypeError(
            f"keeper_arguments of sqs_lease({name!r}) must be a dict such as {{'pool': 'large'}}, not "
            f"{keeper_arguments!r}"
        )
    known = [*ReceiveArguments.__annotations__, *_OF_LEASE, "task_id", "receive_task_id", "work_task_ids"]
    if of_lease := [one for one in known if one in keeper_arguments and one not in TaskArguments.__annotations__]:
        raise TypeError(
            f"keeper_arguments of sqs_lease({name!r}) are those that every task takes, not {', '.join(of_lease)}: give "
            "these to sqs_lease() itself"
        )


def _refuse_unknown(name: str, given: Mapping[str, Any], error: TypeError) -> None:
    """Raise an error that names the unknown argument and a similar one."""
    known = [*ReceiveArguments.__annotations__, *_OF_LEASE]
    for unknown in given:
        if unknown not in known and unknown not in STOCK_OPTIONS and unknown in str(error):
            close = get_close_matches(unknown, known, 1)
            meant = f"did you mean {close[0]}?" if close else "SqsLeaseSensor's docstring has all of them"
            raise TypeError(f"sqs_lease({name!r}) has no argument {unknown}: {meant}") from error


def _of_watcher(name: str, event: Asset, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the queue of an asset and its connection, from its watcher if that is in this file."""
    if not isinstance(event, Asset):
        raise TypeError(f"event of {name!r} must be the Asset that the DAG is scheduled on, not {event!r}")
    watchers = watchers_of(event)
    if not watchers:
        if "queue_url" in given or "queue_url" in defaults:
            return {}
        raise ValueError(
            f"{name!r} has no queue to receive from: asset {event.name!r} has no watcher with an "
            "SqsLeaseTrigger in this file. Give it one, or give queue_url= (and aws_conn_id=) here"
        )
    queue_url = given.get("queue_url")
    if queue_url is not None:
        watchers = [watcher for watcher in watchers if _is_same_queue(watcher.queue_url, queue_url)]
    if len({watcher.queue_url for watcher in watchers}) != 1:
        watched = ", ".join(watcher.queue_url for watcher in watchers_of(event))
        raise ValueError(
            f"asset {event.name!r} is watched for {watched}, so {name!r} needs queue_url= with the one that it "
            "receives from"
        )
    watcher = watchers[0]
    return {
        "queue_url": watcher.queue_url,
        "aws_conn_id": watcher.connection.aws_conn_id,
        "region_name": watcher.connection.region_name,
        "verify": watcher.connection.verify,
        "botocore_config": watcher.botocore_config,
    }


def _is_same_queue(watched: str, given: str) -> bool:
    """Whether a queue can be the one that is watched; the value of a template is not known yet."""
    return not is_final(given) or queue_reference(watched).name == queue_reference(given).name


def _set_behind(sensor: SqsLeaseSensor, body: list[Any]) -> None:
    inside = {task.task_id for task in body}
    for task in body:
        if not inside & task.upstream_task_ids and sensor.task_id not in task.upstream_task_ids:
            sensor.set_downstream(task)


if TYPE_CHECKING:
    from airflow.sdk.types import WeightRuleParam

    from sqs_lease.airflow.filters import UnmatchedRule
    from sqs_lease.core.durations import Duration
    from sqs_lease.core.policies import RenewalPolicy

    Callback = Callable[[Any], None] | Sequence[Callable[[Any], None]] | None
