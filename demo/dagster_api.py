"""A small client of Dagster's GraphQL API: start runs and sensors, and read what became of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

from demo.dagster_answers import CheckResult, DryRun, Event, Location, Materialization, Run, RunRequest, Tick

FINAL_RUN_STATES = frozenset({"SUCCESS", "FAILURE", "CANCELED"})

REPOSITORY = "__repository__"
"""Dagster's name of the repository of a code location that is a `Definitions` object."""

ASSET_JOB = "__ASSET_JOB"
"""Dagster's name of the job that materializes assets which were selected by hand."""

METADATA = """metadataEntries { __typename label
  ... on IntMetadataEntry { intRepr } ... on FloatMetadataEntry { floatValue } ... on TextMetadataEntry { text }
  ... on BoolMetadataEntry { boolValue } ... on JsonMetadataEntry { jsonString } ... on UrlMetadataEntry { url }
  ... on PathMetadataEntry { path } ... on MarkdownMetadataEntry { mdStr }
  ... on TimestampMetadataEntry { timestamp } }"""

ERROR = "message className stack causes { message className }"


class DagsterApiError(RuntimeError):
    """Dagster refused a request, or gave no answer; the message says which, and what it answered."""


class DagsterApi:
    """The client.

    Args:
        base_url: The web server's address, for example `http://127.0.0.1:3000`.
        location: The code location that jobs, assets and sensors are looked for in.
    """

    def __init__(self, base_url: str, location: str) -> None:
        # `trust_env=False`: a proxy that the environment names must not be asked for the loopback address.
        self._client = httpx.Client(base_url=base_url, timeout=300.0, trust_env=False)
        self._repository = {"repositoryName": REPOSITORY, "repositoryLocationName": location}
        self._location = location

    def __enter__(self) -> DagsterApi:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def is_up(self) -> bool:
        """Whether the web server answers."""
        try:
            return self._client.get("/server_info").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def heartbeats(self) -> dict[str, float]:
        """When each daemon that this instance needs was last heard of, in seconds since the epoch; 0 is never."""
        query = """query Heartbeats { instance { daemonHealth { allDaemonStatuses {
            daemonType required lastHeartbeatTime } } } }"""
        statuses = self._ask(query, {})["daemonHealth"]["allDaemonStatuses"]
        return {daemon["daemonType"]: daemon["lastHeartbeatTime"] or 0.0 for daemon in statuses if daemon["required"]}

    def code_location(self) -> Location:
        """How the code location is."""
        query = f"""query CodeLocation($name: String!) {{ workspaceLocationEntryOrError(name: $name) {{ __typename
            ... on WorkspaceLocationEntry {{ loadStatus locationOrLoadError {{ __typename
                ... on RepositoryLocation {{ serverId }} ... on PythonError {{ {ERROR} }} }} }}
            ... on PythonError {{ {ERROR} }} }} }}"""
        loaded = self._ask(query, {"name": self._location}, "WorkspaceLocationEntry")["locationOrLoadError"]
        return _location(loaded)

    def reload(self) -> Location:
        """Load the code location's definitions again, in a new process of its code server."""
        query = f"""mutation Reload($name: String!) {{
            reloadRepositoryLocation(repositoryLocationName: $name) {{ __typename
            ... on WorkspaceLocationEntry {{ locationOrLoadError {{ __typename
                ... on RepositoryLocation {{ serverId }} ... on PythonError {{ {ERROR} }} }} }}
            ... on ReloadNotSupported {{ message }} ... on PythonError {{ {ERROR} }} }} }}"""
        return _location(self._ask(query, {"name": self._location}, "WorkspaceLocationEntry")["locationOrLoadError"])

    def launch(
        self,
        job: str,
        *,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        assets: Sequence[str] = (),
    ) -> str:
        """Start a run of a job.

        Args:
            job: Its name.
            config: The run configuration, in JSON's types.
            tags: Tags of the run.
            assets: The keys of the assets to materialize, the parts of each joined by slashes; none is all of
                the job's.

        Returns:
            The run's id.
        """
        selector: dict[str, Any] = {**self._repository, "pipelineName": job}
        if assets:
            selector["assetSelection"] = [_asset_key(asset) for asset in assets]
        parameters = {
            "selector": selector,
            "runConfigData": dict(config or {}),
            "executionMetadata": {"tags": _tag_list(tags)},
        }
        query = f"""mutation Launch($parameters: ExecutionParams!) {{ launchRun(executionParams: $parameters) {{
            {_LAUNCHED} }} }}"""
        return str(self._ask(query, {"parameters": parameters}, "LaunchRunSuccess")["run"]["runId"])

    def materialize(
        self, *assets: str, config: Mapping[str, Any] | None = None, tags: Mapping[str, str] | None = None
    ) -> str:
        """Start a run that materializes assets; see :meth:`launch`."""
        return self.launch(ASSET_JOB, config=config, tags=tags, assets=assets)

    def reexecute(self, run_id: str, strategy: str, tags: Mapping[str, str] | None = None) -> str:
        """Start a run again that is over.

        Args:
            run_id: The run.
            strategy: "FROM_FAILURE" repeats what did not succeed and what follows it, "ALL_STEPS" everything.
            tags: Tags of the new run, beside those of the old one.

        Returns:
            The new run's id.
        """
        parameters = {"parentRunId": run_id, "strategy": strategy, "extraTags": _tag_list(tags)}
        query = f"""mutation Reexecute($parameters: ReexecutionParams!) {{
            launchRunReexecution(reexecutionParams: $parameters) {{ {_LAUNCHED} }} }}"""
        return str(self._ask(query, {"parameters": parameters}, "LaunchRunSuccess")["run"]["runId"])

    def terminate(self, run_id: str, *, mark_as_canceled: bool = False) -> None:
        """End a run as the user interface does.

        Args:
            run_id: The run.
            mark_as_canceled: Also set its state at once, whether its process can be reached or not.
        """
        policy = "MARK_AS_CANCELED_IMMEDIATELY" if mark_as_canceled else "SAFE_TERMINATE"
        query = f"""mutation Terminate($run: String!, $policy: TerminateRunPolicy) {{
            terminateRun(runId: $run, terminatePolicy: $policy) {{ __typename
                ... on TerminateRunFailure {{ message }} ... on RunNotFoundError {{ message }}
                ... on PythonError {{ {ERROR} }} }} }}"""
        self._ask(query, {"run": run_id, "policy": policy}, "TerminateRunSuccess")

    def run(self, run_id: str) -> Run:
        """A run."""
        query = f"""query OneRun($run: ID!) {{ runOrError(runId: $run) {{ __typename ... on Run {{ {_RUN} }}
            ... on RunNotFoundError {{ message }} ... on PythonError {{ {ERROR} }} }} }}"""
        return _run(self._ask(query, {"run": run_id}, "Run"))

    def runs(self, *, job: str | None = None, tags: Mapping[str, str] | None = None) -> list[Run]:
        """The runs of a job, or with these tags, or all; the newest first, at most 1000."""
        wanted: dict[str, Any] = {"tags": _tag_list(tags)}
        if job is not None:
            wanted["pipelineName"] = job
        query = f"""query Runs($filter: RunsFilter) {{ runsOrError(filter: $filter, limit: 1000) {{ __typename
            ... on Runs {{ results {{ {_RUN} }} }} ... on InvalidPipelineRunsFilterError {{ message }}
            ... on PythonError {{ {ERROR} }} }} }}"""
        return [_run(run) for run in self._ask(query, {"filter": wanted}, "Runs")["results"]]

    def events(self, run_id: str) -> list[Event]:
        """The event log of a run, the oldest first."""
        query = f"""query Events($run: ID!, $cursor: String) {{
            logsForRun(runId: $run, afterCursor: $cursor) {{ __typename
            ... on EventConnection {{ cursor hasMore events {{
                ... on MessageEvent {{ eventType stepKey timestamp level message }}
                ... on ErrorEvent {{ error {{ {ERROR} }} }}
                ... on DisplayableEvent {{ {METADATA} }} }} }}
            ... on RunNotFoundError {{ message }} ... on PythonError {{ {ERROR} }} }} }}"""
        return [_event(event) for event in self._pages(query, run_id)]

    def _pages(self, query: str, run_id: str) -> Iterator[Mapping[str, Any]]:
        page = {"cursor": None, "hasMore": True}
        while page["hasMore"]:
            page = self._ask(query, {"run": run_id, "cursor": page["cursor"]}, "EventConnection")
            yield from page["events"]

    def materializations(self, asset: str) -> list[Materialization]:
        """The materializations of an asset, the newest first; the parts of its key are joined by slashes."""
        query = f"""query Materializations($asset: AssetKeyInput!) {{ assetOrError(assetKey: $asset) {{ __typename
            ... on Asset {{ assetMaterializations {{ runId timestamp partition {METADATA} }} }} }} }}"""
        found = self._ask(query, {"asset": _asset_key(asset)}, "Asset")["assetMaterializations"]
        return [
            Materialization(each["runId"], float(each["timestamp"]) / 1000, each["partition"], _metadata(each))
            for each in found
        ]

    def check_results(self, asset: str, check: str) -> list[CheckResult]:
        """The results of a check of an asset, the newest first, at most 1000."""
        query = f"""query Checks($asset: AssetKeyInput!, $check: String!) {{
            assetCheckExecutions(assetKey: $asset, checkName: $check, limit: 1000) {{
                runId status evaluation {{ severity {METADATA} }} }} }}"""
        found = self._ask(query, {"asset": _asset_key(asset), "check": check})
        return [
            CheckResult(
                each["runId"],
                each["status"],
                each["evaluation"] and each["evaluation"]["severity"],
                _metadata(each["evaluation"] or {}),
            )
            for each in found
        ]

    def start_sensor(self, sensor: str) -> None:
        """Let the daemon evaluate a sensor from now on."""
        query = f"""mutation StartSensor($sensor: SensorSelector!) {{ startSensor(sensorSelector: $sensor) {{ __typename
            ... on SensorNotFoundError {{ message }} ... on PythonError {{ {ERROR} }} }} }}"""
        self._ask(query, {"sensor": {**self._repository, "sensorName": sensor}}, "Sensor")

    def stop_sensor(self, sensor: str) -> None:
        """Let the daemon evaluate a sensor no more."""
        state = self._sensor_state(sensor, "id")
        query = f"""mutation StopSensor($id: String!) {{ stopSensor(id: $id) {{ __typename
            ... on PythonError {{ {ERROR} }} }} }}"""
        self._ask(query, {"id": state["id"]}, "StopSensorMutationResult")

    def is_sensor_running(self, sensor: str) -> bool:
        """Whether the daemon evaluates a sensor."""
        return bool(self._sensor_state(sensor, "status")["status"] == "RUNNING")

    def test_sensor(self, sensor: str, cursor: str | None = None) -> DryRun:
        """Evaluate a sensor once as "Test sensor" of the user interface does, which starts nothing."""
        query = f"""mutation TestSensor($sensor: SensorSelector!, $cursor: String) {{
            sensorDryRun(selectorData: $sensor, cursor: $cursor) {{ __typename
                ... on DryRunInstigationTick {{ evaluationResult {{ skipReason cursor error {{ {ERROR} }}
                    runRequests {{ runKey tags {{ key value }} runConfigYaml assetSelection {{ path }} }} }} }}
                ... on SensorNotFoundError {{ message }} ... on PythonError {{ {ERROR} }} }} }}"""
        variables = {"sensor": {**self._repository, "sensorName": sensor}, "cursor": cursor}
        result = self._ask(query, variables, "DryRunInstigationTick")["evaluationResult"]
        requests = [
            RunRequest(
                request["runKey"],
                _tags(request["tags"]),
                request["runConfigYaml"],
                ["/".join(key["path"]) for key in request["assetSelection"] or ()],
            )
            for request in result["runRequests"] or ()
        ]
        return DryRun(requests, result["skipReason"], _error(result["error"]), result["cursor"])

    def ticks(self, sensor: str) -> list[Tick]:
        """The evaluations of a sensor, the newest first, at most 1000."""
        fields = f"""ticks(limit: 1000) {{ status timestamp runIds runKeys skipReason cursor error {{ {ERROR} }} }}"""
        return [
            Tick(
                tick["status"],
                tick["timestamp"],
                tick["runIds"],
                tick["runKeys"],
                tick["skipReason"],
                _error(tick["error"]),
                tick["cursor"],
            )
            for tick in self._sensor_state(sensor, fields)["ticks"]
        ]

    def _sensor_state(self, sensor: str, fields: str) -> Any:
        query = f"""query SensorState($sensor: InstigationSelector!) {{
            instigationStateOrError(instigationSelector: $sensor) {{ __typename
                ... on InstigationState {{ {fields} }}
                ... on InstigationStateNotFoundError {{ message }} ... on PythonError {{ {ERROR} }} }} }}"""
        return self._ask(query, {"sensor": {**self._repository, "name": sensor}}, "InstigationState")

    def _ask(self, query: str, variables: Mapping[str, Any], wanted: str | None = None) -> Any:
        """Ask for one field, and check that the answer is of the wanted type."""
        asked = f"{query[: query.index('{')].partition('(')[0].strip()} {json.dumps(variables, default=str)}"
        try:
            response = self._client.post("/graphql", json={"query": query, "variables": variables})
        except httpx.HTTPError as error:
            raise DagsterApiError(f"Dagster did not answer {asked}: {error}") from error
        if response.is_error:
            raise DagsterApiError(f"Dagster answered {response.status_code} to {asked}: {response.text}")
        answer = response.json()
        if answer.get("errors"):
            raise DagsterApiError(f"Dagster refused {asked}: {json.dumps(answer['errors'])}")
        (found,) = answer["data"].values()
        if wanted is not None and found["__typename"] != wanted:
            raise DagsterApiError(f"Dagster answered {found['__typename']} to {asked}: {_refusal(found)}")
        return found


