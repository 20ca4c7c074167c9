"""Prometheus and Grafana in the stack: they find one another, their files, and what is sent to them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docker.dashboard import DASHBOARD, Expression, expressions
from tests.docker.dockerfile import ROOT
from tests.docker.services import DOCKER, SERVICES, SETTINGS, command_of, in_profile, is_ours, mounts_of, ports_of

PROVISIONING = DOCKER / "grafana" / "provisioning"
GRAFANA = SERVICES["grafana"]

PUBLISHING = [
    name
    for name, service in SERVICES.items()
    if command_of(service)[:1] in (["airflow"], ["dagster"], ["dagster-daemon"], ["dagster-webserver"])
]


@pytest.mark.parametrize("name", PUBLISHING)
def test_airflow_and_dagster_send_metrics_to_prometheus_when_they_are_told_to(name: str) -> None:
    environment = SERVICES[name]["environment"]
    endpoint = urlsplit(environment["OTEL_EXPORTER_OTLP_ENDPOINT"])
    assert endpoint.hostname == "prometheus"
    assert endpoint.port in ports_of("prometheus")
    # OpenTelemetry appends `/v1/metrics` to it.
    assert endpoint.path == "/api/v1/otlp"
    assert environment["OTEL_EXPORTER_OTLP_PROTOCOL"] == "http/protobuf"
    assert environment["OTEL_SDK_DISABLED"] == SETTINGS["OTEL_SDK_DISABLED"]


def test_nothing_is_sent_while_the_profile_with_prometheus_is_not_chosen() -> None:
    assert ("metrics" in SETTINGS["COMPOSE_PROFILES"].split(",")) == (SETTINGS["OTEL_SDK_DISABLED"] == "false")


LOOK = """
import dagster_defs
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry import metrics
print("publishes", isinstance(metrics.get_meter_provider(), MeterProvider))
"""


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:9/api/v1/otlp"], ids=["not told", "told"])
def test_the_dagster_examples_publish_metrics_when_they_are_told_where_to(endpoint: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=ROOT,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"publishes {bool(endpoint)}" in done.stdout, done.stderr


def test_prometheus_takes_metrics_by_otlp_and_is_the_version_that_the_tests_build() -> None:
    service = SERVICES["prometheus"]
    assert "--web.enable-otlp-receiver" in service["command"]
    major, minor, patch = re.fullmatch(r"prom/prometheus:v(\d+)\.(\d+)\.(\d+)", service["image"]).groups()  # type: ignore[union-attr]
    script = (ROOT / "requirements" / "prometheus.sh").read_text()
    assert re.findall(r"^version=(.*)$", script, re.MULTILINE) == [f"v0.{major}{int(minor):02}.{patch}"]


def test_prometheus_finds_its_configuration_and_writes_to_its_volume() -> None:
    options = dict(
        option.removeprefix("--").split("=", 1) for option in SERVICES["prometheus"]["command"] if "=" in option
    )
    mounts = mounts_of(SERVICES["prometheus"])
    assert yaml.safe_load((DOCKER / mounts[options["config.file"]]).read_text())
    assert mounts[options["storage.tsdb.path"]] == "prometheus"


def test_grafana_reads_from_prometheus_and_shows_the_dashboard_at_first() -> None:
    mounts = mounts_of(GRAFANA)
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())["datasources"]
    address = urlsplit(source["url"])
    assert (address.hostname, source["type"], source["isDefault"]) == ("prometheus", "prometheus", True)
    assert address.port in ports_of("prometheus")
    assert (DOCKER / mounts["/etc/grafana/provisioning"]).resolve() == PROVISIONING
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "sqs-lease.yaml").read_text())["providers"]
    dashboards = provider["options"]["path"]
    assert (DOCKER / mounts[dashboards]).resolve() == DASHBOARD.parent
    home = PurePosixPath(GRAFANA["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home == PurePosixPath(dashboards) / DASHBOARD.name


def test_grafana_can_only_be_read_and_asks_no_other_host() -> None:
    environment = GRAFANA["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    asking = [name for name in environment if re.search(r"REPORTING|UPDATES|NEWS", name)]
    assert len(asking) == 4
    assert {environment[name] for name in asking} == {"false"}


def test_the_dashboard_reads_from_the_prometheus_that_a_user_chooses() -> None:
    text = DASHBOARD.read_text()
    assert set(re.findall(r'"uid": "([^"]+)"', text)) == {"${datasource}", json.loads(text)["uid"]}


@pytest.mark.parametrize("expression", expressions(), ids=lambda expression: f"{expression.panel} {expression.legend}")
def test_an_expression_reads_our_metrics_for_the_queues_that_are_chosen(expression: Expression) -> None:
    assert expression.metrics
    if expression.panel != "choice of queues":
        selected = len(re.findall(r"(?:queue|messaging_destination_name)=~\"\.\*\"", expression.text))
        assert selected == len(re.findall(r"(?:sqs_lease|messaging)_\w+\{", expression.text))


def test_the_images_of_others_are_in_profiles_that_need_them() -> None:
    others = {name: set(service["profiles"]) for name, service in SERVICES.items() if not is_ours(service)}
    assert others == {"postgres": {"airflow", "dagster"}, "prometheus": {"metrics"}, "grafana": {"metrics"}}
    assert {"prometheus", "grafana"} < in_profile("metrics").keys()
