"""The uses of Dagster beyond its public interface that no other test of this directory shows."""

import importlib
import importlib.metadata
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from sqs_lease.dagster import _internals

EventType = dg.DagsterEventType


def test_a_function_that_is_called_directly_has_no_step() -> None:
    assert _internals.step_key(dg.build_asset_context()) is None


def test_the_events_of_a_run_come_in_both_orders() -> None:
    @dg.op
    def first() -> None: ...

    @dg.op(ins={"start": dg.In(dg.Nothing)})
    def second() -> None: ...

    @dg.job
    def both() -> None:
        second(first())

    with dg.DagsterInstance.ephemeral() as instance:
        run_id = both.execute_in_process(instance=instance).run_id
        for newest_first, keys in ((False, ["first", "second"]), (True, ["second", "first"])):
            found = _internals.run_events(instance, run_id, [EventType.STEP_START], newest_first=newest_first)
            assert [event.step_key for event in found] == keys


def step_failure(error: BaseException) -> dg.DagsterEvent:
    """The event of a step that failed."""

    @dg.op
    def load() -> None:
        raise error

    @dg.job
    def loading() -> None:
        load()

    result = loading.execute_in_process(raise_on_error=False)
    (event,) = (each for each in result.all_events if each.is_step_failure)
    return event


def test_an_event_without_data_has_no_metadata() -> None:
    event: Any = SimpleNamespace(event_specific_data=None)
    assert _internals.event_metadata(event) == {}


def test_a_failed_step_names_its_error_and_the_causes_of_it() -> None:
    error = ValueError()
    error.__cause__ = ZeroDivisionError()
    assert {"ValueError", "ZeroDivisionError"} <= _internals.error_names(step_failure(error))


def test_a_step_that_was_interrupted_tells_of_an_interruption_too() -> None:
    assert not _internals.is_interruption(step_failure(ZeroDivisionError()))
    assert _internals.is_interruption(step_failure(dg.DagsterExecutionInterruptedError()))


def test_a_test_of_a_sensor_is_not_a_tick_of_the_daemon() -> None:
    with dg.build_sensor_context() as context:
        assert not _internals.is_tick_of_the_daemon(context)


def test_a_job_of_assets_is_told_by_what_makes_one() -> None:
    assert _internals.is_asset_job(dg.define_asset_job("orders"))
    assert not _internals.is_asset_job(dg.AssetSelection.all())
    assert not _internals.is_asset_job(dg.AssetKey("orders"))


def test_refused_arguments_are_dagsters_errors_and_those_of_its_checks() -> None:
    error, of_arguments = _internals.refusals()
    assert (error, of_arguments.__name__) == (dg.DagsterError, "CheckError")


def test_a_dimension_of_partitions_may_be_dynamic() -> None:
    customers = dg.DynamicPartitionsDefinition(name="customers")
    both = dg.MultiPartitionsDefinition({"customer": customers, "day": dg.StaticPartitionsDefinition(["monday"])})
    assert _internals.dynamic_partitions(both, "ann|monday") == {"customers": "ann"}


def test_a_wrong_configuration_is_told_without_its_values() -> None:
    @dg.op(config_schema={"table": str})
    def load() -> None: ...

    @dg.job
    def loading() -> None:
        load()

    with pytest.raises(dg.DagsterInvalidConfigError) as raised:
        dg.validate_run_config(loading, {"ops": {"load": {"config": {"table": ["secret"]}}}})
    (wrong,) = _internals.wrong_config(raised.value)
    assert wrong.startswith("ops:load:config:table: ")
    assert "secret" not in wrong


def test_the_package_is_among_the_libraries_of_a_code_location(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = importlib.import_module("dagster_shared.libraries").DagsterLibraryRegistry
    monkeypatch.setattr(registry, "_libraries", {})
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"1.2.3 of {name}")
    _internals.register_library()
    assert registry.get() == {"sqs-lease": "1.2.3 of sqs-lease"}
