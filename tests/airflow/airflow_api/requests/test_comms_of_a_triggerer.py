"""Questions through the connection that a triggerer really has: they wait without blocking the event loop.

The supervisor answers in that same loop, so a question that blocked it would never be answered.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import pytest
from airflow.jobs.triggerer_job_runner import TriggerCommsDecoder
from airflow.sdk.execution_time.comms import (
    OKResponse,
    TaskStatesResult,
    VariableKeysResult,
    XComResult,
)

from sqs_lease.airflow.airflow_api import requests
from sqs_lease.airflow.airflow_api.requests import (
    NoAnswerError,
    RunOfTask,
    delete_variable,
    publish,
    pull,
    pull_plain_mapping,
    task_states,
    variable_keys,
)
from tests.airflow.scripted_comms import supervised_by

_T = TypeVar("_T")

RUN = RunOfTask("dag", "run", "keep")
REPORT: Final[dict[str, Any]] = {"batchItemFailures": []}
ANSWERS: Final[Mapping[str, Any]] = {
    "GetTaskStates": TaskStatesResult(task_states={"run": {"load": "success"}}),
    "GetVariableKeys": VariableKeysResult(keys=["a.1"], total_entries=1),
    "DeleteVariable": OKResponse(ok=True),
    "GetXCom": XComResult(key="return_value", value=REPORT),
    "SetXCom": None,
}


class Supervisor:
    """The other end of the connection: answers once a number of questions have come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers_after: float) -> None:
        self.asked: list[dict[str, Any]] = []
        self._numbers: list[int] = []
        self._reader, self._writer, self._answers_after = reader, writer, answers_after

    async def serve(self) -> None:
        while True:
            length = int.from_bytes(await self._reader.readexactly(4), byteorder="big")
            number, body, *_ = msgspec.msgpack.decode(await self._reader.readexactly(length))
            self.asked.append(body)
            self._numbers.append(number)
            if len(self.asked) == self._answers_after:
                for number, body in zip(self._numbers, self.asked, strict=True):
                    self._answer(number, ANSWERS[body["type"]])

    def _answer(self, number: int, answer: Any) -> None:
        frame = msgspec.msgpack.encode([number, None if answer is None else answer.model_dump()])
        self._writer.write(len(frame).to_bytes(4, byteorder="big") + frame)


def asking(question: Callable[[], Awaitable[_T]], *, answers_after: float = 1) -> tuple[_T, list[dict[str, Any]]]:
    """Ask within an event loop; return the answer and the requests."""

    async def scenario() -> tuple[_T, list[dict[str, Any]]]:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        their_reader, their_writer = await asyncio.open_connection(sock=theirs)
        decoder = TriggerCommsDecoder(async_writer=writer, async_reader=reader, socket=ours)
        await decoder.start_reader()
        other_end = Supervisor(their_reader, their_writer, answers_after)
        serving = asyncio.create_task(other_end.serve())
        with supervised_by(decoder):
            try:
                answer = await question()
            finally:
                for task in (serving, decoder._reader_task):
                    assert task is not None
                    task.cancel()
                writer.close()
                their_writer.close()
        return answer, other_end.asked

    return asyncio.run(scenario())


@pytest.fixture(params=["portal", "threads"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With greenback, as Airflow 3.3 installs it, and without."""
    if request.param == "threads":
        monkeypatch.setattr(requests, "greenback", None)
    return str(request.param)


@pytest.mark.parametrize(
    ("question", "expected", "sent"),
    [
        (
            lambda: task_states("dag", ["run"], ["load"]),
            {"run": {"load": "success"}},
            {"type": "GetTaskStates", "dag_id": "dag", "run_ids": ["run"], "task_ids": ["load"]},
        ),
        (lambda: variable_keys("a."), ["a.1"], {"type": "GetVariableKeys", "prefix": "a."}),
        (lambda: delete_variable("a.1"), None, {"type": "DeleteVariable", "key": "a.1"}),
        (lambda: pull(RUN, "k"), REPORT, {"type": "GetXCom", "key": "k", "task_id": "keep", "map_index": -1}),
        (lambda: pull_plain_mapping(RUN, ("load", 3)), REPORT, {"task_id": "load", "map_index": 3}),
        (
            lambda: publish(RUN, "return_value", [{"a": 1}], mapped_length=1),
            None,
            {"type": "SetXCom", "value": [{"a": 1}], "mapped_length": 1, "map_index": -1, "run_id": "run"},
        ),
    ],
)
def test_a_question_waits_for_its_answer_without_blocking_the_event_loop(
    way: str, question: Callable[[], Awaitable[Any]], expected: Any, sent: dict[str, Any]
) -> None:
    answer, asked = asking(question)
    assert answer == expected
    (request,) = asked
    assert sent.items() <= request.items()


def test_questions_at_the_same_time_wait_side_by_side(way: str) -> None:
    async def ask() -> list[Any]:
        return await asyncio.gather(*(pull(RUN, "k") for _ in range(5)))

    assert asking(ask, answers_after=5)[0] == [REPORT] * 5


def test_a_question_that_is_never_answered_is_given_up(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "ANSWER_SECONDS", 0.05)

    async def ask() -> None:
        with pytest.raises(NoAnswerError, match=r"the states of tasks within 0.05 s"):
            await task_states("dag", ["run"], ["load"])

    asking(ask, answers_after=float("inf"))
