"""The messages of Debezium and of our sink for the same history: ``python -m tests.sinks.debezium_recording``.

It replaces the recording in ``golden``, with which `make test` compares the messages of our sink. `make test-deep`
records too, and compares both.

::

    history ─▶ Postgres ─▶ Debezium ─▶ topics ──▶ golden/debezium ┐
                        └▶ capture ─▶ log ─▶ debezium_messages ───┴▶ compared, message by message
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from tests.debezium.recording import TRANSACTION, Recording, Rows, read_topic, since_first

from penstock.changelog.sqlite.log import SqliteLogReader
from penstock.model import Image, TableName
from penstock.positions import Lsn
from penstock.sinks.debezium import (
    TRANSACTION_KEY,
    TRANSACTION_VALUE,
    DebeziumTable,
    debezium_messages,
    transaction_messages,
    with_transactions,
)
from penstock.sinks.messages import SinkMessages
from penstock.sinks.schemas.nested_values import plain_field
from penstock.testing.debezium import Converter, Debezium
from penstock.testing.kafka import start_kafka
from penstock.testing.postgres import start_postgres
from penstock.testing.registry import start_registry

GOLDEN = Path(__file__).parent / "golden" / "debezium"
PREFIX = "shop"
TABLES = ("typed", "filled", "whole", "keyless")
"""All types; all types and NOT NULL; replica identity FULL; no key."""

COLUMNS = {
    "flag": ("boolean", "true", "false"),
    "small": ("smallint", "-3", "7"),
    "big": ("bigint", "9007199254740993", "-1"),
    "single": ("real", "0.1", "1e20"),
    "double": ("double precision", "0.1", "-1e-200"),
    "price": ("numeric(20,4)", "-1234.5678", "0"),
    "narrow": ("numeric(3,0)", "255", "-128"),
    "free": ("numeric", "-12.3400", "100"),
    "huge": ("numeric(60,10)", "1e40", "-1e-10"),
    "cash": ("money", "'$1,234.50'", "'-$0.07'"),
    "words": ("text", "'ä \"x\" \\'", "''"),
    "short": ("varchar(9)", "'abc'", "'d'"),
    "padded": ("char(5)", "'ab'", "'x'"),
    "named": ("name", "'n'", "'m'"),
    "folded": ("citext", "'Ab'", "'cD'"),
    "data": ("bytea", "'\\x00ff'", "''"),
    "day": ("date", "'1969-12-30'", "'9999-12-31'"),
    "clock": ("time", "'03:04:05.000006'", "'24:00:00'"),
    "clock3": ("time(3)", "'03:04:05.006'", "'23:59:59.999'"),
    "clock0": ("time(0)", "'03:04:05'", "'00:00:00'"),
    "zoned": ("timetz", "'01:04:05.5+02:30'", "'23:00:00-08'"),
    "local": ("timestamp", "'1969-12-31 23:59:59.999999'", "'2026-01-01'"),
    "local3": ("timestamp(3)", "'1969-12-31 23:59:59.999'", "'2026-01-01'"),
    "local0": ("timestamp(0)", "'1960-01-01 00:00:01'", "'2026-01-01'"),
    "moment": ("timestamptz", "'2026-03-29 01:59:59.12+02'", "'1883-11-18 12:00:00+00'"),
    "moment3": ("timestamptz(3)", "'2026-03-29 01:59:59.12+02'", "'2026-01-01 00:00:00+00'"),
    "moment0": ("timestamptz(0)", "'2026-03-29 01:59:59+02'", "'2026-01-01 00:00:00+00'"),
    "span": ("interval", "'1 year 2 months -3 days 04:05:06.789012'", "'-00:00:00.5'"),
    "own": ("uuid", "'c4ca4238-a0b9-2382-0dcc-509a6f75849b'", "'00000000-0000-0000-0000-000000000000'"),
    "doc": ("jsonb", "'{\"n\": [1, null]}'", "'0'"),
    "raw": ("json", "'{\"n\" : 1 }'", "'null'"),
    "bag": ("hstore", "'a=>1'", '\'"x\\""=>NULL\''),
    "words_of": ("tsvector", "'fat:2 cat:3'", "''"),
    "mood": ("mood", "'so'", "'sad'"),
    "cost": ("fee", "12.5", "-1"),
    "bit": ("bit", "B'1'", "B'0'"),
    "bits": ("bit(11)", "B'10000000001'", "B'00000000000'"),
    "varying": ("bit varying(20)", "B'101'", "B'00011111111'"),
    "place": ("point", "'(1.5,-2)'", "'(0,0)'"),
    "host": ("inet", "'10.0.0.1'", "'10.1.0.0/16'"),
    "net": ("cidr", "'10.1.0.0/16'", "'::1/128'"),
    "mac": ("macaddr", "'08:00:2b:01:02:03'", "'08:00:2b:01:02:04'"),
    "object": ("oid", "4294967295", "0"),
    "ints": ("int4range", "'[1,5]'", "'empty'"),
    "longs": ("int8range", "'(,5)'", "'[1,)'"),
    "nums": ("numrange", "'(1.50,2]'", "'(,)'"),
    "days": ("daterange", "'[2026-01-01,2026-02-01)'", "'[2026-01-01,)'"),
    "times": ("tsrange", "'[2026-01-01 00:00,2026-01-02 03:04:05.5]'", "'(,2026-01-01)'"),
    "moments": ("tstzrange", "'[2026-01-01 00:00+00,2026-01-02 03:04:05.5+00]'", "'empty'"),
    "a_bool": ("boolean[]", "'{t,NULL,f}'", "'{}'"),
    "a_small": ("smallint[]", "'{1,NULL}'", "'{}'"),
    "a_int": ("int[]", "'{1,NULL}'", "'{}'"),
    "a_big": ("bigint[]", "'{1,NULL}'", "'{}'"),
    "a_float": ("real[]", "'{1.5,NULL}'", "'{}'"),
    "a_double": ("double precision[]", "'{1.5,NULL}'", "'{}'"),
    "a_text": ("text[]", "'{a,NULL,\"b c\"}'", "'{}'"),
    "a_short": ("varchar(9)[]", "'{a,NULL}'", "'{}'"),
    "a_bytes": ("bytea[]", "ARRAY['\\x00ff'::bytea, NULL]", "'{}'"),
    "a_day": ("date[]", "'{2026-01-01,NULL}'", "'{}'"),
    "a_local": ("timestamp[]", "'{2026-01-01 00:00:00.5,NULL}'", "'{}'"),
    "a_local3": ("timestamp(3)[]", "'{2026-01-01 00:00:00.5,NULL}'", "'{}'"),
    "a_moment": ("timestamptz[]", "'{2026-01-01 00:00:00.5+00,NULL}'", "'{}'"),
    "a_clock": ("time[]", "'{01:02:03,NULL}'", "'{}'"),
    "a_price": ("numeric(10,2)[]", "'{1.5,NULL}'", "'{}'"),
    "a_free": ("numeric[]", "'{1.50,NULL}'", "'{}'"),
    "a_uuid": ("uuid[]", "'{c4ca4238-a0b9-2382-0dcc-509a6f75849b,NULL}'", "'{}'"),
    "a_doc": ("jsonb[]", "ARRAY['{\"n\": 1}'::jsonb, NULL]", "'{}'"),
    "a_mood": ("mood[]", "'{so,sad}'", "'{}'"),
    "a_ints": ("int4range[]", "ARRAY['[1,5]'::int4range, NULL]", "'{}'"),
    "a_host": ("inet[]", "'{10.0.0.1,NULL}'", "'{}'"),
}
"""Type and two values of each column."""
_TOAST = ("words", "data", "doc", "bag", "a_text", "a_int", "a_big", "a_uuid", "a_bytes", "a_day")
_LARGE = {
    "words": "repeat('w', 9000)",
    "data": "decode(repeat('00', 9000), 'hex')",
    "doc": "to_jsonb(repeat('d', 9000))",
    "bag": "hstore('k', repeat('v', 9000))",
    "a_text": "ARRAY[repeat('t', 9000)]",
    "a_int": "ARRAY(SELECT generate_series(1, 3000))",
    "a_big": "ARRAY(SELECT generate_series(1, 2000)::bigint)",
    "a_uuid": "ARRAY(SELECT md5(i::text)::uuid FROM generate_series(1, 600) i)",
    "a_bytes": "ARRAY[decode(repeat('00', 9000), 'hex')]",
    "a_day": "ARRAY(SELECT '2000-01-01'::date + i FROM generate_series(1, 3000) i)",
}


def _columns(rule: str) -> str:
    return ", ".join(f'"{name}" {kind}{rule}' for name, (kind, *_) in COLUMNS.items())


def _insert(table: str, key: int, which: int) -> str:
    return f"INSERT INTO {table} VALUES ({key}, {', '.join(values[which + 1] for values in COLUMNS.values())})"


def begin_history(url: str) -> None:
    """Create the tables."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('sad', 'so');"
            "CREATE DOMAIN fee AS numeric(10,2)"
        )
        connection.execute(f"CREATE TABLE typed (id int PRIMARY KEY, {_columns('')})")
        connection.execute(f"CREATE TABLE filled (id int PRIMARY KEY, {_columns(' NOT NULL')})")
        connection.execute("CREATE TABLE whole (a int, b text, v text, n int NOT NULL, PRIMARY KEY (b, a))")
        connection.execute("CREATE TABLE keyless (a int, v text)")
        connection.execute("ALTER TABLE whole REPLICA IDENTITY FULL; ALTER TABLE keyless REPLICA IDENTITY FULL")
        for name in _TOAST:
            connection.execute(f'ALTER TABLE typed ALTER "{name}" SET STORAGE EXTERNAL')
        connection.execute("ALTER TABLE whole ALTER v SET STORAGE EXTERNAL")


