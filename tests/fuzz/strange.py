"""Strange values for what reads values of strangers: close to good ones, damaged, or of any kind; and who told of them.

A target is a test by hypothesis whose arguments all come from strategies. So `make test` runs it with the same examples
each time, and `make fuzz` with examples that reach new code (``__main__.py``).
"""

from __future__ import annotations

import copy
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CONTENT: Final = "qZ7vContentOfTheMessage"
"""Part of each body, attribute and receipt handle here: it must be in no log line and no error."""

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Exception)


def examples(count: int) -> settings:
    """The settings of a target: the same examples each time, however slow the machine is.

    Args:
        count: How many examples.
    """
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )


CONTENTS: Final = st.builds("{}{}{}".format, st.text(max_size=3), st.just(CONTENT), st.text(max_size=3))
"""Texts that tell something of a message."""

_DEEP: Final = st.sampled_from(
    [[[]] * 3, json.loads("[" * 150 + "]" * 150), json.loads('{"a":' * 150 + "1" + "}" * 150)]
)

_SCALARS: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**31, -(2**63), 2**64, 10**18, 10**30, -(10**400)]),
    st.floats(),
    CONTENTS,
    st.text(max_size=4),
    st.sampled_from(["", "0", "-1", "1e999", "9" * 30, "9" * 5_000, "NaN", "\x00", "\ud800", "null", "{}", "a/b"]),
)

ANYTHING: Final[st.SearchStrategy[Any]] = st.one_of(
    _SCALARS,
    st.lists(_SCALARS, max_size=3),
    st.dictionaries(st.text(max_size=3) | CONTENTS, _SCALARS, max_size=3),
    st.dictionaries(st.text(max_size=3), st.lists(_SCALARS, max_size=2), max_size=2),
    _DEEP,
)
"""Any value that JSON, as Python reads it, has a notation for."""


@st.composite
def near(draw: st.DrawFn, good: Any, *, changes: int = 3) -> Any:
    """A value that differs from a good one in a few places, or in none.

    Args:
        draw: Hypothesis's.
        good: The value, of mappings, lists and scalars; it is copied.
        changes: The most places.
    """
    holder = {"": copy.deepcopy(good)}
    for _ in range(draw(st.integers(0, changes))):
        places = list(_places(holder))
        container, key = places[draw(st.integers(0, len(places) - 1))]
        match draw(st.integers(0, 5)):
            case 0 if container is not holder:
                del container[key]
            case 1 if isinstance(container, list):
                container.insert(key, _drawn(draw))
            case 1:
                container[draw(st.text(max_size=8))] = _drawn(draw)
            case 2 if isinstance(container, list):
                # Something that is named twice.
                container.append(copy.deepcopy(container[key]))
            case 3:
                container[key] = [container[key]]
            case _:
                container[key] = _drawn(draw)
    return holder[""]


def _drawn(draw: st.DrawFn) -> Any:
    # Some are the same object each time, and the next change would change that.
    return copy.deepcopy(draw(ANYTHING))


def _places(container: Any) -> Iterator[tuple[Any, Any]]:
    """All places in a value, as containers with a key; mappings in the order in which they were made."""
    for key, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
        yield container, key
        if isinstance(value, dict | list) and len(value) < 50:
            yield from _places(value)


@st.composite
def damaged(draw: st.DrawFn, good: bytes, *, changes: int = 3) -> bytes:
    """Bytes that differ from good ones in a few places, or in none; or end early."""
    content = good
    for _ in range(draw(st.integers(0, changes))):
        at = draw(st.integers(0, len(content)))
        match draw(st.integers(0, 3)):
            case 0:
                content = content[:at]
            case 1:
                content = content[:at] + draw(st.binary(max_size=8)) + content[at:]
            case 2:
                content = content[:at] + content[at + draw(st.integers(1, 40)) :]
            case _:
                content = content[:at] + draw(st.binary(min_size=1, max_size=8)) + content[at + 1 :]
    return content


def json_near(good: Any, *, changes: int = 3) -> st.SearchStrategy[bytes]:
    """JSON text that is close to a good one: of another value, or damaged as a text."""
    written = json.dumps(good).encode()
    return st.one_of(
        near(good, changes=changes).map(lambda value: json.dumps(value).encode()),
        damaged(written, changes=changes),
        st.sampled_from([b"", b"[]", b'"', b"null", b"\xff\xfe", b"[" * 5_000, b'{"a":' * 5_000, b"0" * 5_000]),
        st.binary(max_size=20),
    )


def outcome_of(call: Callable[[], _T], *documented: type[_E]) -> _T | _E:
    """Call something that gets no contents.

    Args:
        call: What to call.
        documented: The errors that it may raise; any other fails the test.

    Returns:
        The value that it returned, or the error.
    """
    try:
        return call()
    except documented as error:
        return error


def said_by(call: Callable[[], _T], *documented: type[_E]) -> _T | _E:
    """Call something, and check that nothing that it logs or raises tells of contents.

    Args:
        call: What to call.
        documented: The errors that it may raise; any other fails the test.

    Returns:
        The value that it returned, or the error.
    """
    with discreet() as texts:
        found = outcome_of(call, *documented)
        if isinstance(found, Exception):
            texts += ["".join(traceback.format_exception(found)), repr(found)]
    return found


@contextmanager
def discreet() -> Iterator[list[str]]:
    """Check that no line that is logged in the block tells of contents; nor any text that the block adds."""
    log = _Log()
    root, ours = logging.getLogger(), logging.getLogger("sqs_lease")
    level = ours.level
    ours.setLevel(logging.DEBUG)
    root.addHandler(log)
    try:
        yield log.texts
    finally:
        root.removeHandler(log)
        ours.setLevel(level)
    for text in log.texts:
        assert CONTENT not in text, f"it tells of contents: {text}"


class _Log(logging.Handler):
    """Keeps what is logged, as it would be printed."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # The libraries' own lines for debugging print whole answers.
        if record.levelno >= logging.INFO or record.name.startswith("sqs_lease"):
            self.texts.append(self.format(record))
