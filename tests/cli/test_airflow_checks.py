"""The findings of `doctor` in an installation of Airflow, and about hosts that are not installed."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import pytest

from sqs_lease.cli import airflow_checks
from sqs_lease.cli.findings import Finding, Level
from tests.cli.commands import sqs_lease
from tests.cli.conftest import Ground
from tests.cli.wire import Wire

KEY = base64.urlsafe_b64encode(bytes(32)).decode()


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", KEY)
    # The command sets it for its own process.
    monkeypatch.setenv("AIRFLOW__LOGGING__LOGGING_LEVEL", "INFO")


def of_airflow() -> dict[str, Finding]:
    return {finding.check: finding for finding in airflow_checks.airflow_findings()}


def problems() -> set[str]:
    return {check for check, finding in of_airflow().items() if finding.level is Level.PROBLEM}


def test_airflow_as_it_comes_has_no_problem() -> None:
    found = of_airflow()

    assert problems() == set()
    assert "within 1 min; sensors receive with 7 min 30 s" in found["takeover"].what
    assert "apache-airflow 3." in found["versions"].what
    assert found["payload"].level is Level.NOTE


@pytest.mark.parametrize(
    ("option", "value", "check"),
    [
        ("TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD", "12", "takeover"),
        ("TRIGGERER__JOB_HEARTBEAT_SEC", "15", "takeover"),
        ("CORE__FERNET_KEY", "no key", "fernet_key"),
        ("SQS_LEASE__PAYLOAD", "relative", "payload"),
        ("SQS_LEASE__PAYLOAD", "/nowhere/at/all", "payload"),
        ("SQS_LEASE__REPORT_FAILURES", "False", "failure_reports"),
    ],
)
def test_a_setting_of_airflow_that_is_a_problem_is_found(
    monkeypatch: pytest.MonkeyPatch, option: str, value: str, check: str
) -> None:
    monkeypatch.setenv(f"AIRFLOW__{option}", value)

    assert problems() == {check}
    assert of_airflow()[check].why


def test_a_long_takeover_is_a_note_with_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD", "600")

    finding = of_airflow()["takeover"]

    assert finding.level is Level.NOTE
    assert "10 min 30 s; sensors receive with 36 min" in finding.what


def test_queues_of_triggerers_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "triggerer_queues" not in of_airflow()
    monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", "True")
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_QUEUE", "main")

    assert "--queues main" in of_airflow()["triggerer_queues"].change


def test_the_same_key_has_the_same_fingerprint_and_does_not_tell_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    first = of_airflow()["fernet_key"].what
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", base64.urlsafe_b64encode(bytes(31) + b"1").decode())

    assert KEY not in first
    assert of_airflow()["fernet_key"].what != first


def test_a_directory_that_can_be_written_to_must_still_be_shared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW__SQS_LEASE__PAYLOAD", str(tmp_path))

    finding = of_airflow()["payload"]

    assert finding.level is Level.NOTE
    assert "must see the same directory" in finding.why


@pytest.mark.processes
def test_a_place_on_s3_is_read_by_its_connection(wire: Wire, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    monkeypatch.setenv("AIRFLOW_CONN_STORE", '{"conn_type": "aws"}')
    boto3.client("s3").create_bucket(Bucket="doctors-leases")
    for uri, level in (
        ("s3://store@doctors-leases/not/written/yet", Level.FINE),
        ("s3://store@no-such-bucket/a", Level.PROBLEM),
    ):
        monkeypatch.setenv("AIRFLOW__SQS_LEASE__PAYLOAD", uri)
        assert of_airflow()["payload"].level is level, uri


@pytest.mark.processes
def test_queues_are_reached_by_the_connection_of_airflow(
    wire: Wire, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = ground.queue("orders", VisibilityTimeout="5")
    connection = {
        "conn_type": "aws",
        "login": "test",
        "password": "test",
        "extra": {"endpoint_url": wire.endpoint_url, "region_name": "us-east-1"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS", json.dumps(connection))
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)

    ran = sqs_lease("doctor", orders, "--airflow", "--connection", "orders", "--json")

    queue, installation = json.loads(ran.out)["examined"]
    found = {finding["check"]: finding for finding in [*queue["findings"], *installation["findings"]]}
    assert "credentials from the connection orders" in found["access"]["what"]
    # The sensors do not take the queue's own.
    assert found["visibility_timeout"]["level"] == "fine"
    assert "connection" not in found


@pytest.mark.processes
def test_a_connection_that_is_missing_is_a_note(wire: Wire, ground: Ground) -> None:
    ran = sqs_lease("doctor", ground.queue("orders"), "--airflow", "--connection", "missing", "--json")

    (finding,) = (
        found
        for about in json.loads(ran.out)["examined"]
        for found in about["findings"]
        if found["check"] == "connection"
    )
    assert finding["what"] == "there is no connection missing"


def test_a_profile_does_not_go_with_the_connection() -> None:
    ran = sqs_lease("doctor", "orders", "--airflow", "--profile", "dev")

    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith("Error: --profile and --endpoint-url cannot be used with --airflow")


def test_a_connection_is_nothing_without_airflow() -> None:
    assert sqs_lease("doctor", "orders", "--connection", "dev").err.startswith("Error: --connection is for --airflow")


@pytest.mark.parametrize("host", ["airflow", "dagster"])
def test_a_host_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == host]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, host, None)

    ran = sqs_lease("doctor", "orders", f"--{host}")

    assert (ran.exit_code, ran.out) == (2, "")
    assert f'pip install "sqs-lease[{host}]"' in ran.err
    assert ran.err.count("\n") == 1
