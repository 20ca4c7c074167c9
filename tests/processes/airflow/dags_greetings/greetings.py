"""A DAG for the tests of the Airflow stack: one task that returns a value, mapped ones, and one that fails."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import Variable, dag, task


@dag(start_date=datetime(2025, 1, 1, tzinfo=UTC), schedule=None)
def greetings() -> None:
    @task
    def names() -> list[str]:
        return ["Ada", "Grace", "Barbara"]

    @task(map_index_template="{{ name }}")
    def greet(name: str) -> str:
        greeting = f"Good morning from {Variable.get('city')}, {name}."
        print(greeting)  # noqa: T201 - looked for in the task's log
        return greeting

    @task
    def fail() -> None:
        raise ValueError("out of greetings")

    greet.expand(name=names()) >> fail()


greetings()