def insert_rows(url: str) -> None:
    """Insert the rows that Debezium reads in its snapshot."""
    with psycopg.connect(url) as connection:
        for table in ("typed", "filled"):
            connection.execute(_insert(table, 1, 0))
        connection.execute("INSERT INTO whole VALUES (1, 'x', 'v', 1)")
        connection.execute("INSERT INTO keyless VALUES (1, 'v')")


def change_rows(url: str) -> None:
    """Change rows in a few transactions."""
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.transaction():
            for table in ("typed", "filled"):
                connection.execute(_insert(table, 2, 1))
                connection.execute(_insert(table, 3, 0))
        connection.execute("INSERT INTO typed (id) VALUES (4)")
        connection.execute("UPDATE typed SET small = 8 WHERE id = 2")
        connection.execute("UPDATE typed SET id = 20 WHERE id = 2; UPDATE filled SET id = 20 WHERE id = 2")
        connection.execute("DELETE FROM typed WHERE id = 3; DELETE FROM filled WHERE id = 3")
        large = ", ".join(f'"{name}"' for name in _LARGE)
        connection.execute(f"INSERT INTO typed (id, {large}) VALUES (5, {', '.join(_LARGE.values())})")
        connection.execute("UPDATE typed SET small = 9 WHERE id = 5")
        connection.execute("UPDATE typed SET id = 50 WHERE id = 5")
        with connection.transaction():
            connection.execute("INSERT INTO whole VALUES (2, 'y', repeat('w', 9000), 2)")
            connection.execute("INSERT INTO keyless VALUES (2, NULL)")
            connection.execute("UPDATE whole SET n = 3 WHERE a = 2")
            connection.execute("UPDATE whole SET a = 3 WHERE a = 2")
            connection.execute("UPDATE keyless SET v = 'w' WHERE a = 2")
            connection.execute("DELETE FROM whole WHERE a = 3")
            connection.execute("DELETE FROM keyless WHERE a = 2")
        connection.execute("TRUNCATE whole")
        connection.execute("INSERT INTO whole VALUES (9, 'z', 'last', 9)")


