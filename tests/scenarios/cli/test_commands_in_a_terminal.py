"""Commands in a real terminal: they ask, draw progress, and stop at Ctrl-C."""

from __future__ import annotations

import re

import pytest

from tests.cli.terminal import CTRL_C, in_terminal, rest_of

DEAD = "orders-dead-letters"


def on_memory(messages: int, per_second: int, *arguments: str) -> tuple[str, ...]:
    return ("-m", "tests.cli.memory_command", str(messages), str(per_second), *arguments)


def stopped(text: str) -> tuple[int, int]:
    """How many messages were moved of how many, as the last line says."""
    (found,) = re.findall(r"Moved until then: (\d+) of (\d+) messages,", " ".join(text.split()))
    return int(found[0]), int(found[1])


def test_redrive_asks_first_and_no_is_the_default() -> None:
    with in_terminal(*on_memory(4, 100, "redrive", DEAD)) as child:
        child.expect("To move: about 4 messages of orders-dead-letters, back to orders")
        child.expect(r"Move them\? \[y/N\]: ")
        child.sendline("")
        text, code = rest_of(child)

    assert code == 130
    assert "Moved" not in text


@pytest.mark.parametrize("columns", [40, 120])
def test_ctrl_c_cancels_the_move_task_and_says_how_far_it_got(columns: int) -> None:
    with in_terminal(*on_memory(500, 5, "redrive", DEAD), columns=columns) as child:
        child.expect(r"\[y/N\]: ")
        child.sendline("y")
        child.expect(r"[1-9]\d*/500")
        child.send(CTRL_C)
        text, code = rest_of(child)

    moved, of = stopped(text)
    assert 1 <= moved < of == 500
    assert "run it again for them" in " ".join(text.split())
    assert "Traceback" not in text
    assert code == 130


def test_peek_asks_where_a_receive_could_cost_a_message() -> None:
    with in_terminal(*on_memory(0, 100, "peek", "orders")) as child:
        child.expect(r"orders allows 10 receives")
        child.expect(r"Receive up to 10 messages\? \[Y/n\]: ")
        child.sendline("n")
        text, code = rest_of(child)

    assert code == 130
    assert "No message" not in text
