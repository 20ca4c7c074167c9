"""What processes of Airflow read of one another, and filters of messages: it is known, or refused without contents."""

from __future__ import annotations

# isort: off
from tests.airflow import airflow_home  # noqa: F401 - Airflow reads its configuration when it is imported
# isort: on

import json
from collections.abc import Mapping
from typing import Any, Final

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
    JSONPATH,
    JSONPATH_EXTENDED,
    LITERAL,
    MessageFilter,
    OpenFilter,
)
from sqs_lease.airflow.transfer.lease import HandedLease, merge, seal_leases
from sqs_lease.airflow.transfer.payload import (
    PayloadError,
    messages_of,
    published_bytes,
    read_leases,
    why_unpublishable,
)
from sqs_lease.airflow.transfer.progress import Progress, Takeover
from sqs_lease.airflow.triggers.receive import SqsLeaseReceiveTrigger
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import release
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import Growing
from sqs_lease.core.specs import encode_failure_rule, encode_policy
from sqs_lease.daemon_threads import DaemonThreads
from tests.fuzz.strange import CONTENT, examples, json_near, near, outcome_of, said_by

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


@examples(150)
@given(messages(), st.booleans())
def test_a_message_that_airflow_cannot_take_is_refused_without_quoting_it(message: Message, stored: bool) -> None:
    why = said_by(lambda: why_unpublishable(message, stored=stored))
    assert why is None or CONTENT not in str(why)
    if why is None:
        assert published_bytes(message) >= 0
        (again,) = messages_of([message.as_dict()])
        assert again.body == message.body
