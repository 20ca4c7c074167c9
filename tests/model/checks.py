"""The checks of the model: which faults and actions together, and with which of them each rule is missed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that is taken out.

    Attributes:
        name: Its name after ``WITHOUT_`` in the model.
        defines: The faults and actions with which the model must have a counterexample then.
    """

    name: str
    defines: Mapping[str, int]


def _defines(**defines: int) -> Mapping[str, int]:
    return MappingProxyType(defines)


NOTHING: Final = _defines()
CRASH: Final = _defines(CRASHES=1)
STALL: Final = _defines(STALLS=1)
MARK: Final = _defines(MARKS=1)
KEEPER_CLEAR: Final = _defines(KEEPER_CLEARS=1)
KEEPER_CLEAR_AND_MARK: Final = _defines(KEEPER_CLEARS=1, MARKS=1)
RUN_CLEAR: Final = _defines(RUN_CLEARS=1, MESSAGES=1)
TIMEOUT: Final = _defines(TIMEOUTS=1)
STALL_AND_MARK: Final = _defines(STALLS=1, MARKS=1)

CONFIGURATIONS: Final = (
    NOTHING,
    CRASH,
    _defines(CRASHES=2),
    STALL,
    STALL_AND_MARK,
    MARK,
    _defines(MARKS=1, CRASHES=1),
    KEEPER_CLEAR,
    _defines(KEEPER_CLEARS=1, CRASHES=1),
    KEEPER_CLEAR_AND_MARK,
    TIMEOUT,
    _defines(TIMEOUTS=1, CRASHES=1),
    _defines(TIMEOUTS=1, KEEPER_CLEARS=1),
    _defines(TIMEOUTS=1, MARKS=1),
    RUN_CLEAR,
    _defines(RUN_CLEARS=1, MESSAGES=1, CRASHES=1),
    _defines(RUN_CLEARS=1, MESSAGES=1, MARKS=1),
    _defines(RUN_CLEARS=1, MESSAGES=1, KEEPER_CLEARS=1),
)
"""Each is searched for all of its states."""

RULES: Final = (
    Rule("NOTE_BEFORE_THE_CALL", CRASH),
    Rule("WAITING_FOR_EXTENSIONS", NOTHING),
    Rule("RELEASING_ONCE", NOTHING),
    Rule("MARGIN_FOR_A_RELEASE", NOTHING),
    Rule("KEEPING_WHAT_LAPSED", CRASH),
    Rule("QUIET_AFTER_A_STALL", STALL),
    Rule("STAYING_OUT_AFTER_A_STALL", STALL_AND_MARK),
    Rule("EXTENDING_FOR_THE_NEXT_HOLDER", NOTHING),
    Rule("NOTES_OUTLIVE_TRIES", KEEPER_CLEAR),
    Rule("NOTE_OF_GIVING_BACK", KEEPER_CLEAR_AND_MARK),
    Rule("GIVING_BACK_WHAT_ENDED", MARK),
    Rule("WATCHING_FOR_CLEARS", RUN_CLEAR),
    Rule("NOTES_NAME_THEIR_BATCH", RUN_CLEAR),
)


def named(defines: Mapping[str, int]) -> str:
    """Name the things that may happen, for people: ``1 crash, 1 mark``."""
    told = [f"{count} {_WORDS[name]}{'' if count == 1 else _PLURALS[name]}" for name, count in defines.items()]
    return ", ".join(told) if told else "nothing"


_WORDS: Final = {
    "CRASHES": "crash",
    "STALLS": "stall",
    "MARKS": "mark",
    "KEEPER_CLEARS": "cleared keeper",
    "RUN_CLEARS": "cleared run",
    "TIMEOUTS": "time-out",
    "MESSAGES": "message",
}
_PLURALS: Final = dict.fromkeys(_WORDS, "s") | {"CRASHES": "es"}
