"""`sqs-lease redrive`: why messages were dead-lettered, and their move back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sqs_lease.cli import move_task
from sqs_lease.cli.move_task import FollowedTask
from sqs_lease.sqs.classification import error_from_code
from sqs_lease.sqs.move_tasks import CANCELLED, RUNNING, MoveTask
from sqs_lease.testing import memory_sqs
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from sqs_lease.testing.memory_transport import MemoryTransport
from sqs_lease.testing.pytest_plugin import leased_queues
from tests.cli.commands import sqs_lease
from tests.cli.memory_command import dead_letter

__all__ = ["leased_queues"]

DEAD = "orders-dead-letters"

OPERATIONS = {
    "start_move_task": "StartMessageMoveTask",
    "move_tasks": "ListMessageMoveTasks",
    "cancel_move_task": "CancelMessageMoveTask",
    "dead_letter_sources": "ListDeadLetterSourceQueues",
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_task, "LOOK_SECONDS", 0.05)


@pytest.fixture
def orders(leased_queues: LeasedQueues) -> LeasedQueue:
    """Four dead-lettered messages, of two reasons in turn."""
    queue = leased_queues.create("orders")
    dead_letter(leased_queues, queue, 4)
    return queue


@pytest.fixture
def slow_orders(orders: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    """So many that no move task ends within a test, at one message a second, however slow this machine is."""
    monkeypatch.setattr(memory_sqs, "MAX_MOVES_PER_SECOND", 1)
    dead_letter(leased_queues, orders, 596)
    return orders


def words(text: str) -> str:
    return " ".join(text.split())


def fail(monkeypatch: pytest.MonkeyPatch, call: str, *codes: str, always: str = "", carried_out: bool = False) -> None:
    """Let the first calls of a kind fail, one for each code, and all later ones where there is a code for them.

    Args:
        monkeypatch: Undoes it.
        call: The transport's method.
        codes: Error codes of SQS.
        always: The code for all later calls; none by default.
        carried_out: Whether the calls are carried out, and only their answers are lost.
    """
    real: Callable[..., Any] = getattr(MemoryTransport, call)
    left = list(codes)

    async def failing(self: MemoryTransport, *arguments: Any, **options: Any) -> Any:
        code = left.pop(0) if left else always
        answer = await real(self, *arguments, **options) if carried_out or not code else None
        if code:
            raise error_from_code(code, "no", operation=OPERATIONS[call], queue=DEAD)
        return answer

    monkeypatch.setattr(MemoryTransport, call, failing)


def once_started(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something when the move task was started, before it is looked at."""
    start = FollowedTask.start

    async def start_and_act(*arguments: Any) -> None:
        await start(*arguments)
        act()

    monkeypatch.setattr(FollowedTask, "start", start_and_act)


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


def test_a_dry_run_says_the_plan_and_moves_nothing(orders: LeasedQueue) -> None:
    assert redriven("--dry-run", "--rate", "3") == {
        "queue_url": orders.dead_letter_url,
        "to": None,
        "rate": 3,
        "visible": 4,
    }
    plan = "To move: about 4 messages of orders-dead-letters, back to orders. SQS moves them, at most 3 a second."
    assert plan in words(sqs_lease("redrive", DEAD, "--dry-run", "--rate", "3").out)

    assert (orders.visible, len(orders.dead_letters)) == ([], 4)


def test_another_queue_can_take_them(orders: LeasedQueue, leased_queues: LeasedQueues) -> None:
    later = leased_queues.create("later")
    assert redriven("--to", "later")["move"]["moved"] == 4

    assert len(later.visible) == 4


