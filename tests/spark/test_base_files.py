"""Delta tables written by Spark and read without it: the same rows as Spark reads at the same version."""

from __future__ import annotations

import base64
import datetime
import json
import math
import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.tables import model
from tests.tables.model import KEYED, random_history

from penstock.errors import DefiniteError
from penstock.model import TableName, TableSchema, image_schema, with_missing
from penstock.positions import Lsn
from penstock.spark.base_files import BaseFile, BaseFiles, read_base_file
from penstock.spark.images import spark_schema
from penstock.tables.arrow.fold import fold_net
from penstock.tables.arrow.overlay import kept_rows, new_rows
from penstock.tables.base import DeltaBaseTable
from penstock.tables.fold import fold

POINT = pa.struct([("x", pa.float64()), ("a (field)", pa.string())])
INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])
RANGE = pa.struct([("lower", pa.timestamp("us", "UTC")), ("upper", pa.timestamp("us", "UTC")), ("empty", pa.bool_())])
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "smallint": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1]),
    "real; number": (pa.float32(), [-0.0, 0.0, math.nan, math.inf, 1.5]),
    "double": (pa.float64(), [-0.0, 0.0, math.nan, -math.inf, 5e-324]),
    "money": (pa.decimal128(6, 2), [Decimal("-9999.99"), Decimal("0.01")]),
    "long.decimal": (pa.decimal128(18, 4), [Decimal("12345678901234.5678")]),
    "xid8": (pa.decimal128(20, 0), [Decimal(2**64 - 1), Decimal(0)]),
    "widest": (pa.decimal128(38, 10), [Decimal("-9999999999999999999999999999.9999999999")]),
    "text": (pa.string(), ["", "é😀\n", "x" * 3000]),
    "bytea": (pa.binary(), [b"", b"\x00\xff"]),
    "date": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1582, 10, 10)]),
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        [
            datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
            datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC),
            datetime.datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=datetime.UTC),
        ],
    ),
    "timestamp": (pa.timestamp("us"), [datetime.datetime.min, datetime.datetime.max]),  # noqa: DTZ901
    "interval": (INTERVAL, [{"months": -1, "days": 0, "microseconds": 2**40}]),
    "ints": (pa.list_(pa.int16()), [[], [1, None, 3]]),
    "a point": (POINT, [{"x": -0.0, "a (field)": "y"}, {"x": None, "a (field)": None}]),
    "points": (pa.list_(POINT), [[{"x": 1.0, "a (field)": "z"}, None], []]),
    "range": (RANGE, [{"lower": datetime.datetime(1, 1, 1, tzinfo=datetime.UTC), "upper": None, "empty": False}]),
    "hstore": (pa.map_(pa.string(), pa.string()), [[], [("k", None), ("l", "v")]]),
    "nested": (pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.date32())))])), [[{"m": [("k", [None])]}]]),
}
COLUMNS = pa.schema([pa.field("id", pa.int64()), *(pa.field(name, kind) for name, (kind, _) in TYPES.items())])
SCHEMA = TableSchema(TableName("public", "t"), COLUMNS, ("id",))


def rows(first: int, count: int) -> pa.Table:
    """Return rows in which every value of every type occurs, and null."""
    return pa.Table.from_pylist([typed(number) for number in range(first, first + count)], COLUMNS)


def typed(number: int) -> dict[str, Any]:
    values = {name: [None, *some][number % (len(some) + 1)] for name, (_, some) in TYPES.items()}
    return {"id": number, **values}


def row_counts(found: list[dict[str, Any]]) -> Counter[str]:
    """Count rows by their text, which distinguishes -0.0 from 0.0 and is the same for all NaN."""
    return Counter(repr(plain(one)) for one in found)


def plain(value: Any) -> Any:
    """Return a value with timestamps as text, independent of the class of their time zone."""
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def read(files: BaseFiles, columns: pa.Schema, where: Any = None) -> list[dict[str, Any]]:
    """Return the rows that tasks read, each from a pickled file description."""
    found: list[dict[str, Any]] = []
    for file in files.files:
        sent: BaseFile = pickle.loads(pickle.dumps(file))
        before = len(found)
        for batch in read_base_file(sent, columns, where):
            batch.validate(full=True)
            assert batch.schema == columns
            found += batch.to_pylist()
        assert where is not None or len(found) - before == file.rows
    return found


