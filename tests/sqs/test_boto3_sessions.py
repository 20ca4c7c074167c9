"""Sessions share what botocore reads of its data files, and nothing that differs from one to the next."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import botocore
import pytest
from botocore.handlers import BUILTIN_HANDLERS
from botocore.session import get_session

from sqs_lease.sqs.boto3_sessions import boto3_session, sqs_session


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = tmp_path / "config"
    config.write_text("[default]\nregion = eu-west-1\n[profile shop]\nregion = eu-west-3\n")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_DATA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    return config


def with_another_operation(directory: Path) -> Path:
    """A data path where SQS can do one thing more."""
    shipped = Path(botocore.__file__).parent / "data" / "sqs" / "2012-11-05" / "service-2.json.gz"
    model = json.loads(gzip.decompress(shipped.read_bytes()))
    model["operations"]["CountSheep"] = {**model["operations"]["ListQueues"], "name": "CountSheep"}
    description = directory / "sqs" / "2012-11-05" / "service-2.json"
    description.parent.mkdir(parents=True)
    description.write_text(json.dumps(model))
    return directory


def can_count_sheep() -> bool:
    return hasattr(boto3_session().client("sqs"), "count_sheep")


def test_a_data_path_of_the_environment_counts_as_long_as_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not can_count_sheep()
    monkeypatch.setenv("AWS_DATA_PATH", str(with_another_operation(tmp_path / "data")))
    assert can_count_sheep()
    monkeypatch.delenv("AWS_DATA_PATH")
    assert not can_count_sheep()


def test_a_profile_has_a_data_path_of_its_own(tmp_path: Path, configuration: Path) -> None:
    data = with_another_operation(tmp_path / "data")
    configuration.write_text(f"[default]\nregion = eu-west-1\n[profile shop]\nregion = eu-west-3\ndata_path = {data}\n")
    assert hasattr(boto3_session(profile_name="shop").client("sqs"), "count_sheep")
    assert not can_count_sheep()


def test_credentials_regions_and_handlers_are_not_shared() -> None:
    seen: list[str] = []
    sources = get_session(), get_session()
    for source, name in zip(sources, ("first", "second"), strict=True):
        source.set_credentials(name, "secret")
    sources[0].register("creating-client-class.sqs", lambda **_: seen.append("first"))
    first, second = boto3_session(source=sources[0], profile_name="shop"), boto3_session(source=sources[1])
    second.client("sqs")
    assert seen == []
    first.client("sqs")
    assert seen == ["first"]
    assert (first.region_name, second.region_name) == ("eu-west-3", "eu-west-1")
    keys = [credentials.access_key for session in (first, second) if (credentials := session.get_credentials())]
    assert keys == ["first", "second"]


# An older botocore knows no "signin".
SERVICES = {"sqs", "sts", "sso", "sso-oidc", "signin"} & {*get_session().get_available_services()}
"""SQS, and those that credentials come from."""


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_the_events_of_sqs_and_of_credentials_have_the_handlers_that_botocore_gives_them(service: str) -> None:
    usual = get_session()
    operations = usual.get_service_model(service).operation_names
    kinds = {event.partition(".")[0] for event, *_ in BUILTIN_HANDLERS} - {"docs"}
    events = [f"{kind}.{service}" for kind in kinds]
    events += [f"{kind}.{service}.{operation}" for kind in kinds for operation in operations]
    ours, theirs = sqs_session().get_component("event_emitter"), usual.get_component("event_emitter")
    found = [theirs._emitter._handlers.prefix_search(theirs._alias_event_name(event)) for event in events]
    assert any(found)
    assert [ours._handlers.prefix_search(event) for event in events] == found


def test_a_handler_of_one_session_is_not_called_for_another() -> None:
    seen: list[str] = []
    first, second = sqs_session(), sqs_session()
    first.get_component("event_emitter").register("creating-client-class.sqs", lambda **_: seen.append("first"))
    third = sqs_session()
    for other in (second, third):
        boto3_session(source=other).client("sqs")
    assert seen == []
    boto3_session(source=first).client("sqs")
    assert seen == ["first"]


def test_shared_data_does_not_grow_with_the_sessions() -> None:
    paths = []
    for source in (get_session(), get_session()):
        boto3_session(source=source)
        paths.append(list(source.get_component("data_loader").search_paths))
    assert paths[0] == paths[1]


def test_threads_that_make_their_first_clients_at_once_all_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A data path that no other test has, so that nothing is read yet.
    monkeypatch.setenv("AWS_DATA_PATH", str(with_another_operation(tmp_path / "data")))
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: can_count_sheep(), range(8)))
