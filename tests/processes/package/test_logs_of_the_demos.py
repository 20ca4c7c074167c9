"""No log of a whole run holds a message body, a receipt handle, or a secret: the demos, with marked messages."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from deltalake import DeltaTable

from demo.airflow_runs import airflow_runs
from demo.dagster_runs import dagster_runs
from demo.flights import Body, flights, malformed
from demo.queues import Queues
from demo.runs import Runs, Work, drain
from demo.sqs_server import sqs_server
from tests.cli.wire import WireCall, wire_to

pytestmark = pytest.mark.processes

MARK = f"marked-{secrets.token_hex(8)}"
"""In each body, so that a part of one is found as well."""

FLIGHTS = 100


def marked_bodies() -> list[Body]:
    """Flights, and bodies that are no flights; Airflow and Spark have something to say about each of the latter."""
    good = [Body(json.dumps({**flight, "tailnum": MARK}), is_malformed=False) for flight in islice(flights(), FLIGHTS)]
    broken = malformed({**next(flights()), "tailnum": MARK})
    return [*good, *(Body(text, is_malformed=True) for text in broken if MARK in text)]


class Heard:
    """The receipt handles that the service gave to anybody."""

    def __init__(self) -> None:
        self.handles: set[str] = set()

    def __call__(self, call: WireCall, answer: bytes) -> None:
        """Take an answer of the service."""
        if call.actions == ("sqs:ReceiveMessage",):
            self.handles.update(message["ReceiptHandle"] for message in json.loads(answer).get("Messages", []))


def logs_below(home: Path) -> Iterator[Path]:
    """Every log in an orchestrator's home: of a process, a task, a step or Spark, and Dagster's events."""
    for path in sorted(home.rglob("*")):
        is_named_so = {"logs", "history"}.intersection(path.relative_to(home).parts)
        if path.is_file() and (path.suffix in {".log", ".err", ".out"} or is_named_so):
            yield path


@pytest.mark.parametrize(
    "orchestrator", [pytest.param(airflow_runs, id="Airflow"), pytest.param(dagster_runs, id="Dagster")]
)
def test_no_log_of_a_demo_has_a_body_a_receipt_handle_or_a_password(
    tmp_path: Path, orchestrator: Callable[[Work], AbstractContextManager[Runs]]
) -> None:
    heard, password, table = Heard(), secrets.token_hex(16), tmp_path / "table"
    bodies = marked_bodies()
    with sqs_server(tmp_path) as server, wire_to(server.endpoint_url) as wire:
        wire.heard = heard
        queues = Queues(server)
        queues.publish(bodies)
        seen = replace(server, endpoint_url=wire.endpoint_url, secret=password)
        work = Work(seen, queues.url, tmp_path / "home", table)
        with orchestrator(work) as runs:
            drain(runs, queues, server.process, rows=lambda: 0, show=lambda _: None)
            stored = DeltaTable(str(table / "flights")).to_pyarrow_table(columns=["tailnum"])["tailnum"].to_pylist()
            dead = queues.dead_letters()

    assert stored == [MARK] * FLIGHTS
    assert dead == len(bodies) - FLIGHTS
    # Each message at least once; the test itself receives by another way.
    assert len(heard.handles) >= len(bodies)
    logs = list(logs_below(tmp_path / "home"))
    text = {path: path.read_text(errors="replace") for path in logs}
    assert any("sqs_lease" in written for written in text.values()), "these are not the logs"
    secret = {MARK: "a body", password: "a password", **dict.fromkeys(heard.handles, "a receipt handle")}
    found = {f"{kind} in {path}" for path, written in text.items() for what, kind in secret.items() if what in written}
    assert not found
