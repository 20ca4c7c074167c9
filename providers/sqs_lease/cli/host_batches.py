"""What Airflow and Dagster say of the batches that they work on, by their public APIs.

Airflow: the keepers that are at work (``SqsLeaseKeeperOperator``), and the progress that each writes to the XCom
``settled``. Dagster: the newest materialization of each asset that has a lease's metadata (``sqs/...``). Neither holds
message bodies or receipt handles. How many messages a batch of Airflow has is not read: the XComs that tell have both.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from sqs_lease.cli.output import CommandError
from sqs_lease.core.events import OUTCOME_LETTERS

ANSWER_SECONDS: Final = 5.0
MOST_BATCHES: Final = 100

AIRFLOW_TOKEN: Final = "SQS_LEASE_AIRFLOW_TOKEN"  # noqa: S105 - the name of a variable
AIRFLOW_USER: Final = "SQS_LEASE_AIRFLOW_USER"
AIRFLOW_PASSWORD: Final = "SQS_LEASE_AIRFLOW_PASSWORD"  # noqa: S105

_KEEPER: Final = "SqsLeaseKeeperOperator"
_KEEPS_KEY: Final = "keeps"
_PROGRESS_KEY: Final = "settled"
_AT_WORK: Final = ("scheduled", "queued", "running", "deferred")

_PREFIX: Final = "sqs/"
_COUNTS: Final = ("received", "deleted", "released", "dead_lettered", "expired", "lost", "uncertain", "unsettled")
_MATERIALIZATIONS: Final = """
query SqsLeaseBatches {
  assetsOrError {
    __typename
    ... on PythonError { message }
    ... on AssetConnection {
      nodes {
        key { path }
        assetMaterializations(limit: 1) {
          runId
          timestamp
          metadataEntries {
            label
            ... on IntMetadataEntry { intRepr }
            ... on TextMetadataEntry { text }
          }
        }
      }
    }
  }
}
"""


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A batch, as its host tells of it.

    Attributes:
        host: ``Airflow`` or ``Dagster``.
        name: The DAG and the keeper's task, or the asset.
        run: The run's id.
        state: The state of the keeper's task; for Dagster ``done``.
        at: When it began (Airflow) or ended (Dagster), in seconds since the epoch; None if it is not known.
        counts: Messages by what became of them so far.
        queue_url: The queue; empty if the host does not say.
    """

    host: str
    name: str
    run: str
    state: str
    at: float | None
    counts: Mapping[str, int]
    queue_url: str = ""


class HostError(Exception):
    """A host gave no usable answer; the text is one line."""


class WatchedHosts:
    """The hosts that are asked again and again.

    Args:
        airflow: The address of an Airflow; None for none.
        dagster: The address of a Dagster; None for none.

    Attributes:
        batches: What they said last.
        trouble: Why one of them said nothing the last time.

    Raises:
        CommandError: What was given is no URL of a host.
    """

    def __init__(self, airflow: str | None, dagster: str | None) -> None:
        for name, url in (("airflow", airflow), ("dagster", dagster)):
            if url is not None and not url.startswith(("http://", "https://")):
                raise CommandError(f"--{name} takes a URL that begins with http:// or https://, not {url!r}")
        self.batches: Sequence[HostBatch] = ()
        self.trouble: Sequence[str] = ()
        self._asks = [(airflow_batches, airflow), (dagster_batches, dagster)]

    @property
    def are_asked(self) -> bool:
        """Whether there is one."""
        return any(url is not None for _, url in self._asks)

    def read(self) -> None:
        """Ask them all; it blocks."""
        batches: list[HostBatch] = []
        trouble = []
        for ask, url in self._asks:
            if url is not None:
                try:
                    batches += ask(url)
                except HostError as error:
                    trouble.append(str(error))
        self.batches, self.trouble = batches, trouble


def airflow_batches(url: str) -> list[HostBatch]:
    """Ask Airflow for the batches whose keepers are at work.

    Args:
        url: The API server's address.

    Raises:
        HostError: There was no usable answer.
    """
    base = url.rstrip("/")
    headers = _airflow_headers(base)
    filters = {"operator": _KEEPER, "state": _AT_WORK, "limit": MOST_BATCHES, "order_by": "-start_date"}
    query = urlencode(filters, doseq=True)
    found = _ask(f"{base}/api/v2/dags/~/dagRuns/~/taskInstances?{query}", "Airflow", headers)
    return [_airflow_batch(base, headers, task) for task in found["task_instances"]]


