"""The whole stack, started in the order of its conditions, and what a user does with it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import boto3

from demo import dagster_api
from demo.airflow_api import FINAL_RUN_STATES, AirflowApi, log_in
from demo.compose.secrets import AIRFLOW_USER
from demo.dagster_api import DagsterApi
from demo.processes import wait_until
from demo.prometheus import Prometheus, is_ready
from demo.queues import Counts, counts
from tests.docker.check.containers import Containers, ServiceError
from tests.docker.check.database import Database
from tests.docker.check.images import KEPT, Images
from tests.docker.check.monitoring import start_prometheus
from tests.docker.check.network import Network, network
from tests.docker.compose_model import Service

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

LAST: Final = KEPT / "last"
"""Logs and volumes of the last check."""

HEALTHY_SECONDS: Final = 600.0
NOT_RUN: Final = "grafana"
"""There is nothing here that could stand in for its image."""

STANDING_IN: Final = frozenset({"postgres", "prometheus"})
"""The services that run from other programs than those of their image."""

ENDED_BY_ITSELF: Final = "service_completed_successfully"


class Stack:
    """The services that run.

    Args:
        services: All services of compose.yaml, each after those that it waits for.
        containers: Runs them.
        hosts: The network.
        show: Tells of each step.
    """

    def __init__(
        self, services: Mapping[str, Service], containers: Containers, hosts: Network, show: Callable[[str], None]
    ) -> None:
        self.services, self.containers, self._hosts, self._show = services, containers, hosts, show
        self._started: set[str] = set()

    def up(self, profiles: Sequence[str]) -> None:
        """Start what has one of some profiles, or none, and was not started: each when those it waits for are ready.

        Raises:
            tests.docker.check.containers.ServiceError: One failed, or did not get healthy.
        """
        wanted = [
            service
            for service in self.services.values()
            if (not service.profiles or service.profiles & set(profiles))
            and service.name not in {*self._started, NOT_RUN}
        ]
        end = {on for service in wanted for on, condition in service.waits_for.items() if condition == ENDED_BY_ITSELF}
        for service in wanted:
            self._started.add(service.name)
            for on, condition in service.waits_for.items():
                if condition == "service_healthy" and on not in STANDING_IN:
                    self.containers.await_health(self.services[on], HEALTHY_SECONDS)
            if service.name == "postgres":
                self._start_postgres(service)
            elif service.name == "prometheus":
                self._start_prometheus(service)
            elif service.name in end:
                self.containers.run(service)
            else:
                self.containers.start(service)
        for service in wanted:
            if service.name in self.containers.processes and service.name not in STANDING_IN:
                self.containers.await_health(service, HEALTHY_SECONDS)
        self._show(f"healthy: {', '.join(name for name in self.containers.processes)}")

    def command(self, name: str, *arguments: str, entrypoint: int = 0) -> str:
        """`docker compose run --rm`."""
        return self.containers.run(self.services[name], *arguments, entrypoint=entrypoint)

    def publish(self, count: int, *queues: str) -> None:
        """`docker compose run --rm publish COUNT [QUEUE ...]`."""
        said = self.command("publish", str(count), *queues, entrypoint=4)
        self._show(said.strip().replace("\n", ", "))

    def execute(self, name: str, *command: str, seconds: float = 120.0) -> str:
        """`docker compose exec`.

        Raises:
            tests.docker.check.containers.ServiceError: Its exit code was not 0, or it took too long.
        """
        what = f"{' '.join(command)} in {name}"
        try:
            done = self.containers.execute(self.services[name], command, seconds)
        except subprocess.TimeoutExpired:
            raise ServiceError(f"{what} did not end within {seconds:.0f} s.") from None
        if done.returncode != 0:
            raise ServiceError(f"{what} ended with exit code {done.returncode}:\n{done.stdout}")
        return done.stdout

    def url(self, name: str) -> str:
        """The address of a service's published port."""
        return f"http://{self._hosts.addresses[name]}:{self.services[name].ports[0]}"

    @contextmanager
    def airflow(self) -> Iterator[AirflowApi]:
        """Airflow's API, for the user and the password that the stack has made."""
        passwords = json.loads((self.containers.volume("secrets") / "airflow-passwords.json").read_text())
        url = self.url("airflow-api-server")
        with AirflowApi(url, log_in(url, AIRFLOW_USER, passwords[AIRFLOW_USER])) as api:
            yield api

    @contextmanager
    def dagster(self) -> Iterator[DagsterApi]:
        """Dagster's API."""
        with DagsterApi(self.url("dagster-webserver"), "dagster_defs") as api:
            yield api

    def prometheus(self) -> Prometheus:
        """The server that Airflow and Dagster send metrics to."""
        return Prometheus(self.url("prometheus"))

    def sqs(self) -> SQSClient:
        """A client of the SQS server."""
        environment = self.services["queues"].environment
        return boto3.client(
            "sqs",
            endpoint_url=self.url("sqs"),
            region_name=environment["AWS_DEFAULT_REGION"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        )

    def counts(self, queue: str) -> Counts:
        """Count the messages of a queue."""
        client = self.sqs()
        return counts(client, client.get_queue_url(QueueName=queue)["QueueUrl"])

    def wait(self, service: str, ready: Callable[[], bool], what: str, seconds: float = 600.0) -> None:
        """Wait until something is the case, while a service runs."""
        process = self.containers.processes[service]
        wait_until(ready, processes=[process], what=what, deadline_seconds=seconds)

    def wait_for_run(self, api: AirflowApi, dag_id: str, run_id: str, seconds: float = 600.0) -> str:
        """Wait until a run of a DAG is over, and return its state."""
        self.wait(
            "airflow-scheduler",
            lambda: api.run_state(dag_id, run_id) in FINAL_RUN_STATES,
            f"done with {dag_id}",
            seconds,
        )
        return api.run_state(dag_id, run_id)

    def wait_for_job(self, api: DagsterApi, run_id: str) -> str:
        """Wait until a run of Dagster is over, and return its state."""
        self.wait(
            "dagster-daemon", lambda: api.run(run_id).state in dagster_api.FINAL_RUN_STATES, f"done with {run_id}"
        )
        return api.run(run_id).state

    def down(self) -> None:
        """Stop everything in an orderly way, the last started first."""
        for name in reversed([name for name in self.containers.processes if name not in STANDING_IN]):
            self._show(f"stopped {name} in {self.containers.stop(name):.1f} s")

    def _start_prometheus(self, service: Service) -> None:
        log = self.containers.logs / "prometheus.log"
        process = start_prometheus(service, self._hosts, LAST / "prometheus", log)
        self.containers.processes["prometheus"] = process
        url = self.url("prometheus")
        wait_until(lambda: is_ready(url), processes=[process], what="ready", deadline_seconds=120.0)

    def _start_postgres(self, service: Service) -> None:
        database = Database(service, self._hosts, KEPT / "postgres", self.containers.volumes)
        process = database.start(self.containers.logs / "postgres.log")
        self.containers.processes["postgres"] = process
        wait_until(database.is_healthy, processes=[process], what="healthy", deadline_seconds=120.0)


@contextmanager
def stack(services: Mapping[str, Service], images: Images, show: Callable[[str], None]) -> Iterator[Stack]:
    """A stack of which nothing runs yet; it is ended with the block."""
    for directory in (LAST, KEPT / "postgres"):
        shutil.rmtree(directory, ignore_errors=True)
    LAST.mkdir()
    with network({name: service.hostname for name, service in services.items()}, LAST) as hosts:
        containers = Containers(images, hosts, LAST)
        try:
            yield Stack(services, containers, hosts, show)
        finally:
            containers.remove()
