"""A mutant: one change of the package's code that breaks a promise, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "providers" / "sqs_lease"


class StaleMutantError(Exception):
    """A mutant's old text is not exactly once in its file: the code has changed since."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change.

    Attributes:
        name: The defect, in plain words.
        file: The file below ``providers/sqs_lease``.
        old: The text to replace: a part of the file that is in it exactly once.
        new: The text in its place.
        tests: The tests of which one must fail: files, or single tests as pytest names them.
        survives_because: For a change that no test can notice: why. It is run and shown, and fails nothing.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives_because: str = ""

    def applied(self) -> str:
        """Return the text of the file with the change.

        Raises:
            StaleMutantError: The old text is not in the file, or more than once.
        """
        text = (PACKAGE / self.file).read_text()
        if (count := text.count(self.old)) != 1:
            raise StaleMutantError(
                f"{self.name!r}: its old text is {count} times in {self.file}, and must be there once. The code has "
                f"changed: write the mutant again, so that it breaks the same promise. The old text is:\n{self.old}"
            )
        return text.replace(self.old, self.new)
