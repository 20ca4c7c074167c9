"""Notes that processes of Airflow read of one another, and filters of messages: known, or refused without contents."""

from __future__ import annotations

from dataclasses import asdict

# isort: off
from tests.airflow import airflow_home  # noqa: F401 - Airflow reads its configuration when it is imported
# isort: on

import copy
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from airflow.models.trigger import Trigger
from airflow.sdk.serde import serialize
from airflow.serialization.decoders import smart_decode_trigger_kwargs as decode
from airflow.triggers.base import BaseTrigger
from hypothesis import given
from hypothesis import strategies as st

from sqs_lease.airflow.airflow_api.requests import CommsError, seal
from sqs_lease.airflow.connection import AwsConnection
from sqs_lease.airflow.filter_process import (
    ATTRIBUTE,
    CALLABLE,
    JSONPATH,
    JSONPATH_EXTENDED,
    LITERAL,
    answer_of,
)
from sqs_lease.airflow.filters import MessageFilter
from sqs_lease.airflow.handover import HandedLease, PayloadError, seal_leases
from sqs_lease.airflow.payload import (
    messages_of,
    published_bytes,
    read_lease,
    why_unpublishable,
)
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.settlement.settler import Progress
from sqs_lease.airflow.triggers.keep import SqsLeaseKeeperTrigger, plain_work
from sqs_lease.airflow.triggers.receive import ReceiveOptions, SqsLeaseReceiveTrigger
from sqs_lease.airflow.triggers.watch import SqsLeaseTrigger
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import by_exception, dead_letter, release
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import Growing
from sqs_lease.core.specs import encode_failure_rule, encode_policy
from tests.airflow.handed import handed_lease
from tests.airflow.virtual_triggerer import RECEIVE
from tests.fuzz.strange import CONTENT, damaged, examples, json_near, near, outcome_of, said_by
from tests.scenarios.airflow import filter_functions

PROGRESS: Final = Progress({0: Outcome.DELETED, 2: Outcome.RELEASED}, 1.7e9, "b1", {"extensions": 3, "late": 1})
LEASES: Final = [Lease(Receipt(f"m{number}", f"{CONTENT}{number}"), 1.7e9, 1.7e9 + 30) for number in range(2)]
HANDED: Final = handed_lease(LEASES, batch_id="b1", queue_url="q", written_at=1.7e9)


@examples(150)
@given(near(PROGRESS.encode()))
def test_progress_is_of_its_types_or_refused(progress: Any) -> None:
    found = outcome_of(lambda: Progress.decode(progress), CommsError)
    if isinstance(found, Progress):
        assert all(isinstance(outcome, Outcome) for outcome in found.settled.values())
        assert all(isinstance(lease.deadline, float) for lease in found.newest(HANDED.written).leases)
        assert sum(found.counts.values()) + 1


@st.composite
def handed_leases(draw: st.DrawFn) -> Any:
    """A lease on its way, which may be strange; sealed leases too, which hold secrets."""
    plain = HANDED.encode(RECEIVE)
    handed = draw(near(plain))
    if isinstance(handed, dict) and draw(st.booleans()):
        head = plain["sealed"].splitlines()[0]
        rows = draw(json_near([["m0", CONTENT, 1.7e9, 1.7e9, 1, None, False]])).decode("utf-8", "replace")
        lines = draw(st.sampled_from([seal_leases(HANDED.written), "", "x", rows, seal(f'["b1",0,{rows}]')]))
        handed["sealed"] = f"{head}\n{lines}"
    return handed


@examples(100)
@given(handed_leases())
def test_a_lease_on_its_way_is_opened_or_refused_without_its_handles(plain: Any) -> None:
    found = said_by(lambda: read_lease(plain, RECEIVE), PayloadError)
    if isinstance(found, HandedLease):
        assert all(isinstance(lease.receipt.handle, str) for lease in found.leases)


OPTIONS: Final = {
    "queue": "q",
    "batch_id": "b1",
    "connection": asdict(AwsConnection()),
    "policy": encode_policy(Growing(visibility=30)),
    "max_messages": 10,
    "linger_seconds": 1.0,
    "expires_at": 1.7e9,
    "skip_when_expired": True,
    "keeper_task_id": "keeper",
    "handoff_timeout_seconds": 60.0,
    "mapped_over": False,
    "payload": None,
    "filter": {"kind": LITERAL, "match_values": '["a"]', "expression": None},
    "unmatched": None,
    "on_failure": encode_failure_rule(release()),
}


