"""A spec is checked without Spark, and says what is wrong with it where it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sqs_lease.ingestion.spec import SINKS, SOURCES, IngestionSpec, Part, SpecError, with_environment

SPEC: dict[str, Any] = {
    "version": 1,
    "source": {"kind": "json", "schema": "id BIGINT"},
    "sink": {"kind": "delta", "path": "/data/orders"},
    "workspace": "/data/batches",
}

OBJECTS = {"kind": "s3-events", "format": "csv", "schema": "id INT"}


def with_(**changes: Any) -> dict[str, Any]:
    return {**SPEC, **changes}


def test_a_spec_becomes_its_parts() -> None:
    spec = IngestionSpec.parse_json(json.dumps(with_(rejects={"kind": "parquet", "path": "/data/rejected"})))
    assert spec.source == Part("json", {"schema": "id BIGINT"})
    assert spec.sink == Part("delta", {"path": "/data/orders"})
    assert spec.rejects == Part("parquet", {"path": "/data/rejected"})
    assert (spec.workspace, spec.spark_conf) == ("/data/batches", {})
    assert IngestionSpec.parse(with_(workspace="s3://bucket/batches")).workspace == "s3://bucket/batches"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ([], "the spec must be a mapping"),
        ({**SPEC, "version": 2}, "version 2, and this release reads 1"),
        ({"version": 1}, "no 'source'"),
        (with_(sinks={}), "the spec does not take 'sinks'; did you mean 'sink'?"),
        (with_(workspace=""), "workspace must be the absolute path of a directory"),
        (with_(workspace="gs://bucket/batches"), "workspace must be the absolute path of a directory"),
        (with_(source={"kind": "jsn", "schema": "id INT"}), "source must have a 'kind' of json, .*did you mean 'json'"),
        (with_(source={"schema": "id INT"}), "source must have a 'kind' of json"),
        (with_(source="json"), "source must be a mapping with strings as its keys, not a str"),
        (with_(source={"kind": "json"}), r"source \(json\) needs exactly one of 'schema', 'inferred_schema'"),
        (with_(source={"kind": "json", "schema": "a INT", "inferred_schema": "/s"}), "exactly one of"),
        (with_(source={"kind": "json", "schema": ""}), "source.schema must be a string"),
        (with_(source={"kind": "json", "schema": "a INT", "new_fields": "ad"}), "'ad'; did you mean 'add'"),
        (with_(source={"kind": "json", "schema": "a INT", "dedupe_by": "a"}), "dedupe_by must be a list of strings"),
        (
            with_(source={"kind": "json", "schema": "a TIMESTAMP", "timestamp_units": {"a": "seconds"}}),
            "must be one of s, ms, us, not 'seconds'",
        ),
        (with_(source={"kind": "sns", "source": {"kind": "text", "colum": "a"}}), r"source \(text\) .*mean 'column'"),
        (with_(source={"kind": "parser", "function": "parse", "schema": "a INT"}), "'package.module:function'"),
        (with_(source={"kind": "s3-events", "format": "csv"}), r"source \(s3-events\) needs 'schema'"),
        (
            with_(source={**OBJECTS, "clean_source": "move"}),
            "source.clean_source must be one of off, delete, not 'move'",
        ),
        (
            with_(source={**OBJECTS, "read": {"thread": 4}}),
            "source.read does not take 'thread'; did you mean 'threads'?",
        ),
        (with_(source={**OBJECTS, "read": {"threads": "4"}}), r"read\['threads'\] must be a whole number, not a str"),
        (with_(source={**OBJECTS, "read": {"tasks": {"env": "TASKS"}}}), r"read\['tasks'\] must be a whole number"),
        (with_(source={**OBJECTS, "read": {"tasks": True}}), r"read\['tasks'\] must be a whole number, not a bool"),
        (with_(source={**OBJECTS, "read": {"delimiter": 7}}), r"read\['delimiter'\] must be a string"),
        (with_(source={"kind": "extended-client", "schema": "a INT", "read": 8}), "source.read must be a mapping"),
        (with_(source={**OBJECTS, "clean_source": {"stored": 1}}), r"source.clean_source\['stored'\] must be a string"),
        (with_(sink={"kind": "delta"}), r"sink \(delta\) needs 'path'"),
        (with_(sink={"kind": "delta", "path": "/a", "partition": ["a"]}), "mean 'partition_by'"),
        (
            with_(sink={"kind": "delta", "path": "/a", "partition_by": "a"}),
            "sink.partition_by must be a list of strings",
        ),
        (with_(sink={"kind": "delta", "path": "/a", "partition_by": [1]}), r"sink.partition_by\[0\] must be a string"),
        (with_(rejects={"kind": "delta"}), r"rejects \(delta\) needs 'path'"),
        (with_(spark_conf={"spark.jars": ["a.jar"]}), r"spark_conf\['spark.jars'\] must be a string, a number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_setting_is_named(spec: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        IngestionSpec.parse(spec)


def test_text_that_is_not_json_is_an_error() -> None:
    with pytest.raises(SpecError, match="the spec is not JSON"):
        IngestionSpec.parse_json("{")


SECRET = "hunter2"


@pytest.mark.parametrize(
    "spec",
    [
        with_(sink={"kind": "postgres", "url": f"postgresql://me:{SECRET}@host/db", "table": "orders"}),
        with_(sink={"kind": "postgres", "url": f"host=db password={SECRET}", "table": "orders"}),
        with_(sink={"kind": "delta", "path": "s3://a/b", "storage_options": {"AWS_SECRET_ACCESS_KEY": SECRET}}),
        with_(spark_conf={"spark.hadoop.fs.s3a.access.key": SECRET}),
        with_(spark_conf={"spark.datasource.url": f"jdbc:x://me:{SECRET}@host"}),
        *(
            with_(spark_conf={name: SECRET})
            for name in (
                "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
                "spark.hadoop.fs.azure.sas.box.lake.blob.core.windows.net",
                "spark.example.credential",
                "spark.example.credentials",
                "spark.example.private.key",
                "spark.example.privateKey",
                "spark.example.private_key_content",
                "spark.example.pwd",
                "spark.example.sslpassword",
                "spark.example.passphrase",
                "spark.example.api-key",
                "spark.example.accessKey.lake",
                "spark.hadoop.javax.jdo.option.ConnectionPassword",
                "spark.example.bearer.token.value",
            )
        ),
        with_(spark_conf={"spark.driver.extraJavaOptions": f"-Da=b -Djavax.net.ssl.trustStorePassword={SECRET}"}),
        with_(spark_conf={"spark.datasource.url": f"jdbc:sqlserver://host;user=me;pwd={SECRET}"}),
        with_(spark_conf={"spark.datasource.url": f"https://lake/box?sv=1&sig={SECRET}"}),
        with_(sink={"kind": "postgres", "url": f"postgresql://me:pa/{SECRET}@host/db", "table": "orders"}),
        with_(sink={"kind": "postgres", "url": f"postgresql://me:pa {SECRET}@host/db", "table": "orders"}),
        with_(sink={"kind": "postgres", "url": f"postgresql://host/db?sslpassword={SECRET}", "table": "orders"}),
        with_(sink={"kind": "delta", "path": f"s3://me:{SECRET}@bucket/orders"}),
        with_(sink={"kind": "delta", "path": "s3://a/b", "storage_options": {"azure_storage_account_key": SECRET}}),
        with_(workspace=f"s3://me:{SECRET}@bucket/batches"),
    ],
    ids=str,
)
def test_a_secret_in_plain_text_is_refused_and_not_repeated(spec: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="a spec is stored and shown") as refused:
        IngestionSpec.parse(spec)
    assert SECRET not in str(refused.value)


def test_a_secret_that_is_a_number_is_refused_too() -> None:
    with pytest.raises(SpecError, match="looks like a secret"):
        IngestionSpec.parse(with_(spark_conf={"spark.example.password": 4711}))


@pytest.mark.parametrize(
    "spec",
    [
        *(
            with_(spark_conf={name: value})
            for name, value in {
                "spark.hadoop.fs.s3a.aws.credentials.provider": "com.amazonaws.auth.DefaultAWSCredentialsProviderChain",
                "spark.hadoop.hadoop.security.credential.provider.path": "jceks://file/etc/keys.jceks",
                "spark.security.credentials.hive.enabled": "false",
                "spark.example.password.file": "/etc/password",
                "spark.example.token.expired": True,
                "spark.sql.shuffle.partitions": 8,
                "spark.datasource.url": "jdbc:postgresql://one:5432,two:5432/db?user=me",
                "spark.driver.extraJavaOptions": "-Dkey=value",
            }.items()
        ),
        with_(sink={"kind": "postgres", "url": "postgresql://me@host:5432/db?sslkey=/etc/key", "table": "orders"}),
        with_(sink={"kind": "delta", "path": "s3://a/b", "storage_options": {"AWS_ACCESS_KEY_ID": "AKIA"}}),
        with_(sink={"kind": "delta", "path": "/data/a:b/c@d"}),
        with_(source={"kind": "json", "schema": "token STRING, password STRING"}),
    ],
    ids=str,
)
def test_text_that_only_looks_like_a_secret_passes(spec: dict[str, Any]) -> None:
    IngestionSpec.parse(spec)


def test_a_secret_is_taken_from_the_environment_at_any_depth() -> None:
    sink = {
        "kind": "delta",
        "path": "s3://a/b",
        "partition_by": ["day"],
        "storage_options": {"AWS_SECRET_ACCESS_KEY": {"env": "LAKE_SECRET"}},
    }
    parameters = IngestionSpec.parse(with_(sink=sink)).sink.parameters
    assert with_environment(parameters, {"LAKE_SECRET": SECRET}) == {
        "path": "s3://a/b",
        "partition_by": ["day"],
        "storage_options": {"AWS_SECRET_ACCESS_KEY": SECRET},
    }


def test_a_variable_that_is_not_set_is_said() -> None:
    with pytest.raises(SpecError, match="environment variable LAKE_SECRET, and it is not set"):
        with_environment([{"env": "LAKE_SECRET"}], {})


def test_templates_pass_where_only_their_content_could_be_wrong() -> None:
    source = {"kind": "json", "schema": "{{ params.schema }}", "new_fields": "{{ params.new_fields }}"}
    assert IngestionSpec.parse(with_(source=source)).source.parameters["new_fields"] == "{{ params.new_fields }}"


def test_templates_of_statements_alone_pass_as_well() -> None:
    chosen = "{% if params.strict %}reject{% else %}ignore{% endif %}"
    source = {"kind": "json", "schema": "id BIGINT", "new_fields": chosen}
    spec = IngestionSpec.parse(with_(source=source, workspace="{% if params.large %}/large{% else %}/data{% endif %}"))
    assert spec.source.parameters["new_fields"] == chosen


@pytest.mark.parametrize(("kind", "parameters"), [*SOURCES.items(), *SINKS.items()], ids=lambda value: str(value)[:12])
def test_every_kind_names_parameters_that_can_be_written(kind: str, parameters: Any) -> None:
    names = {*parameters.required, *parameters.optional}
    assert "kind" not in names
    assert set(parameters.one_of) <= set(parameters.optional), kind
