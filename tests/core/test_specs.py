"""Policies and failure rules survive the way to another process and back."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from sqs_lease.core.failure_rules import FailureRule, backoff, by_exception, dead_letter, discard, expire, release
from sqs_lease.core.policies import Buffered, Fixed, Growing, Never, RenewalPolicy, Threshold
from sqs_lease.core.specs import (
    OnFailure,
    decode_failure_rule,
    decode_policy,
    encode_failure_rule,
    encode_policy,
    resolve_failure_rule,
    resolve_policy,
)


@pytest.mark.parametrize(
    "policy",
    [
        Growing(visibility=45.0, growth=0.5, ceiling=600.0, margin=0.25, max_lease=3600.0),
        Threshold(visibility=30.0, threshold=4.0, heartbeat=2.0, max_lease=100.0),
        Buffered(visibility=30.0, buffer=8.0, immediate=0.2, max_lease=300.0),
        Fixed(visibility=120.0, every=60.0, max_lease=500.0),
        Never(visibility=30.0, max_lease=60.0),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_a_policy_comes_back_from_json_as_it_was(policy: RenewalPolicy) -> None:
    assert decode_policy(json.loads(json.dumps(encode_policy(policy)))) == policy


@pytest.mark.parametrize(
    "rule",
    [
        release(),
        release(7.0),
        backoff(5.0, 3.0, 60.0, 0.5),
        expire(),
        dead_letter(),
        by_exception(
            {ValueError: dead_letter(), "shop.ApiError": backoff(5.0, 3.0, 60.0, 0.5)}, otherwise=release(3.0)
        ),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_a_failure_rule_comes_back_from_json_as_it_was(rule: FailureRule) -> None:
    assert decode_failure_rule(json.loads(json.dumps(encode_failure_rule(rule)))) == rule


def test_a_timedelta_travels_as_seconds() -> None:
    spec = encode_policy(Growing(visibility=timedelta(minutes=2)))
    assert spec["visibility"] == 120.0
    assert decode_policy(spec).visibility_seconds == 120.0


def test_a_policy_of_the_users_own_is_refused_because_it_would_come_back_as_another() -> None:
    class Eager(Never):
        pass

    with pytest.raises(TypeError, match="Eager cannot be sent to another process"):
        encode_policy(Eager())


@pytest.mark.parametrize("spec", [{}, {"policy": "sometimes"}, {"policy": None}], ids=str)
def test_an_unknown_policy_name_is_refused(spec: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="policy must be one of growing, threshold"):
        decode_policy(spec)


def test_no_policy_means_growing_with_the_visibility_that_was_given() -> None:
    assert resolve_policy(None, visibility=60) == Growing(visibility=60)
    assert resolve_policy(None) == Growing()


def test_a_policy_is_found_by_its_name() -> None:
    assert resolve_policy("threshold", visibility=30) == Threshold(visibility=30)


def test_a_policy_that_needs_arguments_is_not_found_by_its_name_alone() -> None:
    with pytest.raises(TypeError, match="'fixed' needs arguments"):
        resolve_policy("fixed")


def test_a_wrong_name_lists_the_right_ones() -> None:
    with pytest.raises(ValueError, match="growing, threshold, buffered, fixed, never"):
        resolve_policy("always")


def test_the_shortcut_fills_in_a_policy_without_a_visibility_of_its_own() -> None:
    assert resolve_policy(Never(), visibility=5) == Never(visibility=5)


def test_one_visibility_in_two_forms_is_no_contradiction() -> None:
    assert resolve_policy(Never(visibility=5), visibility=timedelta(seconds=5)).visibility_seconds == 5


def test_two_visibilities_that_differ_are_a_contradiction() -> None:
    with pytest.raises(ValueError, match="contradicts"):
        resolve_policy(Never(visibility=5), visibility=6)


@pytest.mark.parametrize(
    ("described", "rule"),
    [
        (None, release()),
        (dead_letter(), dead_letter()),
        ("expire", expire()),
        ({"kind": "backoff", "initial": 30}, backoff(30)),
    ],
    ids=["none", "object", "name", "mapping"],
)
def test_a_failure_rule_is_an_object_a_name_or_a_mapping(described: OnFailure | None, rule: FailureRule) -> None:
    assert resolve_failure_rule(described) == rule


@pytest.mark.parametrize(
    ("described", "error", "said"),
    [
        ("dead_lettr", ValueError, "on_failure must be one of release, backoff, expire, dead_letter"),
        ({"initial": 30}, ValueError, "not None"),
        ({"kind": "backoff", "inital": 30}, TypeError, "'backoff' does not take these arguments .*inital"),
        ({"kind": "backoff", "initial": -1}, ValueError, "initial"),
        (discard(), TypeError, "must be a failure rule such as"),
        (30, TypeError, "must be a failure rule such as"),
    ],
    ids=["name", "no kind", "argument", "value", "discard", "number"],
)
def test_anything_else_is_not_a_failure_rule(described: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        resolve_failure_rule(described)