def spark_reads(spark: SparkSession, path: str, version: int, columns: pa.Schema) -> list[dict[str, Any]]:
    frame = spark.read.format("delta").option("versionAsOf", version).load(path)
    names = ["`" + name.replace("`", "``") + "`" for name in columns.names]
    return list(frame.select(*names).toArrow().cast(columns).to_pylist())


def check(spark: SparkSession, path: str, version: int, columns: pa.Schema = COLUMNS) -> BaseFiles:
    files = BaseFiles.at(path, version)
    assert row_counts(read(files, columns)) == row_counts(spark_reads(spark, path, version, columns))
    return files


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DeltaBaseTable:
    """Version 0: two files; 1 and 2: rows deleted, changed, added; 3 to 5: a column added; 6: its values set."""
    made = DeltaBaseTable(spark, str(tmp_path_factory.mktemp("a base 100% & more") / "t"), SCHEMA)
    made.create(frame(spark, rows(0, 60)).repartition(2), Lsn(8))
    spark.sql(f"DELETE FROM delta.`{made.path}` WHERE id % 7 = 3")
    merge(spark, made.path)
    wider = pa.schema([*COLUMNS, pa.field("later, with a comma", pa.list_(pa.int32()))])
    made.evolve(TableSchema(SCHEMA.table, wider, SCHEMA.key))
    spark.sql(f"UPDATE delta.`{made.path}` SET `later, with a comma` = array(1, null) WHERE id < 5")
    return made


def create(rows: DataFrame, path: str, properties: dict[str, str]) -> None:
    writer = rows.writeTo(f"delta.`{path}`").using("delta")
    for name, value in properties.items():
        writer = writer.tableProperty(name, value)
    writer.createOrReplace()


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table, spark_schema(table.schema))


