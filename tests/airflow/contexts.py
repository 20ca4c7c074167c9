"""The context that Airflow gives to a task, as far as a test needs one."""

from __future__ import annotations

from typing import Any, cast

from airflow.sdk import Context


def context_of(task_instance: Any, **more: Any) -> Context:
    """A context with a stand-in for the task instance."""
    return cast("Context", {"ti": task_instance, **more})
