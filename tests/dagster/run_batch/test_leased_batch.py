"""The batch of a run as its steps see it; its holder is told what they failed."""

from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event, Thread

import dagster as dg
import pytest

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster import LeasedBatch, MessageFailed, SqsQueueResource
from sqs_lease.dagster.run_batch.batch_of_run import BATCH_TAG
from sqs_lease.dagster.run_batch.folder import BatchFolder, BatchFolderError, PieceOfWork
from sqs_lease.dagster.run_batch.leased_batch import CALLED_DIRECTLY, RunBatch

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
QUEUE = SqsQueueResource(queue="orders")


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    made = BatchFolder(tmp_path / "batch")
    messages = [Message(Receipt("m0", "handle"), "first"), Message(Receipt("m1", "handle"), "second")]
    made.create(batch_id="batch", queue_url=URL, messages=messages)
    return made


def execute(
    folder: BatchFolder, work: Callable[[RunBatch, int], object], retry_policy: dg.RetryPolicy | None = None
) -> dg.ExecuteInProcessResult:
    """Run a job of one step that works on the batch."""

    @dg.op(retry_policy=retry_policy)
    def load(context: dg.OpExecutionContext) -> None:
        with QUEUE.lease(context) as batch:
            assert isinstance(batch, RunBatch)
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
        assert (len(batch), batch.batch_id, batch.queue_url) == (2, "batch", URL)
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


def test_a_message_that_another_step_has_failed_is_not_given_to_later_steps(folder: BatchFolder) -> None:
    folder.write(PieceOfWork("check", "r/0", is_over=True, failed={"m0": "torn"}))
    seen: list[str] = []
    assert execute(folder, lambda batch, _: seen.extend(message.message_id for message in batch)).success
    assert seen == ["m1"]


def test_a_message_of_another_batch_cannot_be_failed(folder: BatchFolder) -> None:
    def work(batch: RunBatch, _: int) -> None:
        with pytest.raises(KeyError, match="not in this batch"):
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


def test_a_retry_that_is_requested_for_an_exception_is_passed_on_as_that_exception(folder: BatchFolder) -> None:
    def work(*_: object) -> None:
        raise dg.RetryRequested(max_retries=0) from MessageFailed(["m0"])

    execute(folder, work)
    raised = piece(folder).raised
    assert raised is not None
    assert raised.message_ids == ("m0",)


def test_a_later_try_does_not_get_what_the_earlier_one_failed_and_forgets_how_it_ended(folder: BatchFolder) -> None:
    seen: list[list[str]] = []

    def work(batch: RunBatch, retry_number: int) -> None:
        seen.append([message.message_id for message in batch])
        batch.fail(f"m{retry_number}", "torn")
        if retry_number == 0:
            raise ValueError

    result = execute(folder, work, dg.RetryPolicy(max_retries=1))
    assert result.success
    assert seen == [["m0", "m1"], ["m1"]]
    failed = {"m0": "torn", "m1": "torn"}
    assert piece(folder) == PieceOfWork("load", f"{result.run_id}/1", is_over=True, failed=failed)


def test_a_message_that_a_step_is_done_with_is_not_its_retrys_nor_failed_by_its_exception(folder: BatchFolder) -> None:
    seen: list[list[str]] = []

    def work(batch: RunBatch, retry_number: int) -> None:
        seen.append([message.message_id for message in batch])
        if retry_number == 0:
            batch.succeed("m0")
            assert piece(folder).done == {"m0"}
        raise ValueError

    result = execute(folder, work, dg.RetryPolicy(max_retries=1))
    assert seen == [["m0", "m1"], ["m1"]]
    assert piece(folder).done == {"m0"}
    assert piece(folder).attempt == f"{result.run_id}/1"


def test_settlements_of_a_step_are_known_at_once_and_stay_so(folder: BatchFolder) -> None:
    def work(batch: RunBatch, _: int) -> None:
        batch.release("m0")
        batch.fail("m0", "torn")
        batch.fail("m1", "torn", errors=["builtins.ValueError"])
        batch.succeed(list(batch))
        found = piece(folder)
        assert (found.released, found.failed, found.done) == (frozenset({"m0"}), {"m1": "torn"}, frozenset())
        assert not found.is_over
        assert found.errors == {"m1": ("builtins.ValueError",)}

    assert execute(folder, work).success


def test_each_message_may_be_failed_for_a_reason_of_its_own(folder: BatchFolder) -> None:
    assert execute(folder, lambda batch, _: batch.fail_each({"m0": "torn", "m1": "late"})).success
    assert piece(folder).failed == {"m0": "torn", "m1": "late"}


def test_a_step_may_ask_whether_a_message_is_still_its_to_work_on(folder: BatchFolder) -> None:
    def work(batch: RunBatch, _: int) -> None:
        assert batch.still_held("m0")
        batch.succeed("m0")
        assert not batch.still_held("m0")
        assert (batch.report().received, batch.report().held, batch.report().deleted) == (2, 2, 0)
        folder.remove()
        assert not batch.still_held("m1")

    assert execute(folder, work).success


def test_after_the_block_nothing_can_be_settled(folder: BatchFolder) -> None:
    with QUEUE.lease(dg.build_op_context(run_tags={BATCH_TAG: str(folder)})) as batch:
        pass
    with pytest.raises(RuntimeError, match="settle them within it"):
        batch.fail("m0", "torn")
    assert not batch.still_held("m0")


