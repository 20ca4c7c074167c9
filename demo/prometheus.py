"""A Prometheus server as a real process of its own, to which programs send metrics (OTLP), and what is asked of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from demo.processes import LOOPBACK, ROOT, ServerProcess, await_stop, free_port, request_stop, start_process, wait_until

VARIABLE = "PROMETHEUS"
"""The environment variable that names the program of a Prometheus 3, where there is one already."""

BUILT = ROOT / ".prometheus" / "prometheus"

READY_SECONDS = 120.0
STOP_SECONDS = 60.0
ANSWER_SECONDS = 60.0


class PrometheusMissingError(RuntimeError):
    """There is no Prometheus here, nor Go to build it with."""


class QueryError(RuntimeError):
    """Prometheus refused a query; the message has both."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of an answer."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """With it, OpenTelemetry sends metrics here once a second."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"{self.url}/api/v1/otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        }

    def query(self, expression: str) -> list[Sample]:
        """The value of an expression now.

        Raises:
            QueryError: It is refused.
        """
        found = self._ask("query", {"query": expression})["result"]
        return [Sample(sample["metric"], float(sample["value"][1])) for sample in found]

    def metric_names(self) -> set[str]:
        """The names of all metrics that were ever sent."""
        return set(self._ask("label/__name__/values", {}))

    def _ask(self, path: str, parameters: dict[str, str]) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=ANSWER_SECONDS).json()
        if answer["status"] != "success":
            raise QueryError(f"Prometheus refused {parameters.get('query', path)}: {answer['error']}")
        # For example quantiles of a metric that is not a histogram.
        if said := [*answer.get("warnings", ()), *answer.get("infos", ())]:
            raise QueryError(f"Prometheus says of {parameters.get('query', path)}: {'; '.join(said)}")
        return answer["data"]


def prometheus_program() -> Path:
    """The program; it is built where there is none.

    Raises:
        PrometheusMissingError: It cannot be built without Go.
        subprocess.CalledProcessError: Building it failed; Go has said why.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if shutil.which("go") is not None:
        subprocess.run([ROOT / "requirements" / "prometheus.sh"], check=True)
    elif not BUILT.exists():
        raise PrometheusMissingError(
            f"No Prometheus here: install Go, which builds it, or name the program of a Prometheus 3 in {VARIABLE}"
        )
    return BUILT


@contextmanager
def prometheus_server(directory: Path, configuration: Path, options: Sequence[str]) -> Iterator[Prometheus]:
    """Run a server until the block ends.

    Args:
        directory: Where its data and its log go.
        configuration: Its configuration file.
        options: More of its command line.
    """
    port = free_port()
    server = Prometheus(f"http://{LOOPBACK}:{port}")
    process: ServerProcess = start_process(
        "Prometheus",
        [
            prometheus_program(),
            f"--config.file={configuration}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
            *options,
        ],
        log_path=directory / "prometheus.log",
        environment={"PATH": os.environ["PATH"]},
        directory=directory,
    )
    try:
        wait_until(lambda: is_ready(server.url), processes=[process], what="ready", deadline_seconds=READY_SECONDS)
        yield server
    finally:
        request_stop([process])
        await_stop([process], STOP_SECONDS)


def is_ready(url: str) -> bool:
    """Whether a server answers queries."""
    try:
        return httpx.get(f"{url}/-/ready", timeout=ANSWER_SECONDS).is_success
    except httpx.TransportError:
        return False
