"""The check that pyarrow, which writes and reads manifests, is installed before it is needed."""

from __future__ import annotations

from importlib.util import find_spec


def require_manifests(who: str, extras: str, otherwise: str = "") -> None:
    """Check that the imports of :mod:`sqs_lease.batch_files.manifest` are installed.

    Args:
        who: The feature that needs them, for the error.
        extras: The extras to install, for the error, e.g. ``airflow,manifest``.
        otherwise: The alternative to an installation, for the error.

    Raises:
        ModuleNotFoundError: They are not installed.
    """
    if find_spec("pyarrow") is None:
        alternative = f", or {otherwise}" if otherwise else ""
        raise ModuleNotFoundError(
            f'{who} needs pyarrow wherever it runs: pip install "sqs-lease[{extras}]"{alternative}', name="pyarrow"
        )