@examples(80)
@given(near(OPTIONS))
def test_a_trigger_is_made_of_its_arguments_or_refuses_them(options: Any) -> None:
    made = outcome_of(lambda: SqsLeaseReceiveTrigger(options), TypeError)
    if isinstance(made, SqsLeaseReceiveTrigger):
        assert ReceiveOptions(**made.serialize()[1]["options"]) == made.options


TRIGGERS: Final[Mapping[type[BaseTrigger], Mapping[str, Any]]] = {
    SqsLeaseReceiveTrigger: {"options": OPTIONS},
    SqsLeaseKeeperTrigger: {
        "lease": {**HANDED.encode(RECEIVE), "sealed": ""},
        "receive_task_id": "orders",
        "work": plain_work([WorkTask("load"), WorkTask("check", mapped=True, per_message=True)]),
        "on_failure": encode_failure_rule(by_exception({"KeyError": dead_letter()}, otherwise=release())),
        "handoff_timeout_seconds": 600.0,
        "on_lost": {"path": "a.b", "kwargs": {"n": 1}},
    },
    SqsLeaseTrigger: {
        "queue_url": "https://sqs.eu-west-1.amazonaws.com/123456789012/q",
        "poll_interval": 2.0,
        "shortest_pause": 5.0,
        "longest_pause": 300.0,
        "aws_conn_id": "aws_default",
        "region_name": None,
        "verify": None,
        "botocore_config": '{"read_timeout": 5}',
    },
}


@st.composite
def stored_triggers(draw: st.DrawFn) -> tuple[type[BaseTrigger], Any]:
    """A trigger's class, and its arguments as Airflow's database has them."""
    kind = draw(st.sampled_from(list(TRIGGERS)))
    return kind, draw(near(serialize(dict(TRIGGERS[kind]))))


@examples(400)
@given(stored_triggers())
def test_stored_arguments_make_a_trigger_or_a_type_error_which_alone_leaves_the_triggerer_alive(
    stored: tuple[type[BaseTrigger], Any],
) -> None:
    kind, plain = stored
    try:
        # Arguments that are not encrypted are read, too; but not what Airflow itself cannot.
        kwargs = Trigger._decrypt_kwargs(json.dumps(plain))
        read: Callable[[Any], Any] = decode
        arguments = {name: read(value) for name, value in kwargs.items()}
    except Exception:  # noqa: BLE001 - its own matter
        return
    if kind is SqsLeaseTrigger and not isinstance(arguments.get("botocore_config"), str):
        return  # an author's arguments, whose errors stay what they are; stored is always a text
    made = outcome_of(lambda: kind(**arguments), TypeError)
    if isinstance(made, kind):
        again = kind(**made.serialize()[1])
        assert again.serialize() == made.serialize()


RECORD: Final = {"id": 1, "kind": CONTENT, "items": [{"price": 5, "name": CONTENT}, {"price": "7"}], "a": {"b": [1, 2]}}
EXPRESSIONS: Final = [
    "$.id",
    "$..name",
    "$.items[*].price",
    "$.items[0:1]",
    "$.items[?(@.price > 5)]",
    "$.items[?(@.name =~ 'x.*')]",
    "$.a.b.`len`",
    "$.kind.`split(-, 1, -1)`",
    "$.kind.`sub(/x/, y)`",
    "$.items[\\price]",
    "$.id + 1",
    "$.a.`sorted`",
    "$.*",
    "$.items.`parent`",
]


