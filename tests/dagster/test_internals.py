"""What happens on a Dagster that lacks something which is not public: each test takes one thing away.

That all of it is there on the installed release is tested by all other tests of this directory: see conftest.py.
"""

import importlib
import importlib.metadata
import multiprocessing
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import dagster as dg
import dagster_pipes
import pytest

from sqs_lease.dagster import _internals
from sqs_lease.dagster._internals import UnsupportedDagsterError
from sqs_lease.dagster.verdict import StepEnds

EventType = dg.DagsterEventType


class Without:
    """Something of Dagster's that lacks some attributes, or has others in their place."""

    def __init__(self, whole: Any, *lacks: str, **instead: Any) -> None:
        self.__dict__.update(_whole=whole, _lacks=lacks, **instead)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._whole)

    def __getattr__(self, name: str) -> Any:
        if name in self._lacks:
            raise AttributeError(name)
        return getattr(self._whole, name)


def without_step(context: Any, *lacks: str) -> Any:
    """A context whose step lacks some attributes."""
    step = Without(context.op_execution_context.get_step_execution_context(), *lacks)
    return Without(
        context, op_execution_context=Without(context.op_execution_context, get_step_execution_context=lambda: step)
    )


def without_step_context(context: Any) -> Any:
    """A context that does not tell its step."""
    return Without(context, op_execution_context=Without(context.op_execution_context, "get_step_execution_context"))


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Take a name of a private module away."""
    private = _internals._private

    def take_away(name: str) -> None:
        monkeypatch.setattr(
            _internals, "_private", lambda module, wanted: None if wanted == name else private(module, wanted)
        )

    return take_away


def in_an_asset(call: Callable[[dg.AssetExecutionContext], Any]) -> tuple[Any, dg.ExecuteInProcessResult]:
    """Call a function in an asset, and return what it returned."""
    returned = []

    @dg.asset
    def orders(context: dg.AssetExecutionContext) -> None:
        returned.append(call(context))

    result = dg.materialize([orders])
    return returned[0], result


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.name == _internals.__name__)


@pytest.mark.parametrize(("module", "name"), [("events", "gone"), ("gone", "EngineEventData"), ("gone.events", "Any")])
def test_a_private_name_that_is_gone_is_none(module: str, name: str) -> None:
    assert _internals._private(module, name) is None


def test_a_step_goes_by_the_name_of_its_op_without_its_key(caplog: pytest.LogCaptureFixture) -> None:
    keys = []

    @dg.op(out=dg.DynamicOut())
    def parts() -> Iterator[dg.DynamicOutput[int]]:
        yield dg.DynamicOutput(1, mapping_key="first")

    @dg.op
    def load(context: dg.OpExecutionContext, part: int) -> None:
        keys.append((_internals.step_key(context), _internals.step_key(without_step_context(context))))

    @dg.job
    def loading() -> None:
        parts().map(load)

    loading.execute_in_process()
    assert keys == [("load[first]", "load[first]")]
    assert "has no get_step_execution_context() that sqs-lease knows" in said(caplog)


def test_a_function_that_is_called_directly_has_no_step_either_way() -> None:
    context = dg.build_asset_context()
    assert _internals.step_key(context) is None
    assert _internals.step_key(without_step_context(context)) is None


def test_metadata_is_replaced_where_it_is_not_known_what_was_added_before() -> None:
    def add_twice(context: dg.AssetExecutionContext) -> None:
        for number in (1, 2):
            metadata = {"sqs/received": dg.MetadataValue.int(number)}
            _internals.add_metadata(without_step(context, "get_asset_metadata"), metadata, combine=lambda _, new: new)

    _, result = in_an_asset(add_twice)
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["sqs/received"].value == 2


def test_a_warning_is_in_the_log_of_the_process_where_that_of_the_run_takes_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = SimpleNamespace(run_id="r", step_key="orders", job_name="job")
    instance = Without(dg.DagsterInstance.ephemeral(), "handle_new_event")
    _internals.warn_in_log(instance, seen, "it is lost")  # type: ignore[arg-type]
    assert said(caplog).startswith("it is lost\n")
    assert "the log of run r lacks this warning" in said(caplog)


def _work() -> None: ...


def test_a_process_is_a_steps_where_the_module_of_dagster_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module(_internals._STEP_PROCESSES)
    parent = object()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    process: Any = SimpleNamespace(_target=_work)
    monkeypatch.setattr(multiprocessing, "current_process", lambda: process)
    assert _internals.run_worker() is None
    monkeypatch.setattr(_work, "__module__", _internals._STEP_PROCESSES)
    assert _internals.run_worker() is parent
    del process._target
    assert _internals.run_worker() is None


def test_the_events_of_a_run_are_found_in_either_way(caplog: pytest.LogCaptureFixture) -> None:
    @dg.op
    def first() -> None: ...

    @dg.op(ins={"start": dg.In(dg.Nothing)})
    def second() -> None: ...

    @dg.job
    def both() -> None:
        second(first())

    with dg.DagsterInstance.ephemeral() as instance:
        run_id = both.execute_in_process(instance=instance).run_id
        for lacks in ((), ("get_records_for_run",), ("all_logs",)):
            seen: Any = Without(instance, *lacks)
            for newest_first, keys in ((False, ["first", "second"]), (True, ["second", "first"])):
                found = _internals.run_events(seen, run_id, [EventType.STEP_START], newest_first=newest_first)
                assert [event.step_key for event in found] == keys
        nothing: Any = Without(instance, "get_records_for_run", "all_logs")
        with pytest.raises(UnsupportedDagsterError, match="has no events of a run that sqs-lease knows"):
            list(_internals.run_events(nothing, run_id, [EventType.STEP_START]))


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


def test_an_event_without_data_has_no_metadata_and_one_that_has_changed_is_refused() -> None:
    event: Any = SimpleNamespace(event_type_value="STEP_OUTPUT", event_specific_data=None)
    assert _internals.event_metadata(event) == {}
    with pytest.raises(UnsupportedDagsterError, match="metadata of an event STEP_OUTPUT"):
        _internals.event_metadata(Without(event, "event_specific_data"))  # type: ignore[arg-type]


def test_an_event_that_has_changed_is_about_no_asset_and_names_no_error(caplog: pytest.LogCaptureFixture) -> None:
    event: Any = step_failure(ZeroDivisionError())
    assert "ZeroDivisionError" in _internals.error_names(event)
    assert _internals.error_names(Without(event, "step_failure_data")) == frozenset()  # type: ignore[arg-type]
    assert _internals.asset_of_event(Without(event, "asset_key")) is None  # type: ignore[arg-type]
    assert "all of its messages have failed" in said(caplog)


def test_a_step_that_was_interrupted_tells_of_an_interruption_too() -> None:
    assert not _internals.is_interruption(step_failure(ZeroDivisionError()))
    assert _internals.is_interruption(step_failure(dg.DagsterExecutionInterruptedError()))


def test_an_executors_numbers_are_a_line_of_the_log_where_there_are_no_engine_events(
    lacking: Callable[[str], None],
) -> None:
    lacking("EngineEventData")
    lines: list[str] = []
    context: Any = SimpleNamespace(log=SimpleNamespace(info=lines.append))
    metadata = {"sqs/received": dg.MetadataValue.int(1)}
    assert list(_internals.executor_events(context, "1 deleted", metadata)) == []
    assert lines == ["1 deleted {'sqs/received': 1}"]


def test_tags_that_cannot_be_added_are_an_error() -> None:
    instance: Any = Without(dg.DagsterInstance.ephemeral(), "add_run_tags")
    with pytest.raises(UnsupportedDagsterError, match="steps would not find the messages of their run"):
        _internals.add_run_tags(instance, "r", {})


@pytest.fixture
def planned() -> Iterator[tuple[dg.DagsterInstance, dg.DagsterRun]]:
    """A run with a plan, in an instance."""

    @dg.op
    def load() -> None:
        raise ZeroDivisionError

    @dg.job
    def loading() -> None:
        load()

    with dg.DagsterInstance.ephemeral() as instance:
        result = loading.execute_in_process(instance=instance, raise_on_error=False)
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        yield instance, run


def test_a_run_that_repeats_another_one_is_refused_where_plans_are_not_known(
    planned: tuple[dg.DagsterInstance, dg.DagsterRun],
) -> None:
    instance, run = planned
    assert _internals.planned_steps(instance, run).keys() == {"load"}
    changed: Any = Without(instance, "get_execution_plan_snapshot")
    with pytest.raises(UnsupportedDagsterError, match="which steps would never see the messages"):
        _internals.planned_steps(changed, run)


def test_any_step_may_be_waited_for_where_an_executors_plan_does_not_say() -> None:
    plan: Any = SimpleNamespace()
    assert _internals.awaited_steps(plan) is None
    ends = StepEnds("r", None)
    ends.see(step_failure(ZeroDivisionError()))
    assert ends.ends()["load"].holds_up


def test_an_executor_that_does_not_know_its_job_receives_nothing() -> None:
    job: Any = SimpleNamespace()
    with pytest.raises(UnsupportedDagsterError, match="definition of a run's job"):
        _internals.parts_left_out(job, ["load"])


def test_a_sensor_that_cannot_tell_a_test_receives_nothing() -> None:
    with dg.build_sensor_context() as context:
        assert not _internals.is_tick_of_the_daemon(context)
        changed: Any = Without(context, "log_key")
        with pytest.raises(UnsupportedDagsterError, match="the daemon's cannot be told from a test"):
            _internals.is_tick_of_the_daemon(changed)


def test_a_job_of_assets_is_told_by_what_makes_one() -> None:
    assert _internals.is_asset_job(dg.define_asset_job("orders"))
    assert not _internals.is_asset_job(dg.AssetSelection.all())
    assert not _internals.is_asset_job(dg.AssetKey("orders"))


@dg.asset(partitions_def=dg.DynamicPartitionsDefinition(name="customers"))
def customer_orders() -> None: ...


def job_of_orders() -> dg.JobDefinition:
    return dg.Definitions(assets=[customer_orders]).resolve_implicit_global_asset_job_def()


def test_what_refuses_arguments_is_dagsters_errors_alone_where_its_checks_have_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error, of_arguments = _internals.refusals()
    assert (error, of_arguments.__name__) == (dg.DagsterError, "CheckError")
    monkeypatch.delattr("dagster._check.CheckError")
    assert _internals.refusals() == (dg.DagsterError,)
    assert "has no CheckError that sqs-lease knows" in said(caplog)


def test_runs_of_functions_of_a_message_are_refused_where_jobs_do_not_tell_their_assets() -> None:
    job = job_of_orders()
    assert _internals.assets_of_job(job) == {customer_orders.key}
    with pytest.raises(UnsupportedDagsterError, match="list of the assets of a job"):
        _internals.assets_of_job(Without(job, "asset_layer"))  # type: ignore[arg-type]
    assert _internals.assets_of_job(_internals.job_of_assets(job, [customer_orders.key])) == {customer_orders.key}
    with pytest.raises(UnsupportedDagsterError, match="way to select assets of a job"):
        _internals.job_of_assets(Without(job, "get_subset"), [customer_orders.key])  # type: ignore[arg-type]


def test_dimensions_of_partitions_add_none_where_they_are_not_known(caplog: pytest.LogCaptureFixture) -> None:
    customers = dg.DynamicPartitionsDefinition(name="customers")
    both = dg.MultiPartitionsDefinition({"customer": customers, "day": dg.StaticPartitionsDefinition(["monday"])})
    assert _internals.dynamic_partitions(both, "ann|monday") == {"customers": "ann"}
    changed: Any = Without(both, "partitions_defs")
    assert _internals.dynamic_partitions(changed, "ann|monday") == {}
    assert "has no partitions_defs that sqs-lease knows" in said(caplog)


def test_a_request_stays_as_it_is_where_it_is_not_known_what_dagster_makes_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sensor: Any = Without(dg.SensorDefinition("any", evaluation_fn=lambda _: None), "resolve_run_requests")
    request = dg.RunRequest(partition_key="ann")
    with dg.build_sensor_context() as context:
        assert _internals.with_partition(sensor, context, request, []) is request
    assert "has no resolve_run_requests() that sqs-lease knows" in said(caplog)


def test_of_a_wrong_configuration_the_class_is_told_where_its_errors_are_not_known() -> None:
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
    assert _internals.wrong_config(SimpleNamespace()) == ["SimpleNamespace"]  # type: ignore[arg-type]


def test_what_a_release_adds_to_the_data_of_pipes_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Any = _internals.pipes_context_data("r")
    assert plain["run_id"] == "r"
    monkeypatch.setitem(dagster_pipes.PipesContextData.__annotations__, "added", str)
    assert _internals.pipes_context_data("r") == {**plain, "added": None}


def test_all_that_a_job_reports_counts_as_read_where_pipes_does_not_tell(caplog: pytest.LogCaptureFixture) -> None:
    handler: Any = SimpleNamespace(received_closed_message=False)
    assert not _internals.has_read_all(handler)
    assert _internals.has_read_all(Without(handler, "received_closed_message"))  # type: ignore[arg-type]
    assert "the run's log may lack the last lines of a job" in said(caplog)


def test_the_package_is_among_the_libraries_of_a_code_location(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = importlib.import_module("dagster_shared.libraries").DagsterLibraryRegistry
    monkeypatch.setattr(registry, "_libraries", {})
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"1.2.3 of {name}")
    _internals.register_library()
    assert registry.get() == {"sqs-lease": "1.2.3 of sqs-lease"}
    monkeypatch.setattr(registry, "register", None)
    _internals.register_library()
