"""Fold where rows leave out values and also change their key: follow rows, not keys.

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
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.model import Image, TableSchema
from penstock.tables.columns import own, toastable
from penstock.tables.timeline import flat, is_image, known_values, last_image, when_order

__all__ = ["fold_moves"]

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
