"""Measurement of a Parquet file before it is decoded: how many rows at a time fit into memory, or why it is refused.

The header of a page has the page's size after decompression, and Arrow allocates that and no more. But with the
encodings a few bytes can stand for many values: a long string in a dictionary that is used a million times; a string
that repeats the one before it (DELTA_BYTE_ARRAY); a run of nulls. The sizes in the footer need not be true, so they are
ignored. The headers of all pages are read here, and give a bound for the memory of decoding:

- The largest page and the dictionary of each column are in memory at the same time as those of all other columns.
- A column without lists has as many values in a batch as there are rows. So the number of rows is chosen by the longest
  possible value.
- A list may have all values of its row group in one row. So all of them must fit.
- The footer may ask Arrow for lists of a fixed size: a null then stands for as many values as that.

The format: "Data Pages" and ``parquet.thrift`` of Apache Parquet; headers are in Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from sqs_lease.spark.sources.s3_events.allowance import Allowance, OverAllowanceError
from sqs_lease.spark.sources.s3_events.contents import BadContentError

MEMORY_BYTES: Final = 512 * 1024 * 1024
"""The most memory for decoding one file: its open pages, and lists."""

BATCH_BYTES: Final = 64 * 1024 * 1024
"""The most memory for the rows that are decoded together."""

MOST_COLUMNS: Final = 10_000
"""The most columns of a file, at every depth."""

_FOOTER_BYTES: Final = 8 * 1024 * 1024
_TAIL_BYTES: Final = 8
_MAGIC: Final = b"PAR1"
_HEADER_BYTES: Final = 4 * 1024
_LONGEST_HEADER_BYTES: Final = 1024 * 1024
# Longer dictionaries are not read: their longest value counts as the whole dictionary.
_READ_DICTIONARY_BYTES: Final = 8 * 1024 * 1024
_SHORT_BYTES: Final = 64
# The bytes of one value besides its content: two levels, and in a list an offset.
_OF_EACH_VALUE: Final = 4
_OF_EACH_LIST: Final = 4
# A string has an offset; a decimal takes up to 32 bytes, however it is stored.
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 8}
_DECIMAL_BYTES: Final = 32

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_DESCRIBED_IN: Final = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}
_DICTIONARY_ENCODINGS: Final = frozenset({2, 8})
_DELTA_BYTE_ARRAY: Final = 7
_DAMAGED: Final = "not Parquet, or damaged"
_CODECS: Final = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}


@dataclass(frozen=True, slots=True)
class _Page:
    kind: int
    size: int
    compressed: int
    values: int
    encoding: int
    content_at: int


def require_small_footer(file: IO[bytes]) -> None:
    """Refuse a file whose footer alone would fill the memory. It changes the position in the file.

    Raises:
        OverAllowanceError: The footer is too long.
    """
    end = file.seek(0, 2)
    file.seek(max(0, end - _TAIL_BYTES))
    tail = file.read(_TAIL_BYTES)
    if tail.endswith(_MAGIC) and int.from_bytes(tail[:4], "little") > _FOOTER_BYTES:
        raise OverAllowanceError(f"the file's footer is longer than {_FOOTER_BYTES} bytes")


def rows_at_once(
    file: IO[bytes], metadata: Any, group: int, columns: pa.Schema, most_rows: int, allowance: Allowance
) -> int:
    """Return how many rows of a row group may be decoded together.

    Args:
        file: The file.
        metadata: Its ``pyarrow.parquet.FileMetaData``.
        group: The number of the row group.
        columns: The columns that are read, with the types that Arrow reads them as.
        most_rows: The largest answer.
        allowance: The limits of the message; its time ends a file with endless pages.

    Raises:
        BadContentError: The header of a page cannot be read.
        OverAllowanceError: Even one row may not fit into memory, or there are pages without end.
    """
    described = metadata.row_group(group)
    held = of_a_row = 0
    for number in range(described.num_columns):
        chunk, leaf = described.column(number), metadata.schema.column(number)
        kinds = [its.type for its in columns if leaf.path == its.name or leaf.path.startswith(f"{its.name}.")]
        if not kinds:
            continue
        width = _OF_EACH_VALUE + _OF_EACH_LIST * leaf.max_repetition_level + _value_bytes(leaf)
        longest = largest = dictionary = expanded = 0
        in_dictionary = 0
        for page in _pages(file, chunk):
            allowance.look_at_the_clock()
            if page.kind == _DICTIONARY_PAGE:
                dictionary += page.size
                if leaf.physical_type == "BYTE_ARRAY":
                    in_dictionary = max(in_dictionary, _longest_value(file, page, chunk.compression))
                continue
            largest = max(largest, page.size, page.compressed if chunk.compression == "UNCOMPRESSED" else 0)
            if page.encoding in _DICTIONARY_ENCODINGS:
                of_value, of_page = in_dictionary, page.values * in_dictionary
            elif page.encoding == _DELTA_BYTE_ARRAY:
                of_value, of_page = page.size, page.values * page.size
            elif leaf.physical_type == "BYTE_ARRAY":
                of_value, of_page = -(-page.size // max(page.values, 1)), page.size
            else:
                of_value, of_page = 0, 0  # counted in the width
            longest = max(longest, of_value)
            expanded += of_page + page.values * width
        held += largest + dictionary
        size = max(map(_fixed_size, kinds))
        if leaf.max_repetition_level == 0 or all(map(_has_no_other_list, kinds)):
            of_a_row += size * (longest + width)
        else:
            held += size * expanded
    if held + of_a_row > MEMORY_BYTES:
        raise OverAllowanceError(
            f"row group {group + 1} takes more than {MEMORY_BYTES} bytes of memory to decode: write smaller pages, and "
            "smaller row groups where there are lists"
        )
    return max(1, min(most_rows, BATCH_BYTES // max(of_a_row, 1)))


def _value_bytes(leaf: Any) -> int:
    """Return the bytes of one value of a column in Arrow, without those of a string."""
    if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return max(int(leaf.length), _DECIMAL_BYTES)
    return _DECIMAL_BYTES if leaf.logical_type.type == "DECIMAL" else _WIDTHS[leaf.physical_type]


def _fixed_size(kind: pa.DataType) -> int:
    """Return how many values a value can have because of lists of a fixed size, along its largest branch."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    inner = max((_fixed_size(kind.field(number).type) for number in range(kind.num_fields)), default=1)
    return inner * max(1, kind.list_size) if pa.types.is_fixed_size_list(kind) else inner


