"""source-options.md, from `PostgresOptions`."""

from __future__ import annotations

from docs.generate.attributes import attribute_docs
from docs.generate.markdown import code, table
from docs.generate.option_tables import option_table

from penstock.sources.postgres.options import (
    Heartbeat,
    Ownership,
    Partitions,
    PostgresOptions,
    Rules,
    Snapshot,
    Watermarks,
)

__all__ = ["page"]


def page() -> str:
    parts = [
        "# Options of a Postgres source",
        'In Python they are arguments of `home.create("postgresql://…", "shop", schemas=("sales",))`; the '
        "[command line](cli.md#penstock-run) has the common ones.",
        option_table(PostgresOptions),
        "`publication` and `slot` name the two objects in Postgres, `penstock_` and the source's name by default. "
        'Names of tables and columns are taken as they are; a part with a dot or a space is quoted: `public."a.b"`.',
        "An unknown option, table or column is an error that suggests the nearest. `slot_temporary` is refused by "
        "preflight: a slot that ends with its session cannot be resumed.",
    ]
    for title, kinds in (
        ("Ownership", Ownership),
        ("Rules", Rules),
        ("Partitions", Partitions),
        ("Heartbeat", Heartbeat),
        ("Snapshot", Snapshot),
        ("Watermarks", Watermarks),
    ):
        docs = attribute_docs(kinds)
        parts += [f"## {title}", table(["value", "meaning"], [[code(k.value), docs[k.name]] for k in kinds])]
    return "\n\n".join(parts)
