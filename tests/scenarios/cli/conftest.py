"""Shared by the scenarios of the command and its other tests: a real SQS server behind a wire."""

from __future__ import annotations

from tests.cli.conftest import ground, wire

__all__ = ["ground", "wire"]
