"""What processes of Airflow read of one another, and filters of messages: it is known, or refused without contents."""

from __future__ import annotations

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

from sqs_lease.airflow.airflow_api.requests import CommsError
from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.airflow.batches.protocol import (
    EVENT_KIND,
    BatchEvent,
    BatchRegistry,
    Claim,
    Claimant,
    Place,
    RegisteredBatch,
    Stage,
)
from sqs_lease.airflow.receiving.collector import ReceiveOptions
from sqs_lease.airflow.receiving.filters import (
    ATTRIBUTE,
    CALLABLE,
    JSONPATH,
    JSONPATH_EXTENDED,
    LITERAL,
    MessageFilter,
    OpenFilter,
    encode_unmatched,
)
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.transfer.lease import HandedLease, merge, seal_leases
from sqs_lease.airflow.transfer.payload import (
    PayloadError,
    messages_of,
    published_bytes,
    read_leases,
    why_unpublishable,
)
from sqs_lease.airflow.transfer.progress import Progress, Takeover
from sqs_lease.airflow.triggers.keep import SqsLeaseKeeperTrigger, plain_work
from sqs_lease.airflow.triggers.receive import SqsLeaseReceiveTrigger
from sqs_lease.airflow.triggers.watch import SqsLeaseTrigger
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import by_exception, dead_letter, expire, release
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import Growing
from sqs_lease.core.specs import encode_failure_rule, encode_policy
from sqs_lease.daemon_threads import DaemonThreads
from tests.airflow import filter_functions
from tests.fuzz.strange import CONTENT, damaged, examples, json_near, near, outcome_of, said_by

PLACE: Final = Place.of_queue("orders", "q")
CLAIMANT: Final = Claimant("dag", "run", "keeper")
REGISTRY: Final = BatchRegistry(
    "owner",
    "q",
    {
        "b1": RegisteredBatch("b1", 2, 1.7e9),
        "b2": RegisteredBatch("b2", 1, 1.7e9, Stage.CLAIMED, CLAIMANT),
    },
)
PROGRESS: Final = Progress({0: Outcome.DELETED, 2: Outcome.RELEASED}, 1.7e9, "b1", {"extensions": 3, "late": 1})
LEASES: Final = [Lease(Receipt(f"m{number}", f"{CONTENT}{number}"), 1.7e9, 1.7e9 + 30) for number in range(2)]
HANDED: Final = HandedLease("b1", "q", Growing(visibility=30), AwsConnection(), LEASES)


@examples(200)
@given(near(REGISTRY.encode()), near(Claim(CLAIMANT, ["b1"]).encode()))
def test_a_registry_and_a_claim_are_of_their_types_or_count_as_missing(registry: Any, claim: Any) -> None:
    found = outcome_of(lambda: BatchRegistry.decode(registry))
    if isinstance(found, BatchRegistry):
        assert isinstance(found.owner, str)
        for batch_id, entry in found.entries.items():
            assert batch_id == entry.batch_id
            assert isinstance(entry.stage, Stage)
            assert isinstance(entry.messages, int)
            assert entry.claimant is None or str(entry.claimant)
        assert BatchRegistry.decode(found.encode()) == found
    asked = outcome_of(lambda: Claim.decode(claim))
    if isinstance(asked, Claim):
        assert asked.claimant.keeper
        assert all(isinstance(batch_id, str) for batch_id in asked.batch_ids)


@examples(80)
@given(near({"payload": {"kind": EVENT_KIND, **BatchEvent("b1", "q", 2, PLACE).encode()}}))
def test_an_event_is_ours_or_counts_as_another(extra: Any) -> None:
    if isinstance(extra, Mapping):
        found = outcome_of(lambda: BatchEvent.decode(extra))
        if isinstance(found, BatchEvent):
            assert found.place.messages(found.batch_id)
            assert isinstance(found.messages, int)


@examples(150)
@given(near(PROGRESS.encode()), near(Takeover(["b1"], "holder").encode()))
def test_progress_and_takeover_are_of_their_types_or_refused(progress: Any, takeover: Any) -> None:
    found = outcome_of(lambda: Progress.decode(progress), CommsError)
    if isinstance(found, Progress):
        assert all(isinstance(outcome, Outcome) for outcome in found.settled.values())
        assert all(isinstance(lease.deadline, float) for lease in found.with_known_deadlines(LEASES))
        assert sum(found.counts.values()) + 1
    taken = outcome_of(lambda: Takeover.decode(takeover), CommsError)
    if isinstance(taken, Takeover):
        assert all(isinstance(batch_id, str) for batch_id in taken.batch_ids)


