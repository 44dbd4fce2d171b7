"""The net effect of a range of images, per key.

::

    images (L, T] ──▶ drop what a TRUNCATE wiped out ──▶ last image per key ──▶ _gone | _unchanged | _from | columns

Images are ordered by ``(_lsn, _ordinal, _image)``; the last one of a key says whether its row is there, and which. That
is one aggregation (`max_by`), and all there is to do as long as every image carries its whole row.

**Unchanged TOAST values.** An UPDATED image may leave out values; they are those of the row before it. Within one key,
that is the newest earlier image that has the value: after a DELETE the key comes back with an INSERTED image, which
has all of them, so nothing from before the DELETE is ever the newest. No such image in the range: the value is in the
base row, and the column stays listed in ``_unchanged``. One more `max_by` per column that can be left out, same pass.

**Changed keys.** Then the row before it stood at another key, and "the newest at this key" would be a value of some
other row. `fold_moves` follows rows instead of keys there. It is taken only where a range may hold both,
left-out values and changed keys; all other ranges do not pay for it. (Without left-out values a change of key is a
row gone here and a row present there: two keys, each with its last image.)

A keyless table is a bag of rows: see `fold_bag` and below.

Why `max_by` and not ``row_number() = 1``: both shuffle once, combine before that, and took the same time (10 thousand
and 1 million images); `max_by` gives the newest value of every column in the same pass.

Fold where rows leave out values and also change their key: follow rows, not keys.

A *life* is the stay of one row at one key. It begins with an INSERTED image, with the UPDATED image of a change of key
(`born`), or before the range; it ends with a DELETE, with the old image of a change of key (`left`), or not at all::

    key a   [ .............. left 7]        base row a, moved away at change 7
    key b                   [born 7 ....... left 9]
    key c   [ ... deleted]                 [born 9 ............ ]  ◀─ its values: c's, else b's, else a's, else base a

Both images of a change of key carry the same ``(_lsn, _ordinal)``. So a life born at 9 goes on from the life that left
at 9, and lives form chains: a row is at one key at a time, and each life has at most one before it. The value that an
image left out is the newest that was sent in the life itself, else in the life before, and so on; when the chain ends
in a life that began before the range, in the base row of *that* life's key (``_from``).

Why lives and not keys: a key can be left by one row and taken by another in between. Each life belongs to one row, so
nothing of another row can be seen, whatever happened in between and in however many transactions: swaps too.

Chains are resolved by doubling: in each round every life takes over what the life it points to knows, and that life's
pointer, so a chain of n lives takes log2(n) rounds, each one join over the lives that moved. A life points to nothing
as soon as it knows all its values: in a range where moved rows carry all their values there is no round at all.
Rounds are jobs; they run while `fold_moves` runs.

Tables without a key: bags of rows.

Upstream they have replica identity FULL (or take INSERTs only), so every image carries its whole row, and a change is
one row less, one row more. The order of changes does not matter, only how often each row came and went: that also
makes it the right way to see a table whose key is checked at commit only (DEFERRABLE), where two rows may share a key
for a moment in the middle of a transaction.

::

    images ──▶ +1 for a new row, -1 for an old one ──▶ sum per distinct row ──▶ _count | columns

Rows are the same when every value is the same, bit by bit (`exact`): a row with -0.0 is not the row with 0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.errors import UsageError
from penstock.model import RESERVED, Image, TableSchema
from penstock.tables.columns import column, exact, own, quoted, toastable
from penstock.tables.contents import Contents
from penstock.tables.missing_rows import absent_row

__all__ = [
    "after_truncate",
    "flat",
    "fold",
    "fold_bag",
    "fold_moves",
    "is_image",
    "known_values",
    "last_image",
    "overlay_bag",
    "refuse_reserved",
    "replaced_rows",
    "same_row",
    "when_order",
]

_NOTHING = Contents()


def fold(images: DataFrame, schema: TableSchema, contents: Contents = _NOTHING) -> DataFrame:
    """Return one row per key that `images` touch: ``_gone``, ``_unchanged``, ``_from`` and the table's columns.

    ``_unchanged`` lists the columns (by index) whose value is that of the base row with key ``_from``, or with the
    row's own key where ``_from`` is null: it never had another. Columns outside the key are null where ``_gone``. For a
    table without a key, one row per distinct row: ``_count`` (how many more or fewer of it) and its columns.

    Lazy, but for one case: where `contents` allow both left-out values and changed keys, jobs run here.
    """
    refuse_reserved(schema)
    images = after_truncate(images, contents)
    if not schema.key:
        return fold_bag(images, schema, contents)
    if contents.inserts_only:
        return flat(images.select(F.struct("_image", "_unchanged", "row").alias(own("last"))), schema)
    if contents.unchanged and contents.moved:
        return fold_moves(images, schema)
    return _fold_keys(images, schema, [*toastable(schema)] if contents.unchanged else [])


def _fold_keys(images: DataFrame, schema: TableSchema, left_out: Sequence[tuple[int, str]]) -> DataFrame:
    keys = [F.col("row").getField(name).alias(own(f"key_{i}")) for i, name in enumerate(schema.key)]
    grouped = images.groupBy(*keys).agg(last_image(), *known_values(left_out))
    values: dict[int, Column] = {index: F.col(own(f"value_{index}")) for index, _ in left_out}
    return flat(grouped, schema, values)


def refuse_reserved(schema: TableSchema) -> None:
    """Raise a `UsageError` where a column has a name that stands beside the table's columns in a net effect."""
    taken = RESERVED & {name.lower() for name in schema.columns.names}
    if taken:
        message = f"table {schema.table} has a column {sorted(taken)[0]!r}, a name that Penstock uses itself"
        raise UsageError(message, "exclude that column from the source, or rename it upstream")


