"""The options of a lease are checked, and have their defaults, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sqs_lease import AsyncConsumer, Consumer, Growing, async_lease, dead_letter, lease, release
from sqs_lease.keeper.options import LeaseOptions
from tests.keeper.refused_options import assert_refuses, other_defaults, refused


def leased(**options: Any) -> object:
    return lease("orders", **options)


def leased_by_async_lease(**options: Any) -> object:
    return async_lease("orders", **options)


def consumed(**options: Any) -> object:
    return Consumer("orders", **options)


def consumed_by_async_consumer(**options: Any) -> object:
    return AsyncConsumer("orders", **options)


@pytest.mark.parametrize("ask", [LeaseOptions.of, leased, leased_by_async_lease, consumed, consumed_by_async_consumer])
@refused("max_messages", "wait", "linger", "policy", "visibility", "on_failure")
def test_an_impossible_option_is_refused_where_it_is_written_and_the_error_names_it(
    ask: Callable[..., object], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    assert_refuses(ask, options, error, text)


@pytest.mark.parametrize("ask", [lease, async_lease, Consumer, AsyncConsumer])
def test_the_defaults_of_a_signature_are_those_of_the_options(ask: Callable[..., object]) -> None:
    assert other_defaults(ask) == {}


def test_options_that_are_left_out_are_filled_in() -> None:
    options = LeaseOptions.of()
    assert (options.max_messages, options.wait_seconds, options.linger_seconds) == (10, 20.0, 1.0)
    assert (options.policy, options.on_failure) == (Growing(), release())


def test_a_value_that_is_made_of_another_one_is_checked_too() -> None:
    options = LeaseOptions.of(wait=timedelta(minutes=1), policy="growing", visibility=90, on_failure=dead_letter())
    assert (options.wait_seconds, options.policy) == (60.0, Growing(visibility=90))
    with pytest.raises(ValueError, match="max_messages"):
        replace(options, max_messages=0)
    with pytest.raises(ValueError, match="linger"):
        replace(options, linger_seconds=-1)
