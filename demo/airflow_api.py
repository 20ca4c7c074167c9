"""A small client of Airflow's REST API: start runs and read what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any

import httpx

FINAL_RUN_STATES = frozenset({"success", "failed"})

_TRIES = 5
"""How often a request is made that the database undoes: each try waits for a lock, so none needs a pause before it."""


class AirflowApiError(RuntimeError):
    """Airflow refused a request, or gave no answer; the message says which, and what it answered."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task instance as Airflow reports it."""

    task_id: str
    map_index: int
    """Its index when the task is mapped, otherwise -1."""
    state: str | None
    """`None` until the scheduler has looked at it."""
    try_number: int
    """1 for the first try, 0 before it."""
    ended_at: float | None
    """When it ended, in seconds since the epoch; `None` while it has not."""


@dataclass(frozen=True, slots=True)
class TriggererJob:
    """One triggerer as Airflow reports it, running or not; times are in seconds since the epoch."""

    is_at_work: bool
    """Whether it sent heartbeats since its start, and lately."""
    ended_at: float | None
    """When it ended in an orderly way; `None` while it has not."""


class AirflowApi:
    """The client; authentication is the simple auth manager's.

    Args:
        base_url: The API server's address, for example `http://127.0.0.1:8080`.
        token: The result of :func:`log_in`; `None` if all users are administrators.
    """

    def __init__(self, base_url: str, token: str | None = None) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # `trust_env=False`: a proxy that the environment names must not be asked for the loopback address.
        self._client = httpx.Client(base_url=base_url, timeout=120.0, trust_env=False, headers=headers)

    def __enter__(self) -> AirflowApi:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def health(self) -> dict[str, str | None]:
        """The status of each component ("healthy", "unhealthy", `None` = never seen), by its name.

        Empty while the API server does not answer.
        """
        try:
            response = self._client.get("/api/v2/monitor/health")
        except httpx.TransportError:
            return {}
        if response.status_code != httpx.codes.OK:
            return {}
        return {name: component["status"] for name, component in response.json().items()}

    def triggerers(self) -> list[TriggererJob]:
        """All triggerers there ever were, at most 100."""
        parameters: dict[str, Any] = {"job_type": "TriggererJob", "limit": 100}
        alive = {job["id"] for job in self._get("/jobs", {**parameters, "is_alive": True})["jobs"]}
        return [
            TriggererJob(
                # The first heartbeat is that of its start, when it does not look for triggers yet.
                is_at_work=job["id"] in alive and _seconds(job["latest_heartbeat"]) > _seconds(job["start_date"]) + 0.5,
                ended_at=_seconds(job["end_date"]) if job["end_date"] else None,
            )
            for job in self._get("/jobs", parameters)["jobs"]
        ]

    def has_dag(self, dag_id: str) -> bool:
        """Whether the DAG processor has stored this DAG, so that it can be triggered.

        Raises:
            AirflowApiError: The DAG is not there, and a DAG file could not be imported.
        """
        if self._request("GET", f"/dags/{dag_id}", allowed=(404,)).status_code == httpx.codes.OK:
            return True
        for filename, stack_trace in self.import_errors().items():
            raise AirflowApiError(f"{filename} cannot be imported: {stack_trace}")
        return False

    def parsed_at(self, dag_id: str) -> str:
        """When the file of a DAG was read last, in ISO 8601: what follows from its state was done then."""
        return str(self._get(f"/dags/{dag_id}")["last_parsed_time"])

    def version_number(self, dag_id: str) -> int:
        """The number of the newest version of a DAG, 1 for the first; a change of its tasks makes another one."""
        answer = self._get(f"/dags/{dag_id}/dagVersions", {"order_by": "-version_number", "limit": 1})
        return int(answer["dag_versions"][0]["version_number"])

    def import_errors(self) -> dict[str, str]:
        """The stack traces of the DAG files that cannot be imported, by their names within their bundles."""
        return {error["filename"]: error["stack_trace"] for error in self._get("/importErrors")["import_errors"]}

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run.

        Args:
            dag_id: The DAG, which must be stored: see :meth:`has_dag`.
            conf: The run's configuration, in JSON's types.

        Returns:
            The run's id.
        """
        body = {"logical_date": None, "conf": dict(conf or {})}
        response = self._request("POST", f"/dags/{dag_id}/dagRuns", json=body)
        return str(response.json()["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """The state of a run: queued, running, success or failed."""
        return str(self._get(f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def run_states(self, dag_id: str) -> dict[str, str]:
        """The states of the runs of a DAG by their ids, at most 100: queued, running, success or failed."""
        answer = self._get(f"/dags/{dag_id}/dagRuns", {"limit": 100})
        return {run["dag_run_id"]: run["state"] for run in answer["dag_runs"]}

    def run_times(self, dag_id: str) -> dict[str, tuple[float | None, float | None]]:
        """When the runs of a DAG (at most 100) started and ended, by their ids, in seconds since the epoch."""
        answer = self._get(f"/dags/{dag_id}/dagRuns", {"limit": 100})
        return {
            run["dag_run_id"]: (
                _seconds(run["start_date"]) if run["start_date"] else None,
                _seconds(run["end_date"]) if run["end_date"] else None,
            )
            for run in answer["dag_runs"]
        }

    def task_states(self, dag_id: str, run_id: str) -> list[TaskState]:
        """The task instances of a run, mapped ones each for itself."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        found: list[Any] = []
        while True:
            # Airflow gives at most 100 in an answer (`[api] maximum_page_limit`).
            answer = self._get(path, {"limit": 100, "offset": len(found), "order_by": "map_index"})
            found += answer["task_instances"]
            if not answer["task_instances"] or len(found) >= answer["total_entries"]:
                break
        return [
            TaskState(
                task["task_id"],
                task["map_index"],
                task["state"],
                task["try_number"],
                _seconds(task["end_date"]) if task["end_date"] else None,
            )
            for task in found
        ]

    def triggerer_of(self, dag_id: str, run_id: str, task_id: str) -> str | None:
        """The host of the triggerer that has a deferred task, `None` while none has it."""
        found = self._get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
        host: str | None = (found["triggerer_job"] or {}).get("hostname")
        return host

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """The value that a task left under a key, in JSON's types; `None` when there is none."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        parameters = {"map_index": map_index, "deserialize": True}
        response = self._request("GET", path, parameters, allowed=(404,))
        return response.json()["value"] if response.status_code == httpx.codes.OK else None

    def keepers_at_work(self) -> list[tuple[str, str, str]]:
        """The DAG, the run and the task of each keeper at work, as the page *SQS leases* asks for them."""
        asked = {"operator": "SqsLeaseKeeperOperator", "state": ["running", "deferred"]}
        found = self._get("/dags/~/dagRuns/~/taskInstances", asked)["task_instances"]
        return [(task["dag_id"], task["dag_run_id"], task["task_id"]) for task in found]

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """The log of one try of a task, with its trigger's part, a line per event."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        answer = self._get(path, {"map_index": map_index, "full_content": True})
        return "\n".join(_log_line(event) for event in answer["content"])

    def variables(self) -> list[str]:
        """The keys of Airflow's variables, at most 1000."""
        return [variable["key"] for variable in self._get("/variables", {"limit": 1000})["variables"]]

    def asset_events(self, name: str) -> int:
        """How many events of an asset there were, a hundred at most."""
        events = self._get("/assets/events", {"limit": 100, "name_pattern": name})["asset_events"]
        return sum(event["name"] == name for event in events)

    def mark_task(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int | None = None) -> None:
        """Set the state of a task of a run, or of one instance, as a user does: "success", "failed" or "skipped"."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self._request("PATCH", path if map_index is None else f"{path}/{map_index}", json={"new_state": state})

    def clear_task(self, dag_id: str, run_id: str, task_id: str, map_index: int | None = None) -> None:
        """Clear a task of a run, or one instance, whatever its state, so that it starts again; no other is cleared."""
        self._request(
            "POST",
            f"/dags/{dag_id}/clearTaskInstances",
            json={
                "dry_run": False,
                "dag_run_id": run_id,
                "task_ids": [task_id if map_index is None else [task_id, map_index]],
                "only_failed": False,
                "reset_dag_runs": True,
            },
        )

    def clear_run(self, dag_id: str, run_id: str) -> None:
        """Clear all tasks of a run, whatever their states, so that it starts again."""
        self._request("POST", f"/dags/{dag_id}/dagRuns/{run_id}/clear", json={"dry_run": False})

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Set the state of a run, as a user does: "success" or "failed"."""
        self._request("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", json={"state": state})

    def delete_run(self, dag_id: str, run_id: str) -> None:
        """Delete a run, which Airflow refuses while it is running."""
        self._request("DELETE", f"/dags/{dag_id}/dagRuns/{run_id}")

    def delete_dag(self, dag_id: str) -> None:
        """Delete a DAG with all of its runs; Airflow finds it again while its file is there."""
        self._request("DELETE", f"/dags/{dag_id}")

    def pause(self, dag_id: str) -> None:
        """Pause a DAG: no task of its runs is started any more."""
        self._request("PATCH", f"/dags/{dag_id}", json={"is_paused": True})

    def unpause(self, dag_id: str) -> None:
        """Let a DAG that was paused run again."""
        self._request("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def set_pool(self, name: str, slots: int) -> None:
        """Make a pool, or change how many tasks it lets run at the same time."""
        pool = {"name": name, "slots": slots, "include_deferred": False, "description": ""}
        if self._request("GET", f"/pools/{name}", allowed=(404,)).status_code == httpx.codes.OK:
            self._request("PATCH", f"/pools/{name}", {"update_mask": ["slots"]}, json=pool)
        else:
            self._request("POST", "/pools", json=pool)

    def _get(self, path: str, parameters: Mapping[str, Any] | None = None) -> Any:
        return self._request("GET", path, parameters).json()

    def _request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        json: Mapping[str, Any] | None = None,
        allowed: tuple[int, ...] = (),
    ) -> httpx.Response:
        try:
            if "Authorization" not in self._client.headers:
                token = self._client.get("/auth/token").raise_for_status().json()["access_token"]
                self._client.headers["Authorization"] = f"Bearer {token}"
            for _ in range(_TRIES):
                response = self._client.request(method, f"/api/v2{path}", params=parameters, json=json)
                if not _was_rolled_back(response):
                    break
        except httpx.HTTPError as error:
            raise AirflowApiError(f"Airflow did not answer {method} {path}: {error}") from error
        if response.is_error and response.status_code not in allowed:
            raise AirflowApiError(f"Airflow answered {response.status_code} to {method} {path}: {response.text}")
        return response


