"""tail.md, from `transaction_json`; a word on each field stands here."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
from docs.generate.markdown import code, table

from penstock.changelog.transactions import Transaction
from penstock.changelog.user_rows import changes_schema
from penstock.engine.transaction_tail import VERSION, transaction_json
from penstock.positions import Lsn

__all__ = ["page"]

_TAIL = {
    "version": ("integer", f"Version of this shape: {VERSION}. It changes when a field changes its meaning or goes."),
    "source": ("string", "The source's name."),
    "shard": ("string or null", "Of a source that is made of shards, the one in which it committed; else null."),
    "lsn": ("string", "The position: the end of the commit record, as Postgres prints it."),
    "xid": ("integer", "The transaction's id in Postgres."),
    "committed_at": ("string", "When it committed, by the clock of Postgres: ISO 8601, UTC, in microseconds."),
    "tables": ("object", "For each table that it changed, `schema.table`, the list of changes, in order."),
}
_TAIL_CHANGE = {
    "op": ("string", "`insert`, `update`, `delete` or `truncate`."),
    "ordinal": (
        "integer",
        "Its place among all changes of the transaction, over all tables of the source. It rises, with gaps: parts of "
        "the transaction that were rolled back, and changes of tables that are not captured, have places, too.",
    ),
    "unchanged": (
        "list of strings",
        "Columns of `after` that were not sent as they did not change (TOAST): null there.",
    ),
    "before": ("object or null", "What the replica identity gives: the old row, its key, or nothing."),
    "after": ("object or null", "The new row; null for `delete` and `truncate`."),
}


def page() -> str:
    columns = pa.schema([("id", pa.int64()), ("total", pa.decimal128(12, 2)), ("paid_at", pa.timestamp("us", "UTC"))])
    at = datetime(2026, 11, 15, 7, 15, 58, 101000, tzinfo=UTC)
    new = {"id": 4711, "total": Decimal("12.50"), "paid_at": at}
    shared = {"_lsn": "0/28F14C0", "_xid": 743, "_committed_at": at, "_unchanged": None}
    row = {"_op": "update", "_ordinal": 0, **shared, "before": {**new, "paid_at": None}, "after": new}
    changes = pa.Table.from_pylist([row], changes_schema(columns))
    line = transaction_json("shop", Transaction(Lsn.parse("0/28F14C0"), 743, at, {"public.orders": changes}))
    told = json.loads(line)
    change = told["tables"]["public.orders"][0]
    if [list(told), list(change)] != [list(_TAIL), list(_TAIL_CHANGE)]:
        raise KeyError(line)
    return "\n\n".join(
        [
            "# penstock tail --format json",
            "One line per transaction, in commit order; of several shards, in that of each. A table that fails is left "
            "out from there on, and stderr tells it, once: `left out`, the table, from which position on, the reason; "
            "then `to do`. A table that is named, or the last one that is left, ends the tail with its error, exit "
            "code 3.",
            f"```json\n{line}\n```",
            "## A transaction",
            table(["field", "type", "meaning"], [[code(name), *words] for name, words in _TAIL.items()]),
            "## A change",
            table(["field", "type", "meaning"], [[code(name), *words] for name, words in _TAIL_CHANGE.items()]),
            "## Values",
            "Nothing is rounded. Integers and decimals are numbers with all their digits: parse them as such (in "
            "Python with `json.loads(line, parse_float=decimal.Decimal)`). Floats that are no numbers are the texts "
            "`NaN`, `Infinity` and `-Infinity`. Timestamps are ISO 8601, with `Z` where they have a time zone; dates "
            "are `2026-01-01`; binary values are base64. Arrays are lists, composite values and ranges are objects.",
        ]
    )
