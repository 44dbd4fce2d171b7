"""verify.md, from `VerifyReport` and the descriptions of its fields below."""

from __future__ import annotations

import json

from docs.generate.json_shapes import shape

from penstock.engine.verify import VerifyKey, VerifyRepair, VerifyReport, VerifyTable

__all__ = ["page"]

_FIELDS: dict[type, dict[str, str]] = {
    VerifyReport: {
        "version": "Version of this format: 1. It changes if a field is removed or redefined.",
        "source": "The name of the source.",
        "position": "The position at which all tables were compared; null if there was none, or one per shard.",
        "equal": "Whether all tables were compared and no row differs.",
        "tables": "One object per table.",
        "repairs": "The repairs of `--repair`; `tables` is then the result of the comparison after them.",
        "before": "With `--repair`, the report before the repair, in the same format; otherwise null.",
    },
    VerifyTable: {
        "name": "The name in queries, `source.table`.",
        "upstream": "The name in Postgres, `schema.table`.",
        "result": "`equal`, `different` or `not compared`.",
        "rows": "Number of rows in Postgres; like the numbers below, null if the table was not compared.",
        "differing": "Number of keys with a difference; for a keyless table, of distinct rows.",
        "missing": "Of these, the number that only Postgres has.",
        "unexpected": "Of these, the number that only the live table has.",
        "changed": "Of these, the number that both have, with different values.",
        "keys": "The first 20 keys with a difference; empty for a keyless table.",
        "error": "Why the table was not compared.",
        "hint": "What to do about the error.",
        "shard": "For a sharded source, the shard of this table; otherwise null.",
        "position": "The position at which it was compared; null if a shard could not be reached.",
    },
    VerifyKey: {
        "key": "The key columns and their values. Integers are numbers; decimals and floats are strings, so that no "
        "digit is lost; other types are as in [tail](tail.md#values).",
        "how": "The kind of difference: `missing`, `unexpected` or `changed`.",
    },
    VerifyRepair: {
        "name": "The name in queries, `source.table`.",
        "rows_changed": "Number of rows that were repaired.",
        "low": "A position recorded before the rows were read.",
        "high": "The position from which the table contains the repaired rows.",
    },
}


def page() -> str:
    users = VerifyTable(
        *("shop.users", "public.users", "different", 5002, 1, 1, 0, 0),
        [VerifyKey({"id": 4711}, "missing")],
        *(None, None, None, "0/2A9D5B0"),
    )
    equal = ("shop.orders", "public.orders", "equal", 120391, 0, 0, 0, 0)
    orders = VerifyTable(*equal, [], None, None, None, "0/2A9D5B0")
    example = VerifyReport(1, "shop", "0/2A9D5B0", False, [orders, users])
    return "\n\n".join(
        [
            "# penstock verify --json",
            "The command prints one JSON document. Its exit code is 1 if a table is `different`, and 3 if no table is "
            "`different` but one is `not compared`. The document contains no row values except keys.",
            f"```json\n{json.dumps(example.as_json(), indent=2)}\n```",
            shape("The report", VerifyReport, _FIELDS[VerifyReport]),
            shape("A table", VerifyTable, _FIELDS[VerifyTable]),
            shape("A key", VerifyKey, _FIELDS[VerifyKey]),
            shape("A repair", VerifyRepair, _FIELDS[VerifyRepair]),
            "See [verify and repair](../how-to/verify-and-repair.md).",
        ]
    )
