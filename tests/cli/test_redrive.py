"""`sqs-lease redrive`: why messages were dead-lettered, and their move back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from sqs_lease.cli import redrive as redriving
from sqs_lease.cli import sampling
from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.sqs.classification import error_from_code
from sqs_lease.sqs.move_tasks import CANCELLED
from sqs_lease.testing import memory_sqs
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from sqs_lease.testing.memory_transport import MemoryTransport
from sqs_lease.testing.pytest_plugin import leased_queues
from sqs_lease.testing.service_errors import MemorySqsError, ServiceError
from tests.cli.commands import sqs_lease
from tests.cli.memory_command import REASONS, dead_letter

__all__ = ["leased_queues"]

DEAD = "orders-dead-letters"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(sampling, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(redriving, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr("sqs_lease.keeper.moving.LAST_LOOK_SECONDS", 0.0)


@pytest.fixture
def orders(leased_queues: LeasedQueues) -> LeasedQueue:
    """Four dead-lettered messages, of two reasons in turn."""
    queue = leased_queues.create("orders")
    dead_letter(leased_queues, queue, 4)
    return queue


def words(text: str) -> str:
    return " ".join(text.split())


def redriven(*arguments: str) -> dict[str, Any]:
    ran = sqs_lease("redrive", DEAD, "--json", *arguments)
    assert ran.exit_code == 0, ran
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


def test_all_go_back_to_where_they_came_from(orders: LeasedQueue) -> None:
    answer = redriven()

    assert answer["move"] == {
        "status": "COMPLETED",
        "moved": 4,
        "to_move": 4,
        "interrupted": False,
        "trouble": None,
    }
    assert orders.visible == [f"order {number}" for number in range(4)]
    assert orders.dead_letters == []


def test_the_summary_counts_by_reason(orders: LeasedQueue) -> None:
    answer = redriven("--dry-run")

    assert {cause["reason"]: cause["messages"] for cause in answer["causes"]} == dict.fromkeys(REASONS, 2)
    ran = sqs_lease("redrive", DEAD, "--dry-run")
    assert "orders-dead-letters: why 4 messages came there" in ran.out
    assert "To move: 4, back to orders. SQS moves them." in ran.out
    for reason in REASONS:
        assert reason in ran.out


def test_a_dry_run_moves_nothing(orders: LeasedQueue) -> None:
    assert "move" not in redriven("--dry-run")

    assert (orders.visible, len(orders.dead_letters)) == ([], 4)


def test_what_sqs_moved_there_has_no_reason_but_a_source(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "an order", max_receive_count=1)
    for _ in range(2):
        sqs_lease("peek", "orders")

    (cause,) = redriven("--dry-run")["causes"]
    assert (cause["reason"], cause["messages"], cause["sources"]) == (None, 1, ["orders"])
    assert "received too often" in sqs_lease("redrive", DEAD, "--dry-run").out


def test_only_the_reason_that_was_asked_for_is_moved(orders: LeasedQueue) -> None:
    answer = redriven("--reason", "Timeout")

    assert answer["matching"] == 2
    assert (answer["move"]["moved"], answer["move"]["to_move"]) == (2, 2)
    assert sorted(orders.visible) == ["order 1", "order 3"]
    assert sorted(orders.dead_letters) == ["order 0", "order 2"]


@pytest.mark.parametrize("arguments", [("--max", "1"), ("--max", "1", "--reason", "Timeout")])
def test_no_more_are_moved_than_asked_for(orders: LeasedQueue, arguments: tuple[str, ...]) -> None:
    ran = sqs_lease("redrive", DEAD, *arguments)

    assert ran.exit_code == 0
    assert "Moved 1 message back to orders." in ran.out
    assert len(orders.visible) == 1
    assert len(orders.dead_letters) == 3


def test_another_queue_can_take_them(orders: LeasedQueue, leased_queues: LeasedQueues) -> None:
    later = leased_queues.create("later")
    assert redriven("--to", "later")["move"]["moved"] == 4

    assert len(later.visible) == 4


def test_a_reason_that_nothing_matches_moves_nothing(orders: LeasedQueue) -> None:
    ran = sqs_lease("redrive", DEAD, "--reason", "KeyError")

    assert ran.exit_code == 0
    assert "No reason matches 'KeyError': nothing to move." in ran.out
    assert len(orders.dead_letters) == 4


def test_an_empty_queue_is_fine(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders")

    ran = sqs_lease("redrive", DEAD)
    assert (ran.exit_code, ran.out) == (0, "There is no message in orders-dead-letters to move.\n")


def test_a_queue_at_work_is_refused_before_its_messages_are_received(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "an order")
    ran = sqs_lease("redrive", "orders")

    assert (ran.exit_code, ran.out) == (2, "")
    assert "it is not the dead-letter queue of any queue" in ran.err
    assert json.loads(sqs_lease("peek", "orders", "--json").out)["messages"][0]["receive_count"] == 1


def test_a_queue_with_a_dead_letter_queue_is_refused_where_nobody_may_list_sources(
    leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def denied(*_: object) -> None:
        raise error_from_code("AccessDenied", "no", operation="ListDeadLetterSourceQueues", queue="orders")

    leased_queues.create("orders", "an order")
    monkeypatch.setattr(MemoryTransport, "dead_letter_sources", denied)
    ran = sqs_lease("redrive", "orders")

    assert (ran.exit_code, ran.out) == (2, "")
    assert "orders may be a queue at work: it has a dead-letter queue, orders-dead-letters. Name that one" in ran.err
    assert json.loads(sqs_lease("peek", "orders", "--json").out)["messages"][0]["receive_count"] == 1


def test_neither_bodies_nor_handles_are_shown(orders: LeasedQueue) -> None:
    for ran in (sqs_lease("redrive", DEAD, "--dry-run"), sqs_lease("redrive", DEAD, "--max", "2", "--json")):
        assert ran.exit_code == 0
        assert "order 0" not in ran.out + ran.err
        assert "handle" not in ran.out.lower() + ran.err.lower()


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_the_summary_fits_the_terminal(orders: LeasedQueue, columns: int) -> None:
    ran = sqs_lease("redrive", DEAD, "--dry-run", columns=columns)

    assert "…" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= columns


def test_a_reason_cannot_steer_the_terminal(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders")
    attributes = {"sqs_lease_reason": {"DataType": "String", "StringValue": "\x9b31mred [bold]"}}
    leased_queues.sqs.send(queue.dead_letter_url, "an order", message_attributes=attributes)

    assert "\\x9b31mred [bold]" in sqs_lease("redrive", DEAD, "--dry-run").out


def test_a_server_without_move_tasks_is_told_apart(orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise error_from_code("InvalidAction", "no such action", operation="ListMessageMoveTasks", queue=DEAD)

    monkeypatch.setattr(MemoryTransport, "move_tasks", unknown)
    ran = sqs_lease("redrive", DEAD)

    assert ran.exit_code == 1
    assert "this SQS server has no move tasks (InvalidAction); --max 10000 moves up to so many messages" in ran.err
    assert redriven("--max", "10000")["move"]["moved"] == 4


def test_an_interrupted_move_task_is_cancelled(
    orders: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    # One a second: however slow this machine is, the task is not done when it is cancelled.
    monkeypatch.setattr(memory_sqs, "MAX_MOVES_PER_SECOND", 1)
    dead_letter(leased_queues, orders, 596)
    monkeypatch.setattr(redriving, "follow", interrupted)
    ran = sqs_lease("redrive", DEAD, "--json")

    assert ran.exit_code == 130
    move = json.loads(ran.out)["move"]
    assert (move["status"], move["interrupted"], move["to_move"]) == (CANCELLED, True, 600)
    assert move["moved"] == len(orders.visible) < 600
    (task,) = leased_queues.sqs.move_tasks(orders.dead_letter_url)
    assert task.status == CANCELLED


def test_what_could_not_be_moved_is_said_with_what_was(
    orders: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = leased_queues.sqs.send

    def refuse_one(queue_url: str, body: str, **options: Any) -> Any:
        if body == "order 3":
            raise MemorySqsError(ServiceError("InvalidMessageContents", "no"))
        return send(queue_url, body, **options)

    monkeypatch.setattr(leased_queues.sqs, "send", refuse_one)
    ran = sqs_lease("redrive", DEAD, "--max", "4")

    assert ran.exit_code == 1
    assert "Moved 3 of 4 messages back to orders." in words(ran.out)
    assert "1 were not moved, the first because:" in words(ran.out)


@pytest.mark.parametrize("arguments", [["--max", "4"], ["--reason", "."]], ids=" ".join)
def test_messages_that_cannot_be_held_are_not_moved_one_by_one(
    orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    async def denied(_: object, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        return [EntryAnswer(change.receipt, Verdict.REFUSED, text="AccessDenied") for change in changes]

    monkeypatch.setattr(MemoryTransport, "change_visibility", denied)
    ran = sqs_lease("redrive", DEAD, *arguments, "--yes")

    assert ran.exit_code == 1
    assert "4 could not be given back" in words(ran.err)
    assert "Nothing was moved" in words(ran.err)
    assert len(orders.dead_letters) == 4


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("nothing", "there is no such queue"),
        ("later.fifo", "one is a FIFO queue and the other is not"),
        (DEAD, "cannot be moved to the same queue"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--max", "1"), ("--dry-run",)])
def test_a_destination_that_cannot_take_them_is_refused_before_they_are_received(
    orders: LeasedQueue, leased_queues: LeasedQueues, to: str, says: str, more: tuple[str, ...]
) -> None:
    leased_queues.create("later.fifo")
    ran = sqs_lease("redrive", DEAD, "--to", to, *more)

    assert (ran.exit_code, ran.out) == (2, "")
    assert says in ran.err
    assert json.loads(sqs_lease("peek", DEAD, "--json").out)["messages"][0]["receive_count"] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "there is no such queue"),
        ([DEAD, "--reason", "("], "reason is not a regular expression"),
        ([DEAD, "--to", "not a queue"], "'not a queue' is not a queue name"),
        ([DEAD, "--to", "nothing", "--max", "1"], "there is no such queue"),
        ([DEAD, "--max", "0"], "Invalid value for '--max'"),
    ],
)
def test_what_it_cannot_use_is_one_line_and_exit_code_2(orders: LeasedQueue, arguments: list[str], says: str) -> None:
    ran = sqs_lease("redrive", *arguments)

    assert ran.exit_code == 2
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert len(orders.dead_letters) == 4
