"""What a store of objects costs a task that is not the first of its process."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from sqs_lease.spark.sources.s3_events.object_store import ObjectStore


def test_the_store_of_a_second_task_reads_none_of_botocores_data_files_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ObjectStore(connections=1, region="eu-west-1").client
    read: list[str] = []
    load_file = JSONFileLoader.load_file

    def load_file_and_note(self: JSONFileLoader, file_path: str) -> Any:
        read.append(file_path)
        return load_file(self, file_path)

    monkeypatch.setattr(JSONFileLoader, "load_file", load_file_and_note)
    assert ObjectStore(connections=1, region="eu-west-1").client
    assert read == []