def is_image(*kinds: Image) -> Column:
    """Whether the image is one of `kinds`."""
    return F.col("_image").isin(*(int(kind) for kind in kinds))


def when_order(condition: Column | None = None) -> Column:
    """Return the place of an image in history; null, which `max_by` passes over, where `condition` does not hold."""
    order = F.struct("_lsn", "_ordinal", "_image")
    return order if condition is None else F.when(condition, order)


def after_truncate(images: DataFrame, contents: Contents) -> DataFrame:
    """Drop TRUNCATE images and all that came before the last one."""
    if contents.truncated is None:
        return images.filter(~is_image(Image.TRUNCATE))
    lsn, ordinal = contents.truncated
    later = (F.col("_lsn") > lsn) | ((F.col("_lsn") == lsn) & (F.col("_ordinal") > ordinal))
    return images.filter(later & ~is_image(Image.TRUNCATE))


def last_image() -> Column:
    """Aggregate: the last image of the group."""
    return F.max_by(F.struct("_image", "_unchanged", "row"), when_order()).alias(own("last"))


def known_values(columns: Iterable[tuple[int, str]]) -> Iterator[Column]:
    """Aggregate, per column: its newest value that was sent, in a struct (null: none was)."""
    whole = is_image(Image.BEFORE, Image.UPDATED, Image.INSERTED)
    for index, name in columns:
        sent = whole & ~F.array_contains(F.coalesce("_unchanged", F.array().cast("array<int>")), index)
        value = F.struct(F.col("row").getField(name).alias("value"))
        yield F.max_by(value, when_order(sent)).alias(own(f"value_{index}"))


def flat(
    folded: DataFrame, schema: TableSchema, values: Mapping[int, Column] | None = None, source: Column | None = None
) -> DataFrame:
    """Return ``_gone``, ``_unchanged``, ``_from`` and the columns from a last image, values and a source per key."""
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
        columns.append((value if name in schema.key else F.when(~gone, value)).alias(name))
    return folded.select(
        gone.alias("_gone"),
        missing.alias("_unchanged"),
        F.when(F.size(missing) > 0, source).alias("_from"),
        *columns,
    )


def _missing(listed: Column, values: Mapping[int, Column]) -> Column:
    """Keep the indices whose value is still not known; null for none."""
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
    """Return what `penstock.tables.fold.fold` returns, for any range of images of a table with a key."""
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
    """Add the key, and where an image is one of the two of a change of key, the change as `born` or `left`."""
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
        last_image(), F.max(_BORN).alias(_BORN), F.max(_LEFT).alias(_LEFT), *known_values(toastable(schema))
    )


def _links(lives: DataFrame, indices: list[int]) -> DataFrame:
    """Keep the lives that moved. `link` names a life by its birth; `born` is where it still has to look."""
    values = [_value(i).alias(own(f"link_{i}")) for i in indices]
    born = F.when(_any_unknown([_value(i) for i in indices]), F.col(_BORN))
    moved = lives.filter(F.col(_BORN).isNotNull() | F.col(_LEFT).isNotNull())
    return moved.select(F.col(_BORN).alias(_LINK), born.alias(_BORN), _LEFT, F.col(_KEY).alias(_ROOT), *values)


