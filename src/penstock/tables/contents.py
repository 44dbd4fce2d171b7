"""What a range of images holds, as far as the work on it depends on that.

Most ranges hold no unchanged TOAST values, no change of a key and no TRUNCATE. Whoever knows that (the change log
counts as it writes) says so here, and pays for none of it. A default `Contents` promises nothing and is always right.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.model import Image

__all__ = ["Contents", "survey"]


@dataclass(frozen=True)
class Contents:
    """Facts about a range; each default is the one that is never wrong, only slower."""

    rows: int | None = None
    """How many images there are; unknown when None."""
    inserts_only: bool = False
    """Every image is an INSERTED one."""
    unchanged: bool = True
    """Some image may list columns in ``_unchanged``."""
    moved: bool = True
    """Some UPDATE may have changed a key: there are BEFORE_KEY or BEFORE images."""
    truncated: tuple[int, int] | None = None
    """``(_lsn, _ordinal)`` of the last TRUNCATE. This one is no hint: it must be right."""

    def then(self, later: Contents) -> Contents:
        """Describe this range and the one that follows it, together."""
        return Contents(
            rows=None if self.rows is None or later.rows is None else self.rows + later.rows,
            inserts_only=self.inserts_only and later.inserts_only,
            unchanged=self.unchanged or later.unchanged,
            moved=self.moved or later.moved,
            truncated=later.truncated or self.truncated,
        )


def survey(images: DataFrame) -> Contents:
    """Read `images` once and describe them: for those who have no log to ask."""
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
