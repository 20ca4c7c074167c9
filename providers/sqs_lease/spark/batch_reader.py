"""Batch files as a DataFrame: a data source of Spark's, for looking at the messages of a batch in a notebook.

It reads what :mod:`sqs_lease.batch_files.manifest` writes, and changes nothing. Each row group of a file, of up to
10 000 messages, is a partition of its own. The rows reach Spark as Arrow record batches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pafs  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sqs_lease.batch_files.manifest import ManifestError, manifest_header, opened_manifest
from sqs_lease.core.messages import attributes_from_plain
from sqs_lease.spark.schemas import arrow_schema

FORMAT: Final = "sqs_lease"
"""The name of the data source: ``spark.read.format("sqs_lease")``."""

_PATH: Final = "path"
_S3: Final = "s3://"
_FILE: Final = "file://"
_SUFFIX: Final = ".parquet"
_ROWS_AT_ONCE: Final = 1_000
_BATCH_ID: Final = "batch_id"
_QUEUE_URL: Final = "queue_url"
_ATTRIBUTES: Final = "attributes"
_MESSAGE_ATTRIBUTES: Final = "message_attributes"

_MESSAGE_ATTRIBUTE: Final = StructType(
    [
        StructField("DataType", StringType()),
        StructField("StringValue", StringType()),
        StructField("BinaryValue", BinaryType()),
    ]
)
_COLUMNS: Final = StructType(
    [
        StructField(_BATCH_ID, StringType()),
        StructField(_QUEUE_URL, StringType()),
        StructField("message_id", StringType()),
        StructField("body", StringType()),
        StructField("sent_at", TimestampType()),
        StructField("receive_count", IntegerType()),
        StructField(_ATTRIBUTES, MapType(StringType(), StringType())),
        StructField(_MESSAGE_ATTRIBUTES, MapType(StringType(), _MESSAGE_ATTRIBUTE)),
        StructField("not_json", StringType()),
    ]
)


class BatchDataSource(DataSource):
    """The messages of batch files, for ``spark.read.format("sqs_lease")``.

    A session knows it after ``spark.dataSource.register(BatchDataSource)``. The one option is the path, that of
    ``load(path)``: a batch file, or a directory, of which all files below it that end in ``.parquet`` are read. All
    executors reach it by this path; ``s3://bucket/key`` is reached as pyarrow reaches it, with the credentials of the
    environment. The executors need ``sqs-lease[spark]``.

    The columns, of which ``schema(...)`` may choose some:

    - ``batch_id`` and ``queue_url``: the file's batch, empty where its writer did not say;
    - ``message_id``, ``body``, ``sent_at``, ``receive_count``;
    - ``attributes``: the service's own attributes, a map of texts;
    - ``message_attributes``: the sender's, a map of ``DataType``, ``StringValue`` and ``BinaryValue``;
    - ``not_json``: why the body is not one JSON object; null if it is one.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """All columns."""
        return _COLUMNS

    def reader(self, schema: StructType) -> BatchReader:
        """Check the options and the columns.

        Raises:
            ValueError: There is no path, an option is unknown, or a column is.
        """
        _check(schema)
        return BatchReader(_path_of(self.options), schema)


@dataclass(frozen=True)
class RowGroup(InputPartition):
    """One partition."""

    path: str
    number: int


