"""Checks of the installed versions: whether this package supports them."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from typing import Final

from sqs_lease.cli.findings import Finding

_PACKAGE: Final = "sqs-lease"


def base_versions() -> Finding:
    """Return a finding with the versions that every host shares."""
    named = ", ".join(f"{name} {version(name)}" for name in (_PACKAGE, "boto3", "botocore"))
    return Finding.fine("versions", f"Python {platform.python_version()}, {named}")


def extra_versions(extra: str) -> Iterator[Finding]:
    """Yield findings about the versions of an extra's dependencies; a version out of bounds is a problem.

    Args:
        extra: The extra; its dependencies must be installed, :mod:`packaging` among them.
    """
    from packaging.requirements import Requirement

    fitting = []
    for line in requires(_PACKAGE) or ():
        needed = Requirement(line)
        if (
            needed.marker is None
            or not needed.marker.evaluate({"extra": extra})
            or needed.marker.evaluate({"extra": ""})
        ):
            continue
        try:
            installed = distribution(needed.name).version
        except PackageNotFoundError:
            installed = ""
        if installed and needed.specifier.contains(installed, prereleases=True):
            fitting.append(f"{needed.name} {installed}")
            continue
        yield Finding.harm(
            "versions",
            f"{needed.name} {installed} is installed" if installed else f"{needed.name} is not installed",
            why=f"sqs-lease[{extra}] is made for {needed.name}{needed.specifier}.",
            command=f'pip install "{_PACKAGE}[{extra}]"',
        )
    if fitting:
        yield Finding.fine("versions", ", ".join(fitting))
