"""The reports of a job that was started through Dagster Pipes, and their places; without Spark."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import dagster_pipes
import pytest

import sqs_lease
from sqs_lease.ingestion.result import StoredResult
from sqs_lease.spark.job import main as job
from sqs_lease.spark.job import reporting
from sqs_lease.spark.job.reporting import CONTEXT, MESSAGES, ReportError
from sqs_lease.spark.job.termination import Termination
from tests.ingestion.test_result import RESULT

logger = logging.getLogger("sqs_lease.spark.ingestion")
SECRET = "what a body says"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A process has one connection; each test is to have its own."""
    monkeypatch.setattr(dagster_pipes.PipesContext, "_instance", None)
    # Not by its attribute: a logger remembers what it was asked before.
    caplog.set_level(logging.INFO, logger.name)
    # The writers of files and of objects look every second whether there is something to write.
    monkeypatch.setattr(dagster_pipes, "time", SimpleNamespace(sleep=lambda seconds: Event().wait(0.01)))


def parameters(messages: Mapping[str, Any], context: Mapping[str, Any] | None = None) -> dict[str, str]:
    data = {"data": {"run_id": "run", "extras": {}}}
    return {CONTEXT: dagster_pipes.encode_param(context or data), MESSAGES: dagster_pipes.encode_param(messages)}


def written(path: Path) -> list[tuple[str, Any]]:
    return [(one["method"], one["params"]) for one in map(json.loads, path.read_text().splitlines())]


def report(messages: Mapping[str, Any], context: Mapping[str, Any] | None = None) -> None:
    with reporting.reporting(parameters(messages, context), str) as tell:
        logger.info("batch %s: stage 2: 37 of 200 tasks", "b")
        logging.getLogger("py4j").warning("a connection was closed")
        tell(RESULT)


def test_the_log_and_the_result_are_reported(tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    report({"path": str(messages)})
    opened, log, result, closed = written(messages)
    assert (opened[0], closed) == ("opened", ("closed", {}))
    assert log == ("log", {"message": "batch b: stage 2: 37 of 200 tasks", "level": "INFO"})
    assert result[0] == "report_custom_message"
    assert StoredResult.decode(result[1]["payload"]) == RESULT


def test_nothing_is_reported_any_more_after_the_end(tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    report({"path": str(messages)})
    before = messages.read_text()
    logger.info("something else")
    assert messages.read_text() == before


def test_an_error_is_reported_as_it_is_described_and_without_its_traceback(tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    with (
        pytest.raises(ValueError, match=SECRET),
        reporting.reporting(parameters({"path": str(messages)}), lambda error: type(error).__name__),
    ):
        raise ValueError(SECRET)
    assert written(messages)[1:] == [("log", {"message": "ValueError", "level": "ERROR"}), ("closed", {})]
    assert SECRET not in messages.read_text()


def test_a_cancellation_reports_no_error(tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    with pytest.raises(ValueError), reporting.reporting(parameters({"path": str(messages)}), lambda error: None):  # noqa: PT011
        raise ValueError
    assert [method for method, _ in written(messages)] == ["opened", "closed"]


def test_a_job_that_was_started_otherwise_reports_nothing() -> None:
    with reporting.reporting({}, str) as tell:
        tell(RESULT)
    assert not dagster_pipes.PipesContext.is_initialized()


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dagster_pipes", None)
    with pytest.raises(ReportError, match="pip install dagster-pipes"), reporting.reporting({CONTEXT: "a"}, str):
        pass


class Bucket:
    """S3, as far as Pipes uses it."""

    def __init__(self) -> None:
        self.objects = {"place/context": json.dumps({"run_id": "run", "extras": {}}).encode()}

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 - as boto3 spells it
        return {"Body": BytesIO(self.objects[Key])}

    def put_object(self, Body: str, Bucket: str, Key: str) -> None:  # noqa: N803 - as boto3 spells it
        self.objects[Key] = Body.encode()


def test_a_driver_on_emr_reports_through_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket()
    monkeypatch.setattr(reporting, "_s3", lambda: bucket)
    report({"bucket": "b", "key_prefix": "place/messages"}, {"bucket": "b", "key": "place/context"})
    lines = b"\n".join(content for key, content in sorted(bucket.objects.items()) if "messages" in key).splitlines()
    assert [json.loads(line)["method"] for line in lines] == ["opened", "log", "report_custom_message", "closed"]


def test_its_calls_to_s3_name_the_package_and_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert reporting._s3().meta.config.user_agent_extra == f"sqs-lease/{sqs_lease.__version__}"


@pytest.mark.parametrize("mounted", [True, False], ids=["DBFS", "a volume"])
def test_a_driver_on_databricks_reports_through_files_that_are_each_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: bool
) -> None:
    monkeypatch.setattr(reporting, "MOUNT", tmp_path)
    (tmp_path / "place").mkdir()
    (tmp_path / "context.json").write_text(json.dumps({"run_id": "run", "extras": {}}))
    root = "/" if mounted else f"{tmp_path}/"
    report({"path": f"{root}place"}, {"path": f"{root}context.json"})
    files = sorted((tmp_path / "place").iterdir())
    assert files
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert [json.loads(line)["method"] for line in lines] == ["opened", "log", "report_custom_message", "closed"]


def test_a_job_has_to_leave_its_result_somewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        job.main(["--manifest", "a", "--spec", "{}"])
    assert ended.value.code == 2
    assert "--result is needed" in capsys.readouterr().err


def test_the_parameters_of_pipes_may_come_as_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Termination, "install", lambda self: None)
    messages = tmp_path / "messages"
    given = parameters({"path": str(messages)})
    arguments = ["--dagster-pipes-context", given[CONTEXT], "--dagster-pipes-messages", given[MESSAGES]]
    assert job.main(["--manifest", "a", "--spec", "{}", *arguments]) == 1
    error = "the spec has version None, and this release reads 1"
    assert ("log", {"message": error, "level": "ERROR"}) in written(messages)
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {error}"
