"""compose.yaml with its settings: valid, closed to other machines, and at one with the programs that it starts.

Nothing of it is run here.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import click
import pytest
import yaml  # type: ignore[import-untyped]
from check_jsonschema import main as check_jsonschema  # type: ignore[import-untyped]
from click.testing import CliRunner

from demo.compose import __main__ as demo_compose
from demo.compose.queues import QUEUES
from demo.compose.secrets import AIRFLOW_USER, DATABASE_HOST, DATABASE_USER, make_secrets
from tests.docker.compose_model import COMPOSE_FILE, SETTING, filled_in, settings
from tests.docker.dockerfile import ROOT, Dockerfile

DOCKER: Final = COMPOSE_FILE.parent
SETTINGS: Final = settings()
FILLED_IN: Final = filled_in(COMPOSE_FILE.read_text(), SETTINGS)
COMPOSE: Final[Mapping[str, Any]] = yaml.safe_load(FILLED_IN)
SERVICES: Final[Mapping[str, Mapping[str, Any]]] = COMPOSE["services"]
DAGSTER_CONFIGURATION: Final = DOCKER / "dagster"
DOCKERFILE: Final = Dockerfile.read()
VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

COMPOSE_OWN_SETTINGS: Final = {"COMPOSE_PROFILES"}
PROFILES: Final = ("airflow", "dagster", "spark")
"""What a user chooses from; the profile `command` is for what `docker compose run` starts."""
WITHOUT_PROFILE: Final = {"secrets", "sqs", "queues"}
MOST_MEBIBYTES: Final = 7 * 1024
"""What one profile may take of a laptop that has 8 GiB."""

LOCAL: Final = "127.0.0.1:"
POSTGRES_PORT: Final = 5432

each_service = pytest.mark.parametrize("name", SERVICES)


def is_ours(service: Mapping[str, Any]) -> bool:
    image: str = service["image"]
    return image.startswith("sqs-lease")


def is_server(service: Mapping[str, Any]) -> bool:
    """Whether a service is there for good: all others end, and are started again by nobody."""
    return bool(service.get("restart", "no") != "no")


def in_profile(profile: str) -> dict[str, Mapping[str, Any]]:
    """What `docker compose --profile PROFILE up` starts."""
    return {name: service for name, service in SERVICES.items() if profile in service.get("profiles", [profile])}


def command_of(service: Mapping[str, Any]) -> list[str]:
    """What a service runs; nothing where that is left to its image."""
    return [*service.get("entrypoint", ()), *service.get("command", ())]


def health_check_of(service: Mapping[str, Any]) -> list[str]:
    """What a service is asked for its health with; a command line of a shell in its words."""
    kind, *words = service.get("healthcheck", {"test": ["NONE"]})["test"]
    return shlex.split(words[0].replace("$$", "$")) if kind == "CMD-SHELL" else words


def mounts_of(service: Mapping[str, Any]) -> dict[str, str]:
    """The volumes, and files and directories of the checkout, by the paths that a service finds them at."""
    return {target: source for source, target in (mount.split(":")[:2] for mount in service.get("volumes", ()))}


def is_path(source: str) -> bool:
    """Whether the source of a mount is no volume."""
    return source.startswith(("/", "."))


def ports_of(name: str) -> set[int]:
    """The ports that a service listens on."""
    service = SERVICES[name]
    ports = {int(word) for word in command_of(service) if word.isdecimal()}
    if name == "sqs":
        ports.add(int(DOCKERFILE.stages["emulator"].pairs("ENV")["GATEWAY_PORT"]))
    if name == DATABASE_HOST:
        ports.add(POSTGRES_PORT)
    if service.get("environment", {}).get("AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK") == "True":
        ports.add(int(airflow_options()["scheduler"]["scheduler_health_check_server_port"]["default"]))
    return ports


@cache
def airflow_options() -> dict[str, dict[str, dict[str, Any]]]:
    """The options of the installed Airflow, by section and name."""
    airflow = find_spec("airflow")
    assert airflow is not None
    assert airflow.submodule_search_locations is not None
    (package,) = airflow.submodule_search_locations
    text = (Path(package) / "config_templates" / "config.yml").read_text()
    # The parser in C, where it is: the file is long.
    sections = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {section: found["options"] for section, found in sections.items()}


# The file


def schema_says(path: Path) -> tuple[int, str]:
    """What the schema of the Compose specification has against a file, and whether that is anything."""
    said = CliRunner().invoke(check_jsonschema, ["--builtin-schema", "vendor.compose-spec", str(path)])
    return said.exit_code, said.output


def test_the_file_is_what_the_compose_specification_says_one_is(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(FILLED_IN)
    assert schema_says(tmp_path / "compose.yaml") == (0, "ok -- validation done\n")

    (tmp_path / "wrong.yaml").write_text(FILLED_IN.replace("mem_limit:", "memory_limit:", 1))
    code, said = schema_says(tmp_path / "wrong.yaml")
    assert code == 1
    assert "memory_limit" in said


@each_service
def test_a_service_has_limits_of_memory_and_of_logs(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert {"max-size", "max-file"} <= service["logging"]["options"].keys()


@pytest.mark.parametrize("profile", PROFILES)
def test_what_runs_for_one_profile_fits_into_a_laptop(profile: str) -> None:
    limits = [service["mem_limit"] for service in in_profile(profile).values() if is_server(service)]
    assert limits
    assert sum(int(limit[:-1]) * {"m": 1, "g": 1024}[limit[-1]] for limit in limits) <= MOST_MEBIBYTES


@each_service
def test_a_service_gains_no_privileges_and_has_none_where_the_image_is_ours(name: str) -> None:
    service = SERVICES[name]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "user", "pid", "ipc", "devices"} & service.keys()
    assert service.get("cap_drop") == (["ALL"] if is_ours(service) else None)
    assert "docker.sock" not in str(service.get("volumes"))


def test_ports_are_published_to_this_machine_only_and_each_once() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert [port for port in published if not port.startswith(LOCAL)] == []
    hosts = [port.removeprefix(LOCAL).partition(":")[0] for port in published]
    assert sorted(hosts) == sorted(value for name, value in SETTINGS.items() if name.endswith("_PORT"))
    assert len(set(hosts)) == len(hosts)


# Images


@each_service
def test_an_image_is_made_here_in_this_version_or_pinned_to_a_release(name: str) -> None:
    service = SERVICES[name]
    if is_ours(service):
        assert service["image"] in {f"sqs-lease:{VERSION}", f"sqs-lease-emulator:{VERSION}"}
        assert service["pull_policy"] == "never"
    else:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?-[a-z]+", service["image"])
        assert "build" not in service


def test_each_image_of_ours_is_built_once_from_the_dockerfile_with_its_own_arguments() -> None:
    built = {service["image"]: service["build"] for service in SERVICES.values() if "build" in service}
    assert built.keys() == {service["image"] for service in SERVICES.values() if is_ours(service)}
    assert len(built) == len([service for service in SERVICES.values() if "build" in service])
    for build in built.values():
        assert (DOCKER / build["context"]).resolve() == ROOT
        assert ROOT / build["dockerfile"] == DOCKER / "Dockerfile"
        assert build["args"] == DOCKERFILE.arguments
    assert built[f"sqs-lease-emulator:{VERSION}"]["target"] == "emulator"
    assert "target" not in built[f"sqs-lease:{VERSION}"]


# Settings


def test_there_is_one_form_of_substitution_which_refuses_a_setting_that_is_missing() -> None:
    assert "$" not in SETTING.sub("", COMPOSE_FILE.read_text()).replace("$$", "")


def test_each_setting_is_used_and_each_that_is_used_is_set() -> None:
    used = set(SETTING.findall(COMPOSE_FILE.read_text()))
    assert SETTINGS.keys() == used | COMPOSE_OWN_SETTINGS
    assert [name for name, value in SETTINGS.items() if not value] == []


def test_the_chosen_profiles_exist() -> None:
    assert set(SETTINGS["COMPOSE_PROFILES"].split(",")) <= set(PROFILES)


def test_each_setting_is_explained_for_itself_or_for_its_group() -> None:
    groups = (DOCKER / ".env").read_text().strip().split("\n\n")
    with_settings = [group.splitlines() for group in groups if re.search(r"^\w+=", group, re.MULTILINE)]
    assert with_settings
    assert [lines[0] for lines in with_settings if not re.match(r"# \w", lines[0])] == []


def test_no_setting_is_a_secret() -> None:
    names = re.compile(r"PASSWORD|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|_KEY$")
    assert [name for name in SETTINGS if names.search(name)] == []
    # What keys and generated passwords look like; none of the settings is one long word.
    assert [name for name, value in SETTINGS.items() if re.fullmatch(r"[\w+/-]{20,}=*", value)] == []


def test_each_secret_that_is_read_is_one_that_is_made_at_the_start(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    read = set(re.findall(r"sqs-lease[/-]secrets/([\w.-]+)", FILLED_IN))
    assert read == {path.name for path in tmp_path.iterdir()}
    (user,) = {
        service["environment"]["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"].partition(":")[0]
        for service in in_profile("airflow").values()
        if service.get("command", [""])[0] == "airflow"
    }
    assert user == AIRFLOW_USER
    assert SERVICES[DATABASE_HOST]["environment"]["POSTGRES_USER"] == DATABASE_USER


# Volumes


def test_the_volumes_are_those_that_services_use() -> None:
    used = {source for service in SERVICES.values() for source in mounts_of(service).values() if not is_path(source)}
    assert used == COMPOSE["volumes"].keys()


@each_service
def test_what_a_service_finds_of_the_checkout_is_there_and_is_not_written_to(name: str) -> None:
    for mount in SERVICES[name].get("volumes", ()):
        source, *_, mode = mount.split(":")
        if is_path(source):
            assert (DOCKER / source).exists()
            assert mode == "ro"


@each_service
def test_a_volume_is_mounted_where_the_image_has_a_directory_of_its_user(name: str) -> None:
    service = SERVICES[name]
    if is_ours(service):
        stage = DOCKERFILE.stages[service.get("build", {}).get("target", "sqs-lease")]
        made = {word for command in stage.shell_commands() if "--owner" in command for word in command.split()}
        assert [path for path, source in mounts_of(service).items() if not is_path(source) and path not in made] == []


def test_a_volume_is_at_the_same_path_for_all_services_of_our_image() -> None:
    seen = {
        (source, target)
        for service in SERVICES.values()
        if is_ours(service)
        for target, source in mounts_of(service).items()
    }
    assert len(seen) == len({source for source, _ in seen})


@each_service
def test_a_service_has_the_files_that_its_settings_and_its_command_name(name: str) -> None:
    service = SERVICES[name]
    texts = [*command_of(service), *map(str, service.get("environment", {}).values())]
    named = {
        path for text in texts for path in re.findall(r"/(?:var/lib/sqs-lease|run/sqs-lease-secrets)[/\w.-]*", text)
    }
    mounted = [*mounts_of(service)]
    assert [path for path in named if not any(path == at or path.startswith(f"{at}/") for at in mounted)] == []


# What starts, and in which order


@each_service
def test_a_service_runs_always_or_by_its_profiles(name: str) -> None:
    profiles = set(SERVICES[name].get("profiles", ()))
    assert profiles <= {*PROFILES, "command"}
    assert (name in WITHOUT_PROFILE) == (not profiles)


@each_service
def test_a_server_says_whether_it_is_healthy_and_nothing_else_does(name: str) -> None:
    assert is_server(SERVICES[name]) == ("healthcheck" in SERVICES[name])


@each_service
def test_a_service_waits_for_what_starts_with_it_until_that_is_healthy_or_has_ended(name: str) -> None:
    service = SERVICES[name]
    for other, how in service.get("depends_on", {}).items():
        before = SERVICES[other]
        assert how == {"condition": "service_healthy" if is_server(before) else "service_completed_successfully"}
        assert set(service.get("profiles", PROFILES)) <= set(before.get("profiles", service.get("profiles", PROFILES)))


@each_service
def test_nothing_starts_before_the_secrets_that_it_reads_are_made(name: str) -> None:
    def before(service: str) -> set[str]:
        direct = set(SERVICES[service].get("depends_on", ()))
        return direct.union(*map(before, direct))

    if name != "secrets" and "secrets" in mounts_of(SERVICES[name]).values():
        assert "secrets" in before(name)


# Addresses


@each_service
def test_a_service_listens_where_it_is_published_and_asked_for_its_health(name: str) -> None:
    service = SERVICES[name]
    published = {int(port.rpartition(":")[2]) for port in service.get("ports", ())}
    asked = {int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)/", " ".join(health_check_of(service)))}
    assert published | asked <= ports_of(name)


def test_each_address_of_another_service_is_one_where_that_listens() -> None:
    files = [DOCKER / ".env", *DAGSTER_CONFIGURATION.iterdir()]
    texts = [FILLED_IN, *(file.read_text() for file in files)]
    found = {found for text in texts for found in re.findall(r"\w://(?:\w+@)?([a-z][\w-]*):(\d+)", text)}
    assert {"sqs", DATABASE_HOST} < {host for host, _ in found} <= SERVICES.keys()
    assert [(host, port) for host, port in found if int(port) not in ports_of(host)] == []


def test_each_database_that_an_address_names_is_made() -> None:
    texts = [FILLED_IN, (DAGSTER_CONFIGURATION / "dagster.yaml").read_text()]
    # Without a password: PGPASSFILE names the file that has it.
    address = re.compile(rf"postgresql(?:\+\w+)?://{DATABASE_USER}@{DATABASE_HOST}:{POSTGRES_PORT}/(\w+)")
    named = [database for text in texts for database in address.findall(text)]
    assert len(named) == sum(text.count("postgresql") - text.count("/postgresql") for text in texts)
    made = re.findall(r"^CREATE DATABASE (\w+);$", (DOCKER / "postgres" / "databases.sql").read_text(), re.MULTILINE)
    assert {*made, SERVICES[DATABASE_HOST]["environment"]["POSTGRES_DB"]} == set(named)


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


UNDERSTOOD: Final[Mapping[str, Callable[[Sequence[str]], bool]]] = {
    "airflow": understood_by_airflow,
    "dagster": understood_by_dagster,
    "dagster-daemon": understood_by_dagster,
    "dagster-webserver": understood_by_dagster,
    "python": understood_by_python,
    "spark-class": understood_by_spark,
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
    assert {name for name in DAGSTER_ENVIRONMENT if not others.match(name)} == read


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
