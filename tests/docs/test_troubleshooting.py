"""docs/troubleshooting.md has what users look for: the errors that reach them, and the texts that SQS gives."""

from __future__ import annotations

import re

import pytest

from sqs_lease.sqs.classification import error_from_code
from sqs_lease.testing import ServiceError, service_errors
from tests.docs.test_examples import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
PACKAGE = ROOT / "providers" / "sqs_lease"

CAUGHT_WITHIN = {
    *("CommsError", "NoAnswerError", "GivenBackError"),
    *("LoopThreadError", "NotTrueOrFalseError", "StepFailedError"),
    *("CommandError", "NothingToInferError", "PartitionKeyError"),
    *("NotJsonError", "NotANotificationError", "BadContentError", "ObjectUnavailableError"),
    *("OverAllowanceError", "SpoolFullError", "DiffersError", "TooSlowError", "UndoneWorkError"),
}
"""Errors that users do not meet by name: the package catches them, and tells of them in other words."""

CLASS = re.compile(r"^class ([A-Z]\w+(?:Error|Warning))\(", re.MULTILINE)


def errors_of_the_package() -> set[str]:
    sources = (path for path in PACKAGE.rglob("*.py") if "testing" not in path.parts)
    return {name for path in sources for name in CLASS.findall(path.read_text())}


def test_every_error_that_users_meet_is_on_the_page() -> None:
    known = errors_of_the_package()
    assert known > CAUGHT_WITHIN
    assert sorted(name for name in known - CAUGHT_WITHIN if f"`{name}`" not in PAGE) == []


@pytest.mark.parametrize(
    "part", ["Reason: The receipt handle has expired", "beyond the limit [43200 seconds]", "MessageNotInflight"]
)
def test_the_texts_of_sqs_are_quoted_as_the_service_gives_them(part: str) -> None:
    named = [error for error in vars(service_errors).values() if isinstance(error, ServiceError)]
    given = [f"{error.code}: {error.text}" for error in (*named, service_errors.beyond_total_visibility(1))]
    assert any(part in text for text in given)
    assert part in PAGE


def test_the_error_about_too_many_messages_in_flight_is_quoted() -> None:
    said = str(error_from_code("OverLimit", "", operation="ReceiveMessage", queue="orders"))
    assert "too many of its messages are in flight (120 000 at most)" in said
    assert "too many of its messages are in flight (120 000 at most)" in PAGE
