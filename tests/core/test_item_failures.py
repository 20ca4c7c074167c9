"""Which messages a return value or an exception names as failed."""

from __future__ import annotations

from typing import Any

import pytest

from sqs_lease.core.failure_rules import (
    MessageFailed,
    failed_by_exception,
    failed_items,
    failure_reasons,
    named_message_ids,
)

IDS = ["m0", "m1", "m2"]


@pytest.mark.parametrize(
    "returned",
    [
        None,
        "text",
        {},
        {"batchItemFailures": None},
        {"batchItemFailures": []},
        {"other": [{"itemIdentifier": "m0"}]},
    ],
    ids=repr,
)
def test_a_return_value_that_names_nothing_means_success(returned: Any) -> None:
    assert failed_items(returned, IDS) == frozenset()


def test_the_named_messages_are_those_of_the_list() -> None:
    returned = {"batchItemFailures": [{"itemIdentifier": "m0"}, {"itemIdentifier": "m2"}]}
    assert failed_items(returned, IDS) == {"m0", "m2"}


@pytest.mark.parametrize(
    "items",
    [
        "m0",
        {"itemIdentifier": "m0"},
        [{"itemIdentifier": "m0"}, {"itemIdentifier": ""}],
        [{"itemIdentifier": None}],
        [{"itemIdentifier": ["m0"]}],
        [{"itemId": "m0"}],
        [{"itemIdentifier": "of another batch"}],
        ["m0"],
        [None],
    ],
    ids=repr,
)
def test_a_malformed_list_fails_everything_the_work_was_concerned_with(items: Any) -> None:
    assert failed_items({"batchItemFailures": items}, IDS) == set(IDS)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("two\nlines\x00", {"m0": "two lines"}),
        ("x" * 600, {"m0": "x" * 500}),
        ("half \ud800", {"m0": "half"}),
        (7, {}),
        (None, {}),
    ],
    ids=["control characters", "long", "half a character", "a number", "none"],
)
def test_a_reason_is_made_fit_for_a_message_attribute(reason: object, said: dict[str, str]) -> None:
    returned = {"batchItemFailures": [{"itemIdentifier": "m0", "reason": reason}]}
    assert failure_reasons(returned, {"m0"}) == said


@pytest.mark.parametrize(
    "returned", [None, {}, {"batchItemFailures": "m0"}, {"batchItemFailures": [None, {}]}], ids=repr
)
def test_a_malformed_list_has_no_reasons(returned: object) -> None:
    assert failure_reasons(returned, set(IDS)) == {}


@pytest.mark.parametrize(
    ("named", "failed"),
    [(None, IDS), ([], IDS), (["m1"], ["m1"]), (["m0", "m2"], ["m0", "m2"]), (["m1", "of another batch"], IDS)],
)
def test_an_exception_that_names_nothing_or_too_much_fails_everything(named: Any, failed: list[str]) -> None:
    assert failed_by_exception(named, IDS) == set(failed)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (MessageFailed("m0"), ("m0",)),
        (ValueError(), None),
        (ExceptionGroup("", [MessageFailed("m0"), MessageFailed(["m1", "m2"])]), ("m0", "m1", "m2")),
        (ExceptionGroup("", [ExceptionGroup("", [MessageFailed("m0")]), MessageFailed("m1")]), ("m0", "m1")),
        (ExceptionGroup("", [MessageFailed("m0"), ValueError()]), None),
        (ExceptionGroup("", [MessageFailed("m0"), ExceptionGroup("", [ValueError()])]), None),
        (BaseExceptionGroup("", [MessageFailed("m0"), KeyboardInterrupt()]), None),
        (ExceptionGroup("", [MessageFailed("m0"), MessageFailed([])]), ()),
    ],
    ids=["alone", "another", "a group", "nested", "beside another", "beside a nested one", "interrupted", "none named"],
)
def test_a_group_names_the_messages_of_all_its_exceptions_if_each_of_them_names_some(
    error: BaseException, named: tuple[str, ...] | None
) -> None:
    assert named_message_ids(error) == named
