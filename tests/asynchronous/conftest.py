"""Shared by the tests of `async with async_lease(...)` and of `with lease(...)`."""

from __future__ import annotations

from tests.blocking.conftest import orders

__all__ = ["orders"]
