"""The batch of a run as its steps see it; whoever holds it is told what they failed."""

from _thread import interrupt_main
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster import MessageFailed
from sqs_lease.dagster.run_batch.folder import BatchFolder, BatchFolderError, PieceOfWork
from sqs_lease.dagster.run_batch.leased_batch import BATCH_TAG, NoBatchError, RunBatch, leased_batch

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    made = BatchFolder(tmp_path / "batch")
    messages = [Message(Receipt("m0", "handle"), "first"), Message(Receipt("m1", "handle"), "second")]
    made.create(batch_id="batch", queue_url=QUEUE, messages=messages)
    return made


def execute(
    folder: BatchFolder, work: Callable[[RunBatch, int], None], retry_policy: dg.RetryPolicy | None = None
) -> dg.ExecuteInProcessResult:
    """Run a job of one step that works on the batch."""

    @dg.op(retry_policy=retry_policy)
    def load(context: dg.OpExecutionContext) -> None:
        with leased_batch(context) as batch:
            work(batch, context.retry_number)

    @dg.job
    def loading() -> None:
        load()

    return loading.execute_in_process(tags={BATCH_TAG: str(folder)}, raise_on_error=False)


def piece(folder: BatchFolder) -> PieceOfWork:
    (found,) = folder.pieces().values()
    return found


def test_a_step_sees_the_messages_in_order_and_without_receipt_handles(folder: BatchFolder) -> None:
    seen: list[tuple[str, str, str]] = []

    def work(batch: RunBatch, _: int) -> None:
        assert (len(batch), batch.batch_id, batch.queue_url) == (2, "batch", QUEUE)
        seen.extend((message.message_id, message.receipt.handle, message.body) for message in batch)

    result = execute(folder, work)
    assert seen == [("m0", "", "first"), ("m1", "", "second")]
    assert piece(folder) == PieceOfWork("load", f"{result.run_id}/0", is_over=True)


def test_messages_that_a_step_failed_are_passed_on_with_the_reason(folder: BatchFolder) -> None:
    def work(batch: RunBatch, _: int) -> None:
        first, second = batch
        batch.fail(first, "torn")
        batch.fail([second.message_id], "late")

    assert execute(folder, work).success
    assert piece(folder).failed == {"m0": "torn", "m1": "late"}


def test_a_message_of_another_batch_cannot_be_failed(folder: BatchFolder) -> None:
    def work(batch: RunBatch, _: int) -> None:
        with pytest.raises(KeyError, match="m7"):
            batch.fail("m7", "torn")

    assert execute(folder, work).success
    assert piece(folder).failed == {}


@pytest.mark.parametrize(
    ("error", "named"), [(ValueError("body"), None), (MessageFailed(["m1"]), ("m1",))], ids=["any", "by name"]
)
def test_an_exception_is_passed_on_and_goes_on(
    folder: BatchFolder, error: Exception, named: tuple[str, ...] | None
) -> None:
    def work(batch: RunBatch, _: int) -> None:
        batch.fail("m0", "torn")
        raise error

    assert not execute(folder, work).success
    found = piece(folder)
    assert found.raised is not None
    assert found.raised.errors[0].endswith(f".{type(error).__name__}")
    assert (found.raised.message_ids, found.failed, found.is_over) == (named, {"m0": "torn"}, True)


def test_a_later_try_replaces_what_the_earlier_one_said(folder: BatchFolder) -> None:
    def work(batch: RunBatch, retry_number: int) -> None:
        batch.fail(f"m{retry_number}", "torn")
        if retry_number == 0:
            raise ValueError

    result = execute(folder, work, dg.RetryPolicy(max_retries=1))
    assert result.success
    assert piece(folder) == PieceOfWork("load", f"{result.run_id}/1", is_over=True, failed={"m1": "torn"})


def test_a_second_block_of_a_step_adds_to_what_the_first_one_failed(folder: BatchFolder) -> None:
    @dg.op
    def load(context: dg.OpExecutionContext) -> None:
        for message_id in ("m0", "m1"):
            with leased_batch(context) as batch:
                batch.fail(message_id, "torn")

    @dg.job
    def loading() -> None:
        load()

    assert loading.execute_in_process(tags={BATCH_TAG: str(folder)}).success
    assert piece(folder).failed.keys() == {"m0", "m1"}


def test_while_a_step_is_under_way_it_is_not_over(folder: BatchFolder) -> None:
    assert execute(folder, lambda batch, _: check_not_over(folder)).success
    assert piece(folder).is_over


def check_not_over(folder: BatchFolder) -> None:
    assert not piece(folder).is_over


def test_an_interrupted_step_has_not_raised(folder: BatchFolder) -> None:
    assert not execute(folder, lambda *_: interrupt_main()).success
    assert piece(folder).raised is None


def test_a_function_that_is_called_directly_has_the_batch_that_its_context_names(folder: BatchFolder) -> None:
    bodies: list[str] = []

    @dg.asset
    def orders(context: dg.AssetExecutionContext) -> None:
        with leased_batch(context) as batch:
            bodies.extend(message.body for message in batch)

    orders(dg.build_asset_context(run_tags={BATCH_TAG: str(folder)}))
    assert bodies == ["first", "second"]


def test_a_run_without_a_batch_is_told_what_to_set_up() -> None:
    with pytest.raises(NoBatchError, match="executor_def=sqs_lease_executor"), leased_batch(dg.build_op_context()):
        pass


def test_a_batch_that_was_settled_is_named(folder: BatchFolder) -> None:
    folder.remove()
    context = dg.build_op_context(run_tags={BATCH_TAG: str(folder)})
    with pytest.raises(BatchFolderError, match=str(folder)), leased_batch(context):
        pass
