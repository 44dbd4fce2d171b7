"""What keeps a table out of the capture, and what would happen to its writers if it were published."""

from __future__ import annotations

import pyarrow as pa

from penstock.model import RESERVED
from penstock.sources.findings import Finding, error, info
from penstock.sources.postgres.introspect import UpstreamColumn, UpstreamTable
from penstock.sources.postgres.names import quoted, quoted_table
from penstock.sources.postgres.options import Ownership, PostgresOptions
from penstock.sources.postgres.preflight.role import Role
from penstock.sources.postgres.selection import ChosenTable

__all__ = ["check_table"]

_GENERATED_CHECKED = 180000
"""Since this version, Postgres refuses writes whose identity has a generated column that is not published."""


def check_table(table: ChosenTable, role: Role, options: PostgresOptions) -> list[Finding]:
    """Look at one table that was chosen, a root with its partitions."""
    found = [
        *_check_kind(table),
        *_check_rights(table, role, options),
        *_check_identity(table),
        *_check_row_security(table, role),
        *_check_columns(table),
        *([] if table.refused_columns() else _check_key(table)),
        *_check_names(table),
    ]
    return found + _tell(table)


def _check_kind(table: ChosenTable) -> list[Finding]:
    found = []
    for part in (table.upstream, *table.partitions):
        name = quoted_table(part.name)
        if part.persistence == "u":
            why = f"{_it(table, part)} is unlogged: its changes are not in the WAL"
            found.append(error(str(table.name), why, sql=[f"ALTER TABLE {name} SET LOGGED;"]))
        if part.kind == "f":
            why = f"{_it(table, part)} is a foreign table: its changes are not in the WAL"
            found.append(error(str(table.name), why, "Use partitions = leaves."))
    return found


def _check_rights(table: ChosenTable, role: Role, options: PostgresOptions) -> list[Finding]:
    upstream, name, grantee = table.upstream, quoted_table(table.name), quoted(role.name)
    found = []
    if not upstream.schema_usable:
        mend = f"GRANT USAGE ON SCHEMA {quoted(table.name.schema)} TO {grantee};"
        found.append(error(str(table.name), f"role {role.name} may not use its schema", sql=[mend]))
    if not upstream.readable:
        why = f"it may not be read by role {role.name}"
        found.append(error(str(table.name), why, sql=[f"GRANT SELECT ON {name} TO {grantee};"]))
    if options.publication_ownership is Ownership.MANAGED and not (upstream.owned or role.superuser):
        mend = f"GRANT {quoted(upstream.owner)} TO {grantee};"
        hint = "Or have an administrator make the publication, and give it as one of yours."
        found.append(error(str(table.name), "only its owner may publish it", hint, [mend]))
    return found


def _check_identity(table: ChosenTable) -> list[Finding]:
    """Look how the stream will name the row that a change is of, and whether Postgres will still allow the change.

    One finding for a table or partition, with what mends it for good: FULL is no way where columns are not published.
    """
    about, found = str(table.name), []
    for part in (table.upstream, *table.partitions):
        key = _check_published_key(table, part)
        found += key or [finding for finding in [_check_part(table, part)] if finding is not None]
    if not table.key and table.upstream.replica_identity == "f" and not found:
        why = "it has no primary key: it is captured as a collection of rows, which may be there more than once"
        found.append(info(about, why))
    return found


