"""On which Pythons and releases the deterministic tests pass: `make versions`, and the table of docs/versions.md.

Each cell is an environment of its own: a Python, a room of the package with only the extras that this room needs, and
one of three resolutions of their dependencies, or the constraint file of a platform. Results are kept beside the
page, so that a run of some cells leaves the others as they were seen last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from tests.suite.commands import Command, Outcome
from tests.suite.plans import PARTS, git

RESULTS: Final = Path("docs", "versions.json")
PAGE: Final = Path("docs", "versions.md")
BEGIN, END = "<!-- table: written by make versions -->", "<!-- end of the table -->"

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")

RESOLUTIONS: Final = ("pinned", "lowest", "newest")
"""As requirements/development.txt pins them; the lowest that pyproject.toml allows; the newest that it allows."""

PLATFORMS: Final = {
    "mwaa-3.3.1": ("3.12", ("airflow", "airflow_alone", "airflow_with_spark")),
    "mwaa-3.0.6": ("3.12", ("older_airflow",)),
    "mwaa-2.11.0": ("3.12", ("older_airflow",)),
    "spark-4.0": ("3.12", ("spark", "engines", "table_formats")),
}
"""The constraint files in requirements/platforms, each with the Python that the platform has, and the rooms for it.

Amazon MWAA's files are Airflow's own for those releases: they hold wherever Airflow is installed as its documentation
says. Spark 4.0 is what EMR 8.0 and Databricks 17.3 LTS have.
"""


@dataclass(frozen=True, slots=True)
class Room:
    """Tests that run together.

    Attributes:
        extras: The extras that are installed.
        tests: The tests.
        named: The packages whose versions the page names.
        beside: Packages that only this room's tests need.
        left_out: Tests that show the same on each Python and release, and tests that need more than these extras.
        is_for_platforms: Whether it is tested on platforms alone.
    """

    extras: Sequence[str]
    tests: Sequence[str]
    named: Sequence[str]
    beside: Sequence[str] = ()
    left_out: Sequence[str] = ()
    is_for_platforms: bool = False


_BESIDE_AIRFLOW: Final = (
    "apache-airflow-providers-apache-spark>=6.3",
    "apache-airflow-providers-common-messaging>=2.0",
)

ROOMS: Final = {
    "core": Room(
        ("cli", "manifest", "otel"),
        (*PARTS["core"], "tests/simulation"),
        ("boto3", "msgspec", "pyarrow"),
        # Not beside Spark Connect, which wants a newer protobuf than the oldest of them.
        ("opentelemetry-exporter-otlp-proto-http>=1.30", "opentelemetry-proto>=1.30"),
        # Half of the room's processor time. A seed goes the same way everywhere, and the defects that are put back
        # have dozens of other schedules played.
        left_out=("tests/simulation/test_simulation.py::test_a_thousand_schedules_keep_the_invariants",),
    ),
    "airflow": Room(
        ("airflow", "cli", "manifest", "otel"),
        PARTS["airflow"],
        ("apache-airflow", "apache-airflow-providers-amazon", "aiobotocore"),
        _BESIDE_AIRFLOW,
    ),
    # Neither files for batches nor Spark.
    "airflow_alone": Room(
        ("airflow",),
        PARTS["airflow"],
        ("apache-airflow", "apache-airflow-providers-amazon", "aiobotocore"),
        _BESIDE_AIRFLOW,
        left_out=(
            "tests/airflow/payload",
            "tests/airflow/spark_operator",
            "tests/airflow/handover/test_slices.py::test_a_keeper_takes_a_large_batch_over_in_slices",
            "tests/airflow/handover/test_slices.py::test_published_messages_and_leases_are_in_the_same_order",
            "tests/scenarios/airflow/test_the_page_of_spark.py",
            "tests/scenarios/airflow/test_mistakes_of_authors_are_named_when_a_dag_is_parsed.py::test_a_wrong_argument_of_an_ingestion_is_named_with_the_remedy_and_the_task",
            "tests/scenarios/airflow/test_a_large_batch_ends_early_or_goes_to_files.py::test_a_configured_place_is_used_where_there_may_be_too_many_messages_and_nowhere_else",
            *(
                f"tests/airflow/context/test_context.py::{name}_is_looked_at_when_it_is_known[payload]"
                for name in (
                    "test_a_template_of_statements_alone",
                    "test_the_result_of_another_task",
                    "test_a_parameter_of_the_dag",
                )
            ),
            "tests/airflow/handover/test_sealed_handover.py::test_stored_leases_of_another_batch_are_refused",
            *(
                f"tests/scenarios/airflow/test_a_message_that_airflow_refuses_is_settled_alone.py::{name}"
                for name in (
                    "test_a_binary_attribute_travels_as_base64[by files]",
                    "test_such_a_message_goes_through_files",
                )
            ),
        ),
        is_for_platforms=True,
    ),
    "airflow_with_spark": Room(
        ("airflow", "cli", "otel", "spark"),
        PARTS["airflow"],
        ("apache-airflow", "apache-airflow-providers-amazon", "pyspark", "pandas"),
        _BESIDE_AIRFLOW,
        is_for_platforms=True,
    ),
    # The base install, which works within one task.
    "older_airflow": Room(
        (),
        ("tests/older_airflow",),
        ("apache-airflow", "boto3"),
        ("pytest", "pytest-timeout"),
        is_for_platforms=True,
    ),
    "dagster": Room(("dagster", "manifest", "otel", "spark"), PARTS["dagster"], ("dagster", "boto3")),
    "spark": Room(
        ("connect", "java", "postgres", "spark"),
        (*PARTS["spark scenarios"], *PARTS["spark"]),
        ("pyspark", "deltalake", "pyarrow", "pandas"),
        ("dagster-pipes>=1.11.16",),
    ),
    # A Connect server and a standalone cluster. `make test-processes` has them on the newest Spark.
    "engines": Room(
        ("connect", "java", "spark"),
        ("tests/processes/spark/engines/test_cluster.py",),
        ("pyspark", "deltalake", "pyarrow", "pandas"),
        is_for_platforms=True,
    ),
    # Native Delta and Iceberg, whose jars come from Maven Central. `make test-processes` has them on the newest Spark.
    "table_formats": Room(
        ("spark",),
        ("tests/processes/spark/engines/table_formats",),
        ("pyspark", "deltalake", "pyarrow", "pandas"),
        ("pyiceberg[pyarrow]",),
        is_for_platforms=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One environment."""

    python: str
    resolution: str
    room: str

    @property
    def name(self) -> str:
        """Its name in lines, tables and logs."""
        return f"{self.python} {self.resolution} {self.room}"

    @property
    def is_there(self) -> bool:
        """Whether such an environment is tested: a platform has one Python, and is for some rooms."""
        if self.resolution in PLATFORMS:
            python, rooms = PLATFORMS[self.resolution]
            return self.python == python and self.room in rooms
        return not ROOMS[self.room].is_for_platforms

    @property
    def command(self) -> Command:
        """The command that tests it."""
        room = ROOMS[self.room]
        script = (
            "requirements/versions.sh",
            self.python,
            self.resolution,
            self.room,
            f".[{','.join(room.extras)}]" if room.extras else ".",
            " ".join(room.beside),
        )
        # A file that is left out cannot even be imported.
        left_out = (f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in room.left_out)
        return Command(self.name, (*script, *left_out, *room.tests), is_pytest=True)

    def packages(self, root: Path) -> dict[str, str]:
        """The versions in its environment of those packages that the page names; none where it could not be made."""
        file = root / ".versions" / f"{self.python}-{self.resolution}-{self.room}" / "packages.json"
        if not file.exists():
            return {}
        installed = {package["name"]: package["version"] for package in json.loads(file.read_text())}
        return {name: installed[name] for name in ROOMS[self.room].named}


