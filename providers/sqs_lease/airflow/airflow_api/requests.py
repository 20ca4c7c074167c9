"""Requests of triggers and tasks to Airflow: through methods of its SDK, and the few names that it does not publish.

Every question is one of the SDK's blocking methods, such as ``RuntimeTaskInstance.get_task_states`` or ``XCom.set``.
Only some of them have asynchronous twins, and those do not work in ``dag.test()``. In a triggerer Airflow lets the
blocking ones be called from the event loop: within a portal of ``greenback`` they wait for the answer without blocking
the loop.

A trigger talks to the metadata database through the triggerer's supervisor, which answers one request after the other
(about 45 a second) and some requests never. So every question has a time limit.

Names that Airflow does not publish are used in this module alone. Each has a fallback, which may be slower but is never
wrong:

    name                                what it is for                       without it
    greenback (of the task SDK)         blocking methods in the event loop   they are called in threads
    task_runner.SUPERVISOR_COMMS.asend  tells a worker from ``dag.test()``   a worker is assumed, ``dag.test()`` fails
    XCom.set(_mapped_length=)           mapping over a value that a trigger  a sensor that tasks are mapped over
                                        published                            receives in its worker
    airflow.observability.stats         metrics from a triggerer             the SDK's, which Airflow may not set up
    airflow.models.crypto               the Fernet key in the first process  an error that says so; the next process
                                        of a new ``AIRFLOW_HOME``            has the key
    _get_specified_expand_input,        which message each instance of a     the task concerns all messages, which are
    _expand_input, MapXComArg,          mapped task concerns                 settled together
    PlainXComArg
    RuntimeTaskInstance.                whether a failed task may count as   only its state is looked at
    _terminal_state_send_failed         something else
    "unusual_prefix_"                   refuses callbacks and filters of     they fail in the triggerer
                                        DAG files
    airflow.sdk.listener                a worker ends a keeper where         the triggerer ends it, so such listeners
                                        listeners hear of its success        do not hear of it
    DagContext, TaskGroupContext        arguments of ``sqs_lease()``, and    those of the keeper must be given to
                                        options of ``SqsSensor``, in the     ``sqs_lease()`` itself; the error says that
                                        ``default_args`` of a DAG            queue_url is missing

``RuntimeTaskInstance`` is not in ``airflow.sdk`` itself, but the triggers of Airflow's own providers call its methods.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from airflow.sdk import BaseXCom, Variable
from airflow.sdk.configuration import conf
from airflow.sdk.crypto import FernetProtocol, get_fernet
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom

from sqs_lease.daemon_threads import DaemonThreads

try:
    # In the process that runs triggers, Airflow sets up this one and not the SDK's.
    from airflow.observability import stats
except ImportError:
    from airflow.sdk.observability import stats  # type: ignore[no-redef]

try:
    # Not one of this package's dependencies: Airflow brings it, or does without it.
    import greenback
except ImportError:
    greenback = None  # type: ignore[assignment]

try:
    from airflow.sdk.definitions._internal.contextmanager import DagContext, TaskGroupContext
except ImportError:
    DagContext = None  # type: ignore[assignment,misc]

try:
    from airflow.sdk.listener import get_listener_manager
except ImportError:
    get_listener_manager = None  # type: ignore[assignment]

__all__ = ["stats"]
"""Names imported here for other modules; they may use everything public that is defined here as well."""

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

DAG_FILE_MODULE: Final = "unusual_prefix_"
"""The prefix that Airflow gives to the module names of DAG files; a triggerer does not have these modules."""

ANSWER_SECONDS: Final = 10.0
"""How long to wait for an answer of the supervisor; it answers fifty requests made at once within about a second."""

BACKEND_SECONDS: Final = 60.0
"""How long an XCom backend of the user's own may take to read or write one value."""

_ASKING: Final = DaemonThreads(16, "sqs-lease asking Airflow")
"""For questions where greenback is missing: more than there are questions at once."""

_XCOM_BACKEND: Final = DaemonThreads(16, "sqs-lease XCom backend")
"""For an XCom backend of the user's own: one that hangs must not stop questions."""

RETURN_VALUE_KEY: Final = BaseXCom.XCOM_RETURN_KEY


