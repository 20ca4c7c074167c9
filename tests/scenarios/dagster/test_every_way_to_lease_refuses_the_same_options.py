"""Dagster's ways to lease have the defaults and the checks of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from sqs_lease.dagster import SqsQueueResource, build_sqs_router, sqs_lease_executor
from tests.keeper.refused_options import assert_refuses, other_defaults, refused

QUEUE = SqsQueueResource(queue="orders")


def resource(**options: Any) -> object:
    return QUEUE.lease(dg.build_op_context(), **options)


def executor(**options: Any) -> object:
    return sqs_lease_executor(QUEUE, workspace="/orders", **options)


def router(**options: Any) -> object:
    return build_sqs_router("orders", QUEUE, "orders", workspace="/orders", **options)


@pytest.mark.parametrize("ask", [resource, executor])
@refused("max_messages", "wait", "linger", "policy", "visibility", "on_failure")
def test_impossible_options_are_refused_as_everywhere(
    ask: Callable[..., object], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    assert_refuses(ask, options, error, text)


@refused("max_messages", "wait", "linger", "on_failure")
def test_a_router_refuses_the_same(options: dict[str, Any], error: type[Exception], text: str) -> None:
    assert_refuses(router, options, error, text)


@pytest.mark.parametrize(
    ("ask", "others"),
    [
        (SqsQueueResource.lease, {}),
        (sqs_lease_executor, {}),
        (build_sqs_router, {"wait": 5.0}),
    ],
)
def test_the_defaults_of_a_signature_are_those_of_the_options_but_for_the_wait_of_an_evaluation(
    ask: Callable[..., object], others: dict[str, Any]
) -> None:
    assert other_defaults(ask) == others
