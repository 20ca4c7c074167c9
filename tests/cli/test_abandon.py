"""`sqs-lease abandon`: a batch that the table never takes is given up, and no other one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark import Ledger
from sqs_lease.spark.sinks.sink import ENTRIES
from tests.cli.commands import sqs_lease
from tests.spark.test_ledger import entries

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def admit(path: Path, batch_id: str, *message_ids: str, location: str | None = "batches/1") -> None:
    ledger = Ledger(path).open()
    rows = entries(dict.fromkeys(message_ids, NOON))
    assert isinstance(rows, pa.Table)
    assert rows.schema == ENTRIES
    ledger.admit(ledger.snapshot(), batch_id, rows, location)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger"
    admit(path, "first", "a")
    admit(path, "second", "b", "c")
    return path


def known(path: Path) -> set[str]:
    newest = Ledger(path).newest()
    return set() if newest is None else set(newest.message_ids)


def test_it_says_which_batch_can_be_given_up(ledger: Path) -> None:
    ran = sqs_lease("abandon", str(ledger), columns=200)
    assert ran.exit_code == 0
    assert "The newest batch is second: 2 messages, staged at batches/1." in ran.out
    assert known(ledger) == {"b", "c"}


def test_a_batch_is_given_up_with_its_messages(ledger: Path) -> None:
    ran = sqs_lease("abandon", str(ledger), "second", "--yes", "--json")
    assert ran.exit_code == 0
    answer = json.loads(ran.out)
    assert (answer["given_up"], answer["batch"]["batch_id"]) == (True, "second")
    assert sorted(answer["batch"]["message_ids"]) == ["b", "c"]
    assert Ledger(ledger).newest() is None


def test_a_dry_run_changes_nothing(ledger: Path) -> None:
    ran = sqs_lease("abandon", str(ledger), "second", "--dry-run", "--json")
    assert (ran.exit_code, json.loads(ran.out)["given_up"]) == (0, False)
    assert known(ledger) == {"b", "c"}


def test_it_does_not_go_on_unasked(ledger: Path) -> None:
    ran = sqs_lease("abandon", str(ledger), "second")
    assert ran.exit_code == 2
    assert ran.err == "Error: give --yes to give the batch up where nobody can be asked\n"
    assert known(ledger) == {"b", "c"}


@pytest.mark.parametrize("arguments", [["first"], ["third", "--yes"], ["first", "--dry-run"]], ids=" ".join)
def test_another_batch_than_the_newest_is_refused(ledger: Path, arguments: list[str]) -> None:
    ran = sqs_lease("abandon", str(ledger), *arguments)
    assert ran.exit_code == 2
    assert f"batch {arguments[0]} of {ledger} cannot be given up: only second may wait for the table" in ran.err
    assert ran.err.count("\n") == 1
    assert known(ledger) == {"b", "c"}


def test_without_a_batch_that_waits_there_is_nothing_to_give_up(tmp_path: Path) -> None:
    admit(tmp_path / "ledger", "first", "a", location=None)
    ran = sqs_lease("abandon", str(tmp_path / "ledger"), columns=200)
    assert ran.exit_code == 0
    assert "has rows that wait for the table" in ran.out
    refused = sqs_lease("abandon", str(tmp_path / "ledger"), "first", "--yes")
    assert (refused.exit_code, "no batch may wait for the table" in refused.err) == (2, True)


def test_a_directory_that_is_no_ledger_stays_one(tmp_path: Path) -> None:
    ran = sqs_lease("abandon", str(tmp_path / "nothing"))
    assert ran.exit_code == 1
    assert ran.err == f"Error: there is no ledger at {tmp_path / 'nothing'}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_storage_option_that_is_none_is_not_quoted(ledger: Path) -> None:
    ran = sqs_lease("abandon", str(ledger), "--storage-option", "hunter2")
    assert (ran.exit_code, "hunter2" in ran.err) == (2, False)


def test_the_directory_that_the_command_runs_in_is_not_taken_for_a_ledger_without_a_name(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ledger)
    ran = sqs_lease("abandon", "", "second", "--yes")
    assert ran.exit_code == 2
    assert "LEDGER is empty" in ran.err
    assert known(ledger) == {"b", "c"}


def test_an_error_of_the_storage_has_no_colors_and_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    ran = sqs_lease(
        "abandon", "s3://nowhere/x", "--storage-option", "AWS_ENDPOINT_URL=http://127.0.0.1:1\x1b]0;title\x07"
    )
    assert ran.exit_code == 1
    assert "cannot be read" in ran.err
    assert "\x1b" not in ran.err
    assert "[31m" not in ran.err
