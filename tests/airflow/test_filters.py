"""Filters: which messages get through, what is refused while the DAG is parsed, and what becomes of the others."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.amazon.aws.utils.sqs import filter_messages
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import TaskSuccessEvent

from sqs_lease.airflow import SqsLeaseSensor, filters, sqs_lease
from sqs_lease.airflow.filters import (
    MessageFilter,
    OpenFilter,
    UnmatchedRule,
    decode_unmatched,
    encode_unmatched,
)
from sqs_lease.airflow.triggers.receive import FAILED_FOR_GOOD, TIMED_OUT
from sqs_lease.core.failure_rules import backoff, dead_letter, discard, expire, release
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.specs import encode_failure_rule
from sqs_lease.testing import AuditKind, MessageState
from tests.airflow import filtering_functions as functions
from tests.airflow.filtering_functions import wait_for
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import RECEIVE, RUN_ID, receive_trigger

BODIES = [
    "plain",
    '{"kind": "order", "lines": [{"sku": "a"}, {"sku": "b"}]}',
    '{"kind": "refund", "lines": []}',
    '{"kind": 7}',
    '{"other": null}',
    '["order"]',
]


def matching(kind: str, values: Any = None, expression: str | None = None) -> list[str]:
    made = MessageFilter.of(kind, values, expression)
    assert made is not None
    # As it comes out of a trigger's arguments.
    return bodies_that_match(MessageFilter(**json.loads(json.dumps(asdict(made)))), map(sent, BODIES))


def sent(body: str) -> Message:
    return Message(Receipt("m", "h"), body)


def bodies_that_match(made: MessageFilter, messages: Iterable[Message]) -> list[str]:
    """Ask as a collection does."""
    asked = list(messages)
    answers = asyncio.run(answers_of(made, asked))
    assert set(answers) <= {True, False}
    return [message.body for message, answer in zip(asked, answers, strict=True) if answer]


async def answers_of(made: MessageFilter | None, messages: Sequence[Message]) -> Sequence[bool | str]:
    assert made is not None
    opened = await OpenFilter.open(made)
    try:
        return await opened.answers(messages)
    finally:
        opened.close()


FILTERS = [
    ("literal", ["plain", "absent"], None),
    ("jsonpath", None, "kind"),
    ("jsonpath", ["order"], "kind"),
    ("jsonpath", [7, "refund"], "kind"),
    ("jsonpath", ["b"], "lines[*].sku"),
    ("jsonpath", None, "lines[*].sku"),
    ("jsonpath-ext", None, "$[?(@.kind=='order')]"),
    ("jsonpath-ext", [2], "$.lines.`len`"),
]


@pytest.mark.parametrize(("kind", "values", "expression"), FILTERS)
def test_the_same_messages_get_through_as_in_the_stock_sensor(kind: Any, values: Any, expression: Any) -> None:
    json_bodies = BODIES if kind == "literal" else BODIES[1:]
    stock = filter_messages([{"Body": body} for body in json_bodies], kind, values and set(values), expression)
    assert matching(kind, values, expression) == [message["Body"] for message in stock]


def test_a_literal_filter_compares_whole_bodies() -> None:
    assert matching("literal", {"plain"}) == ["plain"]
    assert matching("literal", ["plai"]) == []


def test_an_expression_may_match_objects_and_lists() -> None:
    assert matching("jsonpath", [{"sku": "b"}], "lines[*]") == [BODIES[1]]
    assert matching("jsonpath", [[]], "lines") == [BODIES[2]]


def test_a_body_that_is_not_json_does_not_match(caplog: pytest.LogCaptureFixture) -> None:
    assert "plain" not in matching("jsonpath", None, "$")
    assert "plain" not in caplog.text


def test_a_body_too_deep_to_parse_does_not_match() -> None:
    answers = asyncio.run(answers_of(MessageFilter.of("jsonpath", None, "$"), [sent("[" * 100_000)]))
    assert answers == [False]


def test_an_expression_that_fails_on_a_body_does_not_decide(
    world: LeasedMessages, caplog: pytest.LogCaptureFixture
) -> None:
    made = MessageFilter.of("jsonpath-ext", None, "lines.`sorted`")
    assert made is not None
    world.sqs.send(world.url, '{"lines": [1, "secret"]}')

    async def scenario() -> None:
        await world.receive(
            world.triggerer(), filter=asdict(made), unmatched=encode_unmatched(discard()), timeout_seconds=20
        )

    world.run(scenario)
    assert len(world.sqs.contents(world.url)) == 1
    assert "message_filtering failed on it: " in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"message_filtering": "regex"},
            ValueError,
            "must be one of literal, jsonpath, jsonpath-ext, attribute, callable",
        ),
        ({"message_filtering": "literal"}, ValueError, "needs message_filtering_match_values"),
        ({"message_filtering": "jsonpath"}, ValueError, "needs a JSONPath expression"),
        ({"message_filtering": "jsonpath", "message_filtering_config": "a["}, ValueError, "not a JSONPath expression"),
        ({"message_filtering": "attribute"}, ValueError, "needs the name of a message attribute"),
        ({"message_filtering_match_values": ["a"]}, ValueError, "message_filtering must be one of"),
        ({"message_filtering": "literal", "message_filtering_match_values": "a"}, TypeError, "a list or a set"),
        ({"message_filtering": "literal", "message_filtering_match_values": [b"bytes"]}, TypeError, "JSON values"),
        ({"unmatched": discard()}, ValueError, "needs message_filtering"),
        (
            {"message_filtering": "literal", "message_filtering_match_values": ["a"], "unmatched": release()},
            ValueError,
            "received by the same sensor again",
        ),
        (
            {"message_filtering": "literal", "message_filtering_match_values": ["a"], "unmatched": release(0)},
            ValueError,
            "give it a delay",
        ),
        (
            {"message_filtering": "literal", "message_filtering_match_values": ["a"], "unmatched": "discard"},
            TypeError,
            "unmatched must be",
        ),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_a_wrong_filter_is_an_error_while_the_dag_is_parsed(
    dag: DAG, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        SqsLeaseSensor(task_id="orders", queue_url="orders", **options)


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("shop", schedule=None) as opened:
        yield opened


def test_a_templated_expression_is_looked_at_when_it_is_known(dag: DAG) -> None:
    sensor = SqsLeaseSensor(
        task_id="orders", queue_url="orders", message_filtering="jsonpath", message_filtering_config="{{ params.path }}"
    )
    assert {"message_filtering_config", "max_messages", "queue_url"} <= set(sensor.template_fields)
    sensor.message_filtering_config = "a["
    with pytest.raises(ValueError, match="not a JSONPath expression"):
        SqsLeaseSensor.execute.__wrapped__(sensor, {"ti": RECEIVE_INSTANCE})  # type: ignore[attr-defined]


class _Instance:
    map_index = -1


RECEIVE_INSTANCE = _Instance()


def test_a_dag_with_a_filter_survives_serialisation(dag: DAG) -> None:
    SqsLeaseSensor(
        task_id="orders", queue_url="orders", message_filtering="literal", message_filtering_match_values={"a"}
    )
    assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict.keys() == {"orders"}


def test_match_values_of_a_generator_are_the_same_when_the_task_runs(dag: DAG) -> None:
    @task
    def load(messages: Any) -> None: ...

    values = (body for body in "ab")
    with sqs_lease(
        "orders", queue_url="orders", message_filtering="literal", message_filtering_match_values=values
    ) as orders:
        load(orders)
    sensor = dag.task_dict["orders"]
    assert isinstance(sensor, SqsLeaseSensor)
    assert sensor._options().filter == {"kind": "literal", "match_values": '["a", "b"]', "expression": None}


@pytest.mark.parametrize("rule", [expire(), release(60), backoff(maximum=900.0), dead_letter(), discard()], ids=repr)
def test_every_rule_for_the_others_survives_the_way_to_the_triggerer(rule: UnmatchedRule) -> None:
    assert decode_unmatched(json.loads(json.dumps(encode_unmatched(rule)))) == rule


# In the trigger


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def only(*bodies: str) -> dict[str, Any]:
    made = MessageFilter.of("literal", list(bodies), None)
    assert made is not None
    return asdict(made)


def published(world: LeasedMessages) -> list[str]:
    return [message["Body"] for message in world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, "return_value"]]


def test_messages_that_do_not_match_are_left_alone_by_default_and_come_back_after_their_timeout(
    world: LeasedMessages,
) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer(), filter=only("b"), handoff_timeout_seconds=300.0)
        await asyncio.sleep(27)
        assert world.message_states() == dict.fromkeys("abc", MessageState.IN_FLIGHT)
        await asyncio.sleep(5)
        assert world.message_states() == {
            "a": MessageState.VISIBLE,
            "b": MessageState.IN_FLIGHT,
            "c": MessageState.VISIBLE,
        }

    world.run(scenario)
    assert published(world) == ["b"]
    assert not world.events(AuditKind.RELEASED, AuditKind.DELETED)


@pytest.mark.parametrize(
    ("rule", "states"),
    [
        (discard(), {"b": MessageState.IN_FLIGHT}),
        (dead_letter(), {"b": MessageState.IN_FLIGHT}),
        (release(2), {"a": MessageState.VISIBLE, "b": MessageState.IN_FLIGHT, "c": MessageState.VISIBLE}),
    ],
    ids=repr,
)
def test_messages_that_do_not_match_are_settled_by_the_rule_at_once(
    world: LeasedMessages, rule: UnmatchedRule, states: dict[str, MessageState]
) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer(), filter=only("b"), unmatched=encode_unmatched(rule))
        await asyncio.sleep(3)
        assert world.message_states() == states

    world.run(scenario)
    assert len(world.sqs.contents(world.dead_letter_url)) == (2 if rule == dead_letter() else 0)


def test_the_wait_goes_on_until_something_matches(world: LeasedMessages) -> None:
    async def scenario() -> None:
        trigger = receive_trigger("orders", world.clock, filter=only("wanted"), unmatched=encode_unmatched(discard()))
        running = world.triggerer().start(trigger, RECEIVE)
        await asyncio.sleep(30)
        assert not running.task.done()
        world.sqs.send(world.url, "wanted")
        assert [type(event) for event in await running.ended()] == [TaskSuccessEvent]

    world.run(scenario)
    assert published(world) == ["wanted"]


def test_the_wait_ends_in_time_when_nothing_matches(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive(world.triggerer(), filter=only("wanted"), timeout_seconds=40)
        assert running.events[0].payload["status"] == TIMED_OUT

    world.run(scenario)
    assert 40 <= world.clock.now() < 45


def test_a_message_is_not_received_again_and_again_while_it_is_left_alone(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer(), filter=only("wanted"), timeout_seconds=100)

    world.run(scenario)
    # Once every 30 s, its visibility timeout.
    assert len(world.events(AuditKind.RECEIVED)) <= 3 * 4


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The files by which a test and its function in a filter's process wait for each other."""
    asked, go_on = tmp_path / "asked", tmp_path / "go on"
    monkeypatch.setenv("ASKED", str(asked))
    monkeypatch.setenv("GO_ON", str(go_on))
    return asked, go_on