PATIENCE_SECONDS: Final = 120.0
"""How long a value that must be published is offered again until Airflow answers.

A triggerer's first answer can take half a minute on a busy machine: its supervisor loads the API server's code for it.
"""


InstanceKey: TypeAlias = tuple[str, int]
"""A task instance of one run: the task's id and the map index, -1 where the task is not (or not yet) mapped."""

TaskStates: TypeAlias = Mapping[str, str | None]
"""States by ``task_id``, or ``task_id_mapindex`` for instances of mapped tasks: the shape of Airflow's answer."""

UNMAPPED: Final = -1
"""The map index of a task instance that is not mapped."""


def state_key(instance: InstanceKey) -> str:
    """Return the key of a task instance in :data:`TaskStates`."""
    task_id, map_index = instance
    return task_id if map_index == UNMAPPED else f"{task_id}_{map_index}"


def listeners_hear_of_success() -> bool:
    """Whether there are listeners for the success of tasks, such as OpenLineage's; to be called in a worker.

    Airflow calls them in the worker that ends a task, and not when a trigger ends it.
    """
    if get_listener_manager is None:
        return False
    return bool(get_listener_manager().hook.on_task_instance_success.get_hookimpls())


def default_args_of_open_dag() -> Mapping[str, Any]:
    """Return the ``default_args`` of the DAG that is being defined, and of the open task group of it.

    They are empty outside a DAG, or if Airflow does not say.
    """
    dag = None if DagContext is None else DagContext.get_current()
    if dag is None:
        return {}
    group = TaskGroupContext.get_current(dag)
    return dag.default_args if group is None else {**dag.default_args, **group.default_args}


class CommsError(RuntimeError):
    """No usable answer of Airflow, or a refusal: the request may or may not have been carried out."""


class NoAnswerError(CommsError):
    """No answer of Airflow in time."""


@dataclass(frozen=True, slots=True)
class RunOfTask:
    """A task in one DAG run; the tasks that hold a lease are never mapped."""

    dag_id: str
    run_id: str
    task_id: str

    def __str__(self) -> str:
        return f"task {self.task_id!r} of DAG {self.dag_id!r}, run {self.run_id!r}"


def triggers_are_supported() -> bool:
    """Whether a triggerer takes over a task that defers now: ``dag.test()`` runs triggers in line instead.

    If that is unknown, the answer is true, as in every process of a real deployment.
    """
    return not hasattr(task_runner, "SUPERVISOR_COMMS") or hasattr(task_runner.SUPERVISOR_COMMS, "asend")


def triggers_publish_for_mapping() -> bool:
    """Whether a trigger can publish a value that tasks are mapped over."""
    return "_mapped_length" in inspect.signature(BaseXCom.set).parameters


def run_of(task_instance: Any) -> RunOfTask:
    """Return the task that a trigger runs for.

    Args:
        task_instance: The trigger's ``task_instance``, as the triggerer set it.

    Raises:
        RuntimeError: The trigger does not run for a task.
    """
    if task_instance is None:
        raise RuntimeError(
            "this trigger was started without a task instance: dag.test() and asset watchers cannot run it"
        )
    return RunOfTask(task_instance.dag_id, task_instance.run_id, task_instance.task_id)


async def task_states(dag_id: str, run_ids: Sequence[str], task_ids: Collection[str]) -> Mapping[str, TaskStates]:
    """Read the states of some tasks in some runs of a DAG by one request.

    Returns:
        The states by run id; a run without such tasks is missing.

    Raises:
        CommsError: There was no usable answer.
    """
    return await ask(
        "the states of tasks",
        RuntimeTaskInstance.get_task_states,
        for_all_triggers=True,
        dag_id=dag_id,
        run_ids=list(run_ids),
        task_ids=sorted(task_ids),
    )


