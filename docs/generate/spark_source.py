"""spark-source.md, from `PenstockOptions` and the row schemas."""

from __future__ import annotations

import pyarrow as pa
from docs.generate.markdown import code, table
from docs.generate.spark_types import spark_type

from penstock.changelog.user_rows import changes_schema, updates_schema
from penstock.spark.source_options import PenstockOptions

__all__ = ["page"]


def page() -> str:
    rows = []
    for name, field in PenstockOptions.model_fields.items():
        default = "required" if field.is_required() else "" if field.default is None else code(str(field.default))
        rows.append([code(field.alias or name), default, f"{field.description}."])
    columns = pa.schema([("id", pa.int64()), ("status", pa.string())])
    shape = [[code(f.name), spark_type(f.type), _CHANGE[f.name]] for f in changes_schema(columns)]
    added = [[code(f.name), spark_type(f.type), _CHANGE[f.name]] for f in list(updates_schema(columns))[2:]]
    example = """
changes = (
    spark.readStream.format("penstock")
    .option("home", ".penstock")
    .option("source", "shop")
    .option("table", "public.orders")
    .load()
)
"""
    return "\n\n".join(
        [
            '# Spark source: format("penstock")',
            "Reads captured tables and their changes, as a stream (`spark.readStream`) or as a batch (`spark.read`). "
            "Spark finds the data source automatically if the package `penstock` is installed.",
            f"```python{example}```",
            "## Options",
            "Option names are case-insensitive. An unknown name is an error, which suggests the most similar one.",
            table(["option", "default", "meaning"], rows),
            "In these options, a position is an LSN as Postgres prints it, like `16/B374D848`, or a time. A query "
            "reads the changes *after* the starting position. The lowest LSN that is accepted is `valid`, in `penstock"
            " status --json` or from `home.frontiers(source)` in Python: the log contains every change after it. A "
            "range that begins before `valid` is an error.",
            "## Rows: changes",
            "One row per change. For a table with the columns `id` and `status`:",
            table(["column", "Spark type", "meaning"], shape),
            "If the query reads several tables, `before` and `after` are JSON text, and the first column is `_table`, "
            "the name of the table upstream.",
            "## Rows: updates",
            "The columns of the table, followed by these. An update is two rows: the old one (-1) and the new one "
            "(+1).",
            table(["column", "Spark type", "meaning"], added),
            "## Rows: live",
            "Only the columns of the table: its current rows, or those as of `asOf`. Batch only.",
            "## Offsets and progress",
            "An offset is the commit end LSN of a transaction. A micro-batch ends between two transactions, never "
            "inside one, and a micro-batch that Spark repeats has the same rows. `latestOffset` in the query progress "
            "is the end of the log.",
        ]
    )


_CHANGE = {
    "_op": "`insert`, `update`, `delete` or `truncate`; `snapshot` for a row of the table as of `_lsn`.",
    "_diff": "+1 for a new row, -1 for an old one.",
    "_lsn": "Commit end LSN of the transaction.",
    "_ordinal": "Number of the change within its transaction, across all tables. It rises with gaps, because changes "
    "that were rolled back and changes of tables that are not captured are also numbered.",
    "_xid": "Transaction id (xid).",
    "_committed_at": "Commit time, by the clock of the upstream server.",
    "_unchanged": "Columns that Postgres did not send because they did not change (TOAST); they are null in `after`.",
    "before": "The old row, as far as the replica identity provides it: the whole row (FULL), the key if the row was "
    "deleted or its key changed (DEFAULT), otherwise null.",
    "after": "The new row; null for `delete` and `truncate`.",
}