def test_received_messages_are_released_when_the_trigger_ends_while_they_are_sorted(
    world: LeasedMessages, gate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = gate
    answers = OpenFilter.answers

    async def scenario() -> None:
        sorting = asyncio.Event()

        def begin(*arguments: Any) -> Any:
            sorting.set()
            return answers(*arguments)

        monkeypatch.setattr(OpenFilter, "answers", begin)
        trigger = receive_trigger("orders", world.clock, filter=by("waits_for_its_test"), max_messages=3)
        running = world.triggerer().start(trigger, RECEIVE)
        await sorting.wait()
        await asyncio.to_thread(wait_for, asked)
        ending = asyncio.get_running_loop().create_task(running.cancel())
        await asyncio.sleep(0)
        go_on.touch()
        await ending
        assert world.message_states() == dict.fromkeys("abc", MessageState.VISIBLE)

    world.run(scenario)
    assert world.clock.now() < 30


@pytest.mark.parametrize("fifo", [False, True])
def test_messages_are_held_while_a_slow_filter_looks_at_them(
    supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch, fifo: bool
) -> None:
    world = LeasedMessages(supervisor, fifo=fifo)

    in_time = OpenFilter.answers

    async def slowly(*arguments: Any) -> Any:
        await asyncio.sleep(200)  # seven times the visibility timeout
        return await in_time(*arguments)

    async def scenario() -> None:
        triggerer = world.triggerer()
        with monkeypatch.context() as patch:
            patch.setattr(OpenFilter, "answers", slowly)
            await world.receive(triggerer, filter=only("b", "c"))
        keeping = world.keep(triggerer)
        await asyncio.sleep(100)
        world.states["load"] = "success"
        await keeping.ended()

    world.run(scenario)
    assert len(world.events(AuditKind.RECEIVED)) == 3
    report = world.report()
    assert {name: report[name] for name in ("received", "deleted", "late")} == {"received": 2, "deleted": 2, "late": 0}


def test_messages_on_which_a_filter_gives_no_answer_come_back_and_end_no_wait(
    world: LeasedMessages, monkeypatch: pytest.MonkeyPatch, gate: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(filters, "ANSWER_SECONDS", 0.5)
        running = await world.receive(
            world.triggerer(), filter=by("waits_for_its_test"), timeout_seconds=5.0, max_messages=3
        )
        assert running.events[0].payload["status"] == TIMED_OUT
        # Given back, but not at once.
        assert world.message_states() == dict.fromkeys("abc", MessageState.IN_FLIGHT)
        await asyncio.sleep(60)
        assert world.message_states() == dict.fromkeys("abc", MessageState.VISIBLE)

    world.run(scenario)
    assert "message_filtering gave no answer within 0.5 s" in caplog.text


HOPELESS = '$[?(@.text =~ "(a+)+$")]'
"""It needs ages to find out that 60 times a and a b do not match, and Python's lock is held meanwhile."""

LONG = json.dumps([{"text": "a" * 60 + "b"}])


def test_an_expression_that_takes_ages_is_ended_and_the_next_message_gets_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = MessageFilter.of("jsonpath-ext", None, HOPELESS)
    assert made is not None

    async def scenario() -> None:
        opened = await OpenFilter.open(made)
        with monkeypatch.context() as patch:
            patch.setattr(filters, "ANSWER_SECONDS", 1.0)
            assert await opened.answers([sent(LONG)]) == ["message_filtering gave no answer within 1 s"]
        assert await opened.answers([sent('[{"text": "aa"}]'), sent("[]")]) == [True, False]
        opened.close()

    asyncio.run(scenario())


def test_the_event_loop_goes_on_while_an_expression_takes_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "ANSWER_SECONDS", 5.0)
    made = MessageFilter.of("jsonpath-ext", None, HOPELESS)

    async def rounds_meanwhile() -> int:
        asking = asyncio.create_task(answers_of(made, [sent(LONG)]))
        rounds = 0
        while not asking.done():
            await asyncio.sleep(0.01)
            rounds += 1
        return rounds

    # About 500. In a thread of this process there would be one, at the end of the ages.
    assert asyncio.run(rounds_meanwhile()) > 2


def test_an_expression_that_needs_too_much_memory_fails_on_its_message_alone() -> None:
    made = MessageFilter.of("jsonpath-ext", ["xx"], "$.text * $.times")
    bombs = [sent('{"text": "x", "times": 4000000000}'), sent('{"text": "x", "times": 2}')]
    assert asyncio.run(answers_of(made, bombs)) == ["message_filtering failed on it: MemoryError", True]


@pytest.mark.parametrize(
    "body",
    ["[" + "[]," * 349_000 + "[]]", '{"x":' * 170_000 + "0" + "}" * 170_000, '{"y":' * 150 + "0" + "}" * 150],
    ids=["wide", "too deep", "deep"],
)
def test_bodies_of_any_shape_get_an_answer(body: str) -> None:
    assert len(body) <= 2**20
    assert asyncio.run(answers_of(MessageFilter.of("jsonpath", None, "$..z"), [sent(body)])) == [False]


def test_a_function_that_ends_its_process_has_that_message_count_as_unusable() -> None:
    made = MessageFilter(**by("ends_its_process_on_a"))
    answers = asyncio.run(answers_of(made, [sent("a"), sent("b")]))
    assert answers == ["message_filtering ended the process that it ran in", True]


def test_a_function_runs_in_a_process_that_ends_when_no_message_comes_for_a_while(
    gate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "IDLE_SECONDS", 0.05)

    async def scenario() -> tuple[int, int]:
        opened = await OpenFilter.open(MessageFilter(**by("says_its_process")))
        await opened.answers([sent("a"), sent("b")])
        while opened._process is not None:  # noqa: ASYNC110 - it tells nothing when its time is over
            await asyncio.sleep(0.01)
        await opened.answers([sent("c")])
        opened.close()
        first, second, third = map(int, gate[0].read_text().split())
        assert first == second
        return first, third

    pids = {*asyncio.run(scenario()), os.getpid()}
    assert len(pids) == 3


def test_on_a_fifo_queue_what_was_discarded_holds_nothing_of_its_group_back(supervisor: ScriptedComms) -> None:
    world = LeasedMessages(supervisor, fifo=True)

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, filter=only("b", "c"), unmatched=encode_unmatched(discard()))
        world.states["load"] = "success"
        await world.keep(triggerer).ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert sorted(published(world)) == ["b", "c"]
    assert world.report()["deleted"] == 2


