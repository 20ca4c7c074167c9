"""The findings of `doctor` in the settings of a queue, from its attributes alone."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from sqs_lease.cli.findings import Finding, Level
from sqs_lease.cli.queue_checks import QueueContext, QueueState, clock_finding, queue_findings

ARN = "arn:aws:sqs:eu-west-1:123456789012"
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012"
DAY = 86_400
REDRIVE = {"deadLetterTargetArn": f"{ARN}:dead", "maxReceiveCount": 5}


def queue(name: str = "orders", /, **attributes: object) -> QueueState:
    given = {key: value if isinstance(value, str) else json.dumps(value) for key, value in attributes.items()}
    return QueueState(f"{URL}/{name}", {"QueueArn": f"{ARN}:{name}", "VisibilityTimeout": "120", **given})


GOOD = QueueContext(dead_letters=queue("dead", MessageRetentionPeriod=14 * DAY), sources=())


def found(state: QueueState, around: QueueContext = GOOD) -> dict[str, Finding]:
    return {finding.check: finding for finding in queue_findings(state, around)}


def problems(state: QueueState, around: QueueContext = GOOD) -> set[str]:
    return {check for check, finding in found(state, around).items() if finding.level is Level.PROBLEM}


def test_a_good_queue_has_no_problem() -> None:
    assert problems(queue(RedrivePolicy=REDRIVE)) == set()


@pytest.mark.parametrize(
    ("attributes", "check"),
    [
        ({"VisibilityTimeout": 0}, "visibility_timeout"),
        ({"VisibilityTimeout": 14}, "visibility_timeout"),
        ({"VisibilityTimeout": 43_200}, "visibility_timeout"),
        ({"RedrivePolicy": ""}, "dead_letter_queue"),
        ({"RedrivePolicy": {**REDRIVE, "maxReceiveCount": 1}}, "max_receive_count"),
        # Some tools write a string into the policy.
        ({"RedrivePolicy": {**REDRIVE, "maxReceiveCount": "2"}}, "max_receive_count"),
        ({"MessageRetentionPeriod": 3600}, "retention"),
        ({"ApproximateNumberOfMessagesNotVisible": 100_000}, "in_flight"),
    ],
)
def test_a_setting_that_is_a_problem_is_found_with_its_reason_and_its_change(
    attributes: dict[str, object], check: str
) -> None:
    state = queue(**{"RedrivePolicy": REDRIVE, **attributes})

    assert problems(state) == {check}
    assert found(state)[check].why
    assert found(state)[check].change


@pytest.mark.parametrize(
    "attributes", [{"VisibilityTimeout": 15}, {"VisibilityTimeout": 3600}, {"MessageRetentionPeriod": 12 * 3600}]
)
def test_the_limits_themselves_do_not_bite(attributes: dict[str, object]) -> None:
    assert problems(queue(RedrivePolicy=REDRIVE, **attributes)) == set()


@pytest.mark.parametrize(
    ("waiting", "says"),
    [
        (1, "about 1 message waits in dead"),
        (2, "about 2 messages wait in dead"),
        (1234, "about 1 234 messages wait in dead"),
    ],
)
def test_dead_letters_are_counted_in_plain_english(waiting: int, says: str) -> None:
    dead = queue("dead", MessageRetentionPeriod=14 * DAY, ApproximateNumberOfMessages=waiting)

    assert found(queue(RedrivePolicy=REDRIVE), replace(GOOD, dead_letters=dead))["dead_letters"].what == says


def test_the_messages_of_a_queue_are_counted() -> None:
    counts = {"ApproximateNumberOfMessages": 1234, "ApproximateNumberOfMessagesNotVisible": 20}

    said = found(queue(RedrivePolicy=REDRIVE, **counts))["in_flight"].what

    assert said == "about 1 234 messages visible; 20 in flight, room for 119 980 more"


def test_the_sensors_of_airflow_have_a_visibility_timeout_of_their_own() -> None:
    state = queue(RedrivePolicy=REDRIVE, VisibilityTimeout=5)

    assert problems(state) == {"visibility_timeout"}
    assert problems(state, replace(GOOD, waits_for_queue=False)) == set()


@pytest.mark.parametrize(
    ("kept", "dead_kept", "level"),
    [
        (4 * DAY, 4 * DAY, Level.PROBLEM),
        (4 * DAY, 4 * DAY + 1, Level.FINE),
        (14 * DAY, 4 * DAY, Level.PROBLEM),
        (14 * DAY, 14 * DAY, Level.NOTE),
    ],
)
def test_a_dead_letter_queue_must_keep_messages_for_longer(kept: int, dead_kept: int, level: Level) -> None:
    around = replace(GOOD, dead_letters=queue("dead", MessageRetentionPeriod=dead_kept))
    state = queue(RedrivePolicy=REDRIVE, MessageRetentionPeriod=kept)

    assert found(state, around)["dead_letter_retention"].level is level


def test_a_fifo_queue_starts_to_count_again_when_it_moves_a_message() -> None:
    around = replace(GOOD, dead_letters=queue("dead.fifo", MessageRetentionPeriod=DAY))

    assert problems(queue("orders.fifo", RedrivePolicy=REDRIVE, MessageRetentionPeriod=4 * DAY), around) == set()


def test_a_dead_letter_queue_needs_no_other_dead_letter_queue() -> None:
    around = QueueContext(sources=(f"{URL}/orders",))

    assert found(queue("dead"), around)["dead_letter_queue"].what == "it is the dead-letter queue of orders"
    assert problems(queue("dead"), around) == set()
    assert found(queue("dead"), QueueContext(sources=None))["dead_letter_queue"].level is Level.NOTE


def test_a_host_that_tries_again_more_often_than_messages_may_be_received_is_found() -> None:
    state = queue(RedrivePolicy={**REDRIVE, "maxReceiveCount": 3})

    assert problems(state, replace(GOOD, attempts={"Dagster": 2})) == set()
    assert problems(state, replace(GOOD, attempts={"Dagster": 3})) == {"max_receive_count"}


def test_the_change_is_a_command_that_a_shell_reads_back() -> None:
    state = replace(queue(RedrivePolicy={**REDRIVE, "maxReceiveCount": 1}), cli=("--region", "eu-west-1"))

    words = shlex.split(found(state)["max_receive_count"].command)

    assert words[:5] == ["aws", "--region", "eu-west-1", "sqs", "set-queue-attributes"]
    assert words[5:7] == ["--queue-url", f"{URL}/orders"]
    (policy,) = json.loads(words[8]).values()
    assert json.loads(policy) == {**REDRIVE, "maxReceiveCount": 5}


@pytest.mark.parametrize(
    ("key", "says"), [("alias/aws/sqs", "AWS managed key"), ("alias/orders", "the KMS key alias/orders")]
)
def test_a_key_is_named_and_what_it_needs(key: str, says: str) -> None:
    finding = found(queue(RedrivePolicy=REDRIVE, KmsMasterKeyId=key))["encryption"]

    assert says in finding.what
    assert finding.level is Level.NOTE


@pytest.mark.parametrize(
    ("ahead", "level"), [(0.4, Level.FINE), (-59, Level.FINE), (61, Level.PROBLEM), (-900, Level.PROBLEM)]
)
def test_a_clock_that_is_wrong_is_a_problem(ahead: float, level: Level) -> None:
    assert clock_finding(ahead).level is level


def test_a_clock_says_in_which_direction_it_is_wrong() -> None:
    assert clock_finding(120).what == "this machine's clock is 2 min behind that of SQS"
    assert clock_finding(-120).what == "this machine's clock is 2 min ahead of that of SQS"
