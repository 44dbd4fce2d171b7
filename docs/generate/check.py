"""check.md, from `CheckReport`; a word on each field stands here."""

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
        "version": "Version of this shape: 1. It changes when a field changes its meaning or goes.",
        "at": "Host, port and database; of shards, those of all of them.",
        "source": "The source's name; null where a database was checked.",
        "ready": "Whether capture could start, or go on.",
        "tables": "The tables that were asked for.",
        "findings": "Everything that was found, what holds for the server first.",
    },
    CheckTable: {
        "name": "The name in Postgres, `schema.table`.",
        "capturable": "Whether it can be captured.",
    },
    CheckFinding: {
        "level": "`error`, `warning` or `info`.",
        "object": "What it is about: a setting, the role, the slot, a table; of several shards, with the shard first.",
        "why": "What was found, and what follows from it.",
        "hint": "What to do about it; empty where nothing needs to be done.",
        "sql": "The statements of the hint, where they can be run as they are.",
    },
}


def page() -> str:
    example = CheckReport(
        1,
        "db.example.com:5432/shop",
        None,
        True,
        [CheckTable("public.orders", True), CheckTable("public.visits", False)],
        [
            CheckFinding(
                "error",
                "public.visits",
                "its replica identity is NOTHING: once it is published, UPDATE and DELETE on it fail",
                'Run: ALTER TABLE "public"."visits" REPLICA IDENTITY DEFAULT;',
                ['ALTER TABLE "public"."visits" REPLICA IDENTITY DEFAULT;'],
            )
        ],
    )
    return "\n\n".join(
        [
            "# penstock check --json",
            "One document. The command ends with exit code 1 when `ready` is false.",
            f"```json\n{json.dumps(example.as_json(), indent=2)}\n```",
            shape("The report", CheckReport, _FIELDS[CheckReport]),
            shape("A table", CheckTable, _FIELDS[CheckTable]),
            shape("A finding", CheckFinding, _FIELDS[CheckFinding]),
            "## Levels",
            table(["level", "meaning"], [[code(level), attribute_docs(Level)[level.name]] for level in Level]),
            "What is looked at, and what mends it, is in [prepare Postgres](../how-to/prepare-postgres.md).",
        ]
    )