def test_on_a_fifo_queue_what_was_left_alone_does_not_keep_the_others_from_being_deleted(
    supervisor: ScriptedComms,
) -> None:
    world = LeasedMessages(supervisor, fifo=True)

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, filter=only("b", "c"))
        world.states["load"] = "success"
        await world.keep(triggerer).ended()

    world.run(scenario)
    assert world.report()["deleted"] == 2


# By message attribute

SENT: dict[str, dict[str, dict[str, Any]]] = {
    "order": {"kind": {"DataType": "String", "StringValue": "order"}},
    "refund": {"kind": {"DataType": "String.label", "StringValue": "refund"}},
    "seven": {"kind": {"DataType": "Number.int", "StringValue": "7"}},
    "half": {"kind": {"DataType": "Number", "StringValue": "7.5"}},
    "text seven": {"kind": {"DataType": "String", "StringValue": "7"}},
    "picture": {"kind": {"DataType": "Binary", "BinaryValue": b"order"}},
    "none": {},
}
"""Message attributes by the body."""


@pytest.mark.parametrize(
    ("values", "matched"),
    [
        (["order"], ["order"]),
        ({"order", "refund"}, ["order", "refund"]),
        ([7], ["seven"]),
        ([7.5, "7"], ["half", "text seven"]),
        (None, ["order", "refund", "seven", "half", "text seven", "picture"]),
    ],
    ids=repr,
)
def test_messages_match_by_the_value_of_a_message_attribute(values: Any, matched: list[str]) -> None:
    made = MessageFilter.of("attribute", values, "kind")
    assert made is not None
    messages = [Message(Receipt(body, "h"), body, message_attributes=sent) for body, sent in SENT.items()]
    assert bodies_that_match(MessageFilter(**json.loads(json.dumps(asdict(made)))), messages) == matched


