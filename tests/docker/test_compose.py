"""compose.yaml with its settings: valid, closed to other machines, and at one with the programs that it starts.

Nothing of it is run here.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest
from check_jsonschema import main as check_jsonschema  # type: ignore[import-untyped]
from click.testing import CliRunner

from demo.compose.secrets import AIRFLOW_USER, DATABASE_HOST, DATABASE_USER, make_secrets
from tests.docker.compose_model import COMPOSE_FILE, SETTING
from tests.docker.dockerfile import ROOT
from tests.docker.services import (
    COMPOSE,
    DAGSTER_CONFIGURATION,
    DOCKER,
    DOCKERFILE,
    FILLED_IN,
    POSTGRES_PORT,
    SERVICES,
    SETTINGS,
    command_of,
    health_check_of,
    in_profile,
    is_ours,
    is_path,
    is_server,
    mounts_of,
    mounts_with_modes_of,
    ports_of,
)

VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

COMPOSE_OWN_SETTINGS: Final = {"COMPOSE_PROFILES"}
PROFILES: Final = ("airflow", "dagster", "spark", "metrics")
"""The profiles that a user chooses from; services of the profile `command` are for `docker compose run`."""
WITHOUT_PROFILE: Final = {"secrets", "sqs", "queues"}
MOST_MEBIBYTES: Final = 7 * 1024
"""The memory that one profile may take of a laptop that has 8 GiB."""

LOCAL: Final = "127.0.0.1:"

each_service = pytest.mark.parametrize("name", SERVICES)


# The file


def schema_says(path: Path) -> tuple[int, str]:
    """Check a file against the schema of the Compose specification; return the exit code, and the errors."""
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
def test_services_of_one_profile_fit_into_a_laptop(profile: str) -> None:
    limits = [service["mem_limit"] for service in in_profile(profile).values() if is_server(service)]
    assert limits
    assert sum(int(limit[:-1]) * {"m": 1, "g": 1024}[limit[-1]] for limit in limits) <= MOST_MEBIBYTES


@each_service
def test_a_service_gains_no_privileges_and_drops_all_where_the_image_is_ours(name: str) -> None:
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
        assert re.fullmatch(r"([a-z]+/)?[a-z]+:v?\d+\.\d+(\.\d+)?(-[a-z]+)?", service["image"])
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
    # Keys and generated passwords look like this; no setting is one long word.
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
def test_files_of_the_checkout_that_a_service_finds_exist_and_are_not_written_to(name: str) -> None:
    for source, _, is_read_only in mounts_with_modes_of(SERVICES[name]):
        if is_path(source):
            assert (DOCKER / source).exists()
            assert is_read_only


def test_secrets_are_written_by_what_makes_them_and_by_airflows_users_only() -> None:
    writing = {
        name
        for name, service in SERVICES.items()
        for source, _, is_read_only in mounts_with_modes_of(service)
        if source == "secrets" and not is_read_only
    }
    assert writing == {"secrets", "airflow-api-server"}


def test_files_of_the_checkout_may_be_read_by_services_where_selinux_is_on() -> None:
    paths = [
        mount
        for service in SERVICES.values()
        for mount in service.get("volumes", ())
        if is_path(mount if isinstance(mount, str) else mount["source"])
    ]
    assert paths
    assert [
        mount
        for mount in paths
        if (mount.split(",")[-1] if isinstance(mount, str) else mount["bind"]["selinux"]) != "z"
    ] == []


@pytest.mark.parametrize("name", ["triggerer-1", "triggerer-2"])
def test_airflow_knows_a_triggerer_by_the_name_of_its_service(name: str) -> None:
    assert SERVICES[name]["hostname"] == name


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


# The services that start, and their order


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


@pytest.mark.parametrize("profile", PROFILES)
def test_each_service_that_ends_is_waited_for_because_up_would_take_it_for_failed(profile: str) -> None:
    # That is how `docker compose up --wait` tells what is to end from what is to run.
    started = in_profile(profile)
    ending = {name for name, service in started.items() if not is_server(service)}
    assert ending
    assert ending <= {before for service in started.values() for before in service.get("depends_on", ())}


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
