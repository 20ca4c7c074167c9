"""The origins of code locations and of what is in them; early releases of Dagster 1.11 have them in another module."""

from __future__ import annotations

try:
    from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
except ModuleNotFoundError:
    from dagster._core.remote_representation.origin import (  # type: ignore[no-redef,import-not-found]
        InProcessCodeLocationOrigin,
        RemoteJobOrigin,
        RemoteRepositoryOrigin,
    )

__all__ = ["InProcessCodeLocationOrigin", "RemoteJobOrigin", "RemoteRepositoryOrigin"]
