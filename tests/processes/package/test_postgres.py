"""The PostgreSQL server that the tests with two triggerers run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Connection, NullPool, create_engine, text

from demo.airflow_stack import migrated_postgres
from demo.postgres import PostgresServer, postgres_server, save_data

pytestmark = pytest.mark.processes


@contextmanager
def connected_to(server: PostgresServer) -> Iterator[Connection]:
    with create_engine(server.url, poolclass=NullPool).begin() as connection:
        yield connection


def test_saved_data_are_there_in_the_next_server(tmp_path: Path) -> None:
    with postgres_server() as first:
        with connected_to(first) as connection:
            connection.execute(text("create table cities as select 'Lisbon' as name"))
        save_data(first, tmp_path / "data.tar")

    with postgres_server(tmp_path / "data.tar") as second, connected_to(second) as connection:
        assert connection.execute(text("select name from cities")).scalar_one() == "Lisbon"


def test_a_server_begins_with_the_tables_of_airflow_and_leaves_nothing_behind() -> None:
    with postgres_server(migrated_postgres()) as server:
        with connected_to(server) as connection:
            assert connection.execute(text("select count(*) from trigger")).scalar_one() == 0
        started = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        # The server's own process listens; the others come and go.
        listening = [c for c in started[0].net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}

    assert len(started) > 1
    assert not any(process.is_running() for process in started)
    assert not server.data.exists()


def test_a_server_that_crashed_answers_again_where_it_was_with_all_that_was_committed() -> None:
    with postgres_server() as server:
        with connected_to(server) as connection:
            connection.execute(text("create table cities as select 'Lisbon' as name"))
        before = server.process.pid
        server.crash()
        assert server.process.pid != before
        with connected_to(server) as connection:
            assert connection.execute(text("select name from cities")).scalar_one() == "Lisbon"
