"""Makes the source and the sinks of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from sqs_lease.ingestion.spec import Part, SpecError, with_environment
from sqs_lease.spark.sinks.sink import Sink
from sqs_lease.spark.sources.source import Source

SOURCE_CLASSES: Final[Mapping[str, str]] = {
    "json": "json.JsonSource",
    "text": "whole_bodies.TextSource",
    "variant": "whole_bodies.VariantSource",
    "s3-events": "s3_events.S3EventsSource",
    "extended-client": "s3_events.ExtendedClientSource",
    "sns": "sns.SnsEnvelope",
    "elements": "array_elements.ArrayElements",
    "attributes": "attribute_columns.AttributeColumns",
    "parser": "functions.ParserSource",
    "spark": "functions.SparkSource",
}
"""The classes in ``sqs_lease.spark.sources`` by the kind that a spec names."""

SINK_CLASSES: Final[Mapping[str, str]] = {
    "delta": "delta.sink.DeltaSink",
    "postgres": "postgres.sink.PostgresSink",
    "parquet": "parquet_sink.ParquetSink",
    "native-delta": "native_delta_sink.NativeDeltaSink",
    "iceberg": "iceberg_sink.IcebergSink",
}
"""The classes in ``sqs_lease.spark.sinks`` by the kind that a spec names."""


def make_source(part: Part, environment: Mapping[str, str]) -> Source[Any]:
    """Make the source of a spec.

    Args:
        part: The part of the spec.
        environment: What its ``{"env": ...}`` stand for.

    Raises:
        SpecError: A variable is not set, or a function cannot be found.
        SchemaError: Its schema cannot be used.
    """
    parameters = with_environment(part.parameters, environment)
    if "source" in parameters:
        inner = dict(parameters["source"])
        parameters["source"] = make_source(Part(inner.pop("kind"), inner), environment)
    if "function" in parameters:
        parameters["function"] = _function(parameters["function"])
    if "inferred_schema" in parameters:
        path = parameters.pop("inferred_schema")
        parameters["schema"] = class_named("sources", "pinned_schema.InferredSchema")(path)
    source: Source[Any] = class_named("sources", SOURCE_CLASSES[part.kind])(**parameters)
    return source


def make_sink(part: Part, environment: Mapping[str, str]) -> Sink:
    """Make a sink of a spec; see :func:`make_source`.

    Raises:
        SpecError: A variable is not set.
        TableError: It cannot be used.
    """
    parameters = with_environment(part.parameters, environment)
    for name in ("partition_by", "upsert_by"):
        if name in parameters:
            parameters[name] = tuple(parameters[name])
    sink: Sink = class_named("sinks", SINK_CLASSES[part.kind])(**parameters)
    return sink


def class_named(package: str, name: str) -> Any:
    """Import a class: a name of the two tables above, in the package ``sources`` or ``sinks``."""
    # Imported when it is asked for: each sink needs packages of its own.
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"sqs_lease.spark.{package}.{module}"), attribute)


def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SpecError(
            f"the function {name} of the source cannot be found ({error}): install its package where the job and the "
            "executors run, or add its directory to PYTHONPATH there"
        ) from error
