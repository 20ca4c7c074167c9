"""A round is drawn from its seed: the same one each time, within what its host allows."""

from __future__ import annotations

from collections import Counter

from tests.rounds.draw import Kind, draw
from tests.rounds.plain import TRAITS

SEEDS = range(300)


def test_the_same_seed_draws_the_same_round_and_others_draw_others() -> None:
    assert draw(TRAITS, 7) == draw(TRAITS, 7)
    assert len({draw(TRAITS, seed) for seed in SEEDS}) == len(SEEDS)


def test_three_hundred_rounds_have_each_kind_of_fault_many_times() -> None:
    drawn = Counter(fault.kind for seed in SEEDS for fault in draw(TRAITS, seed).faults)
    assert drawn.keys() == set(TRAITS.faults)
    assert min(drawn.values()) > 20


def test_faults_and_messages_are_within_what_the_host_allows() -> None:
    for plan in (draw(TRAITS, seed) for seed in SEEDS):
        least, most = TRAITS.messages
        assert least <= len(plan.messages) <= most
        assert plan.visibility_seconds in TRAITS.visibility_seconds
        assert {fault.worker for fault in plan.faults} <= set(range(TRAITS.workers))
        assert all(0.5 <= fault.lasts_seconds <= 2 * plan.visibility_seconds for fault in plan.faults)


def test_a_worker_has_one_fault_of_a_kind_at_most_and_all_share_one_disk() -> None:
    for plan in (draw(TRAITS, seed) for seed in SEEDS):
        where = [(fault.kind, None if fault.kind is Kind.DISK else fault.worker) for fault in plan.faults]
        assert len(where) == len(set(where))
