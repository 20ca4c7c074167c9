"""A real PostgreSQL server for the tests of sinks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from demo.postgres import postgres_server
from tests.spark.sinks.postgres_staging import Stage, in_a_table, in_files


@dataclass(frozen=True)
class Database:
    """One database of the server, empty at first."""

    url: str

    def read(self, query: str, *values: object) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            connection.execute("SET TIME ZONE 'UTC'")
            return connection.execute(query.encode(), values).fetchall()

    def run(self, statement: str, *values: object) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(statement.encode(), values)

    def staging_tables(self) -> list[str]:
        found = self.read(
            "SELECT relname::text AS name FROM pg_class WHERE relname LIKE 'staging\\_%%' AND relkind = 'r'"
        )
        return [row["name"] for row in found]


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres_server() as server:
        yield server.url.replace("+psycopg2", "")


@pytest.fixture
def database(postgres_url: str) -> Database:
    name = f"d{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} STRATEGY file_copy").format(sql.Identifier(name)))
    return Database(postgres_url.rpartition("/")[0] + f"/{name}")


@pytest.fixture(params=["table", "files"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """The ways in which rows wait for a table in PostgreSQL."""
    return in_a_table if request.param == "table" else partial(in_files, tmp_path / "staged")
