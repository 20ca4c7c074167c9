"""How a client reaches AWS: by a profile, and in a role that is assumed again; against a scripted STS and SQS."""

from __future__ import annotations

import asyncio
import os
import re
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from threading import Thread
from typing import Any, ClassVar

import boto3
import pytest
from botocore.exceptions import SSLError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import sqs_lease
from sqs_lease.sqs import errors
from sqs_lease.sqs.boto3 import Boto3Transport
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
        assert self.headers["User-Agent"].endswith(f" sqs-lease/{sqs_lease.__version__}")
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
    class RecordingAws(Aws):
        asked: ClassVar[list[tuple[str, str]]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), RecordingAws)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    config = tmp_path / "config"
    config.write_text("[profile shop]\nregion = eu-west-3\naws_access_key_id = SHOP\naws_secret_access_key = secret\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield RecordingAws
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def aws_over_tls(aws: type[Aws], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Aws]]:
    """The same behind a certificate that no client knows."""
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), aws)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.server_port}")
    yield aws
    server.shutdown()
    thread.join()
    server.server_close()


def self_signed(directory: Path) -> Path:
    """Write a certificate of 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = directory / "certificate.pem"
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, *plain) + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return file


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


def test_certificates_are_verified_unless_the_settings_say_otherwise_also_where_a_role_is_assumed(
    aws_over_tls: type[Aws], tmp_path: Path
) -> None:
    with pytest.raises(SSLError):
        make_client(AwsAccess(profile_name="shop")).get_queue_url(QueueName="orders")
    assert aws_over_tls.asked == []
    for verify in (False, str(tmp_path / "certificate.pem")):
        access = AwsAccess(profile_name="shop", role_arn=ROLE, role_session_name="orders", verify=verify)
        with warnings.catch_warnings():
            # urllib3 warns of what was asked for.
            warnings.simplefilter("ignore")
            make_client(access).get_queue_url(QueueName="orders")
    assert [what for what, _ in aws_over_tls.asked] == ["sts", "eu-west-3"] * 2


def test_tls_may_be_switched_off_where_no_endpoint_says_how_to_reach_sqs(
    aws: type[Aws], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert make_client(AwsAccess(profile_name="shop")).meta.endpoint_url.startswith("https://")
    assert make_client(AwsAccess(profile_name="shop", use_ssl=False)).meta.endpoint_url.startswith("http://")


def test_a_profile_that_does_not_exist_is_an_error_that_names_the_queue_and_the_remedy(
    aws: type[Aws], monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = r"client for queue orders: the AWS profile does not exist\. Correct profile_name or AWS_PROFILE.*absent"
    with pytest.raises(errors.ConfigurationError, match=remedy):
        make_client(AwsAccess(profile_name="absent"), queue="orders")
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(errors.ConfigurationError, match=remedy):
        make_client(queue="orders")
    assert aws.asked == []


EU_WEST_1 = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@pytest.fixture
def without_region(aws: type[Aws], monkeypatch: pytest.MonkeyPatch) -> type[Aws]:
    """Credentials, but no region anywhere."""
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SHOP")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return aws


@pytest.mark.parametrize("queue", [EU_WEST_1, "arn:aws:sqs:eu-west-1:123456789012:orders"])
@pytest.mark.parametrize("role_arn", [None, ROLE])
def test_without_a_configured_region_the_queues_url_or_arn_names_it(
    without_region: type[Aws], queue: str, role_arn: str | None
) -> None:
    client = make_client(AwsAccess(role_arn=role_arn, role_session_name="orders"), queue=queue)
    assert client.meta.region_name == "eu-west-1"
    client.get_queue_url(QueueName="orders")
    assert without_region.asked[-1][0] == "eu-west-1"


@pytest.mark.parametrize("source", ["access", "environment", "profile"])
def test_a_configured_region_comes_before_the_queues_own_and_the_transport_says_that_they_differ(
    without_region: type[Aws], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    access = AwsAccess(region_name="eu-west-3") if source == "access" else AwsAccess()
    if source == "environment":
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    elif source == "profile":
        monkeypatch.setenv("AWS_PROFILE", "shop")
    client = make_client(access, queue=EU_WEST_1)
    assert client.meta.region_name == "eu-west-3"

    async def scenario() -> None:
        async with Boto3Transport(client) as transport:
            await transport.queue_url(EU_WEST_1)

    with pytest.raises(errors.WrongRegionError, match=r"in region eu-west-1, .* calls eu-west-3"):
        asyncio.run(scenario())
    assert without_region.asked == []


@pytest.mark.parametrize("queue", ["orders", "http://localhost:9324/000000000000/orders"])
def test_without_any_region_the_error_names_the_queue_and_the_remedy(without_region: type[Aws], queue: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="no AWS region is configured") as raised:
        make_client(queue=queue)
    assert queue in str(raised.value)
    assert "Set region_name, AWS_DEFAULT_REGION" in str(raised.value)
    assert raised.value.queue == queue
    with pytest.raises(errors.ConfigurationError, match="no AWS region is configured"):
        make_client()


def test_other_things_than_queues_are_refused(without_region: type[Aws]) -> None:
    with pytest.raises(ValueError, match="is not a queue name"):
        make_client(queue="my orders")


@pytest.mark.parametrize("role_arn", [None, ROLE])
def test_without_credentials_no_client_is_made(
    without_region: type[Aws], monkeypatch: pytest.MonkeyPatch, role_arn: str | None
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(errors.CredentialsError, match=r"orders: no usable credentials\. Give the client credentials"):
        make_client(AwsAccess(role_arn=role_arn), queue=EU_WEST_1)


def test_a_part_of_the_credentials_is_not_enough(without_region: type[Aws], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(errors.CredentialsError, match=r"orders: no usable credentials.*AWS_SECRET_ACCESS_KEY"):
        make_client(queue=EU_WEST_1)


def test_a_configuration_file_that_cannot_be_read_is_named(
    without_region: type[Aws], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("region = eu-west-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(broken))
    with pytest.raises(errors.ConfigurationError, match=r"orders: the AWS configuration cannot be used.*broken"):
        make_client(queue=EU_WEST_1)


@pytest.mark.parametrize("endpoint_url", ["localhost:9324", "http://"])
def test_an_endpoint_url_that_cannot_be_used_is_named(without_region: type[Aws], endpoint_url: str) -> None:
    with pytest.raises(errors.EndpointError, match=r"queue .*orders: the client's endpoint is misconfigured"):
        make_client(AwsAccess(endpoint_url=endpoint_url), queue=EU_WEST_1)


def test_credentials_that_a_process_does_not_give_may_come_later(
    without_region: type[Aws], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    config = tmp_path / "process"
    config.write_text("[default]\ncredential_process = false\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(errors.CredentialsUnavailableError, match="cannot be fetched right now"):
        make_client(queue=EU_WEST_1)


def test_a_change_of_the_environment_counts_for_the_next_client(
    aws: type[Aws], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint_url = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_PROFILE", "shop")
    make_client().get_queue_url(QueueName="orders")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    make_client().get_queue_url(QueueName="orders")
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    make_client().get_queue_url(QueueName="orders")
    assert aws.asked == [("eu-west-3", "SHOP"), ("eu-north-1", "SHOP"), ("eu-north-1", "OTHER")]
    assert make_client().meta.endpoint_url == endpoint_url
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert make_client().meta.endpoint_url == "http://127.0.0.1:9"
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert make_client().meta.endpoint_url == "https://sqs.eu-north-1.amazonaws.com"
    # A file that was written since then counts, too.
    written = tmp_path / "config"
    written.write_text("[profile shop]\nregion = eu-south-1\naws_access_key_id = A\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_PROFILE", "shop")
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert make_client().meta.region_name == "eu-south-1"


@pytest.mark.parametrize("service", ["s3", "sns"])
def test_a_client_of_another_service_is_refused(service: str) -> None:
    client: Any = boto3.client(service, region_name="us-east-1")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=f"must be an SQS client of boto3, .*, not a client of {service}"):
        Boto3Transport(client)


def test_other_things_than_clients_are_refused_by_their_type() -> None:
    resource: Any = boto3.resource("sqs", region_name="us-east-1")
    for given in (resource, object(), boto3.Session()):
        with pytest.raises(TypeError, match="must be an SQS client of boto3, "):
            Boto3Transport(given)  # type: ignore[arg-type]