@dataclass(frozen=True)
class BatchReader(DataSourceReader):
    """Reads one file or directory."""

    path: str
    columns: StructType

    def partitions(self) -> list[InputPartition]:
        """The row groups of all files.

        Raises:
            FileNotFoundError: There is no such file.
            ManifestError: A file is not a batch file.
        """
        found: list[InputPartition] = []
        for path in _files(self.path):
            with _opened(path) as file:
                found += [RowGroup(path, number) for number in range(file.num_row_groups)]
        return found

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The messages of a row group; none where there is no message at all, of which Spark asks once."""
        if not isinstance(partition, RowGroup):
            return
        with _opened(partition.path) as file:
            header = manifest_header(partition.path, file.schema_arrow.metadata)
            stored = [name for name in self.columns.names if name not in (_BATCH_ID, _QUEUE_URL)]
            # Where no column of the file itself is wanted, its rows are still to be counted.
            for rows in file.iter_batches(
                _ROWS_AT_ONCE, row_groups=[partition.number], columns=stored or ["receive_count"], use_threads=False
            ):
                try:
                    yield _messages(rows, header, self.columns)
                except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
                    # Not the error itself: it may quote a message.
                    raise ManifestError(f"{partition.path} has a row that is not a message") from None


def _messages(rows: pa.RecordBatch, header: Mapping[str, Any], wanted: StructType) -> pa.RecordBatch:
    columns = []
    schema = arrow_schema(wanted)
    for name in wanted.names:
        if name in (_BATCH_ID, _QUEUE_URL):
            columns.append(pa.repeat(str(header.get(name, "")), rows.num_rows))
        elif name == _ATTRIBUTES:
            given = rows.column(name).to_pylist()
            columns.append(pa.array([list(json.loads(text).items()) for text in given], schema.field(name).type))
        elif name == _MESSAGE_ATTRIBUTES:
            columns.append(pa.array([_values(text) for text in rows.column(name).to_pylist()], schema.field(name).type))
        else:
            columns.append(rows.column(name))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _values(text: str | None) -> list[tuple[str, dict[str, Any]]]:
    if text is None:
        return []
    attributes = attributes_from_plain(json.loads(text))
    return [
        (name, {part: attribute.get(part) for part in _MESSAGE_ATTRIBUTE.names})
        for name, attribute in attributes.items()
    ]


def _path_of(options: Mapping[str, str]) -> str:
    unknown = [name for name in options if name.lower() != _PATH]
    if unknown:
        raise ValueError(
            f"the format {FORMAT} has no option {', '.join(sorted(unknown))}: its only one is the path of a batch "
            "file, or of a directory of them, which load() takes"
        )
    path = options.get(_PATH, "").strip()
    if not path:
        raise ValueError(
            f'the format {FORMAT} needs the path of a batch file, or of a directory of them: .load("/data/batch")'
        )
    if "://" in path and not path.startswith((_S3, _FILE)):
        raise ValueError(f"{path} is neither a path nor an address on S3: give /path, file:///path or s3://bucket/key")
    return path


def _check(schema: StructType) -> None:
    for field in schema.fields:
        if field.name not in _COLUMNS.names:
            raise ValueError(f"batch files have no column {field.name}: they have {', '.join(_COLUMNS.names)}")
        kind = _COLUMNS[field.name].dataType
        if field.dataType != kind:
            raise ValueError(
                f"column {field.name} of batch files is {kind.simpleString()}, not {field.dataType.simpleString()}"
            )


def _files(path: str) -> list[str]:
    """The batch files at a path."""
    system, place = _file_system(path)
    found = system.get_file_info(place)
    if found.type == pafs.FileType.NotFound:
        raise FileNotFoundError(f"there is no batch file at {path}: it is gone, or executors reach another disk")
    if found.type != pafs.FileType.Directory:
        return [path]
    below = system.get_file_info(pafs.FileSelector(place, recursive=True))
    prefix = _S3 if path.startswith(_S3) else ""
    return sorted(f"{prefix}{one.path}" for one in below if one.is_file and one.path.endswith(_SUFFIX))


@contextmanager
def _opened(path: str) -> Iterator[pq.ParquetFile]:
    system, place = _file_system(path)
    with system.open_input_file(place) as opened, opened_manifest(opened, name=path) as file:
        yield file


def _file_system(path: str) -> tuple[Any, str]:
    if path.startswith(_S3):
        bucket, _, key = path.removeprefix(_S3).partition("/")
        # A connection of Airflow's may stand before the bucket.
        return _s3(), f"{bucket.rpartition('@')[2]}/{key}".rstrip("/")
    local = unquote(urlsplit(path).path) if path.startswith(_FILE) else path
    return pafs.LocalFileSystem(), str(Path(local).absolute())


def _s3() -> Any:
    """S3 as the environment says, also where that names another server, which pyarrow does not look for by itself."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        return pafs.S3FileSystem()
    address = urlsplit(endpoint)
    return pafs.S3FileSystem(endpoint_override=address.netloc, scheme=address.scheme)