def cells(pythons: Sequence[str] = (), resolutions: Sequence[str] = (), rooms: Sequence[str] = ()) -> Iterator[Cell]:
    """Some of the cells; all of a kind when none of it is named."""
    for room in rooms or ROOMS:
        for resolution in resolutions or (*RESOLUTIONS, *PLATFORMS):
            for python in pythons or PYTHONS:
                cell = Cell(python, resolution, room)
                if cell.is_there:
                    yield cell


def commit_of(root: Path) -> str:
    """The commit of a checkout, and whether its files differ from it; the results themselves do not count."""
    (commit,) = git(root, "rev-parse", "--short=7", "HEAD")
    others = (".", f":(exclude){RESULTS}", f":(exclude){PAGE}")
    return f"{commit} with changes" if git(root, "status", "--porcelain", "--", *others) else commit


def record(root: Path, seen: Sequence[tuple[Cell, Outcome]], day: date, commit: str) -> None:
    """Write the results on a commit into their file, and the page's table again."""
    file = root / RESULTS
    kept = json.loads(file.read_text()) if file.exists() else {}
    for cell, outcome in seen:
        kept[cell.name] = {
            "seen": outcome.in_words,
            "good": outcome.is_good,
            "on": day.isoformat(),
            "commit": commit,
            "packages": cell.packages(root),
        }
    file.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    page = root / PAGE
    page.write_text(with_table(page.read_text(), kept))


def with_table(page: str, results: dict[str, dict[str, object]]) -> str:
    """The text of the page with the table of these results."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [
        "| room | packages | " + " | ".join(f"Python {python}" for python in PYTHONS) + " |",
        "| --- " * (len(PYTHONS) + 2) + "|",
    ]
    for room in ROOMS:
        for resolution in (*RESOLUTIONS, *PLATFORMS):
            tested = {cell.python: results.get(cell.name) for cell in cells((), (resolution,), (room,))}
            told = [_told(tested[python]) if python in tested else "-" for python in PYTHONS]
            if tested:
                lines.append(
                    f"| {room}, {resolution} | {_packages(list(tested.values()))} | " + " | ".join(told) + " |"
                )
    return "\n".join([before + BEGIN, "", *lines, "", END + after])


def _told(result: dict[str, object] | None) -> str:
    return "not run" if result is None else f"{result['seen']} ({result['on']}, {result['commit']})"


def _packages(found: Sequence[dict[str, object] | None]) -> str:
    """The versions of one row: they may differ between Pythons."""
    versions: dict[str, list[str]] = {}
    for one in found:
        packages = one["packages"] if one is not None else {}
        assert isinstance(packages, dict)
        for name, version in packages.items():
            if version not in versions.setdefault(name, []):
                versions[name].append(version)
    return ", ".join(f"{name} {' or '.join(each)}" for name, each in versions.items()) or "-"
