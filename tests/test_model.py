"""The shared model: table names, schema serialization, images."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.model import Image, TableName, TableSchema, image_schema

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("na.me", pa.string(), metadata={"comment": "what it is called"}),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)


def test_a_name_is_split_at_the_first_dot() -> None:
    assert TableName.parse("public.a.b") == TableName("public", "a.b")
    assert str(TableName("public", "orders")) == "public.orders"


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (TableName("a.b", "c"), '"a.b".c'),
        (TableName("a", "b.c"), "a.b.c"),
        (TableName('say "hi"', "c"), '"say ""hi""".c'),
        (TableName("a b", 'c"d'), 'a b.c"d'),
        (TableName("a", "b\nc"), "a.b\nc"),
    ],
)
def test_names_of_different_tables_are_different(table: TableName, text: str) -> None:
    assert str(table) == text
    assert TableName.parse(text) == table


@pytest.mark.parametrize("text", ["", "orders", ".orders", "public.", ".", '"a.b"', '"a.b.c', 'a".b'])
def test_name_without_both_parts_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"schema\.table"):
        TableName.parse(text)


@pytest.mark.parametrize("key", [(), ("id",), ("na.me", "id")])
def test_schema_round_trips_through_bytes(key: tuple[str, ...]) -> None:
    schema = TableSchema(TableName("Ünder score", 'q"uote'), COLUMNS, key)
    back = TableSchema.from_bytes(schema.to_bytes())
    assert back == schema
    assert back.columns.field("na.me").metadata == {b"comment": b"what it is called"}
    assert not back.columns.metadata


def test_new_row_images_are_assertions() -> None:
    assert [image for image in Image if image.asserts] == [Image.UPDATED, Image.INSERTED, Image.COPIED]
    assert list(Image) == sorted(Image)


def test_the_image_schema_wraps_the_columns() -> None:
    schema = image_schema(COLUMNS)
    assert schema.names == ["_lsn", "_ordinal", "_image", "_xid", "_committed_at", "_unchanged", "row"]
    assert schema.field("row").type == pa.struct(list(COLUMNS))
