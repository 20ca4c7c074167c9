"""Within the Airflow part too, imports point one way: from what a DAG is written with down to airflow_api."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter

from tests.architecture.import_rules import imports_of
from tests.architecture.test_imports import SOURCE

AIRFLOW = SOURCE / "airflow"
PREFIX = "sqs_lease.airflow."
BELOW = {
    "airflow_api": set(),
    "connection": set(),
    "failures": {"airflow_api"},
    "filters": {"airflow_api"},
    "settlement": {"airflow_api", "failures"},
    "handover": {"airflow_api", "connection"},
    "payload": {"airflow_api", "handover"},
    "triggers": {"airflow_api", "connection", "filters", "settlement", "handover", "payload"},
    "page": set(),
}
"""The imports of each room from the others; the modules that put everything together are free."""


def imported_rooms(room: str) -> set[str]:
    """The rooms of the Airflow part that a room imports when it is loaded, itself left out."""
    found = set()
    for path in [AIRFLOW / f"{room}.py", *(AIRFLOW / room).glob("*.py")]:
        if path.exists():
            module = f"{PREFIX}{path.relative_to(AIRFLOW).with_suffix('').as_posix().replace('/', '.')}"
            for imported in imports_of(path.read_text(), module=module, is_package=path.stem == "__init__"):
                if imported.module.startswith(PREFIX):
                    found.add(imported.module.removeprefix(PREFIX).partition(".")[0])
    return (found & BELOW.keys()) - {room}


def packages() -> Iterator[str]:
    """The rooms that are packages."""
    return (path.parent.name for path in AIRFLOW.glob("*/__init__.py"))


def test_every_package_is_in_the_table() -> None:
    assert set(packages()) <= BELOW.keys()


def test_each_room_imports_what_the_table_says() -> None:
    assert {room: imported_rooms(room) for room in BELOW} == BELOW


def test_there_is_no_circle() -> None:
    assert set(TopologicalSorter(BELOW).static_order()) == BELOW.keys()
