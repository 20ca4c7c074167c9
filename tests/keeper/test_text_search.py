"""A search for a regular expression in a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from sqs_lease.keeper import text_search
from sqs_lease.keeper.text_search import SearchError, found_in


def test_a_search_ends_by_itself_when_the_process_that_waits_for_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def run_without_an_end(command: list[str], **options: Any) -> Any:
        return run(command, **{**options, "timeout": 20.0})

    monkeypatch.setattr(text_search, "SEARCH_SECONDS", 0.25)
    monkeypatch.setattr(subprocess, "run", run_without_an_end)
    with pytest.raises(SearchError, match="a process that looks for "):
        asyncio.run(found_in("(a+)+$", ["a" * 40 + "b"]))


@pytest.mark.parametrize("executable", [None, ""])
def test_a_process_that_does_not_know_its_interpreter_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)

    with pytest.raises(SearchError, match="start it by the path of its Python interpreter"):
        asyncio.run(found_in("a+", ["a"]))