def _check_part(table: ChosenTable, part: UpstreamTable) -> Finding | None:
    """Look at the replica identity of a table or partition whose key, if there is one, is published."""
    about, name, its, hidden = str(table.name), quoted_table(part.name), _its(table, part), _hidden(table, part)
    default = [f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT;"]
    if part.replica_identity == "i":
        why = f"{its} replica identity is not the key of {table.name}"
        return error(about, why, sql=default) if set(part.key) != set(table.key) else None
    if not part.key:
        return _check_keyless(table, part, hidden)
    if part.replica_identity == "f" and not hidden:
        return None
    if part.deferrable_key:
        return _check_deferrable(table, part, hidden)
    if part.replica_identity == "n":
        why = f"{its} replica identity is NOTHING: once it is published, UPDATE and DELETE on it fail"
        return error(about, why, sql=default)
    if part.replica_identity == "f":
        why = f"{its} replica identity FULL has {_listed(hidden)} not published: UPDATE and DELETE on it fail"
        return error(about, why, sql=default)
    return None


def _check_keyless(table: ChosenTable, part: UpstreamTable, hidden: list[UpstreamColumn]) -> Finding | None:
    """Without a key the whole row has to name itself; Postgres allows that only where all of it is published."""
    name, it = quoted_table(part.name), _it(table, part)
    key = f"ALTER TABLE {name} ADD PRIMARY KEY (…);"
    if hidden:
        why = (
            f"{it} has no primary key, and has {_listed(hidden)} not published: once it is published, UPDATE and DELETE"
            " on it fail, also with REPLICA IDENTITY FULL"
        )
        return error(str(table.name), why, f"Run: {key} {_instead(hidden)}")
    if part.replica_identity == "f":
        return None
    why = f"{it} has no primary key: once it is published, UPDATE and DELETE on it fail"
    return error(str(table.name), why, f"Or run: {key}", [f"ALTER TABLE {name} REPLICA IDENTITY FULL;"])


def _check_deferrable(table: ChosenTable, part: UpstreamTable, hidden: list[UpstreamColumn]) -> Finding:
    why = f"{_its(table, part)} primary key is deferrable, so it does not identify rows in the stream"
    if hidden:
        why += f"; nor does REPLICA IDENTITY FULL, as it has {_listed(hidden)} not published"
        return error(str(table.name), why, f"Make the key NOT DEFERRABLE. {_instead(hidden)}")
    full = f"ALTER TABLE {quoted_table(part.name)} REPLICA IDENTITY FULL;"
    return error(str(table.name), why, "Or make the key NOT DEFERRABLE.", [full])


def _check_published_key(table: ChosenTable, part: UpstreamTable) -> list[Finding]:
    """Postgres refuses UPDATE and DELETE of a published table whose key is not wholly published."""
    published = {column.name for column in table.streamed}
    found = []
    for column in (c for c in part.columns if c.name in part.key and c.name not in published):
        what = "replica identity" if part.replica_identity == "i" else "primary key"
        why = f"{_its(table, part)} {what} has the {_kind(column)} {column.name}, which is not published"
        hint = f"Drop the key, then run: ALTER TABLE {quoted_table(part.name)} ADD PRIMARY KEY (…);"
        found.append(error(str(table.name), why, hint))
    return found


def _hidden(table: ChosenTable, part: UpstreamTable) -> list[UpstreamColumn]:
    """Return the columns for which Postgres refuses writes under REPLICA IDENTITY FULL: they are not published."""
    published = {column.name for column in table.streamed}
    left_out = [column for column in part.columns if column.name not in published]
    return [column for column in left_out if not column.generated or table.version >= _GENERATED_CHECKED]


def _instead(hidden: list[UpstreamColumn]) -> str:
    """Say how else the columns in the way of FULL could be published."""
    if all(column.generated == "s" for column in hidden):
        return (
            "Or make a publication WITH (publish_generated_columns = stored), give it as one of yours, and run: ALTER"
            " TABLE … REPLICA IDENTITY FULL;"
        )
    if not any(column.generated for column in hidden):
        return "Or do not leave columns out, and run: ALTER TABLE … REPLICA IDENTITY FULL;"
    return ""


def _listed(hidden: list[UpstreamColumn]) -> str:
    kinds = [f"the {_kind(column)} {column.name}" for column in hidden]
    return f"{', '.join(kinds)}, which {'is' if len(kinds) == 1 else 'are'}"


def _kind(column: UpstreamColumn) -> str:
    return "generated column" if column.generated else "column"


def _check_row_security(table: ChosenTable, role: Role) -> list[Finding]:
    if not any(part.row_security for part in (table.upstream, *table.partitions)):
        return []
    mend = f"ALTER ROLE {quoted(role.name)} BYPASSRLS;"
    return [error(str(table.name), "row-level security would hide rows from the copy", sql=[mend])]


def _check_columns(table: ChosenTable) -> list[Finding]:
    """Files of tables have columns: a row without any could not be kept."""
    if not table.taken:
        why = "it has no columns that could be captured"
        mend = f"ALTER TABLE {quoted_table(table.name)} ADD COLUMN …;"
        return [error(str(table.name), why, f"Give it one ({mend}), keep one of those it has, or leave the table out.")]
    found = []
    for column, why in table.refused_columns():
        place = f"{table.name}.{column.name}"
        hint = (
            f"This type is not supported yet: keep its text (text_columns = {place}) or leave it out (exclude_columns)."
        )
        found.append(error(str(table.name), f"column {column.name}: {why}", hint))
    return found


def _check_key(table: ChosenTable) -> list[Finding]:
    """Rows are found by their key: Spark cannot compare maps."""
    fields = [column for column in table.captured().columns if column.name in table.key]
    why = "column {} of its key is an hstore, which cannot be compared here"
    hint = "Keep its text: text_columns = {}.{}"
    return [
        error(str(table.name), why.format(column.name), hint.format(table.name, column.name))
        for column in fields
        if pa.types.is_map(column.codec().arrow)
    ]


def _check_names(table: ChosenTable) -> list[Finding]:
    """Spark does not tell names apart by case; in our catalog a schema ends at the first dot; some are ours."""
    about = str(table.name)
    found = []
    if "." in table.name.schema:
        found.append(error(about, "its schema has a dot in its name", "Rename the schema."))
    names = [column.name.lower() for column in table.taken]
    for name in sorted({name for name in names if names.count(name) > 1}):
        found.append(error(about, f"its columns {name} differ by case alone", "Rename one of them, or leave one out."))
    for name in (name for name in names if name in RESERVED):
        found.append(error(about, f"its column {name} has a name that Penstock uses itself", "Rename it."))
    return found


def _tell(table: ChosenTable) -> list[Finding]:
    """Say what is left out without harm."""
    streamed = {column.name for column in table.streamed}
    generated = [c for c in table.upstream.columns if c.generated and c.name not in streamed]
    found = [
        info(str(table.name), f"its generated column {c.name} is not published, and not captured") for c in generated
    ]
    sent = table.captured().ignored
    if sent:
        why = f"left out here, but sent by Postgres (no column list): {', '.join(sent)}"
        found.append(info(str(table.name), why))
    return found


def _it(table: ChosenTable, part: UpstreamTable) -> str:
    return "it" if part is table.upstream else f"its partition {part.name}"


def _its(table: ChosenTable, part: UpstreamTable) -> str:
    return "its" if part is table.upstream else f"the partition {part.name}: its"