@st.composite
def handed_leases(draw: st.DrawFn) -> Any:
    """A lease on its way, whole or merged, whose parts may be strange; sealed leases too, which hold secrets."""
    plain = merge([HANDED.encode(), HANDED.encode()]) if draw(st.booleans()) else HANDED.encode()
    # Only the handles are secret, and only where they stand.
    changed = json.loads(json.dumps(draw(near(plain))).replace(CONTENT, ""))
    handed = changed if isinstance(changed, dict) else {}
    if draw(st.booleans()):
        rows = draw(json_near([["m0", CONTENT, 1.7e9, 1.7e9, 1, None, False]])).decode("utf-8", "replace")
        handed["sealed_leases"] = draw(st.sampled_from([seal_leases(LEASES), "", "x", rows]))
    # A trigger's arguments name the batch, or the trigger cannot be made.
    return {"batch_id": "b1", "queue_url": "q", "messages": 2, **handed}


@examples(100)
@given(handed_leases())
def test_a_lease_on_its_way_is_opened_or_refused_without_its_handles(plain: Any) -> None:
    if not isinstance(plain.get("parts", []), list) or not all(
        isinstance(part, dict) for part in plain.get("parts", [])
    ):
        return
    found = said_by(lambda: read_leases(plain), PayloadError)
    if isinstance(found, HandedLease):
        assert all(isinstance(lease.receipt.handle, str) for lease in found.leases)


OPTIONS: Final = {
    "queue": "q",
    "batch_id": "b1",
    "connection": AwsConnection().encode(),
    "policy": encode_policy(Growing(visibility=30)),
    "max_messages": 10,
    "linger_seconds": 1.0,
    "deferred_at": 1.7e9,
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
        "lease": {**HANDED.encode(), "sealed_leases": ""},
        "receive_task_id": "orders",
        "work": plain_work([WorkTask("load"), WorkTask("check", mapped=True, per_message=True)]),
        "on_failure": encode_failure_rule(by_exception({"KeyError": dead_letter()}, otherwise=release())),
        "handoff_timeout_seconds": 600.0,
        "on_lost": {"path": "a.b", "kwargs": {"n": 1}},
    },
    SqsLeaseTrigger: {
        "queue_url": "https://sqs.eu-west-1.amazonaws.com/123456789012/q",
        "max_messages": 10,
        "linger": 1.0,
        "policy": encode_policy(Growing(visibility=30)),
        "payload": "/shared/batches",
        "message_filtering": JSONPATH,
        "message_filtering_match_values": ["a"],
        "message_filtering_config": "$.kind",
        "unmatched": encode_unmatched(expire()),
        "max_unsettled_batches": 4,
        "handoff_timeout": 3600.0,
        "aws_conn_id": "aws_default",
        "region_name": None,
        "verify": None,
        "botocore_config": {"read_timeout": 5},
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
    if kind is SqsLeaseTrigger and not isinstance(arguments.get("policy"), dict):
        return  # an author's arguments, whose errors stay what they are; stored is always a mapping
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


FUNCTIONS: Final = [name for name, each in vars(filter_functions).items() if inspect.isfunction(each)]


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
    threads = DaemonThreads(1, "filter")
    for each in filters:
        answer = said_by(lambda each=each: OpenFilter(each.matcher(), threads)._answer(message))  # type: ignore[misc]
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
"""What an author may write. Each further descent takes as often as long again on a body that is nested deeply."""


@examples(250)
@given(
    messages(), ANY_EXPRESSION, st.sampled_from([JSONPATH, JSONPATH_EXTENDED]), st.sampled_from([None, ["7"], [5, {}]])
)
def test_an_expression_is_refused_when_a_dag_is_parsed_or_answers_about_any_message(
    message: Message, expression: str, kind: str, values: list[Any] | None
) -> None:
    made = outcome_of(lambda: MessageFilter.of(kind, values, expression), ValueError)
    if isinstance(made, MessageFilter):
        answer = said_by(lambda: OpenFilter(made.matcher(), DaemonThreads(1, "filter"))._answer(message))
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
    answer = said_by(lambda: OpenFilter(made.matcher(), DaemonThreads(1, "filter"))._answer(message))
    assert CONTENT not in str(answer)
    if isinstance(answer, bool):
        assert answer == function(copy.deepcopy(message).as_dict())
    else:
        assert isinstance(answer, str)
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
