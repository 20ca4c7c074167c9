"""The endpoint that a command calls for a queue."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from sqs_lease.cli.output import CommandError
from sqs_lease.cli.session import own_access, queue_session
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


def test_a_url_off_aws_is_called_where_it_says() -> None:
    assert own_access(AwsAccess(), ELSEWHERE).endpoint_url == "http://127.0.0.1:1"
    assert own_access(AwsAccess(), "orders").endpoint_url is None


def test_a_url_of_another_endpoint_than_the_one_given_is_refused() -> None:
    with pytest.raises(CommandError, match=f"{ELSEWHERE} is not at {HERE}"):
        queue_session(AwsAccess(endpoint_url=HERE), ELSEWHERE)


def test_another_name_of_the_same_host_is_not() -> None:
    with queue_session(AwsAccess(endpoint_url=HERE), "http://localhost:4566/000000000000/orders"):
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

    with queue_session(AwsAccess(endpoint_url=HERE), "orders") as session, pytest.raises(KeyboardInterrupt):
        session.run(hold())

    assert given_back == ["a message"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("usual_sigterm")
def test_sigterm_ends_a_command_only_when_it_has_tidied_up() -> None:
    tidied: list[str] = []

    async def hold() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.to_thread(tidied.append, "a queue that was made")

    with queue_session(AwsAccess(endpoint_url=HERE), "orders") as session, pytest.raises(SystemExit, match="143"):
        session.run(hold())

    assert tidied == ["a queue that was made"]


def test_a_program_that_handles_sigterm_itself_goes_on_doing_so() -> None:
    handled: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: handled.append(number))
    try:

        async def work() -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        with queue_session(AwsAccess(endpoint_url=HERE), "orders") as session:
            session.run(work())
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert handled == [signal.SIGTERM, signal.SIGTERM]
