"""types.md, from the codecs, with notes on the values of each type below."""

from __future__ import annotations

import psycopg
from docs.generate.markdown import code, table
from docs.generate.spark_types import spark_type

from penstock.sources.postgres import types
from penstock.sources.postgres.types.codec_lookup import BY_OID

__all__ = ["page"]

_DATES = "Years outside 0001 to 9999, BC, infinities."
_AS_PRINTED = "Exactly the text that Postgres prints."
_SERVER_PRINTS = "Exactly the text that Postgres prints. *Sent as text*."

_NOTES: dict[str, tuple[str, str]] = {
    "bool": ("", ""),
    "bytea": ("", ""),
    "char": ("Bytes 0x80 and above are written as a backslash and three octal digits.", ""),
    "name": ("", ""),
    "int8": ("", ""),
    "int2": ("", ""),
    "int2vector": ("", ""),
    "int4": ("", ""),
    "text": ("", ""),
    "oid": ("Unsigned in Postgres.", ""),
    "xid": ("Unsigned in Postgres.", ""),
    "cid": ("Unsigned in Postgres.", ""),
    "xid8": ("Unsigned in Postgres.", ""),
    "oidvector": ("", ""),
    "json": ("The text as Postgres stores it.", ""),
    "jsonb": (_AS_PRINTED, ""),
    "jsonpath": (_AS_PRINTED, ""),
    "xml": ("The text as Postgres stores it.", ""),
    "float4": ("Bit-exact, including NaN and infinities.", ""),
    "float8": ("Bit-exact, including NaN and infinities.", ""),
    "bpchar": ("Includes the padding.", ""),
    "varchar": ("", ""),
    "date": ("", _DATES),
    "timestamp": ("", _DATES),
    "timestamptz": ("", _DATES),
    "time": ("`HH:MM:SS[.ffffff]`, including `24:00:00`.", ""),
    "timetz": ("`HH:MM:SS[.ffffff]` and the offset.", ""),
    "interval": ("The three numbers that Postgres stores.", "Infinities (Postgres 17 or later)."),
    "uuid": ("36 characters, lower case.", ""),
    "bit": ("Zeros and ones.", ""),
    "varbit": ("Zeros and ones.", ""),
    "inet": (_AS_PRINTED, ""),
    "cidr": (_AS_PRINTED, ""),
    "macaddr": (_AS_PRINTED, ""),
    "macaddr8": (_AS_PRINTED, ""),
    **dict.fromkeys(("point", "line", "lseg", "box", "path", "polygon", "circle"), (_AS_PRINTED, "")),
    "tid": (_AS_PRINTED, ""),
    "pg_lsn": (_AS_PRINTED, ""),
    "pg_snapshot": (_AS_PRINTED, ""),
    "txid_snapshot": (_AS_PRINTED, ""),
    "refcursor": ("", ""),
    "pg_node_tree": (_AS_PRINTED, ""),
}

_DERIVED = (
    ("`numeric(p,s)`, 0 ≤ s ≤ p ≤ 38", "`decimal(p,s)`", "", "`NaN`."),
    ("any other `numeric`", "`string`", "Exactly the text that Postgres prints, including `NaN` and infinities.", ""),
    ("an enum", "`string`", "", ""),
    ("a domain", "that of its base type", "", "As its base type."),
    (
        "an array of T",
        "`array<T>`",
        "Null elements are kept; an empty array is not null.",
        "More than one dimension; a lower bound other than 1.",
    ),
    (
        "a range of T",
        "`struct<lower:T, upper:T, lower_inclusive:boolean, upper_inclusive:boolean, empty:boolean>`",
        "A null bound is infinite.",
        "As T.",
    ),
    ("a multirange of T", "`array` of these structs", "", "As the range."),
    ("a composite type", "`struct` of its fields", "", "As its fields."),
    ("`hstore`", "`map<string,string>`", "", ""),
    ("`citext`", "`string`", "", ""),
    ("`ltree`, `lquery`, `ltxtquery`", "`string`", "", ""),
    ("`vector` (pgvector)", "`array<float>`", "", ""),
    ("any other type", "`string`", "Exactly the text that Postgres prints. *Sent as text*.", ""),
)


