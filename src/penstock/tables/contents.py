"""A description of the images in a range, as far as processing depends on it.

Most ranges contain no unchanged TOAST values, no key changes and no TRUNCATE. A caller that knows this (the change log
counts as it writes) passes it as `Contents`, and processing skips the corresponding work. The default `Contents`
promises nothing and is always correct.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.model import Image

__all__ = ["Contents", "survey"]


@dataclass(frozen=True)
class Contents:
    """Facts about a range; each default is always correct, but slower."""

    rows: int | None = None
    """The number of images; None if unknown."""
    inserts_only: bool = False
    """All images are INSERTED images."""
    unchanged: bool = True
    """Some images may list columns in ``_unchanged``."""
    moved: bool = True
    """Some UPDATE may have changed a key: there are BEFORE_KEY or BEFORE images."""
    truncated: tuple[int, int] | None = None
    """``(_lsn, _ordinal)`` of the last TRUNCATE. This is not an optimization: it must be correct."""

    def then(self, later: Contents) -> Contents:
        """Return the description of this range combined with the range that follows it."""
        return Contents(
            rows=None if self.rows is None or later.rows is None else self.rows + later.rows,
            inserts_only=self.inserts_only and later.inserts_only,
            unchanged=self.unchanged or later.unchanged,
            moved=self.moved or later.moved,
            truncated=later.truncated or self.truncated,
        )


def survey(images: DataFrame) -> Contents:
    """Read `images` once and describe them, for callers without a change log."""
    image = F.col("_image")
    found = images.agg(
        F.count("*").alias("rows"),
        F.count_if(image == int(Image.INSERTED)).alias("inserts"),
        F.count_if(F.size("_unchanged") > 0).alias("unchanged"),
        F.count_if(image.isin(int(Image.BEFORE), int(Image.BEFORE_KEY))).alias("moved"),
        F.max(F.when(image == int(Image.TRUNCATE), F.struct("_lsn", "_ordinal"))).alias("truncated"),
    ).collect()[0]
    truncated = found["truncated"]
    return Contents(
        rows=found["rows"],
        inserts_only=found["inserts"] == found["rows"],
        unchanged=found["unchanged"] > 0,
        moved=found["moved"] > 0,
        truncated=None if truncated is None else (truncated[0], truncated[1]),
    )
