"""Whether what manifests are written and read with is installed, asked before it is needed."""

from __future__ import annotations

from importlib.util import find_spec


def require_manifests(who: str, extras: str, otherwise: str = "") -> None:
    """Check that what :mod:`sqs_lease.batch_files.manifest` imports is installed.

    Args:
        who: What needs it, for the error.
        extras: The extras to install, for the error, e.g. ``airflow,manifest``.
        otherwise: What to do without it, for the error.

    Raises:
        ModuleNotFoundError: It is not.
    """
    if find_spec("pyarrow") is None:
        alternative = f", or {otherwise}" if otherwise else ""
        raise ModuleNotFoundError(
            f'{who} needs pyarrow wherever it runs: pip install "sqs-lease[{extras}]"{alternative}', name="pyarrow"
        )
