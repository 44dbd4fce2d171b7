"""Compare rows in Spark with the rows in Postgres."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.debezium.recording import Recording, canonical


def require_rows(rows: DataFrame, recording: Recording, table: str, columns: Sequence[str] | None = None) -> None:
    """Compare columns of a table, by default all that were recorded."""
    known = recording.rows[table]
    names = list(columns or known.columns)
    if "moment" in names:
        rows = rows.withColumn("moment", F.col("moment").cast("timestamp_ntz"))  # the session's zone is UTC
    places = [known.columns.index(name) for name in names]
    found = Counter(_text(list(row)) for row in rows.select(*names).collect())
    assert found == Counter(_text([row[place] for place in places]) for row in known.rows)


def _text(row: list[Any]) -> str:
    return json.dumps(canonical(row), sort_keys=True)
