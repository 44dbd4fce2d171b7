"""Fold: the net change of a range of images, per key.

::

    images (L, T] ──▶ drop images before a TRUNCATE ──▶ last image per key ──▶ GONE | UNCHANGED | FROM | columns

Images are ordered by ``(_lsn, _ordinal, _image)``; the last image of a key determines whether its row exists, and its
values. This is one aggregation (`max_by`), which suffices as long as every image carries its whole row.

**Unchanged TOAST values.** An UPDATED image may omit values; they are those of the row before it. Within one key,
that is the newest earlier image that has the value: after a DELETE the key reappears with an INSERTED image, which
has all values, so no image from before the DELETE is ever the newest. If no image of the range has the value, it is in
the base row, and the column stays listed in `UNCHANGED`. This is one more `max_by` per column that can be omitted,
in the same pass.

**Rescued values.** The text of a value that the type of its column cannot hold is in the map `RESCUED` of the image
that has the value. It is aggregated with the value, and added to the map of the last image if that image omits the
value.

**Changed keys.** If the key changed, the previous version of the row is at another key, and the newest image at this
key may belong to another row. `fold_moves` therefore follows rows instead of keys. It is used only if a range may
contain both omitted values and changed keys; other ranges do not pay for it. (Without omitted values, a key change is a
deleted row at one key and a present row at another, each with its last image.)

Why `max_by` and not ``row_number() = 1``: both shuffle once, combine before the shuffle, and took the same time (10
thousand and 1 million images); `max_by` returns the newest value of every column in the same pass.

**Omitted values and changed keys** (`fold_moves`). A *life* is the time that one row spends at one key. It begins with
an INSERTED image, with the UPDATED image of a key change (`born`), or before the range; it ends with a DELETE, with the
old image of a key change (`left`), or not at all::

    key a   [ .............. left 7]        base row a, moved away at change 7
    key b                   [born 7 ....... left 9]
    key c   [ ... deleted]                 [born 9 ............ ]  ◀─ its values: c's, else b's, else a's, else base a

Both images of a key change have the same ``(_lsn, _ordinal)``. So a life born at 9 continues the life that left at 9,
and lives form chains: a row is at one key at a time, and each life has at most one predecessor. An omitted value is the
newest value sent in the life itself, else in its predecessor, and so on; if the chain ends in a life that began before
the range, the value is in the base row at *that* life's key (`FROM`).

Why lives and not keys: one row can leave a key and another row can take it within a range. Each life belongs to one
row, so values of another row are never visible, regardless of the changes in between and of the number of
transactions; this includes swaps.

Chains are resolved by doubling: in each round every life takes over the values and the pointer of the life that it
points to, so a chain of n lives takes log2(n) rounds, each one join over the lives that moved. A life drops its pointer
once it has all its values: if moved rows carry all their values, there are no rounds. Rounds are jobs that run inside
`fold_moves`.

**Keyless tables** are multisets of rows (`fold_keyless`). Upstream they have replica identity FULL (or INSERTs only),
so every image carries its whole row, and a change removes one row and adds one. The order of changes does not matter,
only how often each row was added and removed. This also handles a table whose key is checked at commit only
(DEFERRABLE), where two rows may temporarily share a key within a transaction.

::

    images ──▶ +1 for a new row, -1 for an old one ──▶ sum per distinct row ──▶ COUNT | columns

Rows are equal if all values are equal bit by bit (`exact`): a row with -0.0 differs from a row with 0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.errors import UsageError
from penstock.model import COUNT, FROM, GONE, RESCUED, UNCHANGED, Image, TableSchema, is_rescued, is_reserved
from penstock.tables.columns import column, exact, own, quoted, rescuable, text_of, toastable, with_texts
from penstock.tables.contents import Contents
from penstock.tables.missing_rows import raise_missing_row

__all__ = [
    "after_truncate",
    "check_reserved_names",
    "flat",
    "fold",
    "fold_keyless",
    "fold_moves",
    "is_image",
    "known_values",
    "last_image",
    "overlay_keyless",
    "replaced_rows",
    "same_row",
    "when_order",
]

_NOTHING = Contents()


def fold(images: DataFrame, schema: TableSchema, contents: Contents = _NOTHING) -> DataFrame:
    """Return one row per key that `images` touch: `GONE`, `UNCHANGED`, `FROM` and the table's columns.

    `UNCHANGED` lists the columns (by index) whose value is that of the base row with key `FROM`, or with the
    row's own key if `FROM` is null. Columns outside the key are null if `GONE`. For a keyless table, return one
    row per distinct row: `COUNT` (the change of its count) and its columns.

    The result is lazy, except that jobs run here if `contents` allow both omitted values and changed keys.
    """
    check_reserved_names(schema)
    images = after_truncate(images, contents)
    if not schema.key:
        return fold_keyless(images, schema, contents)
    if contents.inserts_only:
        return flat(images.select(F.struct("_image", "_unchanged", "row").alias(own("last"))), schema)
    if contents.unchanged and contents.moved:
        return fold_moves(images, schema)
    return _fold_keys(images, schema, [*toastable(schema)] if contents.unchanged else [])


def _fold_keys(images: DataFrame, schema: TableSchema, left_out: Sequence[tuple[int, str]]) -> DataFrame:
    keys = [F.col("row").getField(name).alias(own(f"key_{i}")) for i, name in enumerate(schema.key)]
    grouped = images.groupBy(*keys).agg(last_image(), *known_values(schema, left_out))
    values: dict[int, Column] = {index: F.col(own(f"value_{index}")) for index, _ in left_out}
    return flat(grouped, schema, values)


def check_reserved_names(schema: TableSchema) -> None:
    """Raise a `UsageError` if a column has the name of a column that a net change adds."""
    taken = sorted(filter(is_reserved, schema.columns.names))
    if taken:
        message = f"column {taken[0]!r} of table {schema.table} has a name reserved by Penstock"
        raise UsageError(message, "Exclude the column from the source, or rename it upstream.")


def is_image(*kinds: Image) -> Column:
    """Return whether the image is one of `kinds`."""
    return F.col("_image").isin(*(int(kind) for kind in kinds))


def when_order(condition: Column | None = None) -> Column:
    """Return the sort key of an image in the log; null, which `max_by` ignores, unless `condition` holds."""
    order = F.struct("_lsn", "_ordinal", "_image")
    return order if condition is None else F.when(condition, order)


def after_truncate(images: DataFrame, contents: Contents) -> DataFrame:
    """Drop TRUNCATE images and all images before the last of them."""
    if contents.truncated is None:
        return images.filter(~is_image(Image.TRUNCATE))
    lsn, ordinal = contents.truncated
    later = (F.col("_lsn") > lsn) | ((F.col("_lsn") == lsn) & (F.col("_ordinal") > ordinal))
    return images.filter(later & ~is_image(Image.TRUNCATE))


def last_image() -> Column:
    """Aggregate the last image of the group."""
    return F.max_by(F.struct("_image", "_unchanged", "row"), when_order()).alias(own("last"))


def known_values(schema: TableSchema, columns: Iterable[tuple[int, str]]) -> Iterator[Column]:
    """Aggregate, per column, the newest value that was sent, in a struct (null if none was sent), with its text."""
    rescued = {index for index, _ in rescuable(schema)}
    whole = is_image(Image.BEFORE, Image.UPDATED, Image.INSERTED)
    for index, name in columns:
        sent = whole & ~F.array_contains(F.coalesce("_unchanged", F.array().cast("array<int>")), index)
        text = [text_of(F.col("row").getField(RESCUED), name).alias("text")] if index in rescued else []
        value = F.struct(F.col("row").getField(name).alias("value"), *text)
        yield F.max_by(value, when_order(sent)).alias(own(f"value_{index}"))


def flat(
    folded: DataFrame, schema: TableSchema, values: Mapping[int, Column] | None = None, source: Column | None = None
) -> DataFrame:
    """Return `GONE`, `UNCHANGED`, `FROM` and the columns from a last image, values and a source per key."""
    values = values or {}
    last = F.col(own("last"))
    row = last.getField("row")
    gone = last.getField("_image") < int(Image.UPDATED)
    listed = F.when(~gone, last.getField("_unchanged"))
    missing = _missing(listed, values)
    if source is None:
        source = F.lit(None).cast(_key_type(folded, schema))
    columns = []
    for index, name in enumerate(schema.columns.names):
        value = row.getField(name)
        if index in values:
            value = F.when(F.array_contains(listed, index), values[index].getField("value")).otherwise(value)
        elif is_rescued(schema.columns.field(index)):
            omitted = [(i, n) for i, n in rescuable(schema) if i in values]
            texts = [(n, F.when(F.array_contains(listed, i), values[i].getField("text"))) for i, n in omitted]
            value = with_texts(value, texts)
        columns.append((value if name in schema.key else F.when(~gone, value)).alias(name))
    return folded.select(
        gone.alias(GONE),
        missing.alias(UNCHANGED),
        F.when(F.size(missing) > 0, source).alias(FROM),
        *columns,
    )


def _missing(listed: Column, values: Mapping[int, Column]) -> Column:
    """Return the indices whose value is still unknown; null if there are none."""
    if not values:
        return F.lit(None).cast("array<int>")
    unknown = F.array_compact(F.array(*(F.when(value.isNull(), F.lit(index)) for index, value in values.items())))
    missing = F.array_intersect(listed, unknown)
    return F.when(F.size(missing) > 0, missing)


def _key_type(folded: DataFrame, schema: TableSchema) -> StructType:
    row: Any = folded.schema[own("last")].dataType["row"].dataType  # type: ignore[index]
    return StructType([row[name] for name in schema.key])


_KEY, _LIFE, _BORN, _LEFT, _ROOT, _LINK = (own(name) for name in ("key", "life", "born", "left", "root", "link"))


def fold_moves(images: DataFrame, schema: TableSchema) -> DataFrame:
    """Return what `fold` returns, for any range of images of a table with a key."""
    indices = [index for index, _ in toastable(schema)]
    lives = _lives(_with_moves(images, schema), schema).localCheckpoint()
    links = _resolved(_links(lives, indices), indices)
    latest = Window.partitionBy(_KEY).orderBy(F.desc(_LIFE))
    last = lives.withColumn(own("nth"), F.row_number().over(latest)).filter(F.col(own("nth")) == 1)
    joined = last.join(links, F.col(_BORN) == F.col(_LINK), "left")
    values = {i: F.coalesce(_value(i), _value(i, "link")) for i in indices}
    source = F.when(F.col(_BORN).isNotNull(), F.col(_ROOT))
    return flat(joined, schema, values, source)


def _with_moves(images: DataFrame, schema: TableSchema) -> DataFrame:
    """Add the key and, for the two images of a key change, the change as `born` or `left`."""
    change = Window.partitionBy("_lsn", "_ordinal")
    key = F.struct(*(F.col("row").getField(name).alias(name) for name in schema.key))
    before, after = is_image(Image.BEFORE, Image.BEFORE_KEY), is_image(Image.UPDATED)
    images = images.withColumn(_KEY, key)
    old = F.max(F.when(before, F.col(_KEY))).over(change)
    new = F.max(F.when(after, F.col(_KEY))).over(change)
    images = images.withColumn(own("moved"), old != new)
    at = F.when(F.col(own("moved")), F.struct("_lsn", "_ordinal"))
    return images.withColumns({_BORN: F.when(after, at), _LEFT: F.when(before, at)})


def _lives(images: DataFrame, schema: TableSchema) -> DataFrame:
    """Aggregate the images of each life."""
    history = Window.partitionBy(_KEY).orderBy(when_order()).rowsBetween(Window.unboundedPreceding, 0)
    begins = is_image(Image.INSERTED) | F.col(_BORN).isNotNull()
    numbered = images.withColumn(_LIFE, F.count_if(begins).over(history))
    return numbered.groupBy(_KEY, _LIFE).agg(
        last_image(), F.max(_BORN).alias(_BORN), F.max(_LEFT).alias(_LEFT), *known_values(schema, toastable(schema))
    )


def _links(lives: DataFrame, indices: list[int]) -> DataFrame:
    """Return the lives that moved. `link` identifies a life by its birth; `born` points to its predecessor."""
    values = [_value(i).alias(own(f"link_{i}")) for i in indices]
    born = F.when(_any_unknown([_value(i) for i in indices]), F.col(_BORN))
    moved = lives.filter(F.col(_BORN).isNotNull() | F.col(_LEFT).isNotNull())
    return moved.select(F.col(_BORN).alias(_LINK), born.alias(_BORN), _LEFT, F.col(_KEY).alias(_ROOT), *values)


def _resolved(links: DataFrame, indices: list[int]) -> DataFrame:
    """Propagate values from predecessors to lives until no pointer is left."""
    while not links.filter(F.col(_BORN).isNotNull()).isEmpty():
        links = _doubled(links, indices).localCheckpoint()
    return links.drop(_BORN, _LEFT).filter(F.col(_LINK).isNotNull())


def _doubled(links: DataFrame, indices: list[int]) -> DataFrame:
    child, parent = links.alias("child"), links.alias("parent")
    values = [F.coalesce(F.col(f"child.{own(f'link_{i}')}"), F.col(f"parent.{own(f'link_{i}')}")) for i in indices]
    return child.join(parent, F.col(f"child.{_BORN}") == F.col(f"parent.{_LEFT}"), "left").select(
        F.col(f"child.{_LINK}"),
        F.when(_any_unknown(values), F.col(f"parent.{_BORN}")).alias(_BORN),
        F.col(f"child.{_LEFT}"),
        F.coalesce(F.col(f"parent.{_ROOT}"), F.col(f"child.{_ROOT}")).alias(_ROOT),
        *(value.alias(own(f"link_{i}")) for i, value in zip(indices, values, strict=True)),
    )


def _value(index: int, of: str = "value") -> Column:
    return F.col(own(f"{of}_{index}"))


def _any_unknown(values: list[Column]) -> Column:
    return F.coalesce(*(F.when(value.isNull(), True) for value in values), F.lit(False))


def fold_keyless(images: DataFrame, schema: TableSchema, contents: Contents) -> DataFrame:
    """Return the distinct rows whose count changes: `COUNT` (the difference) and the columns."""
    if contents.unchanged:
        images = _filled(images, schema)
    sign = F.when(is_image(Image.INSERTED, Image.UPDATED), 1).otherwise(-1).alias(COUNT)
    rows = images.select(sign, *(F.col("row").getField(name).alias(name) for name in schema.columns.names))
    if contents.inserts_only:
        return rows
    return _counted(rows, schema).filter(F.col(COUNT) != 0)


def overlay_keyless(base: DataFrame, net: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the rows of `base` with `net` applied."""
    fewer = net.filter(F.col(COUNT) < 0).alias("net")
    kept = base.alias("base").join(fewer, same_row(base, schema, "base", "net"), "left_anti")
    return kept.select(*_columns(schema)).union(_copies(replaced_rows(base, net, schema), schema))


