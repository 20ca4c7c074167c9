"""The programs that compose.yaml starts understand it: their command lines, settings, and what the examples read."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import click
import pytest
from typer.testing import CliRunner as TyperRunner

from demo.compose import __main__ as demo_compose
from demo.compose.queues import QUEUES
from tests.docker.dockerfile import ROOT
from tests.docker.services import (
    DAGSTER_CONFIGURATION,
    DOCKER,
    DOCKERFILE,
    SERVICES,
    airflow_options,
    command_of,
    health_check_of,
    in_profile,
    is_ours,
    is_path,
    mounts_of,
)

# Programs and their options


def parse_click(program: click.Command, arguments: Sequence[str]) -> dict[str, Any]:
    """Have a program read its command line, as far as it goes without running anything.

    Returns:
        The parameters of the innermost command.

    Raises:
        click.UsageError: It refuses the command line.
    """
    context = program.make_context(program.name, list(arguments))
    while isinstance(context.command, click.Group):
        _, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(command.name, rest, parent=context)
    return context.params


@cache
def dagster_programs() -> dict[str, click.Command]:
    from dagster._cli import create_dagster_cli
    from dagster._daemon.cli import create_dagster_daemon_cli
    from dagster_webserver.cli import dagster_webserver

    return {
        "dagster": create_dagster_cli(),  # type: ignore[no-untyped-call]
        "dagster-daemon": create_dagster_daemon_cli(),
        "dagster-webserver": dagster_webserver,
    }


def understood_by_dagster(command: Sequence[str]) -> bool:
    program, *arguments = command
    try:
        parse_click(dagster_programs()[program], arguments)
    except click.UsageError:
        return False
    return True


PARSE_BY_AIRFLOW: Final = """
import json, sys
from airflow.cli.cli_parser import get_parser

def is_understood(command):
    try:
        get_parser().parse_args(command[1:])
    except SystemExit:
        return False
    return True

