"""Check each table: whether it can be captured, and whether publishing it would break its writers."""

from __future__ import annotations

from penstock.model import RESCUED, is_reserved
from penstock.sources.findings import Finding, error, info
from penstock.sources.postgres.options import Ownership, PostgresOptions
from penstock.sources.postgres.preflight.introspect import UpstreamColumn, UpstreamTable
from penstock.sources.postgres.preflight.role import Role
from penstock.sources.postgres.preflight.selection import ChosenTable
from penstock.sources.postgres.quoting import quoted, quoted_table

__all__ = ["check_table"]

_GENERATED_CHECKED = 180000
"""Since this version, Postgres rejects writes if the replica identity has an unpublished generated column."""


def check_table(table: ChosenTable, role: Role, options: PostgresOptions) -> list[Finding]:
    """Check one selected table; a partition root with its partitions."""
    found = [
        *_check_kind(table),
        *_check_rights(table, role, options),
        *_check_identity(table),
        *_check_row_security(table, role),
        *_check_columns(table),
        *_check_key(table),
        *_check_names(table),
    ]
    return found + _report_printed(table) + _report_omitted(table)


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
        fix = f"GRANT USAGE ON SCHEMA {quoted(table.name.schema)} TO {grantee};"
        found.append(error(str(table.name), f'role "{role.name}" has no USAGE privilege on its schema', sql=[fix]))
    if not upstream.readable:
        why = f'role "{role.name}" has no SELECT privilege'
        found.append(error(str(table.name), why, sql=[f"GRANT SELECT ON {name} TO {grantee};"]))
    if options.publication_ownership is Ownership.MANAGED and not (upstream.owned or role.superuser):
        fix = f"GRANT {quoted(upstream.owner)} TO {grantee};"
        hint = "Or let an administrator create the publication, and set publication_ownership = user."
        found.append(error(str(table.name), "only the owner of a table can publish it", hint, [fix]))
    return found


def _check_identity(table: ChosenTable) -> list[Finding]:
    """Check that changes identify their row in the stream, and that Postgres still accepts them once published.

    Return at most one finding for each table or partition, with a complete fix: REPLICA IDENTITY FULL is not one where
    columns are unpublished.
    """
    about, found = str(table.name), []
    for part in (table.upstream, *table.partitions):
        key = _check_published_key(table, part)
        found += key or [finding for finding in [_check_part(table, part)] if finding is not None]
    if not table.key and table.upstream.replica_identity == "f" and not found:
        why = "no primary key: captured as a keyless table, which may contain duplicate rows"
        found.append(info(about, why))
    return found


