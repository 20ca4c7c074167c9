"""A stack: an SQS server, the proxy before it, and a host's processes, started once for many rounds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from benchmarks.peers.proxy import Proxy
from demo.queues import counts, create_with_dead_letters, send
from demo.sqs_server import sqs_server
from tests.rounds.audit import Done, Takeover
from tests.rounds.crew import FIFO_SUFFIX, Crew, Ground
from tests.rounds.disks import small_disk
from tests.rounds.draw import Plan, Traits, Work
from tests.rounds.faults import Place
from tests.rounds.ledger import Ledger

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import SendMessageBatchRequestEntryTypeDef

QUEUE: Final = "rounds"
MAX_RECEIVE_COUNT: Final = 1000
"""No fault brings a good message to the dead-letter queue."""


class Host(Protocol):
    """A host that rounds run on."""

    @property
    def traits(self) -> Traits:
        """Its limits."""

    @property
    def each_once(self) -> bool:
        """Whether it promises that the table has each message once."""

    @property
    def takeover(self) -> Takeover | None:
        """How another process takes over the leases of one that is gone; None where none does."""

    @property
    def passed_on_seconds(self) -> float:
        """For how long a batch is extended that one process passes on to the next; 0 where none does."""

    @property
    def disk_megabytes(self) -> int:
        """How large the disk of its table is."""

    @property
    def start_seconds(self) -> float:
        """How long its processes may take to be ready, on a busy machine."""

    def crew(self, ground: Ground) -> AbstractContextManager[Crew]:
        """Start its processes, which may not be ready yet, and end them with the block."""

    def table(self, disk: Path) -> list[Done]:
        """The rows of the table."""

    def forget(self, disk: Path) -> None:
        """Empty the table, between two rounds."""

    def body(self, work: Work) -> str:
        """The body of a message."""


@dataclass(slots=True)
class Stack:
    """A running stack."""

    host: Host
    directory: Path
    ledger: Ledger
    place: Place
    crew: Crew
    queue_url: str
    dead_letter_url: str
    sqs: SQSClient
    server_pid: int
    beliefs: Path

    def send(self, plan: Plan) -> dict[str, Work]:
        """Send the messages of a round, and return them by their ids."""
        self.sqs.set_queue_attributes(
            QueueUrl=self.queue_url, Attributes={"VisibilityTimeout": str(plan.visibility_seconds)}
        )
        self.ledger.visibility_seconds = plan.visibility_seconds
        entries: list[SendMessageBatchRequestEntryTypeDef] = []
        for work in plan.messages:
            entry: SendMessageBatchRequestEntryTypeDef = {"Id": str(work.number), "MessageBody": self.host.body(work)}
            if self.host.traits.groups:
                entry["MessageGroupId"] = str(work.group)
                entry["MessageDeduplicationId"] = f"{plan.seed}-{work.number}"
            entries.append(entry)
        ids = send(self.sqs, self.queue_url, entries)
        return dict(zip(ids, plan.messages, strict=True))

    def left(self) -> int:
        """How many messages the queue has, visible or not."""
        return counts(self.sqs, self.queue_url).total

    def take_dead_letters(self) -> Counter[int]:
        """Empty the dead-letter queue, and return how often it had each message, by its number."""
        found: Counter[int] = Counter()
        while messages := self.sqs.receive_message(QueueUrl=self.dead_letter_url, MaxNumberOfMessages=10).get(
            "Messages"
        ):
            for message in messages:
                found[json.loads(message["Body"])["number"]] += 1
                self.sqs.delete_message(QueueUrl=self.dead_letter_url, ReceiptHandle=message["ReceiptHandle"])
        return found


@contextmanager
def stack(host: Host, directory: Path) -> Iterator[Stack]:
    """Start a stack, whose workers may not be ready yet, and end it with the block.

    Args:
        host: The host.
        directory: For logs and notes; must not exist.
    """
    directory.mkdir(parents=True)
    with ExitStack() as exits:
        server = exits.enter_context(sqs_server(directory))
        sqs = server.sqs_client()
        queue = f"{QUEUE}{FIFO_SUFFIX}" if host.traits.groups else QUEUE
        queue_url, dead_letter_url = create_with_dead_letters(
            sqs, queue, visibility_seconds=30, max_receive_count=MAX_RECEIVE_COUNT
        )
        proxy = exits.enter_context(Proxy(server.endpoint_url).running())
        disk = exits.enter_context(small_disk(directory / "disk", host.disk_megabytes))
        ground = Ground(directory, server, proxy, Ledger(), disk, queue)
        crew = exits.enter_context(host.crew(ground))
        place = Place(crew.workers, proxy, disk, crew.restart_database)
        yield Stack(
            host, directory, ground.ledger, place, crew, queue_url, dead_letter_url, sqs, server.pid, ground.beliefs
        )


def as_json(work: Work) -> str:
    """A message's body that says all of it."""
    return json.dumps(asdict(work))
