"""Failure rules give each failed message its settlement, and say which messages a value or an exception failed."""

from __future__ import annotations

import math
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from sqs_lease.core.failure_rules import (
    DeadLetter,
    Expire,
    FailureRule,
    MessageFailed,
    Release,
    backoff,
    by_exception,
    checked_names,
    dead_letter,
    exception_names,
    expire,
    failed_by_exception,
    failed_items,
    failure_reasons,
    named_message_ids,
    release,
)
from sqs_lease.core.messages import Message, Receipt


def settlement(rule: FailureRule, receive_count: int = 1, seed: int = 0) -> object:
    return rule.settlement(receive_count=receive_count, reason="it broke", random=Random(seed))


def delays(rule: FailureRule, receive_counts: range, seed: int = 0) -> list[int]:
    found = [settlement(rule, count, seed) for count in receive_counts]
    return [one.delay_seconds for one in found if isinstance(one, Release)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (release(), Release(0)),
        (release(90), Release(90)),
        (release(timedelta(minutes=2)), Release(120)),
        (expire(), Expire()),
        (dead_letter(), DeadLetter("it broke")),
    ],
    ids=repr,
)
def test_each_rule_gives_its_settlement(rule: FailureRule, expected: object) -> None:
    assert settlement(rule) == expected


def test_backoff_doubles_by_receive_count_up_to_its_maximum() -> None:
    assert delays(backoff(10, jitter=0, maximum=100), range(1, 7)) == [10, 20, 40, 80, 100, 100]


def test_backoff_stays_at_its_maximum_for_any_receive_count() -> None:
    assert delays(backoff(10, factor=100, jitter=0), range(10_000, 10_001)) == [900]


def test_backoff_jitter_shortens_by_at_most_its_share_and_differs_between_messages() -> None:
    found = {delays(backoff(100, jitter=0.2), range(1, 2), seed)[0] for seed in range(50)}
    assert min(found) >= 80
    assert max(found) <= 100
    assert len(found) > 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: release(-1),
        lambda: release(43_201),
        lambda: backoff(0),
        lambda: backoff(factor=0.5),
        lambda: backoff(jitter=1.5),
        lambda: backoff(maximum=timedelta(hours=13)),
        lambda: Release(-1),
        lambda: Release(43_201),
    ],
)
def test_impossible_rules_are_refused_when_they_are_made(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"delay|initial|factor|jitter|maximum"):
        make()


def test_a_poison_message_is_released_at_once_three_times_and_then_later_and_later() -> None:
    assert delays(release(), range(1, 4)) == [0, 0, 0]
    found = delays(release(), range(4, 13))
    longest = [5, 10, 20, 40, 80, 160, 320, 640, 900]
    assert all(0.8 * limit - 1 <= delay <= limit for delay, limit in zip(found, longest, strict=True))


@pytest.mark.parametrize("delay", [0, 7])
def test_a_delay_that_was_asked_for_is_the_same_after_any_number_of_receives(delay: int) -> None:
    assert delays(release(delay), range(1, 100)) == [delay] * 99


class ApiError(Exception):
    """An error of a module of the user's own."""


class QuotaError(ApiError):
    """A special one."""


CHOICE = by_exception(
    {ApiError: release(1), f"{__name__}.QuotaError": release(2), "LookupError": release(3)}, otherwise=release(4)
)