def _check_part(table: ChosenTable, part: UpstreamTable) -> Finding | None:
    """Check the replica identity of a table or partition whose key, if any, is published."""
    about, name, its, hidden = str(table.name), quoted_table(part.name), _its(table, part), _hidden(table, part)
    default = [f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT;"]
    if part.replica_identity == "i":
        why = f"{its} replica identity index does not have the key columns of {table.name}"
        return error(about, why, sql=default) if set(part.key) != set(table.key) else None
    if not part.key:
        return _check_keyless(table, part, hidden)
    if part.replica_identity == "f" and not hidden:
        return None
    if part.deferrable_key:
        return _check_deferrable(table, part, hidden)
    if part.replica_identity == "n":
        why = f"{its} replica identity is NOTHING: UPDATE and DELETE fail once the table is published"
        return error(about, why, sql=default)
    if part.replica_identity == "f":
        why = f"{its} replica identity is FULL, but {_listed(hidden)} not published: UPDATE and DELETE fail"
        return error(about, why, sql=default)
    return None


def _check_keyless(table: ChosenTable, part: UpstreamTable, hidden: list[UpstreamColumn]) -> Finding | None:
    """Check a keyless table: it needs REPLICA IDENTITY FULL, which works only if all columns are published."""
    name, it = quoted_table(part.name), _it(table, part)
    key = f"ALTER TABLE {name} ADD PRIMARY KEY (…);"
    if hidden:
        why = (
            f"{it} has no primary key, and {_listed(hidden)} not published: UPDATE and DELETE fail once the table is"
            " published, even with REPLICA IDENTITY FULL"
        )
        return error(str(table.name), why, f"Run: {key} {_instead(hidden)}")
    if part.replica_identity == "f":
        return None
    why = f"{it} has no primary key: UPDATE and DELETE fail once the table is published"
    return error(str(table.name), why, f"Or run: {key}", [f"ALTER TABLE {name} REPLICA IDENTITY FULL;"])


def _check_deferrable(table: ChosenTable, part: UpstreamTable, hidden: list[UpstreamColumn]) -> Finding:
    why = f"{_its(table, part)} primary key is deferrable, so Postgres cannot use it as replica identity"
    if hidden:
        why += f"; REPLICA IDENTITY FULL is no alternative: {_listed(hidden)} not published"
        return error(str(table.name), why, f"Make the key NOT DEFERRABLE. {_instead(hidden)}")
    full = f"ALTER TABLE {quoted_table(part.name)} REPLICA IDENTITY FULL;"
    return error(str(table.name), why, "Or make the key NOT DEFERRABLE.", [full])


def _check_published_key(table: ChosenTable, part: UpstreamTable) -> list[Finding]:
    """Report unpublished key columns: Postgres rejects UPDATE and DELETE on a table whose key is partly unpublished."""
    published = {column.name for column in table.streamed_columns}
    found = []
    for column in (c for c in part.columns if c.name in part.key and c.name not in published):
        what = "replica identity" if part.replica_identity == "i" else "primary key"
        why = f"{_its(table, part)} {what} includes the {_kind(column)} {column.name}, which is not published"
        hint = f"Drop the key, then run: ALTER TABLE {quoted_table(part.name)} ADD PRIMARY KEY (…);"
        found.append(error(str(table.name), why, hint))
    return found


def _hidden(table: ChosenTable, part: UpstreamTable) -> list[UpstreamColumn]:
    """Return the unpublished columns because of which Postgres rejects writes under REPLICA IDENTITY FULL."""
    published = {column.name for column in table.streamed_columns}
    left_out = [column for column in part.columns if column.name not in published]
    return [column for column in left_out if not column.generated or table.version >= _GENERATED_CHECKED]


def _instead(hidden: list[UpstreamColumn]) -> str:
    """Return how to publish the columns that prevent REPLICA IDENTITY FULL, if possible."""
    if all(column.generated == "s" for column in hidden):
        return (
            "Or create a publication WITH (publish_generated_columns = stored), set publication_ownership = user, and"
            " run: ALTER TABLE … REPLICA IDENTITY FULL;"
        )
    if not any(column.generated for column in hidden):
        return "Or do not exclude columns, and run: ALTER TABLE … REPLICA IDENTITY FULL;"
    return ""


def _listed(hidden: list[UpstreamColumn]) -> str:
    kinds = [f"the {_kind(column)} {column.name}" for column in hidden]
    return f"{', '.join(kinds)} {'is' if len(kinds) == 1 else 'are'}"


def _kind(column: UpstreamColumn) -> str:
    return "generated column" if column.generated else "column"


def _check_row_security(table: ChosenTable, role: Role) -> list[Finding]:
    if not any(part.row_security for part in (table.upstream, *table.partitions)):
        return []
    fix = f"ALTER ROLE {quoted(role.name)} BYPASSRLS;"
    return [error(str(table.name), "row-level security hides rows from the snapshot", sql=[fix])]


def _check_columns(table: ChosenTable) -> list[Finding]:
    """Reject a table without columns, which Delta cannot store."""
    if table.captured_columns:
        return []
    why = "the table has no columns that can be captured"
    fix = f"ALTER TABLE {quoted_table(table.name)} ADD COLUMN …;"
    return [error(str(table.name), why, f"Run: {fix} Or exclude fewer columns, or omit the table.")]


def _check_key(table: ChosenTable) -> list[Finding]:
    """Reject a key column of a map type: rows are looked up by key, and Spark cannot compare maps."""
    columns = [column for column in table.captured().columns if column.name in table.key]
    why = "key column {} is of type hstore, which Spark cannot compare"
    hint = "Capture the column as text: text_columns = {}.{}"
    return [
        error(str(table.name), why.format(column.name), hint.format(table.name, column.name))
        for column in columns
        if column.is_map
    ]


def _check_names(table: ChosenTable) -> list[Finding]:
    """Reject column names that differ only in case, which Spark does not distinguish, and reserved names."""
    about = str(table.name)
    found = []
    names = [column.name.lower() for column in table.captured_columns]
    for name in sorted({name for name in names if names.count(name) > 1}):
        found.append(error(about, f"its columns {name} differ only in case", "Rename or exclude one."))
    for name in filter(is_reserved, names):
        found.append(error(about, f'column name "{name}" is reserved by Penstock', "Rename or exclude the column."))
    for column in (c for c in table.captured_columns if table.rescue and c.name.lower() == RESCUED):
        why = f"it has a column {column.name}, the name of the column that on unrepresentable = 'rescue' adds"
        place = f"{table.name}.{column.name}"
        hint = f"Rename it, exclude it (exclude columns = {place}), or use on unrepresentable = 'stop'."
        found.append(error(about, why, hint))
    return found


def _report_printed(table: ChosenTable) -> list[Finding]:
    """Return an info for columns that are captured as text because of their type."""
    printed = [f"{column.name} ({column.declaration.type_name})" for column in table.printed_columns()]
    why = "captured as the text that Postgres prints, because Penstock does not decode their types: columns"
    return [info(str(table.name), f"{why} {', '.join(printed)}")] if printed else []


def _report_omitted(table: ChosenTable) -> list[Finding]:
    """Return an info for columns that are not captured, or excluded but still sent."""
    streamed = {column.name for column in table.streamed_columns}
    generated = [c for c in table.upstream.columns if c.generated and c.name not in streamed]
    found = [
        info(str(table.name), f"generated column {c.name} is not published, so it is not captured") for c in generated
    ]
    sent = table.captured().ignored
    if sent:
        why = f"excluded columns that Postgres still sends (the publication has no column list): {', '.join(sent)}"
        found.append(info(str(table.name), why))
    return found


def _it(table: ChosenTable, part: UpstreamTable) -> str:
    return "table" if part is table.upstream else f"partition {part.name}"


def _its(table: ChosenTable, part: UpstreamTable) -> str:
    return "its" if part is table.upstream else f"partition {part.name}: its"
