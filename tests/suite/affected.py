"""The test files that belong to files that changed: `make check` runs them.

A test file belongs to a module when it imports something from it: directly, through the helpers beside the tests, or
through an `__init__` that only passes names on. A module that no test imports belongs to the tests of the modules that
import it. Further than to the nearest tests nothing is followed: nearly everything leads to the ledger in the end, and
`make test` runs everything. A file that is not a module (a page, a configuration) belongs to the tests that name it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

SOURCE_ROOTS: Final = ("providers", "")
"""Where modules are looked for, below the checkout."""


class SourceTree:
    """The Python files of a checkout, and what they import of one another.

    Args:
        root: The checkout.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._texts: dict[Path, str] = {}
        self.imports = cache(self._imports)
        self.near = cache(self._near)
        self.reached = cache(self._reached)
        self.modules = cache(self._modules)

    def tests_of(self, file: Path, candidates: Sequence[Path]) -> set[Path]:
        """The test files that are nearest to a file that changed.

        Args:
            file: The file, relative to the checkout; it may be gone.
            candidates: The test files to choose from, relative to the checkout.
        """
        if file.suffix != ".py":
            name = re.compile(rf"(?<![\w.-]){re.escape(file.name)}(?![\w-])")
            return {test for test in candidates if any(name.search(self._text(near)) for near in self.near(test))}
        seen, level = {file}, {file}
        while level:
            if found := {test for test in candidates if not level.isdisjoint(self.reached(test))}:
                return found
            level = {importer for importer in self.modules() if not level.isdisjoint(self.imports(importer))} - seen
            seen |= level
        return set()

    def _modules(self) -> list[Path]:
        """All modules of the package."""
        return [path.relative_to(self._root) for path in (self._root / "providers").rglob("*.py")]

    def _reached(self, test: Path) -> set[Path]:
        """A test file, the helpers that it needs, and the modules from which these import."""
        near = self.near(test)
        return near.union(*(self.imports(file) for file in near))

    def _near(self, test: Path) -> set[Path]:
        """A test file, the `conftest.py` above it, and the helpers among the tests that these import."""
        found = {test, *(path for parent in test.parents if self._is_file(path := parent / "conftest.py"))}
        left = list(found)
        while left:
            for imported in self.imports(left.pop()):
                if imported.parts[0] == "tests" and imported not in found:
                    found.add(imported)
                    left.append(imported)
        return found

    def _imports(self, file: Path) -> frozenset[Path]:
        """The files from which a file imports something."""
        return frozenset(target for module, name in _imported(self._text(file)) for target in self._files(module, name))

    def _files(self, module: str, name: str | None) -> Iterator[Path]:
        """The file of a module, or where a name comes from that a package passes on."""
        if name is not None and (inner := self._file_of(f"{module}.{name}")) is not None:
            yield inner
            return
        file = self._file_of(module)
        if file is None:
            return
        if file.name == "__init__.py" and name is not None:
            for origin, passed_on in _imported(self._text(file)):
                if passed_on == name and origin != module:
                    yield from self._files(origin, name)
                    return
        yield file

    def _file_of(self, module: str) -> Path | None:
        for source_root in SOURCE_ROOTS:
            path = Path(source_root, *module.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if self._is_file(file):
                    return file
        return None

    def _is_file(self, file: Path) -> bool:
        return (self._root / file).is_file()

    def _text(self, file: Path) -> str:
        if file not in self._texts:
            self._texts[file] = (self._root / file).read_text()
        return self._texts[file]


def _imported(source: str) -> Iterator[tuple[str, str | None]]:
    """The modules that a source imports (None), and the names that it imports from modules."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return  # Format, lint and types say where.
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            for alias in node.names:
                yield node.module, alias.name