def _has_no_other_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of a fixed size with single values, so that each row has equally many."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return bool(pa.types.is_fixed_size_list(kind) and kind.value_field.type.num_fields == 0)


def _pages(file: IO[bytes], chunk: Any) -> Iterator[_Page]:
    """Yield the pages of a column in a row group, as Arrow finds them."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < at:
        at = chunk.dictionary_page_offset
    end, seen = at + chunk.total_compressed_size, 0
    while at < end and seen < chunk.num_values:
        page = _page(file, at)
        at = page.content_at + page.compressed
        if page.kind in (_DATA_PAGE, _DATA_PAGE_V2):
            seen += page.values
            yield page
        elif page.kind == _DICTIONARY_PAGE:
            yield page


def _page(file: IO[bytes], at: int) -> _Page:
    size = _HEADER_BYTES
    while True:
        file.seek(at)
        data = file.read(size)
        try:
            header, length = _structure(data, 0)
            break
        except IndexError:
            if len(data) < size or size >= _LONGEST_HEADER_BYTES:
                raise BadContentError(_DAMAGED) from None
            size *= 16
    kind, whole, compressed = (header.get(field, -1) for field in (1, 2, 3))
    described = header.get(_DESCRIBED_IN.get(kind, 0), {}) if isinstance(kind, int) else None
    if not isinstance(described, dict):
        raise BadContentError(_DAMAGED)
    values, encoding = described.get(1, 0), described.get(4 if kind == _DATA_PAGE_V2 else 2, 0)
    if any(not isinstance(number, int) or number < 0 for number in (kind, whole, compressed, values, encoding)):
        raise BadContentError(_DAMAGED)
    return _Page(kind, whole, compressed, values, encoding, content_at=at + length)


def _longest_value(file: IO[bytes], page: _Page, compression: str) -> int:
    """Return the length of the longest string of a dictionary, or the longest possible length."""
    at_most = max(0, page.size - 4 * page.values)
    if page.size > _READ_DICTIONARY_BYTES or at_most <= _SHORT_BYTES:
        return at_most
    file.seek(page.content_at)
    content = file.read(page.compressed)
    if compression != "UNCOMPRESSED":
        try:
            content = pa.decompress(
                content, decompressed_size=page.size, codec=_CODECS.get(compression, compression.lower()), asbytes=True
            )
        except (pa.ArrowException, ValueError):
            # The framing is known only to Arrow's reader, or the page is damaged, which that reader reports.
            return at_most
    longest = at = 0
    for _ in range(page.values):
        length = int.from_bytes(content[at : at + 4], "little")
        longest = max(longest, length)
        at += 4 + length
        if at >= len(content):
            break
    return min(longest, at_most)


def _structure(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Parse a Thrift structure: return its numbers and structures by the numbers of their fields, and its end."""
    if depth > 8:
        raise BadContentError(_DAMAGED)
    found: dict[int, Any] = {}
    field = 0
    while (byte := data[at]) != 0:
        at += 1
        kind, step = byte & 0x0F, byte >> 4
        if step:
            field += step
        else:
            field, at = _number(data, at)
        match kind:
            case 1 | 2:
                pass
            case 3:
                at += 1
            case 4 | 5 | 6:
                found[field], at = _number(data, at)
            case 7:
                at += 8
            case 8:
                length, at = _variable(data, at)
                at += length
            case 12:
                found[field], at = _structure(data, at, depth + 1)
            case _:
                raise BadContentError(_DAMAGED)
    return found, at + 1


def _variable(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise BadContentError(_DAMAGED)


def _number(data: bytes, at: int) -> tuple[int, int]:
    value, at = _variable(data, at)
    return (value >> 1) ^ -(value & 1), at
