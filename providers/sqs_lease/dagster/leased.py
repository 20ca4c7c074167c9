"""Work that returns its result, as a function of a batch: the result is stored before the messages are deleted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, Unpack, get_type_hints

import dagster as dg

from sqs_lease.dagster._internals import missing_outputs, output_events, step_key
from sqs_lease.dagster.resource import LeaseArguments, SqsQueueResource, lease_options

BATCH: Final = "batch"
"""The parameter that gets the batch."""

CONTEXT: Final = "context"

_CONTEXTS: Final = frozenset({CONTEXT, "_context", "context_", "_"})
"""What Dagster takes for the context, where it is the first parameter."""

_Work = TypeVar("_Work", bound=Callable[..., Any])


def leased(queue: str, **arguments: Unpack[LeaseArguments]) -> Callable[[_Work], Callable[..., Any]]:
    """Have an op or asset work within a lease, and what it returns stored before the messages are deleted.

    ::

        @dg.asset
        @leased("orders_queue", max_messages=500)
        def order_bodies(context: dg.AssetExecutionContext, batch: LeasedBatch) -> list[str]:
            return [message.body for message in batch]

    The function gets the batch as ``batch``, and returns or yields what every op or asset may. All of that is handled
    within the lease: values are stored by their IO managers, ``MaterializeResult`` and ``Output`` are recorded. If
    anything of it fails, the messages are given back. The messages are deleted at last.

    Place it below ``@dg.asset``, ``@dg.multi_asset`` or ``@dg.op``, which see the function without ``batch``, and with
    the resource as a parameter. Where the function is called directly, as in a test, it returns its result.

    Args:
        queue: The key of the :class:`SqsQueueResource` among the resources.
        arguments: As for :meth:`SqsQueueResource.lease`.

    Raises:
        TypeError: An argument is unknown or of another type, as where ``leased`` stands without parentheses; or the
            function is asynchronous, or has no ``batch``.
        ValueError: An argument is out of range.
    """
    if not isinstance(queue, str):
        raise TypeError(
            f"leased() takes the key of an SqsQueueResource among the resources, not {type(queue).__name__!r}: write "
            '@leased("orders_queue") above the function'
        )
    lease_options(queue, arguments)

    def decorate(work: _Work) -> Callable[..., Any]:
        return _within_lease(work, queue, arguments)

    return decorate


def _within_lease(work: Callable[..., Any], queue: str, arguments: LeaseArguments) -> Callable[..., Any]:
    name = getattr(work, "__name__", repr(work))
    if inspect.iscoroutinefunction(work) or inspect.isasyncgenfunction(work):
        raise TypeError(f"leased() cannot decorate {name!r}: it is asynchronous, and a lease blocks")
    signature = inspect.signature(work)
    if BATCH not in signature.parameters:
        raise TypeError(f"leased() cannot decorate {name!r}: it has no parameter {BATCH!r} for the messages")
    takes_context = next(iter(signature.parameters)) in _CONTEXTS
    takes_queue = queue in signature.parameters

    def events(context: Any, resource: SqsQueueResource, given: dict[str, Any]) -> Iterator[Any]:
        with resource.lease(context, **arguments) as batch:
            yield from output_events(context, _call(context, batch, given))
            if missing := missing_outputs(context):
                raise dg.DagsterInvariantViolationError(
                    f"{name!r} did not yield its required outputs {', '.join(map(repr, missing))}, so its messages "
                    "failed. Yield them, or set is_required=False on those that may be missing"
                )

    def _call(context: Any, batch: Any, given: dict[str, Any]) -> Any:
        return work(context, **given, batch=batch) if takes_context else work(**given, batch=batch)

    # Not a generator function: Dagster reads the types of outputs from the annotation of other functions only.
    def function(context: Any, **given: Any) -> Any:
        resource = given[queue] if takes_queue else given.pop(queue)
        if not isinstance(resource, SqsQueueResource):
            raise TypeError(
                f"the resource {queue!r} of {name!r} is {type(resource).__name__!r}, and must be an SqsQueueResource: "
                f"set it in Definitions(resources={{{queue!r}: SqsQueueResource(queue=...)}})"
            )
        if step_key(context) is not None:
            return events(context, resource, given)
        with resource.lease(context, **arguments) as batch:
            result = _call(context, batch, given)
            return list(result) if inspect.isgenerator(result) else result

    function.__name__ = name
    function.__qualname__ = getattr(work, "__qualname__", name)
    function.__module__ = work.__module__
    function.__doc__ = work.__doc__
    seen = _seen_by_dagster(work, signature, queue, takes_context)
    function.__signature__ = seen  # type: ignore[attr-defined]
    # Releases of Dagster before 1.13 read these instead.
    annotations = {each.name: each.annotation for each in seen.parameters.values()} | {"return": seen.return_annotation}
    function.__annotations__ = {key: kind for key, kind in annotations.items() if kind is not inspect.Signature.empty}
    return function


def _seen_by_dagster(
    work: Callable[..., Any], signature: inspect.Signature, queue: str, takes_context: bool
) -> inspect.Signature:
    """The signature without the batch, and with the context and the resource; annotations are no strings."""
    hints = get_type_hints(work, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        each.replace(annotation=hints.get(each.name, each.annotation))
        for each in signature.parameters.values()
        if each.name not in (BATCH, queue)
    ]
    if not takes_context:
        parameters.insert(0, inspect.Parameter(CONTEXT, inspect.Parameter.POSITIONAL_OR_KEYWORD))
    context, *others = parameters
    resource = inspect.Parameter(queue, keyword, annotation=SqsQueueResource)
    others = [each.replace(kind=keyword) for each in others]
    # Dagster looks at what a generator yields, and not at its annotation.
    is_generator = inspect.isgeneratorfunction(work)
    returned = inspect.Signature.empty if is_generator else hints.get("return", signature.return_annotation)
    return inspect.Signature([context, *others, resource], return_annotation=returned)
