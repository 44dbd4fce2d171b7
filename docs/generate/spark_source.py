"""spark-source.md, from `PenstockOptions` and the shapes of rows."""

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
            "Captured tables and what happens to them, as a stream (`spark.readStream`) or as a batch (`spark.read`). "
            "Spark finds it by itself where the package `penstock` is installed.",
            f"```python{example}```",
            "## Options",
            "Names are read in any case. An unknown one is an error that suggests the nearest.",
            table(["option", "default", "meaning"], rows),
            "A position is an LSN as Postgres prints it, like `16/B374D848`, or a time. Changes *after* the starting "
            "position are read. `home.frontiers(source).valid` in Python, or `valid` in `penstock status --json`, is "
            "the earliest one: from there on the log holds every change. A range that begins before it is an error.",
            "## Rows: changes",
            "One row per change. For a table with the columns `id` and `status`:",
            table(["column", "Spark type", "meaning"], shape),
            "Of several tables, `before` and `after` are JSON, and the first column is `_table`, the upstream name.",
            "## Rows: updates",
            "The columns of the table, then these. An update is two rows, the old one (-1) and the new one (+1).",
            table(["column", "Spark type", "meaning"], added),
            "## Rows: live",
            "The columns of the table, and nothing else: as they are now, or were `asOf`. Batch only.",
            "## Offsets and progress",
            "An offset is the commit end LSN of a transaction. A micro-batch ends between two transactions, never "
            "inside one, and a batch that Spark runs again has the same rows. `latestOffset` in the query's progress "
            "is how far the log goes.",
        ]
    )


_CHANGE = {
    "_op": "`insert`, `update`, `delete` or `truncate`; `snapshot` for a row of the table as it is at `_lsn`.",
    "_diff": "+1 for a row that came, -1 for one that went.",
    "_lsn": "Commit end LSN of the transaction.",
    "_ordinal": "Place of the change in its transaction, over all its tables. It rises, with gaps: parts of the "
    "transaction that were rolled back, and changes of tables that are not captured, have places, too.",
    "_xid": "Transaction id.",
    "_committed_at": "Commit time at the source.",
    "_unchanged": "Columns of `after` that Postgres did not send because they did not change (TOAST); null there.",
    "before": "The old row, as far as the replica identity gives it: all of it (FULL), the key of a deleted row or of "
    "one whose key changed (DEFAULT), else null.",
    "after": "The new row; null for a delete and a truncate.",
}