answer = [is_understood(command) for command in json.loads(sys.argv[1])]
print("ANSWER" + json.dumps(answer))
"""


@cache
def airflow_commands() -> dict[tuple[str, ...], bool]:
    """Whether Airflow understands each command line here; one process tells, because it takes seconds to start."""
    commands = sorted({tuple(command) for command in COMMANDS.values() if command[0] == "airflow"})
    commands += [tuple(command) for command in MISTAKEN if command[0] == "airflow"]
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-c", PARSE_BY_AIRFLOW, json.dumps(commands)],
            env={**os.environ, "AIRFLOW_HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, json.loads(done.stdout.partition("ANSWER")[2]), strict=True))


def understood_by_airflow(command: Sequence[str]) -> bool:
    return airflow_commands()[tuple(command)]


def understood_by_spark(command: Sequence[str]) -> bool:
    _, name, *arguments = command
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    (jar,) = (Path(spark.origin).parent / "jars").glob("spark-core_*.jar")
    path = name.replace(".", "/")
    with ZipFile(jar) as classes:
        if f"{path}.class" not in classes.namelist():
            return False
        # The class that reads the command line; its options stand in it as they are.
        options = classes.read(f"{path}Arguments.class")
    return all(word.encode() in options for word in arguments if word.startswith("--"))


def understood_by_python(command: Sequence[str]) -> bool:
    _, option, value, *arguments = command
    try:
        if option == "-c":
            compile(value, "health check", "exec")
        else:
            assert (option, value) == ("-m", "demo.compose")
            demo_compose._parser().parse_args(arguments)
    except (SyntaxError, SystemExit):
        return False
    return True


def understood_by_us(command: Sequence[str]) -> bool:
    from sqs_lease.cli.app import app

    return TyperRunner().invoke(app, list(command[1:])).exit_code == 0


UNDERSTOOD: Final[Mapping[str, Callable[[Sequence[str]], bool]]] = {
    "airflow": understood_by_airflow,
    "dagster": understood_by_dagster,
    "dagster-daemon": understood_by_dagster,
    "dagster-webserver": understood_by_dagster,
    "python": understood_by_python,
    "spark-class": understood_by_spark,
    "sqs-lease": understood_by_us,
}


def with_files_of_the_checkout(command: Sequence[str], service: Mapping[str, Any]) -> list[str]:
    """A command line with the paths of this machine in place of those where a service finds them."""
    files = {target: str(DOCKER / source) for target, source in mounts_of(service).items() if is_path(source)}
    return [files.get(word, word) for word in command]


COMMANDS: Final = {
    f"{name}-{kind}": with_files_of_the_checkout(command, service)
    for name, service in SERVICES.items()
    for kind, command in (("command", command_of(service)), ("health", health_check_of(service)))
    if command and is_ours(service)
}

MISTAKEN: Final = [
    ["airflow", "db", "migrat"],
    ["airflow", "scheduler", "--skip-serving-logs"],
    ["dagster", "instance", "migration"],
    ["dagster", "code-server", "start", "--ports", "4000"],
    ["dagster-daemon", "run", "--port", "4000"],
    ["dagster-webserver", "--port", "three thousand"],
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1"],
    ["python", "-m", "demo.compose", "publish", "3000", "no-such-queue"],
    ["spark-class", "org.apache.spark.deploy.master.Main", "--port", "7077"],
    ["spark-class", "org.apache.spark.deploy.master.Master", "--work-dir", "/tmp"],
    ["sqs-lease", "--helps"],
]


@pytest.mark.parametrize("command", [pytest.param(command, id=name) for name, command in COMMANDS.items()])
def test_a_program_understands_its_command_line(command: Sequence[str]) -> None:
    assert UNDERSTOOD[command[0]](command)


@pytest.mark.parametrize("command", MISTAKEN, ids=" ".join)
def test_a_mistake_in_a_command_line_is_noticed(command: Sequence[str]) -> None:
    assert not UNDERSTOOD[command[0]](command)


# Airflow and the DAGs


AIRFLOW_ENVIRONMENT: Final = {
    name: str(value)
    for service in in_profile("airflow").values()
    if command_of(service)[:1] == ["airflow"]
    for name, value in service["environment"].items()
}
DAGS: Final = {path.name: path.read_text() for path in sorted((ROOT / "dags").glob("*.py"))}
ICEBERG_DAG: Final = "s3_notifications_to_iceberg.py"
"""It needs another Spark, jars from Maven Central and a bucket: the stack has no queue for it."""


def set_in_airflow(prefix: str) -> dict[str, str]:
    """The variables or connections that are set for Airflow, by their names in DAGs."""
    return {
        name.removeprefix(prefix).lower(): value
        for name, value in AIRFLOW_ENVIRONMENT.items()
        if name.startswith(prefix)
    }


def calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls of a source file, with the names of what is called."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node


def keyword(call: ast.Call, name: str) -> Any:
    """The value of a keyword argument that is a literal; `None` without one."""
    value = next((found.value for found in call.keywords if found.arg == name), None)
    return None if value is None else ast.literal_eval(value)


@pytest.mark.parametrize("name", sorted(name for name in AIRFLOW_ENVIRONMENT if name.startswith("AIRFLOW__")))
def test_an_airflow_setting_is_an_option_of_the_installed_airflow_of_its_type(name: str) -> None:
    _, section, option = name.lower().split("__")
    options = airflow_options()[section]
    command = option.removesuffix("_cmd")
    if option not in options:
        assert option == f"{command}_cmd"
        assert options[command].get("sensitive"), "Airflow runs a command only for what is sensitive"
    else:
        types = {"boolean": r"True|False", "integer": r"\d+", "float": r"\d+(\.\d+)?"}
        assert re.fullmatch(types.get(options[option]["type"], ".+"), AIRFLOW_ENVIRONMENT[name])


def test_the_services_of_airflow_have_one_configuration_but_for_the_schedulers_health_check() -> None:
    for name, service in in_profile("airflow").items():
        if command_of(service)[:1] == ["airflow"]:
            missing = (
                AIRFLOW_ENVIRONMENT.items() - {key: str(value) for key, value in service["environment"].items()}.items()
            )
            assert {key for key, _ in missing} <= {"AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK"}, name


def test_the_airflow_variables_are_those_that_dags_read() -> None:
    read = {
        name
        for text in DAGS.values()
        for found in re.findall(r"var\.value\.(?:get\('(\w+)'|(\w+))", text)
        for name in found
    }
    # Where the Iceberg example finds its own Spark.
    assert set_in_airflow("AIRFLOW_VAR_").keys() == read - {"", "get", "spark_4_1_python"}


def test_the_airflow_connections_are_those_that_dags_use() -> None:
    used = {"aws_default"}
    for text in DAGS.values():
        for _, call in calls(text):
            used |= set((keyword(call, "connections") or {}).values()) | {keyword(call, "aws_conn_id")}
    assert set_in_airflow("AIRFLOW_CONN_").keys() == used - {None}


# Dagster and its definitions


DAGSTER_ENVIRONMENT: Final[Mapping[str, str]] = SERVICES["dagster-code-server"]["environment"]


def test_the_settings_of_the_dagster_examples_are_those_that_they_read() -> None:
    sources = [path for path in (ROOT / "dagster_defs").rglob("*") if path.suffix in {".py", ".yaml"}]
    reading = re.compile(r"""(?:os\.environ\.get\(|os\.environ\[|os\.getenv\(|EnvVar\(|\benv\()\s*["'](\w+)["']""")
    read = {name for path in sources for name in reading.findall(path.read_text())}
    others = re.compile(r"AWS_|DAGSTER_|PGPASSFILE$")
    # Most of OpenTelemetry's are read by itself.
    of_examples = {name for name in DAGSTER_ENVIRONMENT if not others.match(name)}
    assert {name for name in of_examples if not name.startswith("OTEL_")} == {
        name for name in read if not name.startswith("OTEL_")
    }
    assert read <= of_examples


def test_the_services_of_dagster_have_one_configuration() -> None:
    found = [
        service["environment"] for service in in_profile("dagster").values() if "dagster" in service.get("profiles", ())
    ]
    assert [environment for environment in found if "DAGSTER_DISABLE_TELEMETRY" in environment] == [
        DAGSTER_ENVIRONMENT
    ] * 4


def test_dagster_accepts_the_configuration_of_its_instance() -> None:
    from dagster._config import process_config, resolve_to_config_type
    from dagster._core.instance.ref import InstanceRef
    from dagster._serdes import ConfigurableClassData

    reference = InstanceRef.from_dir(str(DAGSTER_CONFIGURATION))
    parts = [part for part in reference if isinstance(part, ConfigurableClassData)]
    assert parts
    for part in parts:
        kind = getattr(importlib.import_module(part.module_name), part.class_name)
        result = process_config(resolve_to_config_type(kind.config_type()), part.config_dict)
        assert result.success, result.errors


def test_dagster_finds_its_configuration_in_its_home_and_writes_to_volumes_there() -> None:
    mounts = mounts_of(SERVICES["dagster-code-server"])
    home = DOCKERFILE.stages["sqs-lease"].pairs("ENV")["DAGSTER_HOME"]
    assert mounts[f"{home}/dagster.yaml"] == "./dagster/dagster.yaml"
    written = re.findall(r"base_dir: (\S+)", (DAGSTER_CONFIGURATION / "dagster.yaml").read_text())
    assert written
    assert not is_path(mounts[home])
    assert [path for path in written if not f"{path}/".startswith(f"{home}/")] == []


def test_dagsters_workspace_is_the_code_server() -> None:
    from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
    from dagster._core.workspace.load import location_origins_from_yaml_paths

    (origin,) = location_origins_from_yaml_paths([str(DAGSTER_CONFIGURATION / "workspace.yaml")])
    assert isinstance(origin, GrpcServerCodeLocationOrigin)
    server = parse_click(dagster_programs()["dagster"], command_of(SERVICES[origin.host])[1:])
    assert (origin.port, origin.location_name) == (server["port"], server["location_name"])
    assert ROOT / server["module_name"] / "__init__.py" in (ROOT / "dagster_defs").iterdir()


# Queues


def queues_of_dags() -> dict[str, set[str]]:
    """The queues that each DAG file reads, with the variables of compose.yaml filled in."""
    variables = set_in_airflow("AIRFLOW_VAR_")
    found: dict[str, set[str]] = {}
    for name, text in DAGS.items():
        for function, call in calls(text):
            queue = keyword(call, "queue_url") if function == "sqs_lease" else None
            if function == "SqsLeaseTrigger":
                queue = ast.literal_eval(call.args[0])
            if queue is not None:
                filled = re.sub(r"\{\{ var\.value\.(\w+) \}\}", lambda match: variables[match[1]], queue)
                found.setdefault(name, set()).add(filled)
    return found


def test_the_queues_that_are_made_are_those_that_the_examples_read() -> None:
    of_dags = queues_of_dags()
    assert of_dags.keys() == DAGS.keys()
    del of_dags[ICEBERG_DAG]
    of_dagster = {value for name, value in DAGSTER_ENVIRONMENT.items() if name.endswith("_QUEUE")}
    region, account, of_readme = re.findall(
        r'queue_url="https://sqs\.([\w-]+)\.amazonaws\.com/(\d+)/([\w.-]+)"', (ROOT / "README.md").read_text()
    )[0]
    assert set().union(*of_dags.values()) | of_dagster | {of_readme} == QUEUES.keys()
    # So that this DAG runs here as it stands there.
    assert (region, account) == (
        AIRFLOW_ENVIRONMENT["AWS_DEFAULT_REGION"],
        SERVICES["sqs"]["environment"]["MINISTACK_ACCOUNT_ID"],
    )