def test_the_trigger_takes_only_messages_with_the_attribute(world: LeasedMessages) -> None:
    for body, attributes in SENT.items():
        world.sqs.send(world.url, body, message_attributes=attributes)
    made = MessageFilter.of("attribute", ["order"], "kind")
    assert made is not None

    async def scenario() -> None:
        await world.receive(world.triggerer(), filter=asdict(made))

    world.run(scenario)
    assert published(world) == ["order"]


# By a function


def by(function: str) -> dict[str, Any]:
    made = MessageFilter.of("callable", None, f"{functions.__name__}.{function}")
    assert made is not None
    return asdict(made)


def test_the_trigger_takes_only_messages_for_which_the_function_returns_true(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer(), filter=by("is_b"))

    world.run(scenario)
    assert published(world) == ["b"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"message_filtering_config": None}, "needs the dotted path of a function"),
        ({"message_filtering_config": functions.is_b}, "needs the dotted path of a function"),
        ({"message_filtering_config": "no_such_package.wanted"}, "'no_such_package.wanted', cannot be imported"),
        (
            {"message_filtering_config": f"{functions.__name__}.no_such_function"},
            "cannot be imported .* plugins folder",
        ),
        ({"message_filtering_config": f"{functions.__name__}.PUBLISHED_KEYS"}, "not an ordinary function"),
        ({"message_filtering_config": f"{functions.__name__}.is_asynchronous"}, "not an ordinary function"),
        ({"message_filtering_config": f"{functions.__name__}.AnyMessage"}, "not an ordinary function"),
        (
            {"message_filtering_config": f"{functions.__name__}.asynchronous_object"},
            "not an ordinary function",
        ),
        ({"message_filtering_config": f"{functions.__name__}.yields"}, "not an ordinary function"),
        (
            {
                "message_filtering_config": f"{functions.__name__}.is_b",
                "message_filtering_match_values": ["b"],
            },
            "takes no message_filtering_match_values",
        ),
    ],
    ids=["none", "function", "package", "name", "value", "coroutine", "class", "async call", "generator", "values"],
)
def test_a_function_that_cannot_filter_is_an_error_while_the_dag_is_parsed(
    dag: DAG, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        SqsLeaseSensor(task_id="orders", queue_url="orders", message_filtering="callable", **options)


def test_a_function_is_named_in_the_dag_file_and_not_by_the_starter_of_a_run(dag: DAG) -> None:
    with pytest.raises(ValueError, match=r"message_filtering_config, .*, is a template: the path of a function must"):
        SqsLeaseSensor(
            task_id="orders",
            queue_url="orders",
            message_filtering="callable",
            message_filtering_config="{{ dag_run.conf['function'] }}",
        )


def test_a_module_that_exits_is_an_error_while_the_dag_is_parsed(
    dag: DAG, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_script.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(ValueError, match=r"'a_script.wanted', cannot be imported \(SystemExit: 3\)"):
        SqsLeaseSensor(
            task_id="orders",
            queue_url="orders",
            message_filtering="callable",
            message_filtering_config="a_script.wanted",
        )


def test_a_module_that_exits_leaves_the_triggerer_alive(
    world: LeasedMessages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "another_script.py").write_text("import sys\nsys.exit(3)\n")

    async def scenario() -> None:
        chosen = {"kind": "callable", "match_values": None, "expression": "another_script.wanted"}
        running = await world.receive(world.triggerer(), filter=chosen)
        assert running.events[0].payload["status"] == FAILED_FOR_GOOD

    world.run(scenario)


def test_a_function_that_changes_its_message_changes_a_copy(world: LeasedMessages) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer(), filter=by("changes"))

    world.run(scenario)
    assert sorted(published(world)) == ["a", "b", "c"]


DAG_FILE = """
from airflow.sdk import dag
from sqs_lease.airflow import sqs_lease

def wanted(message):
    return True

@dag
def orders():
    with sqs_lease("orders", queue_url="orders", message_filtering="callable", message_filtering_config={path}):
        pass

orders()
"""


@pytest.mark.parametrize("path", ["'orders_dag_file.wanted'", "f'{__name__}.wanted'"], ids=["by file", "by __name__"])
def test_a_function_of_the_dag_file_is_refused_because_the_triggerer_cannot_import_it(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "orders_dag_file.py"
    file.write_text(DAG_FILE.format(path=path))
    monkeypatch.syspath_prepend(tmp_path)
    (text,) = DagBag(dag_folder=str(file)).import_errors.values()
    assert "is defined in a DAG file" in text


def test_a_triggerer_that_cannot_import_the_function_fails_the_sensor_for_good(world: LeasedMessages) -> None:
    async def scenario() -> None:
        chosen = {"kind": "callable", "match_values": None, "expression": "only_where_dags_are_parsed.wanted"}
        running = await world.receive(world.triggerer(), filter=chosen)
        payload = running.events[0].payload
        assert payload["status"] == FAILED_FOR_GOOD
        assert "a module that the triggerer can import too" in payload["error"]

    world.run(scenario)
    assert not world.events(AuditKind.RECEIVED)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("raises_on_a", "KeyError"),
        ("exits_on_a", "SystemExit"),
        ("cancels_on_a", "CancelledError"),
        ("is_out_of_time_on_a", "AirflowTaskTimeout"),
        ("interrupts_on_a", "KeyboardInterrupt"),
        ("forgets_to_return_on_a", "NotTrueOrFalseError"),
        ("is_wrapped", "NotTrueOrFalseError"),
    ],
)
@pytest.mark.parametrize("unmatched", [expire(), discard(), dead_letter()], ids=repr)
def test_a_message_on_which_the_filter_fails_is_not_lost_and_the_others_go_on(
    world: LeasedMessages, function: str, error: str, unmatched: UnmatchedRule, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer(), filter=by(function), unmatched=encode_unmatched(unmatched))
        # Given back, but not at once: the filter would fail on it again.
        assert world.message_states()["a"] is MessageState.IN_FLIGHT
        await asyncio.sleep(15)
        assert world.message_states()["a"] is MessageState.VISIBLE

    world.run(scenario)
    assert published(world) == ["b"]
    assert "1 messages of" in caplog.text
    assert f"message_filtering failed on it: {error}" in caplog.text
    assert "secret" not in caplog.text


def test_a_message_on_which_the_filter_fails_goes_where_failed_messages_go(world: LeasedMessages) -> None:
    async def scenario() -> None:
        rule = encode_failure_rule(dead_letter())
        await world.receive(world.triggerer(), filter=by("raises_on_a"), on_failure=rule)
        (dead,) = world.sqs.receive(world.dead_letter_url, max_messages=10, visibility_seconds=10)
        assert dead.body == "a"
        assert "message_filtering failed" in dead.message_attributes["sqs_lease_reason"]["StringValue"]

    world.run(scenario)


def test_on_a_fifo_queue_nothing_overtakes_a_message_on_which_the_filter_fails(supervisor: ScriptedComms) -> None:
    world = LeasedMessages(supervisor, fifo=True)

    async def scenario() -> None:
        first = await world.receive(world.triggerer(), filter=by("raises_on_a"), timeout_seconds=5)
        assert first.events[0].payload["status"] == TIMED_OUT

    world.run(scenario)
    assert "b" in world.message_states()
