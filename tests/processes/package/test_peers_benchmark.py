"""The benchmark of the peers takes a real consumer through its scenarios, in a short form, and counts what it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.peers.programs import Boto3Loop, Boto3Threads, Ours, OursConsumer, Program, SameCalls
from benchmarks.peers.proxy import Proxy
from benchmarks.peers.results import Sizes
from benchmarks.peers.scenarios import Ground
from demo.sqs_server import sqs_server

pytestmark = pytest.mark.processes

SHORT = Sizes(
    messages=10,
    visibility_seconds=300,
    work_seconds=2,
    failing_after_seconds=2,
    outages_after_seconds=(),
    held=30,
    held_seconds=1,
    throughput=30,
)
"""Nothing of it lapses, however slow the machine is."""


@contextmanager
def ground_of(peer: Program, directory: Path) -> Iterator[Ground]:
    with sqs_server(directory) as server, Proxy(server.endpoint_url).running() as proxy:
        yield Ground(server, proxy, peer, SHORT, directory)


@pytest.mark.parametrize(
    ("peer", "most_deletes"),
    [
        pytest.param(Boto3Loop(), 1, id="boto3"),
        pytest.param(Ours(), 1, id="ours"),
        # Its messages are worked on one by one, and those whose work ends together are deleted together.
        pytest.param(OursConsumer(), 10, id="consumer"),
    ],
)
def test_a_consumer_is_taken_through_all_scenarios(peer: Program, most_deletes: int, tmp_path: Path) -> None:
    with ground_of(peer, tmp_path) as ground:
        work, failing, outages = ground.long_work()
        held = ground.held()
        throughput = ground.throughput()

    assert (work.done, work.deliveries, work.again) == (10, 0, 0)
    assert 1 <= work.deletes <= most_deletes
    assert (failing.lost, failing.delivered_before) == (0, 0)
    assert failing.visible_after_seconds is not None
    assert outages == ()
    assert (held.messages, held.deliveries) == (30, 0)
    # Messages that were deleted before the first look are not among them.
    assert 0 <= throughput.messages <= 30
    assert throughput.processor_seconds is not None


def test_threads_of_boto3_empty_the_queue(tmp_path: Path) -> None:
    with ground_of(Boto3Threads(), tmp_path) as ground:
        throughput = ground.throughput()

    assert 0 <= throughput.messages <= 30


def test_the_program_of_the_same_calls_holds_messages(tmp_path: Path) -> None:
    with ground_of(SameCalls(), tmp_path) as ground:
        held = ground.held()

    assert (held.messages, held.deliveries) == (30, 0)
