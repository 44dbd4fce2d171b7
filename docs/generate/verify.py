"""verify.md, from `VerifyReport`; a word on each field stands here."""

from __future__ import annotations

import json

from docs.generate.json_shapes import shape

from penstock.engine.verify_report import VerifyKey, VerifyRepair, VerifyReport, VerifyTable

__all__ = ["page"]

_FIELDS: dict[type, dict[str, str]] = {
    VerifyReport: {
        "version": "Version of this shape: 1. It changes when a field changes its meaning or goes.",
        "source": "The source's name.",
        "position": "The position at which all tables were compared; null where there was none, or one per shard.",
        "equal": "Whether every table was compared, and not one row differs.",
        "tables": "One object per table.",
        "repairs": "What `--repair` did; `tables` are then as they were compared again after it.",
        "before": "With `--repair`, the report of what was found at first, of this same shape; else null.",
    },
    VerifyTable: {
        "name": "The name in queries, `source.table`.",
        "upstream": "The name in Postgres, `schema.table`.",
        "result": "`equal`, `different` or `not compared`.",
        "rows": "How many rows it has in Postgres; null where it was not compared, as are the numbers below.",
        "differing": "At how many keys it differs; of a table without a key, in how many distinct rows.",
        "missing": "Of these, how many are in Postgres only.",
        "unexpected": "How many are here only.",
        "changed": "How many are on both sides, with other values.",
        "keys": "The first 20 of them; none for a table without a key.",
        "error": "Why it was not compared.",
        "hint": "What to do about it.",
        "shard": "Of a source that is made of shards, the one of which this is; else null.",
        "position": "The position at which it was compared; null where a shard could not be reached.",
    },
    VerifyKey: {
        "key": "The key's columns and their values. Integers are numbers; decimals and floats are text, so that no "
        "digit is lost; all else is as in [tail](tail.md#values).",
        "how": "`missing`, `unexpected` or `changed`.",
    },
    VerifyRepair: {
        "name": "The name in queries, `source.table`.",
        "rows_changed": "How many rows were put right.",
        "low": "The position before which the rows were read.",
        "high": "The position from which on the table holds them.",
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
            "One document. The command ends with exit code 1 when a table is `different`, and with 3 when none is but "
            "one was `not compared`. No values of rows are in it but those of keys.",
            f"```json\n{json.dumps(example.as_json(), indent=2)}\n```",
            shape("The report", VerifyReport, _FIELDS[VerifyReport]),
            shape("A table", VerifyTable, _FIELDS[VerifyTable]),
            shape("A key", VerifyKey, _FIELDS[VerifyKey]),
            shape("A repair", VerifyRepair, _FIELDS[VerifyRepair]),
            "See [verify and repair](../how-to/verify-and-repair.md).",
        ]
    )
