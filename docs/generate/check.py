"""check.md, from `CheckReport` and the descriptions of its fields below."""

from __future__ import annotations

import json

from docs.generate.attributes import attribute_docs
from docs.generate.json_shapes import shape
from docs.generate.markdown import code, table

from penstock.engine.check import CheckFinding, CheckReport, CheckTable
from penstock.sources.findings import Level

__all__ = ["page"]

_FIELDS: dict[type, dict[str, str]] = {
    CheckReport: {
        "version": "Version of this format: 1. It changes if a field is removed or redefined.",
        "at": "Host, port and database; for a sharded source, those of all shards.",
        "source": "The name of the source; null if a database was checked.",
        "ready": "Whether capture can start or resume.",
        "tables": "The tables that were checked.",
        "findings": "All findings, those about the server first.",
    },
    CheckTable: {
        "name": "The name in Postgres, `schema.table`.",
        "capturable": "Whether the table can be captured.",
        "live": "The name of its live table: `source.table`.",
    },
    CheckFinding: {
        "level": "`error`, `warning` or `info`.",
        "object": "The object that the finding concerns: a setting, the role, the slot or a table; in a sharded "
        "source, with the shard first.",
        "why": "The problem and its consequence.",
        "hint": "What to do; empty if no action is needed.",
        "sql": "The statements in the hint that can be run as they are.",
    },
}


def page() -> str:
    example = CheckReport(
        1,
        "db.example.com:5432/shop",
        None,
        True,
        [CheckTable("public.orders", True, "shop.orders"), CheckTable("public.visits", False, "shop.visits")],
        [
            CheckFinding(
                "error",
                "public.visits",
                "its replica identity is NOTHING: UPDATE and DELETE fail once the table is published",
                'Run: ALTER TABLE "public"."visits" REPLICA IDENTITY DEFAULT;',
                ['ALTER TABLE "public"."visits" REPLICA IDENTITY DEFAULT;'],
            )
        ],
    )
    return "\n\n".join(
        [
            "# penstock check --json",
            "The command prints one JSON document. Its exit code is 1 if `ready` is false.",
            f"```json\n{json.dumps(example.as_json(), indent=2)}\n```",
            shape("The report", CheckReport, _FIELDS[CheckReport]),
            shape("A table", CheckTable, _FIELDS[CheckTable]),
            shape("A finding", CheckFinding, _FIELDS[CheckFinding]),
            "## Levels",
            table(["level", "meaning"], [[code(level), attribute_docs(Level)[level.name]] for level in Level]),
            "[Prepare Postgres](../how-to/prepare-postgres.md) describes the requirements that are checked, and how to "
            "meet them.",
        ]
    )
