"""The wording of what people read only becomes plainer: `make lint` counts habits, and no count may rise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.plain_english import LEFT, ROOT, files_by_room, found, habits_in, habits_of, wrong


def test_each_room_has_as_many_habits_as_its_number_allows() -> None:
    assert wrong(found(ROOT), LEFT) == []


def test_every_file_that_people_read_is_in_a_room() -> None:
    rooms = files_by_room(ROOT)
    assert {"airflow", "core", "dagster", "spark", "sqs_lease", "benchmarks", "demo", "docs", "."} <= rooms.keys()
    assert ROOT / "README.md" in rooms["."]
    assert ROOT / "providers/sqs_lease/blocking.py" in rooms["sqs_lease"]
    assert ROOT / "tests/sqs/test_client.py" in rooms["tests"]
    assert all(rooms.values())


def test_only_the_check_and_its_examples_are_not_read() -> None:
    in_tests = set((ROOT / "tests").rglob("*.py"))
    unread = in_tests - set(files_by_room(ROOT)["tests"])
    assert unread == {ROOT / "tests/architecture/plain_english.py", Path(__file__).resolve()}


@pytest.mark.parametrize(
    ("text", "habits"),
    [
        ("What becomes of a batch.", 1),
        ("A batch. Who finds it keeps it.", 1),
        ("name: Whose it is", 1),
        ("# Which call was sent", 1),
        ("- What is left", 1),
        ("What is a lease?", 0),
        ("Tells what became of a batch", 0),
        ("Nobody reads what somebody wrote, whoever it was", 3),
        ("It begins anew", 1),
        ("Renewal", 0),
        ("It is no queue; there are none", 2),
        ("There is no queue", 0),
        ("It is no longer held", 0),
    ],
)
def test_habits_are_found(text: str, habits: int) -> None:
    assert len(list(habits_in(text))) == habits


def test_docstrings_comments_and_messages_are_read_and_the_line_is_told(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""A module.\n\nWho reads it.\n"""\n'
        "nobody = 1  # The name is the code's, not a sentence.\n"
        "# A comment. And its second line\n"
        "# ends a sentence. What follows.\n"
        'raise ValueError(f"{nobody} is nobody")\n'
    )
    assert [line for line, _ in sorted(habits_of(module))] == [3, 7, 8]


def test_a_count_that_rose_names_the_sentences_and_one_that_fell_names_the_number_to_lower() -> None:
    rose = wrong({"core": ["a.py:1: anew", "a.py:2: anew"]}, {"core": 1})
    assert rose == ["a.py:1: anew", "a.py:2: anew", "core: 2 habits, 1 allowed: reword yours (above)"]
    (fell,) = wrong({"core": ["a.py:1: anew"]}, {"core": 2, "sqs": 0})
    assert fell.startswith("core: 1 habits, 2 allowed: lower the number in ")
    assert len(wrong({}, {"gone": 1})) == 1