FUNCTIONS: Final = [
    name
    for name, each in vars(filter_functions).items()
    if inspect.isfunction(each) and not (inspect.iscoroutinefunction(each) or inspect.isgeneratorfunction(each))
]


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Messages whose bodies and attributes are strange."""
    attributes = {
        "kind": {
            "DataType": draw(st.sampled_from(["String", "Number", "Number.int", "Binary", ""])),
            "StringValue": "7",
        },
        CONTENT: {"DataType": "String", "StringValue": CONTENT},
    }
    changed = draw(near(attributes))
    body = draw(json_near(RECORD)).decode("utf-8", "surrogateescape")
    whole = isinstance(changed, dict) and all(
        isinstance(value, dict) and isinstance(value.get("DataType", ""), str) for value in changed.values()
    )
    return Message(Receipt("m1", CONTENT), body, {}, changed if whole else attributes)


@examples(250)
@given(messages(), st.sampled_from(EXPRESSIONS), st.sampled_from([None, [], [1, "7", CONTENT], [[1], {"a": 1}, None]]))
def test_a_filter_answers_yes_or_no_or_why_not_without_the_body(
    message: Message, expression: str, values: list[Any] | None
) -> None:
    filters = [
        MessageFilter(LITERAL, json.dumps(values or []), None),
        MessageFilter(JSONPATH_EXTENDED, None if values is None else json.dumps(values), expression),
        MessageFilter(JSONPATH, None if values is None else json.dumps(values), "$..name"),
        MessageFilter(ATTRIBUTE, None if values is None else json.dumps(values), "kind"),
    ]
    for each in filters:
        answer = said_by(lambda each=each: answer_of(each.matcher(), each.asks_about(message)))  # type: ignore[misc]
        assert isinstance(answer, bool | str)
        assert CONTENT not in str(answer)


_NAMES: Final = st.sampled_from(["id", "kind", "items", "price", "name", "a", "b", "*", "'a b'", "1", "ü"])
_NUMBERS: Final = st.sampled_from(
    ["0", "-1", "1", "99", "1:", ":2", "::2", "0:99:3", "*", "?", "a", "'b'", "0,1", "/a"]
)
_CONDITIONS: Final = st.builds(
    "@.{}{}{}".format,
    _NAMES,
    st.sampled_from(["==", "=", "!=", "<", ">=", "=~", " ", ""]),
    st.sampled_from(["5", "'x.*'", '"y"', "true", "null", "@.id", "5.0", ""]),
)
_STEPS: Final = st.one_of(
    st.builds(".{}".format, _NAMES),
    st.builds("..{}".format, _NAMES),
    st.builds("[{}]".format, _NUMBERS),
    st.builds("[?({})]".format, _CONDITIONS),
    st.builds("[?{} & {}]".format, _CONDITIONS, _CONDITIONS),
    st.sampled_from(["[\\price]", "[/name, \\id]", " + 1", " * 2", " - $.id", "|$.a", " where a", " wherenot b"]),
    st.sampled_from(["len", "keys", "path", "str()", "sorted", "parent", "this", "unknown", ""]).map(".`{}`".format),
    st.sampled_from(["sub(/x/, y)", "sub(/(/, y)", "split(-, 1, -1)", "split(-, *, 1)"]).map(".`{}`".format),
)
ANY_EXPRESSION: Final = st.one_of(
    st.builds("${}".format, st.lists(_STEPS, max_size=4).map("".join)),
    st.sampled_from(EXPRESSIONS)
    .flatmap(lambda good: damaged(good.encode()))
    .map(lambda text: text.decode("utf-8", "replace")),
    st.text(max_size=12),
).filter(lambda text: text.count("..") <= 2)
"""An author's text. Each further descent takes as often as long again on a body that is nested deeply."""


@examples(250)
@given(
    messages(), ANY_EXPRESSION, st.sampled_from([JSONPATH, JSONPATH_EXTENDED]), st.sampled_from([None, ["7"], [5, {}]])
)
def test_an_expression_is_refused_when_a_dag_is_parsed_or_answers_about_any_message(
    message: Message, expression: str, kind: str, values: list[Any] | None
) -> None:
    made = outcome_of(lambda: MessageFilter.of(kind, values, expression), ValueError)
    if isinstance(made, MessageFilter):
        answer = said_by(lambda: answer_of(made.matcher(), made.asks_about(message)))
        assert isinstance(answer, bool | str)
        assert CONTENT not in str(answer)


@examples(150)
@given(messages(), st.sampled_from(FUNCTIONS))
def test_a_users_function_answers_about_any_message_or_fails_for_that_one_without_its_body(
    message: Message, name: str
) -> None:
    whole = copy.deepcopy(message)
    function = getattr(filter_functions, name)
    made = MessageFilter.of(CALLABLE, None, f"{filter_functions.__name__}.{name}")
    assert made is not None
    answer = said_by(lambda: answer_of(made.matcher(), made.asks_about(message)), TypeError)
    assert CONTENT not in str(answer)
    if isinstance(answer, bool):
        assert answer == function(copy.deepcopy(message).as_dict())
    else:
        assert isinstance(answer, str | TypeError)  # an attribute for which JSON has no value
    # What it did to its argument is not what is published.
    assert message == whole


@examples(150)
@given(messages(), st.booleans())
def test_a_message_that_airflow_cannot_take_is_refused_without_quoting_it(message: Message, stored: bool) -> None:
    why = said_by(lambda: why_unpublishable(message, stored=stored))
    assert why is None or CONTENT not in str(why)
    if why is None:
        assert published_bytes(message) >= 0
        (again,) = messages_of([message.as_dict()])
        assert again.body == message.body
