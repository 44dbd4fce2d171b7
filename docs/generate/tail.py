"""tail.md, from `transaction_json` and the descriptions of its fields below."""

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
    "version": ("integer", f"Version of this format: {VERSION}. It changes if a field is removed or redefined."),
    "source": ("string", "The name of the source."),
    "shard": ("string or null", "For a sharded source, the shard in which it committed; otherwise null."),
    "lsn": ("string", "The position: the end of the commit record, as Postgres prints it."),
    "xid": ("integer", "The transaction's id in Postgres."),
    "committed_at": ("string", "Commit time by the clock of Postgres: ISO 8601, UTC, with microseconds."),
    "tables": ("object", "The changes of each table, by `schema.table`, in the order of their ordinals."),
}
_TAIL_CHANGE = {
    "op": ("string", "`insert`, `update`, `delete` or `truncate`."),
    "ordinal": (
        "integer",
        "Number of the change within its transaction, across all tables of the source. It rises with gaps, because "
        "changes that were rolled back and changes of tables that are not captured are also numbered.",
    ),
    "unchanged": (
        "list of strings",
        "Columns that Postgres did not send because they did not change (TOAST); they are null in `after`.",
    ),
    "before": ("object or null", "The old row, if the replica identity provides it: the whole row, its key, or null."),
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
    transaction = json.loads(line)
    change = transaction["tables"]["public.orders"][0]
    if [list(transaction), list(change)] != [list(_TAIL), list(_TAIL_CHANGE)]:
        raise KeyError(line)
    return "\n\n".join(
        [
            "# penstock tail --format json",
            "The command prints one line per transaction, in commit order; for a sharded source, in the commit order "
            "of each shard. A table that fails is skipped from that position on, and reported once on stderr: "
            "`skipped:` with the table, the position and the reason, then `hint:`. If the table was named on the "
            "command line, or no other table is left, the command ends with its error and exit code 3.",
            f"```json\n{line}\n```",
            "## A transaction",
            table(["field", "type", "meaning"], [[code(name), *words] for name, words in _TAIL.items()]),
            "## A change",
            table(["field", "type", "meaning"], [[code(name), *words] for name, words in _TAIL_CHANGE.items()]),
            "## Values",
            "Values are not rounded. Integers and decimals are JSON numbers with all their digits; parse them without "
            "loss (in Python with `json.loads(line, parse_float=decimal.Decimal)`). The special floats are the strings"
            " `NaN`, `Infinity` and `-Infinity`. Timestamps are ISO 8601, with `Z` if they have a time zone; dates are"
            " written like `2026-01-01`; binary values are base64. Arrays are lists, composite values and ranges are "
            "objects.",
        ]
    )
