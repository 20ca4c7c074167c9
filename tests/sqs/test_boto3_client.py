"""How a client reaches AWS: by a profile, and in a role that is assumed again; against a scripted STS and SQS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from botocore.exceptions import ProfileNotFound

from sqs_lease.sqs.client import AwsAccess, make_client

ROLE = "arn:aws:iam::123456789012:role/reader"
ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>
<Expiration>{expires}</Expiration></Credentials>
<AssumedRoleUser><Arn>arn</Arn><AssumedRoleId>id:name</AssumedRoleId></AssumedRoleUser>
</AssumeRoleResult></AssumeRoleResponse>"""


class Aws(BaseHTTPRequestHandler):
    """Gives credentials that last so long, the next ones at each request, and knows every queue."""

    asked: ClassVar[list[tuple[str, str]]] = []
    lasting: ClassVar[timedelta] = timedelta(hours=1)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        found = re.search(r"Credential=(\w+)/\d+/([\w-]+)/", self.headers["Authorization"])
        assert found is not None
        if "AssumeRole" in body:
            assert "RoleSessionName=orders" in body
            number = sum(what == "sts" for what, _ in self.asked) + 1
            self.asked.append(("sts", found[1]))
            expires = (datetime.now(UTC) + self.lasting).strftime("%Y-%m-%dT%H:%M:%SZ")
            answer = ASSUMED.format(key=f"ROLE{number}", expires=expires)
        else:
            self.asked.append((found[2], found[1]))
            answer = '{"QueueUrl": "https://queue"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class names it
        """Write nothing."""


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Aws]]:
    class Asked(Aws):
        asked: ClassVar[list[tuple[str, str]]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Asked)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    config = tmp_path / "config"
    config.write_text("[profile shop]\nregion = eu-west-3\naws_access_key_id = SHOP\naws_secret_access_key = secret\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield Asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_profile_says_region_and_credentials(aws: type[Aws]) -> None:
    client = make_client(AwsAccess(profile_name="shop"))
    client.get_queue_url(QueueName="orders")
    assert aws.asked == [("eu-west-3", "SHOP")]


def test_a_role_is_assumed_once_with_the_profiles_credentials_in_its_region(aws: type[Aws]) -> None:
    client = make_client(AwsAccess(profile_name="shop", role_arn=ROLE, role_session_name="orders"))
    assert aws.asked == [], "nothing is asked before it is needed"
    client.get_queue_url(QueueName="orders")
    client.get_queue_url(QueueName="orders")
    assert aws.asked == [("sts", "SHOP"), ("eu-west-3", "ROLE1"), ("eu-west-3", "ROLE1")]


def test_a_role_is_assumed_again_before_its_credentials_expire(aws: type[Aws], monkeypatch: pytest.MonkeyPatch) -> None:
    # botocore renews what lasts for less than ten minutes more.
    monkeypatch.setattr(aws, "lasting", timedelta(minutes=5))
    client = make_client(
        AwsAccess(profile_name="shop", region_name="eu-north-1", role_arn=ROLE, role_session_name="orders")
    )
    client.get_queue_url(QueueName="orders")
    client.get_queue_url(QueueName="orders")
    used = [key for what, key in aws.asked if what == "eu-north-1"]
    assert len(set(used)) == 2


def test_a_profile_that_does_not_exist_is_an_error(aws: type[Aws]) -> None:
    with pytest.raises(ProfileNotFound, match="nobody"):
        make_client(AwsAccess(profile_name="nobody"))