# -- Debezium ----------------------------------------------------------------------------------------------------------


def record(
    folder: Path, url: str, bootstrap: str, registry: str, prefix: str, changed: Callable[[], None] = lambda: None
) -> Recording:
    """Run the history, with Debezium from its first rows on; `changed` is called after the first rows."""
    insert_rows(url)
    changed()
    with Debezium(folder, url, bootstrap, registry) as debezium:
        debezium.add(prefix, [f"public.{table}" for table in TABLES], Converter.JSON_WITH_SCHEMAS)
        debezium.start()
        debezium.await_all()
        change_rows(url)
        debezium.await_all()
    names = [*(f"public.{table}" for table in TABLES), TRANSACTION]
    topics = {(Converter.JSON_WITH_SCHEMAS, name): read_topic(bootstrap, f"{prefix}.{name}") for name in names}
    return Recording(since_first(topics), {}, {f"public.{table}": Rows([], []) for table in TABLES})


def main() -> None:
    """Record with temporary servers, and replace the golden recording."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with (
            start_postgres(fsync=False) as postgres,
            start_kafka(folder / "kafka") as broker,
            start_registry(folder / "registry") as registry,
        ):
            begin_history(postgres.url)
            made = record(folder / "debezium", postgres.url, broker.bootstrap, registry.url, PREFIX)
    shutil.rmtree(GOLDEN, ignore_errors=True)
    made.save(GOLDEN)


def recorded(recording: Recording, table: str) -> list[tuple[Any, Any]]:
    """Return keys and values of a table, each with its schema."""
    name = table if table == TRANSACTION else f"public.{table}"
    topic = recording.topics[Converter.JSON_WITH_SCHEMAS, name]
    return [(_parsed(one.key), _parsed(one.value)) for one in topic.messages]


def _parsed(part: bytes | None) -> Any:
    return None if part is None else json.loads(part)


# -- our messages ------------------------------------------------------------------------------------------------------


def our_messages(log: Path, snapshot: Lsn, prefix: str, database: str) -> dict[str, list[tuple[Any, Any]]]:
    """Return keys and values of all tables, each with its schema; changes up to `snapshot` are rows of a snapshot."""
    made: dict[str, list[tuple[SinkMessages, DebeziumTable]]] = {table: [] for table in TABLES}
    with closing(SqliteLogReader(log)) as reader:
        for name in TABLES:
            table = reader.tables()[TableName("public", name)].schema
            target = DebeziumTable(table, table.key, f"{prefix}.public.{name}", prefix, database)
            frontiers = reader.frontiers()
            extent = reader.extent(table.table, frontiers.valid, frontiers.durable)
            whole = pa.Table.from_batches(list(reader.read(extent, table.columns))).combine_chunks().to_batches()
            for images in whole:
                made[name].append((debezium_messages(_with_snapshot(images, snapshot), target), target))
    messages = [messages for parts in made.values() for messages, _ in parts]
    blocks = iter(with_transactions(messages))
    found = {
        name: [pair for _, one in parts for pair in _as_json(next(blocks), one.key_name, None, one.value_name, 2)]
        for name, parts in made.items()
    }
    found[TRANSACTION] = list(_as_json(transaction_messages(messages), TRANSACTION_KEY, 1, TRANSACTION_VALUE, 1))
    return found


def _with_snapshot(images: pa.RecordBatch, snapshot: Lsn) -> pa.RecordBatch:
    is_copied = images.column("_lsn").to_numpy() <= int(snapshot)
    kinds = np.where(is_copied, np.int8(Image.COPIED), images.column("_image").to_numpy())
    return images.set_column(2, images.schema.field(2), pa.array(kinds))


def _as_json(
    messages: SinkMessages, key_name: str, key_version: int | None, value_name: str, value_version: int
) -> Iterator[tuple[Any, Any]]:
    messages.values.validate(full=True)
    value_schema = connect_schema(plain_field(pa.field("", messages.values.type, nullable=False)))
    value_schema |= {"name": value_name, "version": value_version}
    key_schema: Any = None
    keys = [None] * len(messages)
    if messages.keys is not None:
        key_schema = connect_schema(pa.field("", messages.keys.type, nullable=False)) | {"name": key_name}
        key_schema |= {"version": key_version} if key_version else {}
        keys = messages.keys.to_pylist()
    for key, value in zip(keys, messages.values.to_pylist(), strict=True):
        yield (
            None if key is None else {"schema": key_schema, "payload": _plain(key)},
            None if value is None else {"schema": value_schema, "payload": _plain(value)},
        )


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case list():
            return [_plain(item) for item in value]
    return value


_CONNECT = {
    pa.bool_(): "boolean",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
}


def connect_schema(field: pa.Field) -> dict[str, Any]:
    """Return the Connect schema of a field, as the JSON converter writes it, without the name of the field."""
    metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    made: dict[str, Any] = {"optional": field.nullable}
    if pa.types.is_struct(field.type):
        made |= {"type": "struct", "fields": [connect_schema(each) | {"field": each.name} for each in field.type]}
    elif pa.types.is_list(field.type):
        made |= {"type": "array", "items": connect_schema(field.type.value_field)}
    else:
        made["type"] = _CONNECT[field.type]
    for name, parse in (
        ("name", str),
        ("version", int),
        ("parameters", json.loads),
        ("default", json.loads),
        ("doc", str),
    ):
        if f"connect.{name}" in metadata:
            made[name] = parse(metadata[f"connect.{name}"])
    return made


if __name__ == "__main__":
    main()
