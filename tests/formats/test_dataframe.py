"""Decoding in Spark: whole batches on executors, schema ids looked up by the driver."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.formats.conftest import encoded, framed, record
from tests.formats.corpus import CORRUPT, GOOD, formats, problems_by_name
from tests.servers import SharedRegistry, unique

from penstock.errors import TransientError, UsageError
from penstock.formats import AvroFormat, Registry, RegistryAddress, decode, resolve
from penstock.formats.logical_types import spark_type

FIRST = record(("id", "long"))
SECOND = record(("id", "long"), {"name": "tags", "type": {"type": "map", "values": "double"}, "default": {"d": 0.5}})


def frame(spark: SparkSession, messages: Sequence[bytes | None]) -> DataFrame:
    """Return a frame of one task: parallel tasks start a Python worker each, which loads the kernels again."""
    rows = [(n, one) for n, one in enumerate(messages)]
    return spark.createDataFrame(rows, "n INT, `the value` BINARY").coalesce(1)


@pytest.mark.parametrize("group", ["PROTOBUF", "JSON", "CSV", "TEXT"])
def test_corrupt_and_good_messages_in_a_frame(spark: SparkSession, group: str) -> None:
    names = [name for name, (of, _) in CORRUPT.items() if of == group]
    resolved = formats()[group]
    messages = [None, GOOD[group], *(CORRUPT[name][1] for name in names)]
    result = decode(frame(spark, messages), "the value", resolved)
    assert result.schema["row"].dataType == spark_type(resolved)
    assert result.columns == ["n", "the value", "row", "problem"]
    found = {one["n"]: (one["row"], one["problem"]) for one in result.toArrow().to_pylist()}
    assert found[0] == (None, None)
    assert found[1][0] is not None
    snapshot = problems_by_name()
    assert [found[n + 2] for n in range(len(names))] == [(None, snapshot[name]) for name in names]


def test_several_writer_schemas_in_a_frame(
    spark: SparkSession, registry: SharedRegistry, address: RegistryAddress
) -> None:
    subject = unique("frames")
    one = registry.register(f"{subject}-first", json.dumps(FIRST))
    two = registry.register(f"{subject}-second", json.dumps(SECOND))
    resolved = resolve(AvroFormat(registry=address), subject=f"{subject}-second")
    messages = [
        framed(one, encoded(FIRST, {"id": 1})),
        framed(two, encoded(SECOND, {"id": 2, "tags": {"a": 1.0}})),
        framed(987_654_321, b"\x02"),
        None,
    ]
    result = decode(frame(spark, messages), "the value", resolved, Registry(address), into="v", problem="why")
    found = sorted(result.select("n", "v.id", "v.tags", "why").collect())
    assert [tuple(one) for one in found] == [
        (0, 1, {"d": 0.5}, None),
        (1, 2, {"a": 1.0}, None),
        (2, None, None, "AVRO: schema id not found in the schema registry (schema id 987654321, 6 bytes)"),
        (3, None, None, None),
    ]


def test_unavailable_registry_fails_before_decoding(spark: SparkSession) -> None:
    address = RegistryAddress(url="http://127.0.0.1:1")
    resolved = resolve(AvroFormat(registry=address, reader_schema=json.dumps(FIRST)))
    with pytest.raises(TransientError, match="does not respond"):
        decode(frame(spark, [framed(5, b"\x02")]), "the value", resolved)


def test_stream_with_schema_ids_requires_foreach_batch(spark: SparkSession) -> None:
    resolved = resolve(AvroFormat(registry=RegistryAddress(url="http://127.0.0.1:1"), reader_schema=json.dumps(FIRST)))
    stream = spark.readStream.format("rate").load().selectExpr("CAST('x' AS BINARY) AS value")
    with pytest.raises(UsageError, match="looked up") as caught:
        decode(stream, "value", resolved)
    assert "foreachBatch" in caught.value.hint
