"""Each kind of source and sink that a spec names is made by its class, with the parameters that the spec takes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from demo.processes import ROOT
from sqs_lease import spark
from sqs_lease.ingestion.spec import SINKS, SOURCES, Kind, Part, SpecError
from sqs_lease.spark import DeltaSink, InferredSchema, JsonSource
from sqs_lease.spark.job.main import SINK_CLASSES, SOURCE_CLASSES, make_sink, make_source
from sqs_lease.spark.sources.functions import ParserSource
from sqs_lease.spark.sources.s3_events import S3EventsSource
from sqs_lease.spark.sources.sns import SnsEnvelope
from tests.spark.job.waiting_parser import wait_for_ever

PAGE = ROOT / "docs" / "spark-airflow.md"


def parameters_of(name: str) -> tuple[set[str], set[str]]:
    """What a class must be given, and what it may be given."""
    given = inspect.signature(getattr(spark, name)).parameters.values()
    required = {one.name for one in given if one.default is one.empty}
    return required, {one.name for one in given} - required


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_takes_what_its_class_takes(kind: str) -> None:
    required, optional = parameters_of(SOURCE_CLASSES[kind])
    if kind == "json":
        required, optional = set(), {*required, *optional, "inferred_schema"}
    assert (set(SOURCES[kind].required), set(SOURCES[kind].optional)) == (required, optional)


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink_takes_what_its_class_takes(kind: str) -> None:
    required, optional = parameters_of(SINK_CLASSES[kind])
    assert (set(SINKS[kind].required), set(SINKS[kind].optional)) == (required, optional)


@pytest.mark.parametrize(
    ("part", "made"),
    [
        (Part("json", {"schema": "id INT", "new_fields": "reject"}), JsonSource("id INT", new_fields="reject")),
        (
            Part("json", {"schema": "t TIMESTAMP", "dedupe_by": ["t"], "timestamp_units": {"t": "ms"}}),
            JsonSource("t TIMESTAMP", dedupe_by=["t"], timestamp_units={"t": "ms"}),
        ),
        (Part("json", {"inferred_schema": {"env": "PIN"}}), JsonSource(InferredSchema("/data/schema.json"))),
        (Part("sns", {"source": {"kind": "json", "schema": "id INT"}}), SnsEnvelope(JsonSource("id INT"))),
        (
            Part("s3-events", {"format": "csv", "schema": "id INT", "read": {"delimiter": ";"}}),
            S3EventsSource("csv", "id INT", read={"delimiter": ";"}),
        ),
        (
            Part("s3-events", {"format": "csv", "schema": "id INT", "clean_source": {"stored": {"env": "PIN"}}}),
            S3EventsSource("csv", "id INT", clean_source={"stored": "/data/schema.json"}),
        ),
        (
            Part("parser", {"function": "tests.spark.job.waiting_parser:wait_for_ever", "schema": "id INT"}),
            ParserSource(wait_for_ever, "id INT"),
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Part) else "",
)
def test_a_source_is_made_with_its_parameters(part: Part, made: Any) -> None:
    assert make_source(part, {"PIN": "/data/schema.json"}) == made


def test_a_sink_is_made_with_its_parameters() -> None:
    part = Part("delta", {"path": "/data", "partition_by": ["day"], "upsert_by": ["id"]})
    assert make_sink(part, {}) == DeltaSink("/data", partition_by=("day",), upsert_by=("id",))


@pytest.mark.parametrize("function", ["no_such_module:parse", "tests.spark.samples:no_such_function"])
def test_a_function_that_cannot_be_found_is_said(function: str) -> None:
    with pytest.raises(SpecError, match="add its directory to PYTHONPATH there"):
        make_source(Part("parser", {"function": function, "schema": "id INT"}), {})


def documented(page: Path) -> dict[str, set[str]]:
    """The parameters in the page's two tables, by kind."""
    found: dict[str, set[str]] = {}
    for kinds, parameters in re.findall(r"^\| (`[^|]*) \| (`[^|]*) \|$", page.read_text(), re.MULTILINE):
        for kind in re.findall(r"`([\w-]+)`", kinds):
            found[kind] = set(re.findall(r"`(\w+)`", parameters))
    return found


def test_the_page_names_the_parameters_of_each_kind() -> None:
    def names(kind: Kind) -> set[str]:
        return {*kind.required, *kind.optional}

    assert documented(PAGE) == {name: names(kind) for name, kind in {**SOURCES, **SINKS}.items()}
