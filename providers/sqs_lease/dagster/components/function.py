"""An asset whose work is a Python function of messages, declared in YAML."""

# Dagster reads the annotations of these models, so this module has no postponed ones.

import inspect
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, Final

import dagster as dg
from pydantic import Field, field_validator

from sqs_lease.blocking import LeasedBatch
from sqs_lease.dagster.components.leased_asset import LeasedAssetComponent
from sqs_lease.dagster.components.scaffolding import FunctionScaffolder

_CONTEXT: Final = "context"


@dg.scaffold_with(FunctionScaffolder)
class SqsFunctionComponent(LeasedAssetComponent):
    """An asset: each materialization has a Python function work on a batch of messages.

    ::

        def load(messages: LeasedBatch) -> None:
            for message in messages:
                store(message.body)

    The function is not called when no message came. If its first parameter is ``context``, it gets the context of the
    asset before the messages.
    """

    function: str = Field(
        description="The dotted path of the function, such as shop.orders.load. It takes the messages of a batch, "
        "returns None or a MaterializeResult, and raises if it could not work on them."
    )

    @field_validator("function")
    @classmethod
    def _can_be_called(cls, path: str) -> str:
        _function(path)
        return path

    def execute(self, context: dg.AssetExecutionContext, batch: LeasedBatch) -> dg.MaterializeResult[Any] | None:
        """Call the function, if there are messages."""
        if not len(batch):
            return None
        function = _function(self.function)
        # Whatever it returns: the caller checks it.
        return function(context, batch) if _takes_context(function) else function(batch)  # type: ignore[no-any-return]


def _function(path: str) -> Callable[..., Any]:
    """Import the function.

    Raises:
        ValueError: It cannot be imported, or called with messages.
    """
    try:
        function = resolve_name(path)
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(
            f"function: {path!r} cannot be imported ({kind}: {error}): give the path of a function of an installed "
            "module, package.module.function"
        ) from error
    if not callable(function) or inspect.isclass(function):
        raise ValueError(f"function: {path!r} is not a function")
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(is_kind(function) for is_kind in kinds):
        raise ValueError(f"function: {path!r} is a generator or asynchronous; its work would be left undone")
    arguments = ["context", "messages"] if _takes_context(function) else ["messages"]
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"function: {path!r} cannot be called with the messages of a batch: {error}") from None
    return function  # type: ignore[no-any-return]  # resolve_name() tells no type


def _takes_context(function: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(function).parameters), "") == _CONTEXT
