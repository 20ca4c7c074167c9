"""Which endpoint a command calls for a queue."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from sqs_lease.cli.output import CommandError
from sqs_lease.cli.session import Session
from sqs_lease.sqs.client import AwsAccess

HERE = "http://127.0.0.1:4566"
ELSEWHERE = "http://127.0.0.1:1/000000000000/orders"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def test_a_url_off_aws_is_called_where_it_says_and_shares_nothing_with_a_queue_of_aws() -> None:
    with Session(AwsAccess(), "orders", ELSEWHERE) as session:
        assert session.transport_of(ELSEWHERE) is not session.transport_of("orders")


def test_queues_of_one_place_share_their_transport() -> None:
    with Session(AwsAccess(endpoint_url=HERE), "orders", f"{HERE}/000000000000/returns") as session:
        assert session.transport_of("orders") is session.transport


def test_a_url_of_another_endpoint_than_the_one_given_is_refused() -> None:
    with pytest.raises(CommandError, match=f"{ELSEWHERE} is not at {HERE}"):
        Session(AwsAccess(endpoint_url=HERE), "orders", ELSEWHERE)


def test_another_name_of_the_same_host_is_not() -> None:
    with Session(AwsAccess(endpoint_url=HERE), "http://localhost:4566/000000000000/orders"):
        pass


def test_a_second_ctrl_c_does_not_stop_what_the_first_one_began() -> None:
    given_back: list[str] = []

    async def hold() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.to_thread(given_back.append, "a message")

    with Session(AwsAccess(endpoint_url=HERE), "orders") as session, pytest.raises(KeyboardInterrupt):
        session.run(hold())

    assert given_back == ["a message"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
