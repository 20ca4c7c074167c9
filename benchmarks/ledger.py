"""The time of the ledger to hold, extend and settle a lease, by the number of leases; and of an alternative.

    python -m benchmarks.ledger [--sizes 1000 10000 100000]

Two tables; `benchmarks.cost` has what the keeper around the ledger takes, and how many calls it makes:

1. Microseconds a lease for each operation of the ledger, at several sizes. A cost of O(log n) grows by a
   factor of log(100 000) / log(1 000) = 1.7 from the first size to the last, a cost of O(n) by 100.
2. One tick on which nothing is due, against the loop that most consumers run: look at every message in flight
   once a second and see whether it has to be extended.
"""

from __future__ import annotations

import argparse
import gc
import math
from collections.abc import Callable
from random import Random
from time import perf_counter

from sqs_lease.core.calls import EntryAnswer, Verdict
from sqs_lease.core.failure_rules import Delete
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.limits import MAX_BATCH_ENTRIES
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Growing, RenewalPolicy

POLICY = Growing(visibility=30)
SPREAD_SECONDS = 15.0
REPEATS = 3


def leases(count: int) -> list[Lease]:
    """Leases received at random moments within 15 s: no two fall due together."""
    random = Random(1)
    return [
        Lease(Receipt(f"message-{number}", f"handle-{number}"), at, at + 30.0)
        for number, at in ((number, random.random() * SPREAD_SECONDS) for number in range(count))
    ]


def make_calls(ledger: Ledger, now: float) -> int:
    """Make all calls that are due, each of them successful, as many at a time as the ledger allows.

    Returns:
        How many they were.
    """
    made = 0
    while calls := ledger.due(now):
        made += len(calls)
        for call in calls:
            ledger.report(call, [EntryAnswer(receipt, Verdict.DONE) for receipt in call.receipts], now)
    return made


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    started = perf_counter()
    work()
    return perf_counter() - started


def operation_seconds(count: int) -> dict[str, float]:
    """Seconds a lease for each operation; the renewals fall due on a second's ticks, as in a keeper."""
    ledger = Ledger(Random(0))
    held = leases(count)

    def hold() -> None:
        for lease in held:
            ledger.hold(lease, POLICY)

    def extend() -> None:
        for now in range(20, 36):
            make_calls(ledger, now)

    def settle() -> None:
        for lease in held:
            ledger.settle(lease.receipt, Delete(), 36)
        make_calls(ledger, 36)

    seconds = {"hold": timed(hold) / count, "extend": timed(extend) / count, "settle": timed(settle) / count}
    assert len(ledger) == 0
    return seconds


def idle_tick_seconds(count: int) -> tuple[float, float]:
    """Seconds for a tick on which nothing is due: of the ledger, and of a scan of all messages in flight."""
    ledger = Ledger(Random(0))
    held = leases(count)
    for lease in held:
        ledger.hold(lease, POLICY)
    deadlines = {lease.receipt: lease.deadline for lease in held}
    ticks = 20

    def ask() -> None:
        for _ in range(ticks):
            assert not ledger.due(1.0)

    def scan() -> None:
        for _ in range(ticks):
            assert not [receipt for receipt, deadline in deadlines.items() if deadline - 1.0 <= 5.0]

    return timed(ask) / ticks, timed(scan) / ticks


def calls_in_an_hour(policy: RenewalPolicy, count: int = 1_000) -> int:
    """API calls to receive, hold for an hour and delete a batch, by calls of ten."""
    ledger = Ledger(Random(0))
    receipts = [Receipt(f"message-{number}", "handle") for number in range(count)]
    for receipt in receipts:
        ledger.hold(Lease(receipt, 0.0, policy.visibility_seconds), policy)
    calls = math.ceil(count / MAX_BATCH_ENTRIES)
    while (now := ledger.next_due()) is not None and now < 3_600:
        calls += make_calls(ledger, now)
    for receipt in receipts:
        ledger.settle(receipt, Delete(), 3_600)
    return calls + make_calls(ledger, 3_600)


def main() -> None:
    """Run both and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    sizes = parser.parse_args().sizes

    print("1. Microseconds a lease (the best of three runs)")
    print(f"{'held':>9}  {'hold':>7}  {'extend':>7}  {'settle':>7}")
    costs = []
    for size in sizes:
        runs = [operation_seconds(size) for _ in range(REPEATS)]
        best = {name: min(run[name] for run in runs) for name in runs[0]}
        costs.append(best)
        print(f"{size:>9,}  " + "  ".join(f"{best[name] * 1e6:7.2f}" for name in ("hold", "extend", "settle")))
    ratios = [costs[-1][name] / costs[0][name] for name in ("hold", "extend", "settle")]
    print(f"{'ratio':>9}  " + "  ".join(f"{ratio:7.2f}" for ratio in ratios))
    print(f"(O(log n) would give {math.log(sizes[-1]) / math.log(sizes[0]):.2f}, O(n) {sizes[-1] / sizes[0]:.0f})\n")

    print("2. One tick with nothing due, microseconds")
    print(f"{'held':>9}  {'ledger':>9}  {'scan':>9}  {'scan / ledger':>13}")
    for size in sizes:
        ticks = [idle_tick_seconds(size) for _ in range(REPEATS)]
        ours, scan = min(tick[0] for tick in ticks), min(tick[1] for tick in ticks)
        print(f"{size:>9,}  {ours * 1e6:9.1f}  {scan * 1e6:9.1f}  {scan / ours:13,.0f}")


if __name__ == "__main__":
    main()