_RESCUED = [
    "Texts are printed with `DateStyle = ISO`, `TimeZone = UTC`, `IntervalStyle = iso_8601`, "
    "`extra_float_digits = 3` and `bytea_output = hex`, whatever the settings of the server.",
    "A text belongs to its value. An `UPDATE` that does not change a large array (TOAST) does not change "
    "its text. In `changes`, `after._rescued` has no text of a column that is listed in `_unchanged`, as "
    "`after` has no value of it.",
    "Columns that are added later follow `_rescued`; it has their texts, too. If a column is added with a "
    "default that cannot be represented, the table stops, because older rows would need the text: "
    "`RETRY TABLE` takes a new snapshot.",
    "A key cannot be rescued: a table stops at a key that its type cannot represent. Capture the key column as text.",
    'A composite type or an array that contains `"char"` cannot be rescued from the binary form, because '
    'the text of `"char"` depends on the version of the server: the table stops. List the column in `text '
    "columns`.",
    "A column that is declared NOT NULL is nullable in the schemas of sinks if its values can be rescued.",
    "A table with a column of its own that is named `_rescued`, in any case, is not captured with this "
    "option: rename or exclude the column.",
    "In a sink, `_rescued` has no texts of columns that are excluded or redacted, and has the names of "
    "renamed columns. `ENVELOPE DEBEZIUM` has Debezium's placeholder as the text of a column whose value was "
    "not sent.",
]


def page() -> str:
    rows = []
    for oid, codec in BY_OID.items():
        known = types.builtin(oid)
        name = known.name if known else ""
        notes = (_SERVER_PRINTS, "") if codec.wants_text and name not in _NOTES else _NOTES[name]
        rows.append([_type_name(oid, name), spark_type(codec.arrow), *notes])
    rows.sort(key=lambda row: row[0].strip('`"'))
    return "\n\n".join(
        [
            "# Types",
            "A column has one Spark type, in the snapshot and in the stream. A value is stored exactly, or the table "
            "stops with an error.",
            "## Built-in types",
            table(["Postgres", "Spark", "notes", "unsupported values"], rows),
            "## Numeric, extension and derived types",
            table(["Postgres", "Spark", "notes", "unsupported values"], [list(row) for row in _DERIVED]),
            "These types nest: an array of a composite type with a range field is an array of structs that contain a "
            "struct.",
            "*Sent as text*: only the server can print values of this type. If a source has one such column, even "
            "nested in another type, Postgres sends all columns of the source as text, which takes longer to decode.",
            "## Unsupported values",
            "A value that its Spark type cannot represent stops its table at that transaction with a permanent error; "
            "the other tables continue. To capture the column, list it in the option [`text "
            "columns`](source-options.md): it is then a `string` with exactly the text that Postgres prints, whatever "
            "its type. Dates, timestamps, numerics, and types whose Spark type is `string` anyway, are printed by "
            "Penstock; for a text column of another type, Postgres sends all columns of the source as text, as above. "
            "`exclude columns` omits a column. See [recover a failed table](../how-to/recover-a-failed-table.md).",
            "## Rescued values",
            "With the source option [`on unrepresentable = 'rescue'`](source-options.md), such a value does not stop "
            "its table. Its column is null in that row, and the column `_rescued` of the table, a "
            "`map<string,string>`, has the name of the column and exactly the text that Postgres prints for the "
            "whole value: `{due: infinity}`, `{grid: {{1,2},{3,4}}}`. A row without such values has null "
            "there. Base tables, live tables, changes and sinks have this column, and `verify` and `repair` "
            "compare and restore it.",
            "\n".join(f"- {each}" for each in _RESCUED),
            "As long as no such value occurs, tables are decoded as without the option.",
            "If a composite type is altered upstream, its values no longer match the type as captured. That is a "
            "permanent error of the table as well; `ALTER SOURCES … RETRY TABLE` takes a new snapshot.",
            "## Other types",
            "A column of any other type, such as `geometry` of PostGIS or a base type of your own, is captured as the "
            "text that Postgres prints, as if it were listed in `text columns`; so are arrays, ranges and composite "
            "types that contain one, and composite types whose fields differ only in case, because Spark does not "
            "distinguish them. `penstock check` names these columns.",
            "## Generated columns",
            "Generated columns are not captured, unless a publication of your own includes them (Postgres 18 or "
            "later). The other columns of the table are.",
        ]
    )


def _type_name(oid: int, name: str) -> str:
    known = psycopg.postgres.types.get(oid)
    return code(known.regtype if known else name)
