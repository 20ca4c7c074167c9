"""Within the Airflow part too, imports point one way, from the triggers down to airflow_api."""

from __future__ import annotations

from tests.architecture.import_rules import imports_of
from tests.architecture.test_imports import SOURCE

AIRFLOW = SOURCE / "airflow"
PREFIX = "sqs_lease.airflow."
BELOW = {
    "airflow_api": set(),
    "settlement": {"airflow_api"},
    "triggers": {"airflow_api", "settlement"},
    "page": set(),
}
"""What each package imports of the others; the modules beside them, which put everything together, are free."""


def imported_packages(package: str) -> set[str]:
    """The packages of the Airflow part that a package imports, itself left out."""
    found = set()
    for path in (AIRFLOW / package).glob("*.py"):
        module = f"{PREFIX}{package}.{path.stem}"
        for imported in imports_of(path.read_text(), module=module, is_package=path.stem == "__init__"):
            if imported.module.startswith(PREFIX):
                found.add(imported.module.removeprefix(PREFIX).partition(".")[0])
    return (found & BELOW.keys()) - {package}


def test_every_package_is_in_the_table() -> None:
    assert {path.parent.name for path in AIRFLOW.glob("*/__init__.py")} == BELOW.keys()


def test_each_package_imports_what_the_table_says() -> None:
    assert {package: imported_packages(package) for package in BELOW} == BELOW
