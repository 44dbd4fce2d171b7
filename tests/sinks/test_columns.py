"""The columns of a sink: any images with any options are those of a model in plain Python."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sinks.test_redaction import CANARY, KEY, model

from penstock.errors import PenstockError, UsageError
from penstock.model import Image, TableName, TableSchema, copied_images, image_schema, rescued_field, with_missing
from penstock.sinks.columns import ColumnOptions, SinkColumns, check_options, options_of_table
from penstock.sinks.value_formats import ValueFormats

TYPES = {pa.string(): st.text(max_size=8), pa.int64(): st.integers(-9, 9), pa.binary(): st.binary(max_size=3)}
REDACTIONS = ["null", "hash", "last four", "fixed:x"]
ORDERS = TableName("public", "orders")


def table(columns: dict[str, pa.DataType], key: tuple[str, ...] = ("id",), name: TableName = ORDERS) -> TableSchema:
    return TableSchema(name, pa.schema(list(columns.items())), key)


CARDS = table({"id": pa.int64(), "card": pa.string(), "notes": pa.string()})


def images(schema: TableSchema, rows: list[dict[str, Any] | None], unchanged: list[list[int] | None]) -> pa.RecordBatch:
    kinds = [Image.TRUNCATE if row is None else Image.UPDATED for row in rows]
    given_rows = [
        {
            "_lsn": 10 * at,
            "_ordinal": at,
            "_image": kind,
            "_xid": 1,
            "_committed_at": 0,
            "_unchanged": listed,
            "row": row,
        }
        for at, (kind, row, listed) in enumerate(zip(kinds, rows, unchanged, strict=True))
    ]
    return pa.RecordBatch.from_pylist(given_rows, schema=image_schema(schema.columns))


@dataclass(frozen=True)
class Case:
    """A table, options and images."""

    schema: TableSchema
    options: ColumnOptions
    rows: list[dict[str, Any] | None]
    unchanged: list[list[int] | None]

    def columns(self) -> list[str]:
        """Return the names of the columns that are left, as in the table."""
        chosen = self.options.include or self.schema.columns.names
        return [name for name in self.schema.columns.names if name in chosen and name not in self.options.exclude]

    def value(self, name: str, value: Any) -> Any:
        if name in self.options.redact:
            return model(self.options.redact[name], value)
        is_bytes = pa.types.is_binary(self.schema.columns.field(name).type)
        return value.hex() if is_bytes and value is not None and self.options.formats.bytes else value

    def expected(self) -> list[tuple[Any, Any]]:
        left = self.columns()
        names, found = self.schema.columns.names, []
        for row, listed in zip(self.rows, self.unchanged, strict=True):
            new = {self.options.rename.get(name, name): self.value(name, row[name]) for name in left} if row else None
            found.append((new, [left.index(names[one]) for one in listed or [] if names[one] in left] or None))
        return found


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = [f"c{number}" for number in range(draw(st.integers(1, 6)))]
    types = {name: draw(st.sampled_from(list(TYPES))) for name in names}
    some = st.lists(st.sampled_from(names), unique=True)
    chosen = tuple(draw(some))
    hidden = tuple(name for name in draw(some) if name != (chosen or names)[0])
    redact = {name: draw(st.sampled_from(REDACTIONS)) for name in draw(some)}
    redact = {name: text for name, text in redact.items() if text == "null" or types[name] != pa.binary()}
    rename = {name: f"{name}-new" for name in draw(some)}
    options = ColumnOptions(chosen, hidden, rename, redact, ValueFormats(bytes=draw(st.sampled_from([None, "hex"]))))
    row = st.none() | st.fixed_dictionaries({name: st.none() | TYPES[types[name]] for name in names})
    rows = draw(st.lists(row, max_size=8))
    listed = st.none() | st.lists(st.integers(0, len(names) - 1), unique=True)
    unchanged = [draw(listed) for _ in rows]
    for given_row, numbers in zip(rows, unchanged, strict=True):
        if given_row is not None:
            given_row.update(dict.fromkeys((names[number] for number in numbers or []), None))
    return Case(table(types, ()), options, rows, unchanged)


@given(case=cases(), first=st.integers(0, 8))
def test_images_are_those_of_the_model(case: Case, first: int) -> None:
    batch = images(case.schema, case.rows, case.unchanged).slice(first)
    columns = SinkColumns(case.options, case.schema, KEY)
    found = columns.images(batch)
    found.validate(full=True)
    assert found.schema == image_schema(columns.columns)
    pairs = zip(found.column("row").to_pylist(), found.column("_unchanged").to_pylist(), strict=True)
    assert list(pairs) == case.expected()[first:]
    kept = [name for name in batch.schema.names if name not in ("row", "_unchanged")]
    assert found.select(kept) == batch.select(kept)


def test_rows_of_a_snapshot() -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 1, "card": "12345678", "notes": ""}], schema=CARDS.columns)
    columns = SinkColumns(ColumnOptions(exclude=("id",), redact={"card": "last four"}), without_key(CARDS), None)
    found = columns.images(copied_images(rows, 7))
    assert found.column("row").to_pylist() == [{"card": "****5678", "notes": ""}]


def without_key(schema: TableSchema) -> TableSchema:
    return TableSchema(schema.table, schema.columns, ())


def test_key_has_the_names_of_the_sink() -> None:
    options = ColumnOptions(rename={"id": "number"}, redact={"id": "hash"}, exclude=("notes",))
    columns = SinkColumns(options, CARDS, KEY)
    assert columns.key == ("number",)
    assert columns.columns == pa.schema([("number", pa.string()), ("card", pa.string())])


def test_metadata_is_kept_unless_it_describes_another_type() -> None:
    fields = [
        pa.field("id", pa.int64(), nullable=False, metadata={"postgres.type": "bigint"}),
        pa.field("at", pa.timestamp("us"), nullable=False, metadata={"postgres.type": "timestamp(3)"}),
        with_missing(pa.field("card", pa.string(), metadata={"postgres.type": "text"}), pa.array([CANARY])),
    ]
    schema = TableSchema(ORDERS, pa.schema(fields), ("id",))
    options = ColumnOptions(rename={"id": "n"}, redact={"card": "hash"}, formats=ValueFormats(timestamp="iso8601"))
    found = SinkColumns(options, schema, KEY).columns
    assert [each.metadata for each in found] == [{b"postgres.type": b"bigint"}, None, None]
    assert [each.nullable for each in found] == [False, False, True]


@pytest.mark.parametrize(
    ("include", "names"), [((), ["id", "card", "notes", "email"]), (("card", "id"), ["id", "card"])]
)
def test_column_added_later(include: tuple[str, ...], names: list[str]) -> None:
    grown = TableSchema(ORDERS, CARDS.columns.append(pa.field("email", pa.string())), CARDS.key)
    options = ColumnOptions(include=include)
    assert SinkColumns(options, CARDS, None).columns.names == [name for name in names if name != "email"]
    columns = SinkColumns(options, grown, None)
    assert columns.columns.names == names
    row = {"id": 1, "card": "c", "notes": None, "email": CANARY}
    [found] = columns.images(images(grown, [row], [[2]])).column("row").to_pylist()
    assert found == {name: row[name] for name in names}


def test_images_of_another_version_are_rejected() -> None:
    with pytest.raises(ValueError, match="other columns"):
        SinkColumns(ColumnOptions(), CARDS, None).images(images(table({"id": pa.int64()}), [], []))


# -- sinks of several tables -------------------------------------------------------------------------------------------

TABLES = {
    "orders": CARDS,
    "customers": table({"id": pa.int64(), "card": pa.string(), "email": pa.string()}, name=TableName("crm", "people")),
}


def columns_of_tables(options: ColumnOptions, key: bytes | None) -> dict[str, SinkColumns]:
    return {
        local: SinkColumns(options_of_table(options, local, schema), schema, key, local=local)
        for local, schema in TABLES.items()
    }


def outputs(options: ColumnOptions, key: bytes | None = KEY) -> dict[str, list[str]]:
    check_options(options, TABLES)
    return {local: columns.columns.names for local, columns in columns_of_tables(options, key).items()}


@pytest.mark.parametrize(
    ("excluded", "orders", "customers"),
    [
        ("card", ["id", "notes"], ["id", "email"]),
        ("orders.card", ["id", "notes"], ["id", "card", "email"]),
        ("public.orders.card", ["id", "notes"], ["id", "card", "email"]),
        ("customers.card", ["id", "card", "notes"], ["id", "email"]),
        ("crm.people.card", ["id", "card", "notes"], ["id", "email"]),
        ("email", ["id", "card", "notes"], ["id", "card"]),
    ],
)
def test_names_with_and_without_table(excluded: str, orders: list[str], customers: list[str]) -> None:
    assert outputs(ColumnOptions(exclude=(excluded,))) == {"orders": orders, "customers": customers}


def test_included_columns_of_one_table_do_not_restrict_others() -> None:
    found = outputs(ColumnOptions(include=("orders.id", "public.orders.notes")))
    assert found == {"orders": ["id", "notes"], "customers": ["id", "card", "email"]}
    found = outputs(ColumnOptions(include=("id", "email")))
    assert found == {"orders": ["id"], "customers": ["id", "email"]}
    with pytest.raises(UsageError, match=r'"include columns" lists no column of table orders'):
        outputs(ColumnOptions(include=("email", "customers.id")))


def test_more_specific_name_decides() -> None:
    redact = {"public.orders.card": "fixed:3", "orders.card": "fixed:2", "card": "fixed:1"}
    for shuffled in (random.Random(seed).sample(list(redact.items()), 3) for seed in range(6)):
        found = columns_of_tables(ColumnOptions(redact=dict(shuffled)), None)
        values = {
            local: columns.images(images(TABLES[local], [{"id": 1, "card": "c"}], [None])).column("row").to_pylist()
            for local, columns in found.items()
        }
        assert {local: row["card"] for local, [row] in values.items()} == {"orders": "3", "customers": "1"}


def test_key_of_hashes_is_needed_only_by_tables_with_hashes() -> None:
    options = ColumnOptions(redact={"email": "hash"})
    assert options.needs_hash_key
    check_options(options, TABLES)
    SinkColumns(ColumnOptions(redact={"card": "null"}), CARDS, None)
    with pytest.raises(UsageError, match="redaction hash of table customers requires a key"):
        columns_of_tables(options, None)
    with pytest.raises(UsageError, match="requires a key"):
        columns_of_tables(options, b"")


# -- validation --------------------------------------------------------------------------------------------------------

TIMES = table({"at": pa.timestamp("us"), "n": pa.decimal128(38, 2), "v": pa.string()}, ("at", "n"))


@pytest.mark.parametrize(
    ("options", "schema", "message", "hint"),
    [
        (ColumnOptions(include=("cadr",)), CARDS, 'column "cadr" in option "include columns" does not', "mean"),
        (ColumnOptions(exclude=("cadr",)), CARDS, 'column "cadr" in option "exclude columns"', '"card"?'),
        (ColumnOptions(rename={"cadr": "x"}), CARDS, 'column "cadr" in option "rename columns"', '"card"?'),
        (ColumnOptions(redact={"cadr": "hash"}), CARDS, 'column "cadr" in option "redact"', '"card"?'),
        (ColumnOptions(redact={"orders.cadr": "hash"}), CARDS, '"orders.cadr" in option', '"orders.card"?'),
        (ColumnOptions(redact={"xyz": "hash"}), CARDS, '"xyz" in option', "The columns are: card, id, notes."),
        (ColumnOptions(redact={"card": "hahs"}), CARDS, 'unknown redaction "hahs"', "hash?"),
        (ColumnOptions(formats=ValueFormats(bytes="hxe")), CARDS, 'unknown format "hxe"', "hex?"),
        (ColumnOptions(exclude=("id",)), CARDS, 'key column "id" of table public.orders is excluded', "Include"),
        (ColumnOptions(include=("card",)), CARDS, 'key column "id" of table public.orders is excluded', "Include"),
        (ColumnOptions(redact={"id": "null"}), CARDS, 'redaction "null" makes different values', "Use hash"),
        (ColumnOptions(redact={"id": "fixed:x"}), CARDS, 'redaction "fixed" makes different values', "Use hash"),
        (ColumnOptions(redact={"id": "last four"}), CARDS, 'redaction "last four" makes', "Use hash"),
        (ColumnOptions(rename={"card": "id"}), CARDS, '2 columns with the name "id" after renaming', "different"),
        (ColumnOptions(rename={"card": ""}), CARDS, "renamed to an empty name", "Give it a name"),
        (ColumnOptions(exclude=("a",)), table({"a": pa.int64()}, ()), "no column of table public.orders is", "Remove"),
        (ColumnOptions(formats=ValueFormats(timestamp="epoch millis")), TIMES, 'format of key column "at"', "micros"),
        (ColumnOptions(formats=ValueFormats(numeric="double")), TIMES, 'format of key column "n"', "string"),
    ],
)
def test_invalid_options(options: ColumnOptions, schema: TableSchema, message: str, hint: str) -> None:
    for validate in (
        lambda: check_options(options, {"orders": schema}),
        lambda: SinkColumns(options, schema, KEY),
    ):
        with pytest.raises(UsageError) as caught:
            validate()
        assert message in caught.value.message
        assert hint in caught.value.hint


def test_formats_that_keep_keys_distinct() -> None:
    formats = ValueFormats(timestamp="epoch micros", numeric="string")
    found = SinkColumns(ColumnOptions(formats=formats), TIMES, None).columns
    assert found == pa.schema([("at", pa.int64()), ("n", pa.string()), ("v", pa.string())])
    small = table({"n": pa.decimal128(15, 2)}, ("n",))
    SinkColumns(ColumnOptions(formats=ValueFormats(numeric="double")), small, None)


def test_renamed_columns_may_swap_names() -> None:
    columns = SinkColumns(ColumnOptions(rename={"card": "notes", "notes": "card"}), CARDS, None)
    found = columns.images(images(CARDS, [{"id": 1, "card": "c", "notes": "n"}], [[1]]))
    assert found.column("row").to_pylist() == [{"id": 1, "notes": "c", "card": "n"}]
    assert found.column("_unchanged").to_pylist() == [[1]]


def test_redacted_value_is_nowhere_in_the_result() -> None:
    rows: list[dict[str, Any] | None] = [{"id": number, "card": CANARY, "notes": CANARY} for number in range(3)]
    for redaction in REDACTIONS:
        redact = {"card": redaction}
        columns = SinkColumns(ColumnOptions(exclude=("notes",), redact=redact), CARDS, KEY)
        found = columns.images(images(CARDS, rows, [None] * 3))
        buffers = b"".join(bytes(one) for one in found.column("row").flatten()[1].buffers() if one is not None)
        assert CANARY.encode() not in found.serialize().to_pybytes() + found.schema.serialize().to_pybytes() + buffers


def test_no_error_contains_a_value() -> None:
    """A column that was added carries a value in its field, and images have values that formats reject."""
    email = with_missing(pa.field("email", pa.list_(pa.string())), pa.array([[CANARY]]))
    schema = TableSchema(ORDERS, pa.schema([pa.field("id", pa.int64()), email, pa.field("at", pa.date32())]), ("id",))
    number = 2_004_711_222
    day = pa.array([number], pa.int32()).cast(pa.date32())
    row = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([[CANARY]]), day], schema=schema.columns)
    for options in (
        ColumnOptions(redact={"email": "last four"}),
        ColumnOptions(redact={"emial": "null"}),
        ColumnOptions(rename={"email": "id"}),
        ColumnOptions(redact={"at": "hash"}),
        ColumnOptions(redact={"at": "last four"}),
        ColumnOptions(formats=ValueFormats(date="iso8601")),
        ColumnOptions(formats=ValueFormats(date="epoch days")),
    ):
        with pytest.raises(PenstockError) as caught:
            SinkColumns(options, schema, KEY).images(copied_images(row, 1))
        failure: BaseException | None = caught.value
        while failure is not None:
            assert CANARY not in str(failure)
            assert str(number) not in str(failure)
            failure = failure.__cause__ or failure.__context__


def test_rescued_texts_of_hidden_columns_are_left_out() -> None:
    """A text of a redacted or excluded column would show its value."""
    columns = [("id", pa.int64()), ("born", pa.date32()), ("paid", pa.decimal128(9, 2)), ("until", pa.date32())]
    schema = TableSchema(ORDERS, pa.schema([*(pa.field(*each) for each in columns), rescued_field()]), ("id",))
    row = {"id": 1, "_rescued": [("born", CANARY), ("paid", CANARY), ("until", "infinity")]}
    other = {"id": 2, "_rescued": [("born", CANARY)]}
    batch = images(schema, [row, other, {"id": 3}], [None, None, None])
    options = ColumnOptions(exclude=("paid",), redact={"born": "hash"}, rename={"until": "end", "_rescued": "texts"})
    found = SinkColumns(options, schema, KEY).images(batch).column("row").to_pylist()
    assert [each["texts"] for each in found] == [[("end", "infinity")], None, None]
    assert CANARY not in str(found)
    whole = SinkColumns(ColumnOptions(), schema, None).images(batch)
    assert whole.column("row").to_pylist() == batch.column("row").to_pylist()
    assert SinkColumns(ColumnOptions(exclude=("_rescued",)), schema, None).columns.names == schema.columns.names[:-1]
