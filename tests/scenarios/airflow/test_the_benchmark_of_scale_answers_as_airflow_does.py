"""The stand-ins for Airflow in `benchmarks.scale`: stored triggers, and a supervisor that answers in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest
from airflow.models.trigger import Trigger
from airflow.sdk.execution_time.comms import GetTaskStates, GetXCom, SetXCom
from airflow.serialization.decoders import smart_decode_trigger_kwargs

from benchmarks.scale_load import (
    ANSWERS_A_SECOND,
    KEEPER_TASK,
    RECEIVE_TASK,
    WORK_TASK,
    Load,
    Supervisor,
    receiving_of,
    triggers,
)
from sqs_lease.airflow.handover import LEASE_KEY, HandedLease
from sqs_lease.airflow.triggers.keep import REPORT_KEY, SqsLeaseKeeperTrigger
from sqs_lease.testing import run_virtual

LOAD: Final = Load(runs=3, messages=25, queues=2, stub_url="http://127.0.0.1:1", path="")


def test_each_run_has_a_trigger_of_its_own_leases() -> None:
    handed: list[HandedLease] = []
    decode: Callable[[Any], Any] = smart_decode_trigger_kwargs
    for stored in triggers(LOAD, received_at=1.7e9):
        kwargs = {name: decode(value) for name, value in Trigger._decrypt_kwargs(stored).items()}
        handed.append(HandedLease.decode(SqsLeaseKeeperTrigger(**kwargs).lease, receiving_of(LOAD, len(handed))))
    assert [one.queue_url.rpartition("/")[2] for one in handed] == ["held_0", "held_1", "held_0"]
    leases = [lease for one in handed for lease in one.leases]
    assert len({lease.receipt.message_id for lease in leases}) == LOAD.leases == 75
    assert {(lease.received_at, lease.deadline) for lease in leases} == {(1.7e9, 1.7e9 + 180)}


def test_the_supervisor_answers_one_request_after_the_other() -> None:
    async def scenario() -> None:
        supervisor = Supervisor(LOAD, {"run_0": {"sealed": "b1"}})
        began = asyncio.get_running_loop().time()
        request = GetXCom(key=LEASE_KEY, dag_id="d", run_id="run_0", task_id=RECEIVE_TASK, map_index=-1)
        answers = await asyncio.gather(*(supervisor.asend(request) for _ in range(90)))
        assert asyncio.get_running_loop().time() - began == pytest.approx(90 / ANSWERS_A_SECOND)
        assert {answer.value["sealed"] for answer in answers} == {"b1"}
        assert supervisor.asked == {"GetXCom": 90}

    run_virtual(scenario)


def test_the_supervisor_knows_what_was_noted_and_how_the_work_stands() -> None:
    async def scenario() -> None:
        supervisor = Supervisor(LOAD, {})
        place: dict[str, Any] = {"dag_id": "d", "run_id": "run_0", "task_id": KEEPER_TASK, "map_index": -1}
        await supervisor.asend(SetXCom(key=REPORT_KEY, value={"deleted": 3}, **place))
        assert (await supervisor.asend(GetXCom(key=REPORT_KEY, **place))).value == {"deleted": 3}
        assert (await supervisor.asend(GetXCom(key="settled", **place))).value is None
        assert supervisor.reports == [{"deleted": 3}]
        supervisor.state = "success"
        asked = GetTaskStates(dag_id="d", run_ids=["run_0"], task_ids=[KEEPER_TASK, WORK_TASK])
        assert (await supervisor.asend(asked)).task_states == {"run_0": {KEEPER_TASK: "deferred", WORK_TASK: "success"}}

    run_virtual(scenario)