def log_in(base_url: str, user: str, password: str) -> str:
    """A token for :class:`AirflowApi`, valid for a day.

    Args:
        base_url: The API server's address.
        user: A user of the simple auth manager.
        password: His password.

    Raises:
        AirflowApiError: Airflow does not take them.
    """
    answer = httpx.post(f"{base_url}/auth/token", json={"username": user, "password": password}, trust_env=False)
    if answer.is_error:
        raise AirflowApiError(f"Airflow does not let {user} in: {answer.status_code} {answer.text}")
    token: str = answer.json()["access_token"]
    return token


def _was_rolled_back(response: httpx.Response) -> bool:
    """Whether Airflow's database refused a request as a whole, so that it may be made again.

    When a user acts on what the scheduler is at work on, each of the two can wait for a lock of the other's. PostgreSQL
    ends that after a second (`deadlock_timeout`) by undoing one of them; on SQLite, one gives up waiting (`timeout`).
    """
    if response.status_code != httpx.codes.INTERNAL_SERVER_ERROR:
        return False
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(detail, dict) and detail.get("reason") == "Database error"


def _seconds(time: str) -> float:
    """Seconds since the epoch."""
    return datetime.fromisoformat(time).timestamp()


def _log_line(event: str | Mapping[str, Any]) -> str:
    if isinstance(event, str):
        return event
    details = [str(event[key]) for key in ("timestamp", "level", "event") if event.get(key)]
    details += [str(detail) for detail in event.get("error_detail") or ()]
    return " ".join(details)