_LAUNCHED = f"""__typename ... on LaunchRunSuccess {{ run {{ runId }} }}
    ... on RunConfigValidationInvalid {{ errors {{ message }} }}
    ... on Error {{ message }} ... on PythonError {{ {ERROR} }}"""

_RUN = """runId jobName status tags { key value } runConfigYaml parentRunId startTime endTime"""


def _refusal(found: Mapping[str, Any]) -> str:
    if "errors" in found:
        return "; ".join(error["message"] for error in found["errors"])
    return _error(found) or "it gave no reason"


def _error(error: Mapping[str, Any] | None) -> str | None:
    if error is None or "message" not in error:
        return None
    causes = [cause["message"].strip() for cause in error.get("causes") or ()]
    return " Caused by: ".join([error["message"].strip(), *causes])


def _location(loaded: Mapping[str, Any] | None) -> Location:
    if loaded is None:
        return Location(None, None, is_unreachable=True)
    if loaded["__typename"] == "RepositoryLocation":
        return Location(loaded["serverId"], None, is_unreachable=False)
    classes = {loaded["className"], *(cause["className"] for cause in loaded["causes"])}
    return Location(None, _error(loaded), is_unreachable="DagsterUserCodeUnreachableError" in classes)


def _run(run: Mapping[str, Any]) -> Run:
    return Run(
        run["runId"],
        run["jobName"],
        run["status"],
        _tags(run["tags"]),
        run["runConfigYaml"],
        run["parentRunId"],
        run["startTime"],
        run["endTime"],
    )


def _event(event: Mapping[str, Any]) -> Event:
    return Event(
        event["eventType"],
        event["stepKey"],
        float(event["timestamp"]) / 1000,
        event["level"],
        event["message"],
        _error(event.get("error")),
        _metadata(event),
    )


def _metadata(found: Mapping[str, Any]) -> dict[str, Any]:
    return {entry["label"]: _value(entry) for entry in found.get("metadataEntries") or ()}


def _value(entry: Mapping[str, Any]) -> Any:
    if "intRepr" in entry:
        return int(entry["intRepr"])
    if "jsonString" in entry:
        return json.loads(entry["jsonString"])
    values = [value for name, value in entry.items() if name not in {"__typename", "label"}]
    return values[0] if values else entry["__typename"]


def _tags(tags: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in tags}


def _tag_list(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in (tags or {}).items()]


def _asset_key(asset: str) -> dict[str, list[str]]:
    return {"path": asset.split("/")}
