"""Checks and warnings while a DAG file is parsed, for mistakes that would otherwise show when a run has messages."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

from airflow import sdk
from airflow.sdk import XComArg, get_parsing_context
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.taskgroup import MappedTaskGroup

from sqs_lease.sqs.validation import queue_reference

MIGRATION_PAGE: Final = "docs/migration.md"

NEITHER_MAPPED: Final = (
    "its keeper could not tell its batches apart. Write one sqs_lease() for each queue, in a for loop where there are "
    "several, and map tasks over the messages instead: check.expand(message=messages)"
)
"""Why a lease cannot be mapped, and what to write instead."""

STOCK_OPTIONS: Final[Mapping[str, str]] = {
    "sqs_queue": "use queue_url",
    "visibility_timeout": "use visibility, or leave it out: leases are extended",
    "num_batches": "leave it out: max_messages is of the whole batch",
    "wait_time_seconds": "leave it out: receives are long polls; linger says how long to wait for more messages",
    "delete_message_on_reception": "leave it out: messages are deleted when their work succeeded",
    "region": "use region_name",
}
"""Options of the amazon provider's ``SqsSensor`` that are refused here, each with the remedy."""

SENSOR_OPTIONS: Final = (
    "max_messages",
    "linger",
    "policy",
    "visibility",
    "payload",
    "message_filtering",
    "message_filtering_match_values",
    "message_filtering_config",
    "unmatched",
    "deferrable",
    "handoff_timeout",
)
"""Options of ``SqsLeaseSensor`` about the receive; a watcher only counts, so it does not take them."""

_TEMPLATE: Final = re.compile(r"\{[{%#]")
"""The beginning of an expression, a statement or a comment of Jinja."""

_NOT_THE_AUTHORS: Final = (
    *(f"{Path(file).parent}{os.sep}" for file in (__file__, sdk.__file__) if file),
    contextlib.__file__,
)


def warn_author(text: str, category: type[Warning]) -> None:
    """Warn the author of the DAG file, naming their line, when the file is parsed but not in a task.

    A worker parses the file again for each task; a warning in each task's log would not help.
    """
    if get_parsing_context().task_id is not None:
        return
    frame = _authors_frame()
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, registry=registry)


def is_final(value: object) -> bool:
    """Whether an argument is known already: not a template, not a result of a task, not a DAG parameter."""
    if isinstance(value, str):
        return _TEMPLATE.search(value) is None
    # Values that Airflow resolves when the task runs have this method. Their common class is not public.
    return not hasattr(value, "iter_references")


@contextmanager
def named(subject: str) -> Iterator[None]:
    """Name in the errors of a block the task or argument that they are about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{subject}: {error}") from error


def check_type(value: object, kinds: tuple[type, ...], *, name: str, expected: str) -> None:
    """Refuse an argument of another type; the value of a template or of a task is not known yet and passes.

    Args:
        value: The argument.
        kinds: The types that it may have.
        name: The argument's name.
        expected: A description of the expected value, for the error.

    Raises:
        TypeError: It has another type.
    """
    if is_final(value) and not isinstance(value, kinds):
        raise TypeError(f"{name} must be {expected}, not {value!r}")


def check_queue(queue_url: object) -> None:
    """Refuse a value that cannot name a queue; the value of a template or of a task is not known yet and passes.

    Raises:
        ValueError: It is not a queue name, URL or ARN.
    """
    if not is_final(queue_url):
        return
    if not queue_url:
        raise ValueError(
            "queue_url must be the queue's URL, name or ARN, and is missing (queue is Airflow's name for a queue of "
            "workers)"
        )
    try:
        queue_reference(cast("str", queue_url))  # it also refuses other types
    except ValueError as error:
        raise ValueError(f"queue_url must be the queue's URL, name or ARN: {error}") from error


def refuse_mapping(task: Any) -> None:
    """Refuse a receiving task in a mapped task group.

    Raises:
        ValueError: It is in one.
    """
    group = task.get_closest_mapped_task_group()
    if group is not None:
        raise ValueError(f"the lease {task.task_id!r} is in the mapped task group {group.group_id!r}: {NEITHER_MAPPED}")


def refuse_stock_options(task_id: object, arguments: Collection[str]) -> None:
    """Refuse options of the amazon provider's ``SqsSensor`` that have another name here or do not exist.

    Raises:
        TypeError: There is one among the arguments.
    """
    found = [f"{name} ({remedy})" for name, remedy in STOCK_OPTIONS.items() if name in arguments]
    if found:
        raise TypeError(
            f"SqsLeaseSensor {task_id!r} does not take these options of SqsSensor: {', '.join(found)}. "
            f"{MIGRATION_PAGE} has a table of all options"
        )


def refuse_sensor_options(watcher: str, arguments: Collection[str]) -> None:
    """Refuse options of the sensor in a trigger that only counts messages.

    Args:
        watcher: The trigger's class.
        arguments: The names of its arguments.

    Raises:
        TypeError: There is one among the arguments.
    """
    found = [name for name in SENSOR_OPTIONS if name in arguments]
    if found:
        raise TypeError(
            f"{watcher} only counts messages, so it does not take {', '.join(found)}. Give them to the "
            f"lease in the DAG that the messages start: sqs_lease(..., event=asset, {found[0]}=...)"
        )


def refuse_late_readers(receiving: Any, work_task_ids: Collection[str]) -> None:
    """Refuse tasks that read the messages of a lease although they are not its work.

    Args:
        receiving: The task that receives the messages, in a DAG that is complete.
        work_task_ids: The tasks that work on them.

    Raises:
        ValueError: There is one.
    """
    for task in receiving.get_direct_relatives(upstream=False):
        is_late = task.task_id not in work_task_ids and not (task.is_setup or task.is_teardown)
        if is_late and any(source.task_id == receiving.task_id for source in _sources(task)):
            raise ValueError(
                f"task {task.task_id!r} of DAG {receiving.dag_id!r} reads the messages of the lease "
                f"{receiving.task_id!r}, but is not in its body: the messages may be deleted by then, or others may "
                "have them. Move the task into the body, or give it the result of a task of the body; the keeper's "
                "XCom lease_report has the counts"
            )


def _sources(task: Any) -> Iterator[Any]:
    """Yield the tasks that a task gets XComs of."""
    group = task.get_closest_mapped_task_group()
    if isinstance(group, MappedTaskGroup):
        yield from group.iter_mapped_dependencies()
    given = task
    if isinstance(task, MappedOperator):
        yield from task.iter_mapped_dependencies()
        given = dict(task.partial_kwargs)
    for source, _ in XComArg.iter_xcom_references(given):
        yield source


def _authors_frame() -> FrameType:
    """Return the innermost frame outside this package and Airflow: a line of the DAG file, or of a module it uses."""
    frame = sys._getframe(1)  # noqa: SLF001 - the documented way, and warnings can skip files only from Python 3.12 on
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_AUTHORS):
        frame = frame.f_back
    return frame
