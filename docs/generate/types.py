"""types.md, from the codecs; what a type holds and what it cannot hold, stands here."""

from __future__ import annotations

import psycopg
from docs.generate.markdown import code, table
from docs.generate.spark_types import spark_type

from penstock.sources.postgres import types
from penstock.sources.postgres.types.known import BY_OID

__all__ = ["page"]

_DATES = "Years outside 0001 to 9999, BC, infinities."
_AS_PRINTED = "Exactly the text that Postgres prints."
_SERVER_PRINTS = "Exactly the text that Postgres prints; sent as text."

_NOTES: dict[str, tuple[str, str]] = {
    "bool": ("", ""),
    "bytea": ("", ""),
    "char": ("Bytes from 0x80 on as a backslash and three octal digits.", ""),
    "name": ("", ""),
    "int8": ("", ""),
    "int2": ("", ""),
    "int2vector": ("", ""),
    "int4": ("", ""),
    "text": ("", ""),
    "oid": ("Unsigned upstream.", ""),
    "xid": ("Unsigned upstream.", ""),
    "cid": ("Unsigned upstream.", ""),
    "xid8": ("Unsigned upstream.", ""),
    "oidvector": ("", ""),
    "json": ("The text as Postgres keeps it.", ""),
    "jsonb": (_AS_PRINTED, ""),
    "jsonpath": (_AS_PRINTED, ""),
    "xml": ("The text as Postgres keeps it.", ""),
    "float4": ("Bit by bit, NaN and infinities too.", ""),
    "float8": ("Bit by bit, NaN and infinities too.", ""),
    "bpchar": ("With its padding.", ""),
    "varchar": ("", ""),
    "date": ("", _DATES),
    "timestamp": ("", _DATES),
    "timestamptz": ("", _DATES),
    "time": ("`HH:MM:SS[.ffffff]`, also `24:00:00`.", ""),
    "timetz": ("`HH:MM:SS[.ffffff]` and the offset.", ""),
    "interval": ("The three counts that Postgres keeps.", "Infinities (Postgres 17)."),
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

_MADE_OF_OTHERS = (
    ("`numeric(p,s)`, 0 ≤ s ≤ p ≤ 38", "`decimal(p,s)`", "", "`NaN`."),
    ("any other `numeric`", "`string`", "Exactly the text that Postgres prints, `NaN` and infinities too.", ""),
    ("an enum", "`string`", "", ""),
    ("a domain", "as the type that it is of", "", "As that type."),
    (
        "an array of T",
        "`array<T>`",
        "Null elements are kept; an empty array is not null.",
        "Several dimensions; a lower bound other than 1.",
    ),
    (
        "a range of T",
        "`struct<lower:T, upper:T, lower_inclusive:boolean, upper_inclusive:boolean, empty:boolean>`",
        "A bound that is null has no end.",
        "Bounds that T cannot hold.",
    ),
    ("a multirange of T", "`array` of such structs", "", "As the range."),
    ("a composite type", "`struct` of its fields", "", "What its fields cannot hold."),
    ("`hstore`", "`map<string,string>`", "", ""),
    ("`citext`", "`string`", "", ""),
)


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
            "A column has one Spark type, the same from the first copy and from the stream. A value is kept exactly or "
            "not at all.",
            "## Built-in types",
            table(["Postgres", "Spark", "what it holds", "what it cannot hold"], rows),
            "## Numerics, types of extensions, and types made of others",
            table(
                ["Postgres", "Spark", "what it holds", "what it cannot hold"], [list(row) for row in _MADE_OF_OTHERS]
            ),
            "They nest: an array of a composite type with a range in it is an array of structs with a struct in it.",
            "*Sent as text*: only the server can print such a value. One such column, also inside of another type, "
            "makes the stream of its source use the text form for all columns, which takes longer to decode.",
            "## What a type cannot hold",
            "A value that its Spark type cannot hold ends its table with a definite error at that transaction; the "
            "other tables go on. The way out is the option `text columns`: a column listed there is a `string` with "
            "exactly the text that Postgres prints, whatever its type. See "
            "[recover a failed table](../how-to/recover-a-failed-table.md).",
            "If a composite type is altered upstream, values no longer look as they did when capture began. That, too, "
            "is a definite error of the table; `ALTER SOURCES … RETRY TABLE` copies it anew.",
            "## Types that are not here",
            "A table with a column of any other type (those of other extensions) is left out of the capture: it is "
            "`failed`, with the column in the message, and the other tables are captured. So is one with a composite "
            "type whose fields differ by case alone, as Spark does not tell them apart. `text columns` helps here too.",
            "Generated columns are not published by Postgres and are not captured; their table is.",
            "The option [`text_columns`](source-options.md) keeps a column as the text that Postgres prints, "
            "`exclude_columns` leaves it out.",
        ]
    )


def _type_name(oid: int, name: str) -> str:
    known = psycopg.postgres.types.get(oid)
    return code(known.regtype if known else name)