@pytest.mark.parametrize(
    ("error", "delay"),
    [(ApiError(), 1), (QuotaError(), 2), (KeyError(), 3), (ValueError(), 4)],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_the_rule_of_the_nearest_class_of_the_exception_counts(error: Exception, delay: int) -> None:
    assert settlement(CHOICE.matching(exception_names(error))) == Release(delay)


@pytest.mark.parametrize(
    ("leaves", "delay"),
    [
        ([ApiError(), ApiError()], 1),
        ([ApiError(), QuotaError()], 1),
        ([QuotaError(), ExceptionGroup("", [QuotaError()])], 2),
        ([KeyError(), IndexError()], 3),
        ([KeyError(), ValueError()], 4),
    ],
    ids=["one class", "a derived class", "nested", "a shared base", "nothing in common"],
)
def test_a_group_is_settled_by_the_rule_for_what_its_exceptions_have_in_common(
    leaves: list[Exception], delay: int
) -> None:
    assert settlement(CHOICE.matching(exception_names(ExceptionGroup("", leaves)))) == Release(delay)


def test_a_rule_for_groups_goes_before_those_for_what_is_in_them() -> None:
    rule = by_exception({ApiError: release(1), ExceptionGroup: release(5)})
    assert settlement(rule.matching(exception_names(ExceptionGroup("", [ApiError()])))) == Release(5)


def test_without_a_known_exception_the_other_rule_counts() -> None:
    assert settlement(CHOICE.matching(())) == Release(4)
    assert settlement(CHOICE) == Release(4)
    assert settlement(by_exception({ValueError: dead_letter()}).matching(())) == Release(0)


def test_a_rule_without_a_choice_holds_for_every_exception() -> None:
    assert backoff().matching(exception_names(ValueError())) == backoff()


def test_a_class_of_a_dag_file_is_the_same_on_every_machine() -> None:
    here, there = (type("Bad", (Exception,), {"__module__": f"unusual_prefix_{digit * 40}_shop"}) for digit in "ab")
    rule = by_exception({here: dead_letter()})
    assert settlement(rule.matching(exception_names(there()))) == DeadLetter("it broke")
    assert settlement(by_exception({"shop.Bad": dead_letter()}).matching(exception_names(there()))) == DeadLetter(
        "it broke"
    )


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: by_exception({}), ValueError, "at least one rule"),
        (lambda: by_exception({int: release()}), TypeError, "exceptions' classes"),  # type: ignore[dict-item]
        (lambda: by_exception({ValueError: "release"}), TypeError, "takes failure rules"),  # type: ignore[dict-item]
        (lambda: by_exception({ValueError: CHOICE}), ValueError, "cannot be nested"),
        (lambda: by_exception({ValueError: release(), "ValueError": expire()}), ValueError, "two rules for builtins"),
    ],
)
def test_a_wrong_choice_is_refused_when_it_is_made(make: object, error: type[Exception], text: str) -> None:
    assert callable(make)
    with pytest.raises(error, match=text):
        make()


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


MESSAGE = Message(Receipt("m0", "handle"), "a body")


@pytest.mark.parametrize("named", ["m0", MESSAGE, {"MessageId": "m0", "Body": "a body"}], ids=["id", "Message", "dict"])
def test_a_message_is_named_by_its_id_or_by_itself(named: Any) -> None:
    assert MessageFailed(named).message_ids == ("m0",)
    assert MessageFailed([named]).message_ids == ("m0",)


@pytest.mark.parametrize("name", ["ApiError", "print", ""])
def test_a_name_that_no_exception_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a built-in exception: write its class, or the name with the module"):
        by_exception({name: dead_letter()})
    with pytest.raises(ValueError, match="is not a built-in exception"):
        checked_names([name])


def test_the_text_of_the_exception_has_ids_and_no_bodies() -> None:
    message_id = "0b7c0d6e-9d3c-4f5d-8f0a-6c2f4d1b9a77"
    assert str(MessageFailed([message_id])) == f"1 message failed: {message_id}"
    assert "a body" not in str(MessageFailed(["a body"]))


@pytest.mark.parametrize("seconds", [2.5, True, "5", math.nan, -1, 43_201, timedelta(seconds=5)], ids=repr)
def test_a_release_after_something_else_than_whole_seconds_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match="delay_seconds must be an integer from 0 to 43200"):
        Release(seconds)


@pytest.mark.parametrize("reason", [None, ValueError("a body"), 3])
def test_a_reason_that_is_not_a_text_is_refused_without_its_text(reason: Any) -> None:
    with pytest.raises(TypeError, match="the reason for a failure must be a text, not ") as refusal:
        DeadLetter(reason)
    assert "a body" not in str(refusal.value)


def test_the_keys_of_a_mapping_by_ids_are_named() -> None:
    assert MessageFailed({"m0": "bad", "m1": "late"}).message_ids == ("m0", "m1")


@pytest.mark.parametrize("named", [3, [None], [{"Body": "a body"}], [["m0"]]], ids=repr)
def test_other_things_than_messages_and_ids_are_refused_without_their_text(named: Any) -> None:
    with pytest.raises(TypeError, match="named by themselves or by their ids") as refusal:
        MessageFailed(named)
    assert "a body" not in str(refusal.value)


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
