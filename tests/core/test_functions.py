"""A function whose call alone does nothing is refused, whatever form it has, and the error says what to give."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from sqs_lease.core.functions import require_function


def plain(_: object) -> None:
    pytest.fail("nothing is called")


async def asynchronous(_: object) -> None:
    pytest.fail("nothing is called")


def generating(_: object) -> Iterator[None]:
    yield


async def generating_asynchronously(_: object) -> AsyncIterator[None]:
    yield


class Handler:
    def __call__(self, _: object) -> None:
        pytest.fail("nothing is called")

    async def work(self, _: object) -> None:
        pytest.fail("nothing is called")


class AsynchronousHandler:
    async def __call__(self, _: object) -> None:
        pytest.fail("nothing is called")


class GeneratingHandler:
    def __call__(self, _: object) -> Iterator[None]:
        yield


ASYNC = [asynchronous, partial(asynchronous), Handler().work, AsynchronousHandler()]
YIELDS = [generating, partial(generating), GeneratingHandler()]


@pytest.mark.parametrize("function", [plain, partial(plain, 1), Handler(), Handler, print, str.upper])
def test_a_function_that_works_when_it_is_called_is_taken(function: Any) -> None:
    require_function(function, "handle")
    require_function(function, "handle", may_await=True)


@pytest.mark.parametrize("function", [*ASYNC, generating_asynchronously], ids=repr)
def test_an_async_function_is_refused_with_a_remedy(function: Any) -> None:
    with pytest.raises(TypeError, match="handle is async, and is called without await: use AsyncConsumer"):
        require_function(function, "handle", instead="use AsyncConsumer")


@pytest.mark.parametrize("function", ASYNC, ids=repr)
def test_an_async_function_is_taken_where_it_is_awaited(function: Any) -> None:
    require_function(function, "handle", may_await=True)


@pytest.mark.parametrize("function", [*YIELDS, generating_asynchronously], ids=repr)
def test_a_generator_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="handle yields, so calling it does nothing: give a function that returns when"):
        require_function(function, "handle", may_await=True)


@pytest.mark.parametrize("function", YIELDS, ids=repr)
def test_a_generator_is_taken_where_it_is_an_answer(function: Any) -> None:
    require_function(function, "the function", may_yield=True)


@pytest.mark.parametrize("function", [3, None, "plain"])
def test_other_things_than_functions_are_refused(function: Any) -> None:
    with pytest.raises(TypeError, match=f"handle must be a function, not {type(function).__name__}"):
        require_function(function, "handle")
