"""The User-Agent header of the clients that are made here: botocore's own text and the package's name, built once."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from botocore.useragent import UserAgentString

import sqs_lease
from sqs_lease.sqs.client import AwsAccess, make_client
from sqs_lease.sqs.user_agent import reuse_user_agent
from tests.sqs import clients
from tests.sqs.scripted_server import Answer, ScriptedServer


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def sent_by(client: Any) -> str:
    """Make a call; return the User-Agent header of its request."""
    seen: list[Any] = []
    client.meta.events.register("before-send.sqs", lambda request, **_: seen.append(request.headers["User-Agent"]))
    client.get_queue_url(QueueName="orders")
    header = seen[-1]
    return header.decode() if isinstance(header, bytes) else str(header)


def without_features(header: str) -> list[str]:
    """The parts of a header except what botocore counts, which it writes in any order."""
    return [part for part in header.split(" ") if not part.startswith("m/")]


@pytest.fixture
def endpoint_url(scripted: ScriptedServer) -> str:
    scripted.script("GetQueueUrl", Answer({"QueueUrl": "https://queue"}))
    return scripted.endpoint_url


def test_the_header_says_what_it_says_in_a_client_of_boto3(endpoint_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "shop")
    ours = make_client(AwsAccess(region_name="us-east-1", endpoint_url=endpoint_url))
    usual = clients.boto3_client(endpoint_url)
    assert without_features(sent_by(ours)) == without_features(sent_by(usual))
    assert "app/shop" in sent_by(ours)


def test_the_header_names_the_package_and_its_version(endpoint_url: str) -> None:
    client = make_client(AwsAccess(region_name="us-east-1", endpoint_url=endpoint_url))
    assert sent_by(client).endswith(f" sqs-lease/{sqs_lease.__version__}")


def test_the_text_is_built_once_for_all_requests_of_a_client_and_again_for_another(
    endpoint_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    build = UserAgentString.to_string

    def count(self: UserAgentString) -> str:
        built.append(self)
        return build(self)

    monkeypatch.setattr(UserAgentString, "to_string", count)
    for clients_so_far in (1, 2):
        client = make_client(AwsAccess(region_name="us-east-1", endpoint_url=endpoint_url))
        built.clear()
        headers = {sent_by(client) for _ in range(3)}
        assert len(headers) == 1
        assert len(built) == 1, clients_so_far


def test_a_client_without_the_private_name_makes_its_calls_as_botocore_does(endpoint_url: str) -> None:
    usual = clients.boto3_client(endpoint_url)
    creator: Any = usual.__dict__.pop("_user_agent_creator")
    reuse_user_agent(usual)
    usual.__dict__["_user_agent_creator"] = creator
    assert sent_by(usual).startswith("Boto3/")


def test_every_client_that_the_package_makes_has_a_configuration_which_names_it() -> None:
    package = Path(sqs_lease.__file__).parent
    made = [
        (f"{path.relative_to(package)}:{node.lineno}", {keyword.arg for keyword in node.keywords})
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"client", "get_client_type"}
        and (node.args or node.keywords)
    ]
    assert len(made) >= 4
    assert [place for place, keywords in made if "config" not in keywords] == []