def job_of(step: Callable[[dg.OpExecutionContext], None]) -> dg.JobDefinition:
    @dg.op
    def load(context: dg.OpExecutionContext) -> None:
        step(context)

    @dg.job
    def loading() -> None:
        load()

    return loading


def test_a_block_within_a_block_is_refused_and_what_the_first_one_failed_stays(folder: BatchFolder) -> None:
    def step(context: dg.OpExecutionContext) -> None:
        with QUEUE.lease(context) as batch:
            batch.fail(["m0"], "it is bad")
            with pytest.raises(BatchFolderError, match="that it has not left"), QUEUE.lease(context):
                pass
            batch.fail(["m1"], "so is this")

    assert job_of(step).execute_in_process(tags={BATCH_TAG: str(folder)}).success
    assert piece(folder).failed == {"m0": "it is bad", "m1": "so is this"}


def test_of_two_blocks_that_begin_at_once_in_threads_one_is_refused(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_read, read = Barrier(2), BatchFolder.read
    refused: list[BatchFolderError] = []

    def slow(self: BatchFolder, name: str) -> PieceOfWork | None:
        found = read(self, name)
        if found is None:
            # Two threads that get here at once would both begin.
            with suppress(BrokenBarrierError):
                both_read.wait(0.5)
        return found

    monkeypatch.setattr(BatchFolder, "read", slow)

    @dg.op
    def load(context: dg.OpExecutionContext) -> None:
        are_over = Event()

        def work() -> None:
            try:
                with QUEUE.lease(context):
                    are_over.wait()
            except BatchFolderError as error:
                refused.append(error)
                are_over.set()

        threads = [Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        are_over.set()

    @dg.job
    def loading() -> None:
        load()

    assert loading.execute_in_process(tags={BATCH_TAG: str(folder)}, raise_on_error=False).success
    assert len(refused) == 1


def test_a_block_after_one_that_raised_does_what_was_left(folder: BatchFolder) -> None:
    def step(context: dg.OpExecutionContext) -> None:
        with suppress(OSError), QUEUE.lease(context) as batch:
            batch.succeed(["m0"])
            raise OSError("the database is away")
        with QUEUE.lease(context) as batch:
            assert [message.message_id for message in batch] == ["m1"]

    assert job_of(step).execute_in_process(tags={BATCH_TAG: str(folder)}).success
    assert piece(folder).raised is None


def test_a_block_after_one_that_named_messages_leaves_them_failed(folder: BatchFolder) -> None:
    def step(context: dg.OpExecutionContext) -> None:
        with pytest.raises(MessageFailed), QUEUE.lease(context):
            raise MessageFailed("m0")
        with QUEUE.lease(context):
            pass

    assert job_of(step).execute_in_process(tags={BATCH_TAG: str(folder)}).success
    raised = piece(folder).raised
    assert raised is not None
    assert raised.message_ids == ("m0",)


def test_a_step_that_leases_again_has_nothing_left_to_work_on(folder: BatchFolder) -> None:
    """As a step that receives until the queue is empty; it would never end otherwise."""
    seen: list[int] = []

    @dg.op
    def load(context: dg.OpExecutionContext) -> None:
        while not seen or seen[-1]:
            with QUEUE.lease(context) as batch:
                seen.append(len(batch))
                batch.fail([message for message in batch if message.message_id == "m0"], "torn")

    @dg.job
    def loading() -> None:
        load()

    assert loading.execute_in_process(tags={BATCH_TAG: str(folder)}).success
    assert seen == [2, 0]
    assert piece(folder).failed == {"m0": "torn"}


def test_a_generator_that_is_given_up_late_writes_nothing_over_what_the_next_attempt_wrote(
    folder: BatchFolder,
) -> None:
    context = dg.build_op_context(run_tags={BATCH_TAG: str(folder)})

    def suspended() -> Iterator[LeasedBatch]:
        with QUEUE.lease(context) as batch:
            yield batch

    generator = suspended()
    next(generator)
    later = PieceOfWork(CALLED_DIRECTLY, "run/1", is_over=True, failed={"m0": "torn"})
    folder.write(later)
    generator.close()  # type: ignore[attr-defined]
    assert piece(folder) == later


def test_notes_of_another_attempt_stay_where_a_step_comes_to_its_end_late(folder: BatchFolder) -> None:
    later = PieceOfWork("load", "run/1", is_over=True, failed={"m0": "torn"})

    def work(batch: RunBatch, _: int) -> None:
        folder.write(later)
        batch.fail("m1", "late")

    assert execute(folder, work).success
    assert piece(folder) == later


def test_a_step_that_comes_to_its_end_when_the_batch_is_gone_leaves_nothing(folder: BatchFolder) -> None:
    execute(folder, lambda *_: folder.remove())
    assert not folder.path.exists()


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
        with QUEUE.lease(context) as batch:
            bodies.extend(message.body for message in batch)

    orders(dg.build_asset_context(run_tags={BATCH_TAG: str(folder)}))
    assert bodies == ["first", "second"]


def test_a_batch_that_was_settled_is_named(folder: BatchFolder) -> None:
    folder.remove()
    context = dg.build_op_context(run_tags={BATCH_TAG: str(folder)})
    with pytest.raises(BatchFolderError, match=str(folder)), QUEUE.lease(context):
        pass