def replaced_rows(base: DataFrame, net: DataFrame, schema: TableSchema) -> DataFrame:
    """Return each row to insert, with its number of copies: rows whose count increases, or decreases but not to zero.

    Rows whose count increases keep their copies in `base`; for rows whose count decreases, the returned number replaces
    all copies in `base`.
    """
    fewer = net.filter(F.col(COUNT) < 0)
    same = same_row(base, schema, "base", "net")
    there = base.alias("base").join(fewer.alias("net"), same, "left_semi").select(F.lit(1).alias(COUNT), "*")
    remaining = _counted(there.unionByName(fewer), schema)
    count = F.when(F.col(COUNT) < 0, raise_missing_row(schema)).otherwise(F.col(COUNT))
    remaining = remaining.withColumn(COUNT, count)
    return net.filter(F.col(COUNT) > 0).unionByName(remaining).filter(F.col(COUNT) > 0)


def same_row(base: DataFrame, schema: TableSchema, left: str, right: str) -> Column:
    """Return whether the rows of two aliases are equal."""
    same = F.lit(True)
    for name in schema.columns.names:
        kind = base.schema[name].dataType
        same &= exact(column(name, left), kind).eqNullSafe(exact(column(name, right), kind))
    return same


def _copies(rows: DataFrame, schema: TableSchema) -> DataFrame:
    repeated = rows.withColumn(own("copy"), F.explode(F.array_repeat(F.lit(0), F.col(COUNT).cast("int"))))
    return repeated.select(*_columns(schema))


