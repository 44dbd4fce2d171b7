"""source-options.md, from `PostgresOptions`."""

from __future__ import annotations

from docs.generate.attributes import attribute_docs
from docs.generate.markdown import code, table
from docs.generate.option_tables import option_table

from penstock.sources.postgres.options import (
    Heartbeat,
    NewTables,
    Ownership,
    Partitions,
    PostgresOptions,
    Rules,
    SnapshotMode,
    Watermarks,
)

__all__ = ["page"]


def page() -> str:
    parts = [
        "# Options of a Postgres source",
        'In Python, options are arguments: `home.create("postgresql://…", "shop", schemas=("sales",))`. [`CREATE '
        "SOURCES`](sql.md#create-sources) has the same options, the [command line](cli.md#penstock-run) the common "
        "ones.",
        option_table(PostgresOptions),
        "The options `publication` and `slot` set the names of these two objects in Postgres; the default is "
        "`penstock_` and the name of the source. Names of tables and columns are case-sensitive; quote a part that "
        'contains a dot or a space: `public."a.b"`.',
        "An unknown option, table or column is an error, which suggests the most similar name. `slot_temporary` is "
        "rejected by the preflight checks: Postgres drops a temporary slot at the end of its session, so capture could "
        "not resume.",
        "With `snapshot = 'chunked'`, the initial snapshot is an *incremental snapshot*: it reads each key range "
        "(chunk) in a window between two watermarks in the stream. [Repair](../how-to/verify-and-repair.md) uses such "
        "windows, too. The [design](../design.md#snapshot-repair-and-verify) explains them.",
    ]
    for title, kinds in (
        ("New tables", NewTables),
        ("Ownership", Ownership),
        ("Rules", Rules),
        ("Partitions", Partitions),
        ("Heartbeat", Heartbeat),
        ("Snapshot", SnapshotMode),
        ("Watermarks", Watermarks),
    ):
        docs = attribute_docs(kinds)
        parts += [f"## {title}", table(["value", "meaning"], [[code(k.value), docs[k.name]] for k in kinds])]
    return "\n\n".join(parts)