def test_an_empty_queue_is_fine(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders")

    ran = sqs_lease("redrive", DEAD)
    assert ran.exit_code == 0
    assert "Moved 0 messages back to orders." in ran.out


def test_messages_in_flight_are_told_of(orders: LeasedQueue, leased_queues: LeasedQueues) -> None:
    leased_queues.sqs.receive(orders.dead_letter_url, max_messages=1)

    assert "about 3 messages of orders-dead-letters, back to orders. SQS moves them. 1 in flight stay." in words(
        sqs_lease("redrive", DEAD, "--dry-run").out
    )


@pytest.mark.parametrize("listing", ["allowed", "denied"])
def test_a_queue_at_work_is_refused(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch, listing: str) -> None:
    queue = leased_queues.create("orders", "an order")
    if listing == "denied":
        fail(monkeypatch, "dead_letter_sources", always="AccessDenied")
    ran = sqs_lease("redrive", "orders")

    assert ran.exit_code == 2
    assert "it is not the dead-letter queue of any queue" in ran.err
    assert queue.visible == ["an order"]


def test_neither_bodies_nor_handles_are_shown(orders: LeasedQueue) -> None:
    for ran in (sqs_lease("redrive", DEAD, "--dry-run"), sqs_lease("redrive", DEAD, "--json")):
        assert ran.exit_code == 0
        assert "order 0" not in ran.out + ran.err
        assert "handle" not in ran.out.lower() + ran.err.lower()


@pytest.mark.parametrize("code", ["InvalidAction", "UnknownOperation"])
def test_a_server_without_move_tasks_is_told_apart(
    orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    fail(monkeypatch, "move_tasks", always=code)
    ran = sqs_lease("redrive", DEAD)

    assert ran.exit_code == 1
    assert ran.err == f"Error: orders-dead-letters: this SQS server has no move tasks ({code})\n"
    assert len(orders.dead_letters) == 4


def test_no_more_are_moved_in_a_second_than_allowed(orders: LeasedQueue) -> None:
    began_at = time.monotonic()
    ran = sqs_lease("redrive", DEAD, "--rate", "3")

    assert time.monotonic() - began_at >= 1
    assert "SQS moves them, at most 3 a second." in words(ran.out)
    assert "Moved 4 messages back to orders." in ran.out


def test_each_goes_back_to_the_queue_that_it_came_from(leased_queues: LeasedQueues) -> None:
    orders = leased_queues.create("orders", "an order", max_receive_count=1)
    returns = leased_queues.sqs.create_queue(
        "returns", dead_letter_queue_url=orders.dead_letter_url, max_receive_count=1
    )
    leased_queues.sqs.send(returns, "a return")
    for queue in ("orders", "returns"):
        for _ in range(2):
            sqs_lease("peek", queue)

    ran = sqs_lease("redrive", DEAD)

    assert "Moved 2 messages back to their source queues." in words(ran.out)
    assert orders.visible == ["an order"]
    assert list(leased_queues.sqs.bodies(returns).values()) == ["a return"]


def test_with_several_source_queues_the_error_asks_for_the_destination(
    orders: LeasedQueue, leased_queues: LeasedQueues
) -> None:
    leased_queues.sqs.create_queue("returns", dead_letter_queue_url=orders.dead_letter_url, max_receive_count=1)
    ran = sqs_lease("redrive", DEAD)

    assert ran.exit_code == 1
    assert "Moved 0 of 4 messages back to their source queues. A message was sent to the dead-letter" in words(ran.out)
    assert "name the destination with --to" in words(ran.out)
    assert redriven("--to", "orders")["move"]["moved"] == 4


def test_groups_keep_their_order(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders.fifo")
    for number in range(5):
        leased_queues.sqs.send(queue.dead_letter_url, f"order {number}", message_group_id="a-shop")
    ran = sqs_lease("redrive", "orders-dead-letters.fifo")

    assert "Moved 5 messages back to orders.fifo." in ran.out
    assert queue.visible == [f"order {number}" for number in range(5)]


def test_a_second_move_task_is_refused_with_the_way_to_cancel_the_first(
    slow_orders: LeasedQueue, leased_queues: LeasedQueues
) -> None:
    leased_queues.sqs.start_message_move_task(slow_orders.dead_letter_url, destination_url=slow_orders.url)
    ran = sqs_lease("redrive", DEAD)

    assert ran.exit_code == 1
    assert "a move task of this queue runs already, and SQS allows one" in ran.err
    assert "cancel it by `sqs-lease redrive orders-dead-letters --cancel`" in ran.err
    (task,) = leased_queues.sqs.move_tasks(slow_orders.dead_letter_url)
    assert task.status == RUNNING


@pytest.mark.parametrize("call", ["start_move_task", "move_tasks"])
def test_a_missing_permission_is_named_with_what_prints_the_others(
    orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    fail(monkeypatch, call, always="AccessDenied")
    ran = sqs_lease("redrive", DEAD)

    assert ran.exit_code == 1
    assert f"Allow sqs:{OPERATIONS[call]} in" in ran.err
    assert "sqs-lease policy orders-dead-letters --redrive" in ran.err
    assert ran.err.count("\n") == 1
    assert len(orders.dead_letters) == 4


def test_a_move_task_is_followed_although_its_start_got_no_answer(
    orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "start_move_task", "InternalError", carried_out=True)

    assert redriven()["move"]["moved"] == 4


def test_a_start_that_failed_is_said(orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, "start_move_task", "InternalError")
    ran = sqs_lease("redrive", DEAD)

    assert ran.exit_code == 1
    assert "StartMessageMoveTask" in ran.err
    assert len(orders.dead_letters) == 4


def test_a_move_task_that_ended_before_is_not_taken_for_this_one(
    orders: LeasedQueue, leased_queues: LeasedQueues
) -> None:
    assert redriven()["move"]["moved"] == 4
    dead_letter(leased_queues, orders, 2)

    assert redriven()["move"]["moved"] == 2


def test_answers_that_are_lost_meanwhile_are_asked_for_again(
    orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    once_started(
        monkeypatch,
        lambda: fail(monkeypatch, "move_tasks", "InternalError", "ServiceUnavailable", "ThrottlingException"),
    )

    assert redriven()["move"]["moved"] == 4


def test_a_move_task_that_the_list_lacks_for_a_moment_is_followed_on(
    orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryTransport.move_tasks
    lacking = 2

    async def listed(self: MemoryTransport, source_arn: str) -> Sequence[MoveTask]:
        nonlocal lacking
        lacking -= 1
        return [] if lacking >= 0 else await real(self, source_arn)

    once_started(monkeypatch, lambda: monkeypatch.setattr(MemoryTransport, "move_tasks", listed))

    assert redriven()["move"]["moved"] == 4
    assert lacking < 0


@pytest.mark.parametrize(
    ("code", "says"), [("AccessDenied", "ListMessageMoveTasks"), ("InternalError", "SQS has not listed the move")]
)
def test_a_move_task_that_cannot_be_followed_may_go_on_and_the_error_says_how_to_end_it(
    slow_orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    once_started(monkeypatch, lambda: fail(monkeypatch, "move_tasks", always=code))
    monkeypatch.setattr(move_task, "NOT_LISTED_SECONDS", 0.1)
    ran = sqs_lease("redrive", DEAD)

    assert ran.exit_code == 1
    assert says in ran.err
    assert "The move task may go on; `sqs-lease redrive QUEUE --cancel` ends it." in ran.err


def interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C as soon as the move task was started."""

    async def interrupted(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(FollowedTask, "follow", interrupted)


@pytest.mark.parametrize("codes", [(), ("InternalError", "ThrottlingException")], ids=["at once", "after failures"])
def test_an_interrupted_move_task_is_cancelled(
    slow_orders: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch, codes: tuple[str, ...]
) -> None:
    interrupt(monkeypatch)
    fail(monkeypatch, "cancel_move_task", *codes)
    ran = sqs_lease("redrive", DEAD, "--json")

    assert ran.exit_code == 130
    move = json.loads(ran.out)["move"]
    assert (move["status"], move["interrupted"], move["to_move"]) == (CANCELLED, True, 600)
    assert move["moved"] == len(slow_orders.visible) < 600
    (task,) = leased_queues.sqs.move_tasks(slow_orders.dead_letter_url)
    assert task.status == CANCELLED


def test_an_interruption_before_the_start_starts_nothing(
    slow_orders: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_tasks = MemoryTransport.move_tasks

    async def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.1)
        return await move_tasks(*arguments)

    monkeypatch.setattr(MemoryTransport, "move_tasks", interrupted)
    ran = sqs_lease("redrive", DEAD, "--yes")

    assert ran.exit_code == 130
    assert leased_queues.sqs.move_tasks(slow_orders.dead_letter_url) == []


@pytest.mark.usefixtures("usual_sigterm")
def test_sigterm_cancels_a_move_task_too(slow_orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    async def terminated(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(FollowedTask, "follow", terminated)
    ran = sqs_lease("redrive", DEAD, "--json")

    assert ran.exit_code == 143
    assert json.loads(ran.out)["move"]["status"] == CANCELLED


def test_a_move_task_that_could_not_be_cancelled_is_not_called_cancelled(
    slow_orders: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch)
    fail(monkeypatch, "cancel_move_task", always="AccessDenied")
    ran = sqs_lease("redrive", DEAD)

    assert ran.exit_code == 1
    assert "Allow sqs:CancelMessageMoveTask in" in ran.err
    assert "The move task may go on" in ran.err
    (task,) = leased_queues.sqs.move_tasks(slow_orders.dead_letter_url)
    assert task.status == RUNNING


def test_a_move_task_that_ended_when_it_was_interrupted_is_not_called_stopped(
    orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_sqs, "MAX_MOVES_PER_SECOND", 1_000_000)
    interrupt(monkeypatch)
    ran = sqs_lease("redrive", DEAD)

    assert ran.exit_code == 0
    assert "Moved 4 messages back to orders." in ran.out


def test_a_move_task_is_cancelled_from_another_shell(slow_orders: LeasedQueue, leased_queues: LeasedQueues) -> None:
    leased_queues.sqs.start_message_move_task(slow_orders.dead_letter_url, destination_url=slow_orders.url)
    ran = sqs_lease("redrive", DEAD, "--cancel")

    assert ran.exit_code == 0
    assert "Cancelled. Moved until then: " in words(ran.out)
    assert " of 600 messages. The others are still in orders-dead-letters." in words(ran.out)
    (task,) = leased_queues.sqs.move_tasks(slow_orders.dead_letter_url)
    assert task.status == CANCELLED
    assert len(slow_orders.visible) == task.moved


def test_cancelling_has_an_answer_for_programs(slow_orders: LeasedQueue, leased_queues: LeasedQueues) -> None:
    leased_queues.sqs.start_message_move_task(slow_orders.dead_letter_url, destination_url=slow_orders.url)
    answers = [json.loads(sqs_lease("redrive", DEAD, "--cancel", "--json").out) for _ in range(2)]

    assert [answer["queue_url"] for answer in answers] == [slow_orders.dead_letter_url] * 2
    assert answers[0]["move"]["status"] == CANCELLED
    assert answers[1]["move"] is None


def test_there_may_be_nothing_to_cancel(orders: LeasedQueue) -> None:
    ran = sqs_lease("redrive", DEAD, "--cancel")

    assert ran.exit_code == 0
    assert "No move task of orders-dead-letters runs." in ran.out


def test_a_move_task_that_another_shell_cancels_is_told_of(
    slow_orders: LeasedQueue, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = MemoryTransport.move_tasks

    async def cancel_what_runs(self: MemoryTransport, source_arn: str) -> Any:
        tasks = await listed(self, source_arn)
        for task in tasks:
            if task.handle:
                leased_queues.sqs.cancel_message_move_task(task.handle)
        return tasks

    monkeypatch.setattr(MemoryTransport, "move_tasks", cancel_what_runs)
    ran = sqs_lease("redrive", DEAD)

    assert ran.exit_code == 1
    assert "of 600 messages back to orders. The move task was cancelled, but not by this command." in words(ran.out)


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("nothing", "there is no such queue"),
        ("later.fifo", "one is a FIFO queue and the other is not"),
        (DEAD, "cannot be moved to the same queue"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_destination_that_cannot_take_them_is_refused_before_it_moves(
    orders: LeasedQueue, leased_queues: LeasedQueues, to: str, says: str, more: tuple[str, ...]
) -> None:
    leased_queues.create("later.fifo")
    ran = sqs_lease("redrive", DEAD, "--to", to, *more)

    assert (ran.exit_code, ran.out) == (2, "")
    assert says in ran.err
    assert len(orders.dead_letters) == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "there is no such queue"),
        ([DEAD, "--to", "not a queue"], "'not a queue' is not a queue name"),
        ([DEAD, "--to", "nothing"], "there is no such queue"),
        ([DEAD, "--rate", "0"], "Invalid value for '--rate'"),
        ([DEAD, "--rate", "501"], "Invalid value for '--rate'"),
        ([DEAD, "--cancel", "--to", "orders"], "leave out --to, --rate and --dry-run"),
    ],
)
def test_input_that_it_cannot_use_is_one_line_and_exit_code_2(
    orders: LeasedQueue, arguments: list[str], says: str
) -> None:
    ran = sqs_lease("redrive", *arguments)

    assert ran.exit_code == 2
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert len(orders.dead_letters) == 4