async def publish(
    task: RunOfTask,
    key: str,
    value: Any,
    *,
    mapped_length: int | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Set an XCom of the trigger's own task, or of another one of its run, as the task itself would.

    Setting it twice does no harm, so it is set again while no answer comes.

    Args:
        task: The task. Airflow only requires that its DAG belongs to the trigger's team.
        key: The XCom's key.
        value: The value, before serialisation.
        mapped_length: How many instances a task mapped over the value is expanded to; None without mapped tasks.
        patience_seconds: How long it is set again while no answer comes; 0 sets it once.

    Raises:
        CommsError: There was no usable answer.
    """
    ends_at = asyncio.get_running_loop().time() + patience_seconds
    place: dict[str, Any] = {
        "dag_id": task.dag_id,
        "run_id": task.run_id,
        "task_id": task.task_id,
        "map_index": UNMAPPED,
    }
    if XCom is BaseXCom:
        serialised = BaseXCom.serialize_value(value, key=key, **place)
    else:
        serialised = await _by_backend(f"write {key!r}", partial(XCom.serialize_value, value, key=key, **place))
    stored = {**place, "key": key, "value": serialised}
    if mapped_length is not None:
        stored["_mapped_length"] = mapped_length
    while True:
        try:
            await ask(f"the XCom {key!r} of {task}", _StoredXCom.set, **stored)
        except NoAnswerError as error:
            if asyncio.get_running_loop().time() >= ends_at:
                raise
            logger.warning("Publishing again: %s", error)
        else:
            return


def push_of_task(task: RunOfTask, key: str, value: Any) -> None:
    """Set an XCom of another task of the run, from a worker."""
    XCom.set(key=key, value=value, dag_id=task.dag_id, run_id=task.run_id, task_id=task.task_id, map_index=UNMAPPED)


async def pull(task: RunOfTask, key: str, *, map_index: int = UNMAPPED) -> Any:
    """Read an XCom of any task of the DAG; None if it does not exist.

    Raises:
        CommsError: There was no usable answer.
    """
    stored = await _stored(task, key, map_index)
    if stored is None:
        return None
    return BaseXCom.deserialize_value(stored) if XCom is BaseXCom else await _deserialised_by_backend(stored)


async def pull_plain_mapping(task: RunOfTask, instance: InstanceKey) -> Mapping[str, Any] | None:
    """Read a work task's return value if it is a plain mapping, as a report of failed items is.

    Other values are left as they are: they may be large, or of classes that the triggerer does not have.

    Args:
        task: Any task of the same DAG run.
        instance: The instance that returned it.

    Returns:
        The mapping; an empty one for any other value, and None if it returned nothing.

    Raises:
        CommsError: There was no usable answer.
    """
    task_id, map_index = instance
    stored = await _stored(RunOfTask(task.dag_id, task.run_id, task_id), RETURN_VALUE_KEY, map_index)
    if stored is None:
        return None
    value = stored.value if XCom is BaseXCom else await _deserialised_by_backend(stored)
    if not isinstance(value, Mapping):
        return {}
    return {key: _items_of_tuple(each) for key, each in value.items()}


def _items_of_tuple(stored: Any) -> Any:
    """Return the items of a tuple as an XCom stores it, because JSON has no tuples; return other values as they are."""
    is_tuple = isinstance(stored, Mapping) and stored.get("__classname__") == "builtins.tuple"
    return stored.get("__data__") if is_tuple else stored


def seal(text: str) -> str:
    """Encrypt a text with Airflow's Fernet key, as Airflow does with the arguments of triggers.

    Without a key configured the text stays as it is, again as Airflow does.
    """
    return _fernet().encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """Decrypt what :func:`seal` returned, in this triggerer or another one of the same deployment."""
    return _fernet().decrypt(sealed.encode()).decode()


def _fernet() -> FernetProtocol:
    try:
        return get_fernet()
    except AirflowException as error:
        # The first process of a new AIRFLOW_HOME writes its configuration, with a key, after the SDK looked for it.
        try:
            from airflow.models.crypto import get_fernet as get_fernet_of_the_file
        except ImportError:
            raise error from None
        return get_fernet_of_the_file()


def mapped_over(expanded: Any) -> tuple[Any, str] | None:
    """Find the value that a mapped task or task group is expanded over, if it is one value of one task, item by item.

    Args:
        expanded: The mapped task or group.

    Returns:
        The task and the key of its XCom; None if it is expanded over something else, or over something unknown.
    """
    try:
        from airflow.sdk.definitions.xcom_arg import MapXComArg, PlainXComArg

        is_task = hasattr(expanded, "partial_kwargs")
        # A task has one of two attributes, by how it was expanded.
        inputs = expanded._get_specified_expand_input() if is_task else expanded._expand_input  # noqa: SLF001
        value: Any = inputs.value
    except (ImportError, AttributeError) as error:
        logger.warning(
            "The messages of %r are settled together: this Airflow does not say what it is mapped over (%s)",
            expanded.node_id,
            error,
        )
        return None
    if isinstance(value, dict):
        # expand(message=messages): further arguments would multiply the indexes.
        if len(value) != 1:
            return None
        (value,) = value.values()
    while isinstance(value, MapXComArg):
        # messages.map(function) keeps length and order.
        value = value.arg
    # zip() and concat() have other lengths than what they are made of.
    return (value.operator, value.key) if isinstance(value, PlainXComArg) else None


def end_was_reported(task_instance: RuntimeTaskInstance) -> bool:
    """Whether Airflow took the end of a task from its process; if not, a user may have marked the task meanwhile."""
    return not getattr(task_instance, "_terminal_state_send_failed", False)


class _StoredXCom(BaseXCom):
    """XComs as they are stored: values are converted elsewhere, because that would block the event loop."""

    @staticmethod
    def serialize_value(value: Any, **_: Any) -> Any:
        return value

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        return result


async def _stored(task: RunOfTask, key: str, map_index: int) -> Any:
    """Read an XCom as it is stored, with its ``key`` and ``value``; None if it does not exist."""
    return await ask(
        f"the XCom {key!r} of {task}",
        _StoredXCom.get_one,
        key=key,
        dag_id=task.dag_id,
        run_id=task.run_id,
        task_id=task.task_id,
        map_index=map_index,
    )


async def _deserialised_by_backend(stored: Any) -> Any:
    return await _by_backend(f"read {stored.key!r}", partial(XCom.deserialize_value, stored))


async def _by_backend(what: str, convert: Callable[[], Any]) -> Any:
    """Have a custom XCom backend convert a value; it may ask another service, and blocks while it does.

    Raises:
        NoAnswerError: It took too long.
        CommsError: It raised an error: it may raise anything, and must stop no lease.
    """
    limit = asyncio.timeout(BACKEND_SECONDS)
    try:
        async with limit:
            return await _XCOM_BACKEND.run(convert)
    except Exception as error:
        if limit.expired():
            text = f"the XCom backend {XCom.__name__} did not {what} within {BACKEND_SECONDS:g} s"
            raise NoAnswerError(text) from None
        raise CommsError(f"the XCom backend {XCom.__name__} cannot {what}: {error!r}") from error


async def ask(what: str, method: Callable[..., _T], /, *, for_all_triggers: bool = False, **arguments: Any) -> _T:
    """Call a blocking method of Airflow's SDK from an event loop, without blocking it.

    Args:
        what: The subject of the request, for errors.
        method: The method.
        for_all_triggers: Whether one question serves all triggers, so that it need not wait for its turn.
        arguments: Arguments of the method.

    Raises:
        NoAnswerError: No answer came within :data:`ANSWER_SECONDS`; it may have been carried out.
        CommsError: Airflow refused, or its answer cannot be read.
    """
    try:
        async with request_limiter().turn(for_all_triggers=for_all_triggers), asyncio.timeout(ANSWER_SECONDS):
            return await _without_blocking(method, **arguments)
    except TimeoutError:
        raise NoAnswerError(f"Airflow gave no answer about {what} within {ANSWER_SECONDS:g} s") from None
    except AirflowRuntimeError as error:
        raise CommsError(f"Airflow refused a request about {what}: {error}") from error
    except Exception as error:
        # The connection to the supervisor broke, or Airflow should not give this answer.
        raise CommsError(f"asking Airflow about {what} failed: {error!r}") from error


async def _without_blocking(method: Callable[..., _T], **arguments: Any) -> _T:
    if greenback is None:
        return await _ASKING.run(partial(method, **arguments))
    return await greenback.with_portal_run_sync(method, **arguments)


def triggerer_deletes_variables() -> bool:
    """Whether a triggerer may delete what a worker sets: with several teams, variables belong to the worker's team."""
    return not conf.getboolean("core", "multi_team", fallback=False)


async def variable_keys(prefix: str) -> list[str]:
    """Read the keys with a prefix.

    Raises:
        CommsError: There was no usable answer.
    """
    # The SDK asks when the keys are first looked at.
    return await ask("the keys of variables", lambda: list(Variable.keys(prefix=prefix)), for_all_triggers=True)


async def delete_variable(key: str) -> None:
    """Delete a variable; deleting one that is not there does no harm.

    Raises:
        CommsError: There was no usable answer.
    """
    await ask(f"the variable {key!r}", Variable.delete, key=key)


def running_task_ended_as(task_instance: Any, state: str) -> bool:
    """Whether a listener was called in the process of a task, because the task ended in a state for good.

    Airflow also calls it for tasks to be retried, and in the scheduler and the API server, with other objects.
    """
    if not isinstance(task_instance, RuntimeTaskInstance):
        return False
    # Airflow sets the first once the try is over; the second says that its end could not be reported, so that it
    # may count as something else (a user marked the task meanwhile).
    ended_as = getattr(task_instance.state, "value", task_instance.state)
    return bool(ended_as == state) and end_was_reported(task_instance)


REQUESTS_AT_ONCE: Final = 8
"""Requests under way at once: enough to keep the supervisor busy. Others wait for them, about a fifth of a second."""

MANY_STARTS: Final = 50
"""The number of triggers that a triggerer takes over at once by default; the rest follow in its next round."""

STARTING_SECONDS: Final = 2.0
"""The time within which :data:`MANY_STARTS` count as many: a triggerer's rounds are a little over a second apart."""

LONGEST_START_SECONDS: Final = 10.0
"""Longest time without requests: a thousand triggers, Airflow's default limit, start sooner. Leases last longer."""


class RequestLimiter:
    """A limit for the requests of an event loop: few at a time, and none while many triggers start.

    The supervisor serves one request after the other, about 40 a second. After a takeover, hundreds of triggers ask at
    the same moment. They would wait longer than a request may take, give up and ask again, while the supervisor still
    answers the requests that were given up. So requests queue here, before their time limit begins. Requests that are
    made for all triggers together do not queue: there are only a few of them at any time.

    The supervisor also reads the log lines of triggers: 4 kB of them for each request that it serves, and none for the
    four seconds in which it loads the API server's code for its first answer. Airflow logs a line for each trigger
    that starts. After about two hundred unread lines the socket is full, and the next log line blocks the event loop.
    So no requests are made while many triggers start.
    """

    def __init__(self) -> None:
        self._semaphore = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._started_at: deque[float] = deque(maxlen=MANY_STARTS)
        self._many_since = 0.0

    def trigger_started(self) -> None:
        """Take in that one more trigger started."""
        now = asyncio.get_running_loop().time()
        if not self._many_started(now):
            self._many_since = now
        self._started_at.append(now)

    def _many_started(self, now: float) -> bool:
        return len(self._started_at) == MANY_STARTS and now - self._started_at[0] < STARTING_SECONDS

    async def calm(self) -> None:
        """Wait as long as many triggers start."""
        loop = asyncio.get_running_loop()
        while self._many_started(now := loop.time()) and now - self._many_since < LONGEST_START_SECONDS:  # noqa: ASYNC110 - until when is known
            await asyncio.sleep(max(self._started_at[0] + STARTING_SECONDS - now, 0.01))

    @asynccontextmanager
    async def turn(self, *, for_all_triggers: bool) -> AsyncIterator[None]:
        """Wait for a turn to make a request, and have it until the block ends.

        Args:
            for_all_triggers: Whether the request is made for all triggers together; those do not queue.
        """
        if for_all_triggers:
            await self.calm()
            yield
            return
        async with self._semaphore:
            await self.calm()
            yield


# One for each event loop that ever asked; a triggerer has one for life.
_limiters: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, RequestLimiter]] = WeakKeyDictionary()


def request_limiter() -> RequestLimiter:
    """Return the limiter of the running event loop."""
    loop = asyncio.get_running_loop()
    if (found := _limiters.get(loop)) is None:
        found = _limiters[loop] = RequestLimiter()
    return found
