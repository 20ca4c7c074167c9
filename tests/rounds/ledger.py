"""The ledger of a stack: what the service did to each message, when, and for whom, as the proxy before it saw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from benchmarks.peers.proxy import succeeded_entries
from tests.rounds.recorder import key_of

CHANGES: Final = frozenset({"ChangeMessageVisibility", "ChangeMessageVisibilityBatch"})
DELETES: Final = frozenset({"DeleteMessage", "DeleteMessageBatch"})

Kind = Literal["receive", "change", "delete"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The effect of one call on one message. Times are in seconds of the machine's monotonic clock.

    Attributes:
        worker: The caller.
        kind: A receive, a change of the visibility timeout (a release sets it to 0), or a delete.
        message_id: The message.
        reception: The number of its reception, which stands for the receipt handle; 0 if it was not given out.
        asked_at: When the call reached the proxy.
        answered_at: When the service had answered it.
        timeout_seconds: The visibility timeout that the call set; 0 for a delete.
        acted: Whether the service did it.
    """

    worker: str
    kind: Kind
    message_id: str
    reception: int
    asked_at: float
    answered_at: float
    timeout_seconds: float
    acted: bool

    @property
    def is_release(self) -> bool:
        """Whether it makes the message visible at once."""
        return self.kind == "change" and self.timeout_seconds == 0


class Ledger:
    """All entries of one stack, in the order of their answers.

    Attributes:
        entries: The entries; only ever appended to, by the proxy.
        visibility_seconds: The queue's visibility timeout, with which receives hide messages that ask for no other.
        deletes_under_way: How many deletes the service may have done that are not noted yet.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.visibility_seconds = 30.0
        self.deletes_under_way = 0
        self._receptions: dict[str, tuple[int, str]] = {}
        self._numbers: dict[str, int] = {}

    def note(
        self,
        worker: str,
        operation: str,
        request: Mapping[str, Any],
        answer: Mapping[str, Any],
        times: tuple[float, float],
    ) -> None:
        """Write down a call that the service carried out, or refused for some messages.

        Args:
            worker: The caller.
            operation: The operation of the API.
            request: Its parameters.
            answer: The service's answer with the status 200; empty where it refused the whole call.
            times: When the call came, and when it was answered.
        """
        if operation == "ReceiveMessage":
            seconds = float(request.get("VisibilityTimeout", self.visibility_seconds))
            for message in answer.get("Messages") or ():
                # A FIFO receive that is repeated brings the same handle again.
                number, _ = self._receptions.setdefault(
                    message["ReceiptHandle"], (len(self._receptions) + 1, message["MessageId"])
                )
                self._numbers[key_of(message["ReceiptHandle"])] = number
                self.entries.append(Entry(worker, "receive", message["MessageId"], number, *times, seconds, True))
        elif operation in CHANGES | DELETES:
            done = {entry["ReceiptHandle"] for entry in succeeded_entries(request, answer)}
            for entry in request.get("Entries", [request]):
                number, message_id = self._receptions.get(entry["ReceiptHandle"], (0, ""))
                seconds = float(entry["VisibilityTimeout"]) if operation in CHANGES else 0.0
                kind: Kind = "change" if operation in CHANGES else "delete"
                acted = entry["ReceiptHandle"] in done
                self.entries.append(Entry(worker, kind, message_id, number, *times, seconds, acted))

    def reception_of(self, key: str) -> int:
        """The number of the reception whose handle has this key (:func:`.recorder.key_of`); 0 for an unknown one."""
        return self._numbers.get(key, 0)

    def since(self, index: int) -> Sequence[Entry]:
        """The entries from an index on."""
        return self.entries[index:]