def _resolved(links: DataFrame, indices: list[int]) -> DataFrame:
    """Let every life take over from the lives before it, until none has anywhere left to look."""
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


_COUNT = "_count"


def fold_bag(images: DataFrame, schema: TableSchema, contents: Contents) -> DataFrame:
    """Return the distinct rows whose number changes: ``_count`` (more or fewer) and the columns."""
    if contents.unchanged:
        images = _filled(images, schema)
    sign = F.when(is_image(Image.INSERTED, Image.UPDATED), 1).otherwise(-1).alias(_COUNT)
    rows = images.select(sign, *(F.col("row").getField(name).alias(name) for name in schema.columns.names))
    if contents.inserts_only:
        return rows
    return _counted(rows, schema).filter(F.col(_COUNT) != 0)


def overlay_bag(base: DataFrame, net: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the rows of `base` and `net` together."""
    fewer = net.filter(F.col(_COUNT) < 0).alias("net")
    kept = base.alias("base").join(fewer, same_row(base, schema, "base", "net"), "left_anti")
    return kept.select(*_columns(schema)).union(_copies(replaced_rows(base, net, schema), schema))


def replaced_rows(base: DataFrame, net: DataFrame, schema: TableSchema) -> DataFrame:
    """Return each row that becomes more, or fewer but not none, with the number that takes the place of all in `base`.

    Rows that become more keep their copies in `base`; rows that become fewer lose all copies there first.
    """
    fewer = net.filter(F.col(_COUNT) < 0)
    same = same_row(base, schema, "base", "net")
    there = base.alias("base").join(fewer.alias("net"), same, "left_semi").select(F.lit(1).alias(_COUNT), "*")
    remaining = _counted(there.unionByName(fewer), schema)
    count = F.when(F.col(_COUNT) < 0, absent_row(schema)).otherwise(F.col(_COUNT))
    remaining = remaining.withColumn(_COUNT, count)
    return net.filter(F.col(_COUNT) > 0).unionByName(remaining).filter(F.col(_COUNT) > 0)


def same_row(base: DataFrame, schema: TableSchema, left: str, right: str) -> Column:
    """Whether the rows of two aliases are the same."""
    same = F.lit(True)
    for name in schema.columns.names:
        kind = base.schema[name].dataType
        same &= exact(column(name, left), kind).eqNullSafe(exact(column(name, right), kind))
    return same


def _copies(rows: DataFrame, schema: TableSchema) -> DataFrame:
    repeated = rows.withColumn(own("copy"), F.explode(F.array_repeat(F.lit(0), F.col(_COUNT).cast("int"))))
    return repeated.select(*_columns(schema))


def _counted(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Sum up the counts of each distinct row."""
    identity = [exact(column(f.name), f.dataType).alias(own(f"group_{i}")) for i, f in enumerate(rows.schema.fields)]
    names = schema.columns.names
    groups = [group for group, field in zip(identity, rows.schema.fields, strict=True) if field.name != _COUNT]
    counted = rows.groupBy(*groups).agg(
        F.sum(_COUNT).alias(_COUNT), F.first(F.struct(*_columns(schema))).alias(own("row"))
    )
    return counted.select(_COUNT, *(F.col(own("row")).getField(name).alias(name) for name in names))


def _filled(images: DataFrame, schema: TableSchema) -> DataFrame:
    """Put left-out values in from the old row of the same change."""
    change = Window.partitionBy("_lsn", "_ordinal")
    old = F.max_by("row", F.when(is_image(Image.BEFORE), F.col("_image"))).over(change)
    images = images.withColumn(own("old"), old)
    row = F.col("row")
    listed = F.coalesce("_unchanged", F.array().cast("array<int>"))
    for index, name in toastable(schema):
        value = F.when(F.col(own("old")).isNull(), absent_row(schema)).otherwise(F.col(own("old")).getField(name))
        row = row.withField(quoted(name), F.when(F.array_contains(listed, index), value).otherwise(row.getField(name)))
    return images.withColumn("row", F.when(F.size("_unchanged") > 0, row).otherwise(F.col("row")))


def _columns(schema: TableSchema) -> list[Column]:
    return [column(name) for name in schema.columns.names]