def dagster_batches(url: str) -> list[HostBatch]:
    """Ask Dagster for the last batch of each asset.

    Args:
        url: The web server's address.

    Raises:
        HostError: There was no usable answer.
    """
    answer = _ask(f"{url.rstrip('/')}/graphql", "Dagster", {}, {"query": _MATERIALIZATIONS})
    assets = (answer.get("data") or {}).get("assetsOrError") or {}
    if assets.get("__typename") != "AssetConnection":
        raise HostError(f"Dagster did not list its assets: {assets.get('message') or answer.get('errors')}")
    batches = [batch for node in assets["nodes"] if (batch := _dagster_batch(node)) is not None]
    return sorted(batches, key=lambda batch: -(batch.at or 0.0))[:MOST_BATCHES]


def _airflow_headers(base: str) -> dict[str, str]:
    token = os.environ.get(AIRFLOW_TOKEN)
    user = os.environ.get(AIRFLOW_USER)
    if not token and user:
        login = {"username": user, "password": os.environ.get(AIRFLOW_PASSWORD, "")}
        token = _ask(f"{base}/auth/token", "Airflow", {}, login).get("access_token")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _airflow_batch(base: str, headers: Mapping[str, str], task: Mapping[str, Any]) -> HostBatch:
    keeps = _xcom(base, headers, task, task["task_id"], _KEEPS_KEY)
    value = _xcom(base, headers, task, keeps["receive_task_id"], _PROGRESS_KEY) if "receive_task_id" in keeps else {}
    letters = value.get("settled", "")
    counts = dict(Counter(OUTCOME_LETTERS[letter].value for letter in letters if letter in OUTCOME_LETTERS))
    return HostBatch(
        "Airflow",
        f"{task['dag_id']}.{task['task_id']}",
        task["dag_run_id"],
        task["state"] or "",
        datetime.fromisoformat(task["start_date"]).timestamp() if task["start_date"] else None,
        counts,
    )


def _xcom(base: str, headers: Mapping[str, str], task: Mapping[str, Any], task_id: str, key: str) -> Mapping[str, Any]:
    """What a task of the same run left by a key; empty where there is nothing, or nothing of the kind."""
    dag_id, run_id, task_id = (quote(name, safe="") for name in (task["dag_id"], task["dag_run_id"], task_id))
    place = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
    value = _ask(f"{base}/api/v2/{place}?map_index=-1", "Airflow", headers, may_be_missing=True).get("value")
    return value if isinstance(value, Mapping) else {}


def _dagster_batch(node: Mapping[str, Any]) -> HostBatch | None:
    for event in node["assetMaterializations"]:
        entries = {entry["label"]: entry for entry in event["metadataEntries"]}
        queue = entries.get(f"{_PREFIX}queue")
        if queue is None:
            return None
        counts = {
            name.replace("_", "-"): int(entry["intRepr"])
            for name in _COUNTS
            if (entry := entries.get(f"{_PREFIX}{name}")) is not None and entry.get("intRepr") is not None
        }
        at = float(event["timestamp"]) / 1000
        return HostBatch("Dagster", "/".join(node["key"]["path"]), event["runId"], "done", at, counts, queue["text"])
    return None


def _ask(
    url: str,
    host: str,
    headers: Mapping[str, str],
    content: Mapping[str, Any] | None = None,
    *,
    may_be_missing: bool = False,
) -> dict[str, Any]:
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})  # noqa: S310
    where = url.partition("?")[0]
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:  # noqa: S310 - checked by WatchedHosts
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        if may_be_missing and error.code == 404:
            return {}
        remedy = ""
        if host == "Airflow" and error.code in (401, 403):
            remedy = f". Set {AIRFLOW_TOKEN}, or {AIRFLOW_USER} and {AIRFLOW_PASSWORD}, for a user who may read it"
        raise HostError(f"{host} refused {where}: {error.code} {error.reason}{remedy}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise HostError(f"{host} gave no usable answer at {where}: {reason}") from error


def described(counts: Mapping[str, int]) -> str:
    """Write counts for people: ``12 deleted, 1 released``; those of 0 are left out."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
