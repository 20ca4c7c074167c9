"""`sqs-lease peek`: a sample of a queue's messages that are given back at once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sqs_lease.cli import peek
from sqs_lease.core.calls import EntryAnswer, Verdict
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs.errors import OverLimitError
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from sqs_lease.testing.memory_transport import MemoryTransport
from sqs_lease.testing.pytest_plugin import leased_queues
from tests.cli.commands import sqs_lease
from tests.cli.memory_command import REASONS, dead_letter

__all__ = ["leased_queues"]

SECRET = '{"card": "4711"}'


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peek, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(peek, "LINGER_SECONDS", 0.1)


@pytest.fixture
def orders(leased_queues: LeasedQueues) -> LeasedQueue:
    attribute = {"kind": {"DataType": "String", "StringValue": "a secret"}}
    queue = leased_queues.create("orders", max_receive_count=3)
    queue.send(SECRET, SECRET, message_attributes=attribute)
    return queue


def words(text: str) -> str:
    return " ".join(text.split())


def peeked(*arguments: str) -> dict[str, Any]:
    ran = sqs_lease("peek", *arguments, "--json")
    assert ran.exit_code == 0
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


def test_it_shows_the_messages_and_gives_them_back(orders: LeasedQueue) -> None:
    answer = peeked("orders")

    assert answer["queue_url"] == orders.url
    assert (answer["visible"], answer["given_back"], answer["max_receive_count"]) == (2, 2, 3)
    assert len(orders.visible) == 2
    for message in answer["messages"]:
        assert message["receive_count"] == 1
        assert 0 <= message["age_seconds"] < 3_600
        # The body, and the attribute's name, type and value.
        assert message["bytes"] == len(SECRET) + len("kind") + len("String") + len("a secret")
        assert message["attributes"] == ["kind"]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_neither_bodies_nor_values_nor_handles_are_shown(orders: LeasedQueue, columns: int) -> None:
    table, document = sqs_lease("peek", "orders", columns=columns), sqs_lease("peek", "orders", "--json")

    for ran in (table, document):
        assert ran.exit_code == 0
        assert "4711" not in ran.out + ran.err
        assert "a secret" not in ran.out + ran.err
        assert "handle" not in ran.out.lower() + ran.err.lower()
    assert "…" not in table.out
    assert max(map(len, table.out.splitlines())) <= columns


def test_bodies_are_shown_where_they_are_asked_for(orders: LeasedQueue) -> None:
    assert [message["body"] for message in peeked("orders", "--bodies")["messages"]] == [SECRET, SECRET]
    assert SECRET in sqs_lease("peek", "orders", "--bodies").out


def test_a_body_cannot_steer_the_terminal(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "first\n\x9b31msecond [bold]third")

    assert "first\n\\x9b31msecond [bold]third\n" in sqs_lease("peek", "orders", "--bodies").out


def test_a_body_in_json_cannot_steer_the_terminal(leased_queues: LeasedQueues) -> None:
    body = "first\n\x9b31m\x7f\u202esecond \U000e0001 é"
    leased_queues.create("orders", body)

    ran = sqs_lease("peek", "orders", "--bodies", "--json")

    assert all(character.isprintable() for character in ran.out.replace("\n", ""))
    assert "é" in ran.out
    assert [message["body"] for message in json.loads(ran.out)["messages"]] == [body]


@pytest.mark.parametrize("columns", [60, 120])
def test_names_of_a_server_cannot_steer_the_terminal(
    orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    receive = MemoryTransport.receive

    async def receive_strange_names(*arguments: Any, **options: Any) -> list[Message]:
        found = await receive(*arguments, **options)
        return [
            replace(
                message,
                receipt=Receipt("[red]id\x9b31m", message.receipt.handle),
                attributes={**message.attributes, "MessageGroupId": "[b]group\x9b"},
                message_attributes={"[i]kind\x9b": {"DataType": "String", "StringValue": "-"}},
            )
            for message in found
        ]

    monkeypatch.setattr(MemoryTransport, "receive", receive_strange_names)

    ran = sqs_lease("peek", "orders", "--bodies", columns=columns)

    for name in ("[red]id\\x9b31m", "[b]group\\x9b", "[i]kind\\x9b"):
        assert name in ran.out
    assert "\x9b" not in ran.out + ran.err


def test_a_message_id_stays_on_one_line_in_eighty_columns(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders.fifo")
    queue.send("an order", message_group_id="customer-of-a-very-long-name-4711", deduplication_id="1")

    (message,) = peeked("orders.fifo")["messages"]
    assert message["message_id"] in sqs_lease("peek", "orders.fifo").out
    assert message["message_group_id"] == "customer-of-a-very-long-name-4711"


@pytest.mark.parametrize("columns", [72, 80])
@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
def test_no_age_and_no_heading_is_in_two_lines(
    leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch, name: str, columns: int
) -> None:
    monkeypatch.setattr(peek, "age_seconds", lambda *_: 3_599.0)
    queue = leased_queues.create(name, max_receive_count=10)
    is_fifo = name.endswith(".fifo")
    order = {"message_group_id": "customer-4711", "deduplication_id": "1"} if is_fifo else {}
    attributes = {"traceparent": {"DataType": "String", "StringValue": "00"}}
    queue.send("x" * 200_000, message_attributes=attributes, **order)

    lines = sqs_lease("peek", name, columns=columns).out.splitlines()

    (row,) = (line for line in lines if "59 min 59 s" in line)
    assert row.split()[1:] == ["59", "min", "59", "s", "1", "of", "10", "200,019"]
    assert "attributes traceparent" in [line.strip() for line in lines]
    assert ("group customer-4711" in [line.strip() for line in lines]) == is_fifo


def test_it_says_the_price_before_it_receives(orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MemoryTransport, "receive", refuse)
    ran = sqs_lease("peek", "orders")

    assert ran.exit_code == 130
    assert "the receive count of each goes up by one" in words(ran.err)
    assert "orders allows 3 receives (maxReceiveCount)" in words(ran.err)


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_a_dead_letter_has_the_reason_that_was_written(leased_queues: LeasedQueues, columns: int) -> None:
    queue = leased_queues.create("orders")
    dead_letter(leased_queues, queue, 4)

    ran = sqs_lease("peek", queue.dead_letter_url, columns=columns)

    assert max(map(len, ran.out.splitlines())) <= columns
    for reason in REASONS:
        assert words(ran.out).count(reason) == 2 or columns == 50
    assert "sqs_lease_reason" not in ran.out
    assert "order 0" not in ran.out + ran.err
    messages = peeked(queue.dead_letter_url)["messages"]
    assert [message["reason"] for message in messages] == [*REASONS, *REASONS]


def test_a_message_that_sqs_moved_there_has_no_reason_but_a_source(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "an order", max_receive_count=1)
    for _ in range(2):
        sqs_lease("peek", "orders")

    (message,) = peeked(queue.dead_letter_url)["messages"]
    assert (message["reason"], message["source_queue"]) == (None, "orders")
    assert "received too often from orders" in words(sqs_lease("peek", queue.dead_letter_url).out)


def test_a_reason_of_an_earlier_time_is_not_shown_as_the_cause(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", max_receive_count=1)
    attributes = {"sqs_lease_reason": {"DataType": "String", "StringValue": "ValueError"}}
    queue.send("was redriven", message_attributes=attributes)
    for _ in range(2):
        peeked("orders")

    ran = sqs_lease("peek", queue.dead_letter_url, columns=200)
    assert "received too often from orders; before a redrive: ValueError" in ran.out
    (message,) = peeked(queue.dead_letter_url)["messages"]
    assert (message["reason"], message["source_queue"]) == ("ValueError", "orders")


def test_a_sample_that_an_error_cut_short_says_so(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    leased_queues.create("orders", *map(str, range(20)))
    receive = MemoryTransport.receive
    calls: list[str] = []

    async def receive_once(self: MemoryTransport, queue_url: str, **options: Any) -> Any:
        calls.append(queue_url)
        if len(calls) % 2 == 0:
            raise OverLimitError("too many messages are in flight")
        return await receive(self, queue_url, **options)

    monkeypatch.setattr(MemoryTransport, "receive", receive_once)
    for options in ([], ["--json"]):
        ran = sqs_lease("peek", "orders", "--max", "20", *options)
        assert ran.exit_code == 1
        assert "There may be more messages than these. too many messages are in flight" in words(ran.err)
    assert json.loads(ran.out)["error"] == "too many messages are in flight"
    assert len(json.loads(ran.out)["messages"]) == 10


def test_a_reason_cannot_steer_the_terminal(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders")
    attributes = {"sqs_lease_reason": {"DataType": "String", "StringValue": "\x9b31mred [bold]"}}
    leased_queues.sqs.send(queue.dead_letter_url, "an order", message_attributes=attributes)

    assert "\\x9b31mred [bold]" in sqs_lease("peek", queue.dead_letter_url).out


def test_a_long_reason_is_cut_for_people_and_whole_for_programs(leased_queues: LeasedQueues) -> None:
    queue, reason = leased_queues.create("orders"), "x" * 2_000
    attributes = {"sqs_lease_reason": {"DataType": "String", "StringValue": reason}}
    leased_queues.sqs.send(queue.dead_letter_url, "an order", message_attributes=attributes)

    shown = sqs_lease("peek", queue.dead_letter_url).out
    assert (shown.count("x"), shown.count("…")) == (300, 1)
    assert peeked(queue.dead_letter_url)["messages"][0]["reason"] == reason


def test_a_queue_without_a_dead_letter_queue_moves_nothing(orders: LeasedQueue) -> None:
    ran = sqs_lease("peek", orders.dead_letter_url)

    assert "has no dead-letter queue, so that has no effect" in words(ran.err)
    assert "No message of" in ran.out


def test_the_last_receive_is_told_apart(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "an order", max_receive_count=2)

    assert "last receive" not in sqs_lease("peek", "orders").out
    ran = sqs_lease("peek", "orders")
    assert "2 of 2" in ran.out
    assert "1 had the last receive that orders allows: at the next one, SQS moves them" in words(ran.out)
    # And the third look does that, as the second one said.
    assert peeked("orders")["messages"] == []
    assert queue.dead_letters == ["an order"]


def test_no_more_are_received_than_asked_for(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    # As many as are asked for are there, so nothing waits for this long.
    monkeypatch.setattr(peek, "LINGER_SECONDS", 60.0)
    leased_queues.create("orders", *map(str, range(30)))

    assert len(peeked("orders", "--max", "12")["messages"]) == 12
    assert {message["receive_count"] for message in peeked("orders", "--max", "30")["messages"]} == {1, 2}


def test_messages_that_could_not_be_given_back_are_counted(
    orders: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: object, __: str, changes: Any) -> list[EntryAnswer]:
        return [EntryAnswer(change.receipt, Verdict.REFUSED, "AccessDenied", "no") for change in changes]

    monkeypatch.setattr(MemoryTransport, "change_visibility", refuse)
    ran = sqs_lease("peek", "orders")

    assert ran.exit_code == 1
    assert "2 could not be given back: they are visible again within 60 s." in words(ran.err)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "there is no such queue"),
        (["not a queue"], "'not a queue' is not a queue name"),
        (["orders", "--max", "0"], "Invalid value for '--max'"),
    ],
)
def test_input_that_it_cannot_use_is_one_line_and_exit_code_2(
    leased_queues: LeasedQueues, arguments: list[str], says: str
) -> None:
    ran = sqs_lease("peek", *arguments)

    assert (ran.exit_code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("columns", [60, 72, 80, 120])
def test_long_names_of_attributes_are_folded_and_not_cut(leased_queues: LeasedQueues, columns: int) -> None:
    queue = leased_queues.create("orders")
    # No id and no heading has this letter.
    leased_queues.sqs.send(queue.url, "x", message_attributes={"z" * 90: {"DataType": "String", "StringValue": "y"}})

    ran = sqs_lease("peek", "orders", columns=columns)

    assert max(map(len, ran.out.splitlines())) <= columns
    assert ran.out.count("z") == 90
