"""What the tests of `async with async_lease(...)` share with those of `with lease(...)`."""

from __future__ import annotations

from tests.blocking.conftest import orders

__all__ = ["orders"]