def _counted(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Sum the counts of each distinct row."""
    identity = [exact(column(f.name), f.dataType).alias(own(f"group_{i}")) for i, f in enumerate(rows.schema.fields)]
    names = schema.columns.names
    groups = [group for group, field in zip(identity, rows.schema.fields, strict=True) if field.name != COUNT]
    counted = rows.groupBy(*groups).agg(
        F.sum(COUNT).alias(COUNT), F.first(F.struct(*_columns(schema))).alias(own("row"))
    )
    return counted.select(COUNT, *(F.col(own("row")).getField(name).alias(name) for name in names))


def _filled(images: DataFrame, schema: TableSchema) -> DataFrame:
    """Fill omitted values from the old row of the same change."""
    change = Window.partitionBy("_lsn", "_ordinal")
    old = F.max_by("row", F.when(is_image(Image.BEFORE), F.col("_image"))).over(change)
    images = images.withColumn(own("old"), old)
    row = F.col("row")
    listed = F.coalesce("_unchanged", F.array().cast("array<int>"))
    for index, name in toastable(schema):
        value = F.when(F.col(own("old")).isNull(), raise_missing_row(schema)).otherwise(
            F.col(own("old")).getField(name)
        )
        row = row.withField(quoted(name), F.when(F.array_contains(listed, index), value).otherwise(row.getField(name)))
    omitted = rescuable(schema)
    if omitted:
        earlier = F.col(own("old")).getField(RESCUED)
        texts = [(name, F.when(F.array_contains(listed, index), text_of(earlier, name))) for index, name in omitted]
        row = row.withField(RESCUED, with_texts(row.getField(RESCUED), texts))
    return images.withColumn("row", F.when(F.size("_unchanged") > 0, row).otherwise(F.col("row")))


def _columns(schema: TableSchema) -> list[Column]:
    return [column(name) for name in schema.columns.names]
