"""The source and the sink of an ingestion as plain JSON values, which can be checked without Spark.

An orchestrator checks a spec when a pipeline is defined, hands it to a process that has Spark
(``python -m sqs_lease.spark.job``), and does not need Spark itself. For example::

    {
        "version": 1,
        "source": {"kind": "json", "schema": "order_id BIGINT NOT NULL, total DOUBLE"},
        "sink": {"kind": "delta", "path": "/data/orders", "partition_by": ["day"]},
        "rejects": {"kind": "delta", "path": "/data/rejected_orders"},
        "workspace": "/data/batches",
        "spark_conf": {"spark.sql.shuffle.partitions": "8"}
    }

``rejects`` and ``spark_conf`` may be left out. :data:`SOURCES` and :data:`SINKS` have the kinds and their parameters;
the classes of ``sqs_lease.spark`` that they stand for document these.

A spec is stored and shown, so it must not have secrets. ``{"env": "NAME"}`` may replace any string: it stands for an
environment variable of the process that has Spark. A password in plain text is refused.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

VERSION: Final = 1
"""The version of the format that is read."""

S3: Final = "s3://"
"""The beginning of a workspace on S3."""

_TEMPLATES: Final = ("{{", "{%", "{#")
# Names of secrets without what stands between their words. The id of an access key is none, but its key is.
_SECRET_NAME: Final = re.compile(
    r"secret|passw|passphrase|pwd|token|credential|accesskey(?!id)|accountkey|privatekey|apikey|sharedkey|encryptionkey"
)
# Shared access signatures of Azure.
_SIGNATURE_NAME: Final = re.compile(r"(^|[._-])(sas|sig)($|[._-])", re.IGNORECASE)
_BETWEEN_WORDS: Final = re.compile(r"[._-]")
# The ends of names that say where a secret is, or how it is found.
_OF_A_SECRET: Final = re.compile(r"(providers?|providerpath|file|path|enabled)$")
# In an address: all before the last @, which may have a slash in it.
_IN_ADDRESS: Final = re.compile(r"//[^/\s:@]*:[^@]+@")
# In an address, libpq's other notation ("host=... password=..."), JDBC's (";pwd=...") and options of Java ("-Dname=").
_NAMED: Final = re.compile(r"(?:^|[?&;,\s]|-D)([\w.-]+)\s*=")
_FUNCTION: Final = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
_NAMES: Final = ("version", "source", "sink", "rejects", "workspace", "spark_conf")


_REFUSED_ADDRESS: Final = (
    "{place} has a password in it, but a spec is stored and shown: leave the password to the environment (PGPASSWORD, "
    'a password file), or put the whole address into a variable and give {{"env": "NAME"}}'
)


class SpecError(ValueError):
    """Error for a spec that cannot be used; the text names the part and the remedy."""


@dataclass(frozen=True, slots=True)
class Part:
    """A source or a sink.

    Attributes:
        kind: A key of :data:`SOURCES` or :data:`SINKS`.
        parameters: By name, as they were given.
    """

    kind: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class IngestionSpec:
    """A spec that was checked.

    Attributes:
        source: The form of the messages.
        sink: The table of the records.
        workspace: Directory for the files of batches under way, an absolute path that the driver and all executors
            reach; or, if they do not share one, a place on S3 for the manifests and the result.
        rejects: The table for messages that are not valid records; None leaves them to the queue.
        spark_conf: Settings of the session, by name.
    """

    source: Part
    sink: Part
    workspace: str
    rejects: Part | None = None
    spark_conf: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, plain: object) -> IngestionSpec:
        """Check a spec.

        Strings with a template (``{{``, ``{%``) pass the checks of their content.

        Args:
            plain: The spec as JSON values.

        Raises:
            SpecError: A value is missing, unknown, of the wrong type, or a secret in plain text.
        """
        spec = _mapping(plain, "the spec")
        _check_names(spec, _NAMES, "the spec")
        if spec.get("version") != VERSION:
            raise SpecError(f"the spec has version {spec.get('version')!r}, and this release reads {VERSION}")
        for name in ("source", "sink", "workspace"):
            if name not in spec:
                raise SpecError(f"the spec has no {name!r}")
        workspace = spec["workspace"]
        if not isinstance(workspace, str) or not workspace.startswith(("/", S3, *_TEMPLATES)):
            raise SpecError(
                f"workspace must be the absolute path of a directory, or s3://bucket/..., not {workspace!r}"
            )
        _text(workspace, "workspace")
        conf = _mapping(spec.get("spark_conf", {}), "spark_conf")
        for name, value in conf.items():
            _settings_value(value, f"spark_conf[{name!r}]", name)
        return cls(
            _part(spec["source"], SOURCES, "source"),
            _part(spec["sink"], SINKS, "sink"),
            workspace,
            _part(spec["rejects"], SINKS, "rejects") if spec.get("rejects") is not None else None,
            conf,
        )

    @classmethod
    def parse_json(cls, text: str) -> IngestionSpec:
        """Check a spec that is JSON text.

        Raises:
            SpecError: As for :meth:`parse`, or it is not JSON.
        """
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError(f"the spec is not JSON: {error}") from None
        return cls.parse(plain)


def with_environment(value: Any, environment: Mapping[str, str]) -> Any:
    """Put the values of environment variables in place of ``{"env": "NAME"}``, at any depth.

    Raises:
        SpecError: The variable is not set.
    """
    if _is_reference(value):
        name = value["env"]
        if name not in environment:
            raise SpecError(f"the spec needs the environment variable {name}, and it is not set where the job runs")
        return environment[name]
    if isinstance(value, Mapping):
        return {key: with_environment(one, environment) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [with_environment(one, environment) for one in value]
    return value


Check: TypeAlias = Callable[[Any, str], None]
"""Check that raises a :class:`SpecError` for a wrong value of the parameter that the second argument names."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The parameters of one kind of source or sink.

    Attributes:
        required: Parameters that must be given.
        optional: Parameters that may be left out.
        one_of: Optional parameters of which exactly one must be given; empty without such parameters.
    """

    required: Mapping[str, Check] = field(default_factory=dict)
    optional: Mapping[str, Check] = field(default_factory=dict)
    one_of: tuple[str, ...] = ()


def _text(value: Any, place: str) -> None:
    if _is_reference(value):
        return
    if not isinstance(value, str) or not value:
        raise SpecError(f'{place} must be a string that is not empty, or {{"env": "NAME"}}, not {_shown(value)}')
    if _IN_ADDRESS.search(value):
        raise SpecError(_REFUSED_ADDRESS.format(place=place))


def _url(value: Any, place: str) -> None:
    _text(value, place)
    if isinstance(value, str) and _has_password(value):
        raise SpecError(_REFUSED_ADDRESS.format(place=place))


def _texts(value: Any, place: str) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SpecError(f"{place} must be a list of strings, not {_shown(value)}")
    for number, one in enumerate(value):
        _text(one, f"{place}[{number}]")


def _read(value: Any, place: str) -> None:
    limits = ("max_bytes", "max_content_bytes", "max_rows", "max_seconds", "spool_bytes")
    checks = {"delimiter": _text, **dict.fromkeys(("threads", "tasks", *limits), _number)}
    _check_names(_mapping(value, place), checks, place)
    for name, one in value.items():
        checks[name](one, f"{place}[{name!r}]")


def _number(value: Any, place: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(f"{place} must be a whole number, not {_shown(value)}")


def _options(value: Any, place: str) -> None:
    for name, one in _mapping(value, place).items():
        _text(one, f"{place}[{name!r}]")
        _settings_value(one, f"{place}[{name!r}]", name)


def _settings_value(value: Any, place: str, name: str) -> None:
    if not (_is_reference(value) or isinstance(value, str | bool | int | float)):
        raise SpecError(f'{place} must be a string, a number, true, false or {{"env": "NAME"}}, not {_shown(value)}')
    if _is_secret(name) and not (_is_reference(value) or isinstance(value, bool)) and value not in ("true", "false"):
        raise SpecError(f'{place} looks like a secret, but a spec is stored and shown: give {{"env": "NAME"}} instead')
    if isinstance(value, str) and _has_password(value):
        raise SpecError(f'{place} has a password in it, but a spec is stored and shown: give {{"env": "NAME"}} instead')


def _is_template(value: str) -> bool:
    return any(beginning in value for beginning in _TEMPLATES)


def _one_of(*choices: str) -> Check:
    def check(value: Any, place: str) -> None:
        _text(value, place)
        if isinstance(value, str) and value not in choices and not _is_template(value):
            raise SpecError(f"{place} must be one of {', '.join(choices)}, not {value!r}{_nearest(value, choices)}")

    return check


def _units(value: Any, place: str) -> None:
    for name, unit in _mapping(value, place).items():
        _one_of("s", "ms", "us")(unit, f"{place}[{name!r}]")


def _function(value: Any, place: str) -> None:
    _text(value, place)
    if isinstance(value, str) and not _is_template(value) and not _FUNCTION.match(value):
        raise SpecError(f"{place} must name a function as 'package.module:function', not {value!r}")


def _clean_source(value: Any, place: str) -> None:
    if _is_reference(value) or not isinstance(value, Mapping):
        _one_of("off", "delete")(value, place)
        return
    for name, tag in _mapping(value, place).items():
        _text(tag, f"{place}[{name!r}]")


def _source(value: Any, place: str) -> None:
    _part(value, SOURCES, place)


SOURCES: Final[Mapping[str, Kind]] = {
    "json": Kind(
        optional={
            "schema": _text,
            "inferred_schema": _text,
            "new_fields": _one_of("ignore", "reject", "add"),
            "dedupe_by": _texts,
            "timestamp_units": _units,
            "rescued": _text,
        },
        one_of=("schema", "inferred_schema"),
    ),
    "text": Kind(optional={"column": _text}),
    "variant": Kind(optional={"column": _text}),
    "s3-events": Kind(
        required={"format": _one_of("jsonl", "json", "csv", "parquet"), "schema": _text},
        optional={
            "path_columns": _text,
            "read": _read,
            "clean_source": _clean_source,
            "region": _text,
            "endpoint_url": _url,
        },
    ),
    "extended-client": Kind(
        required={"schema": _text}, optional={"read": _read, "region": _text, "endpoint_url": _url}
    ),
    "sns": Kind(required={"source": _source}),
    "elements": Kind(required={"source": _source}),
    "attributes": Kind(required={"source": _source, "attributes": _text}),
    "parser": Kind(required={"function": _function, "schema": _text}),
    "spark": Kind(required={"function": _function, "schema": _text}),
}
"""The sources of ``sqs_lease.spark`` by the name that a spec gives them."""

SINKS: Final[Mapping[str, Kind]] = {
    "delta": Kind(
        required={"path": _text},
        optional={"partition_by": _texts, "upsert_by": _texts, "storage_options": _options},
    ),
    "postgres": Kind(required={"url": _url, "table": _text}, optional={"upsert_by": _texts}),
    "parquet": Kind(required={"path": _text}),
    "native-delta": Kind(
        required={"table": _text},
        optional={"partition_by": _texts, "upsert_by": _texts, "ledger": _text},
    ),
    "iceberg": Kind(
        required={"table": _text, "ledger": _text},
        optional={"partition_by": _texts, "upsert_by": _texts},
    ),
}
"""The sinks of ``sqs_lease.spark`` by the name that a spec gives them."""


def _part(plain: Any, kinds: Mapping[str, Kind], place: str) -> Part:
    given = dict(_mapping(plain, place))
    name = given.pop("kind", None)
    if not isinstance(name, str) or name not in kinds:
        raise SpecError(f"{place} must have a 'kind' of {', '.join(kinds)}, not {name!r}{_nearest(name, kinds)}")
    kind = kinds[name]
    checks = {**kind.required, **kind.optional}
    where = f"{place} ({name})"
    _check_names(given, checks, where)
    if missing := [parameter for parameter in kind.required if parameter not in given]:
        raise SpecError(f"{where} needs {missing[0]!r}")
    if kind.one_of and sum(parameter in given for parameter in kind.one_of) != 1:
        raise SpecError(f"{where} needs exactly one of {', '.join(map(repr, kind.one_of))}")
    for parameter, value in given.items():
        checks[parameter](value, f"{place}.{parameter}")
    return Part(name, given)


def _check_names(given: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any], place: str) -> None:
    for name in given:
        if name not in known:
            hint = _nearest(name, known) or f"; it takes {', '.join(known)}"
            raise SpecError(f"{place} does not take {name!r}{hint}")


def _mapping(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise SpecError(f"{place} must be a mapping with strings as its keys, not {_shown(value)}")
    return value


def _is_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"env"} and isinstance(value["env"], str)


def _is_secret(name: str) -> bool:
    plain = _BETWEEN_WORDS.sub("", name.lower())
    has_name = _SECRET_NAME.search(plain) or _SIGNATURE_NAME.search(name)
    return has_name is not None and _OF_A_SECRET.search(plain) is None


def _has_password(text: str) -> bool:
    return _IN_ADDRESS.search(text) is not None or any(_is_secret(name) for name in _NAMED.findall(text))


def _nearest(name: object, known: Sequence[str] | Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1) if isinstance(name, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _shown(value: object) -> str:
    # The value is left out, because it may be a secret in the wrong place.
    return f"a {type(value).__name__}"
