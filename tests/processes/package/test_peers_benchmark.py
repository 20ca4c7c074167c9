"""The benchmark of the peers takes a real consumer through its scenarios, in a short form, and counts what it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.peers.programs import Boto3Loop, Ours, Program
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


@pytest.mark.parametrize("peer", [Boto3Loop(), Ours()], ids=lambda peer: peer.name)
def test_a_consumer_is_taken_through_all_scenarios(peer: Program, tmp_path: Path) -> None:
    with ground_of(peer, tmp_path) as ground:
        work, failing, outages = ground.long_work()
        held = ground.held()
        throughput = ground.throughput()

    assert (work.done, work.deliveries, work.again, work.deletes) == (10, 0, 0, 1)
    assert (failing.lost, failing.delivered_before) == (0, 0)
    assert failing.visible_after_seconds is not None
    assert outages == ()
    assert (held.messages, held.deliveries) == (30, 0)
    assert throughput.messages == 30