def merge(spark: SparkSession, path: str) -> None:
    """Merge: update, delete and insert rows."""
    frame(spark, rows(50, 20)).createOrReplaceTempView("changed")
    spark.sql(
        f"MERGE INTO delta.`{path}` AS target USING changed AS source ON target.id = source.id "
        "WHEN MATCHED AND source.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


@pytest.mark.deep
def test_every_type_at_every_version(spark: SparkSession, table: DeltaBaseTable) -> None:
    last = table.version()
    assert last is not None
    files = [check(spark, table.path, version) for version in range(last + 1)]
    assert [found.rows for found in files[:3]] == [60, 51, 51 - 4 + 12]
    assert any(file.kept is not None for file in files[1].files)
    assert len(files[2].files) > 2


@pytest.mark.deep
def test_columns_added_later(spark: SparkSession, table: DeltaBaseTable) -> None:
    last = table.version()
    assert last is not None
    wider = table.schema.columns
    check(spark, table.path, last, wider)
    early = read(BaseFiles.at(table.path, 0), wider)
    assert {str(one["later, with a comma"]) for one in early} == {"None"}


def test_columns_missing_in_an_old_version_have_their_default(table: DeltaBaseTable) -> None:
    price = with_missing(pa.field("price", pa.decimal128(6, 2)), pa.array([Decimal("1.50")], pa.decimal128(6, 2)))
    found = read(BaseFiles.at(table.path, 0), pa.schema([price]))
    assert found == [{"price": Decimal("1.50")}] * 60


def test_selected_columns(spark: SparkSession, table: DeltaBaseTable) -> None:
    chosen = pa.schema([COLUMNS.field(name) for name in ("long.decimal", "a point", "id")])
    check(spark, table.path, 2, chosen)


def test_values_are_cast_to_the_requested_types(table: DeltaBaseTable) -> None:
    columns = pa.schema([("text", pa.large_string()), ("int", pa.int64()), ("ints", pa.list_(pa.int64()))])
    files = BaseFiles.at(table.path, 0)
    same = pa.schema([COLUMNS.field(name) for name in columns.names])
    assert row_counts(read(files, columns)) == row_counts(read(files, same))


def test_lossy_cast_fails(table: DeltaBaseTable) -> None:
    with pytest.raises(pa.ArrowInvalid):
        read(BaseFiles.at(table.path, 0), pa.schema([("bigint", pa.int16())]))


@pytest.mark.deep
def test_row_groups_that_cannot_match_are_skipped(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "groups")
    rows = spark.range(0, 40_000, 1, 1).selectExpr("id AS `a key`", "lpad(id, 6, '0') AS t", "id / 3 AS f")
    properties = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
    with setting(spark, "parquet.block.size", "100000"):
        create(rows, path, properties)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE `a key` % 1000 = 1")
    columns = pa.schema([("a key", pa.int64()), ("t", pa.string()), ("f", pa.float64())])
    files = check(spark, path, 1, columns)
    key, text, number = (pc.field(name) for name in columns.names)
    for where, wanted in (
        (key == 39_002, [39_002]),
        (key.isin([5, 39_001, 39_002]), [5, 39_002]),
        ((text >= "020000") & (text < "020003"), [20_000, 20_002]),
        (key < 0, []),
        (number == 1.0, [3]),
    ):
        found = read(files, columns, where)
        left = pa.Table.from_pylist(found, columns).filter(where)
        assert left.column("a key").to_pylist() == wanted
        assert (len(found) < 30_000) == (not where.equals(number == 1.0)), "statistics of floats do not cover NaN"


def test_inline_deletion_vector(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "inline"
    create(spark.range(0, 10, 1, 1), str(path), {"delta.enableDeletionVectors": "true"})
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id IN (2, 7)")
    log = path / "_delta_log" / f"{1:020}.json"
    log.write_text("".join(f"{json.dumps(inline(json.loads(line), path))}\n" for line in log.read_text().splitlines()))
    for made in [*path.glob("*.bin"), *(path / "_delta_log").glob("*.crc"), *(path / "_delta_log").glob(".*.crc")]:
        made.unlink(missing_ok=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    columns = pa.schema([("id", pa.int64())])
    assert check(spark, str(path), 1, columns).rows == 8
    assert [one["id"] for one in read(BaseFiles.at(str(path), 1), columns)] == [0, 1, 3, 4, 5, 6, 8, 9]


def inline(action: dict[str, Any], path: Path) -> dict[str, Any]:
    """Inline the deletion vector of an added file into the log (storage type i, Z85)."""
    if "deletionVector" in action.get("add", {}):
        vector = action["add"]["deletionVector"]
        (file,) = path.glob("deletion_vector_*.bin")
        start = vector["offset"] + 4
        data = file.read_bytes()[start : start + vector["sizeInBytes"]]
        action["add"]["deletionVector"] = {
            "storageType": "i",
            "pathOrInlineDv": z85(data),
            "sizeInBytes": vector["sizeInBytes"],
            "cardinality": vector["cardinality"],
        }
    return action


def z85(data: bytes) -> str:
    b85_alphabet = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85_alphabet = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    return base64.b85encode(data).translate(bytes.maketrans(b85_alphabet, z85_alphabet)).decode()


def test_live_table_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Base files, each read by a separate task, plus the log tail equal the table upstream."""
    history = random_history(21, full=False, groups=60, transactions=9)
    first, middle, last = (sorted(history.states)[at] for at in (3, 6, -1))
    made = DeltaBaseTable(spark, str(tmp_path / "base"), KEYED)
    made.create(history.base(spark, first).repartition(2), Lsn(first))
    made.merge(fold(history.frame(spark, first, middle), KEYED), Lsn(middle))
    files = BaseFiles.at(made.path, 1)
    tail = [image for image in history.images if image["_lsn"] > middle]
    net = fold_net(pa.Table.from_pylist(tail, image_schema(KEYED.columns)), KEYED)
    found = [batch for file in files.files for batch in kept_rows(read_base_file(file, KEYED.columns), net)]
    table = pa.Table.from_batches([*found, *new_rows(net)])
    assert model.plain(table.to_pylist()) == model.plain(history.states[last])
    assert len(files.files) > 1 and any(file.kept for file in files.files)


def test_files_without_statistics(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "bare")
    with setting(spark, "spark.databricks.delta.stats.collect", "false"):
        create(spark.range(10), path, {})
    assert check(spark, path, 0, pa.schema([("id", pa.int64())])).rows == 10


def test_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "empty")
    create(spark.range(0), path, {})
    assert check(spark, path, 0, pa.schema([("id", pa.int64())])).rows == 0


def test_missing_table_version_or_file_is_an_error(table: DeltaBaseTable, tmp_path: Path) -> None:
    for path, version in ((table.path, 99), (str(tmp_path / "nothing"), 0)):
        with pytest.raises(DefiniteError, match="Run the query again"):
            BaseFiles.at(path, version)
    gone = BaseFile(str(tmp_path / "gone.parquet"), 1, 1, COLUMNS)
    with pytest.raises(DefiniteError, match="vacuumed"):
        next(read_base_file(gone, COLUMNS))
