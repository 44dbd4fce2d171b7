"""Send the changes of a table to an HTTP server, in batches of JSON lines.

    home.sink("to_http", "shop.orders", "to_http:send")

`TARGET_URL` is the address. The header `Idempotency-Key` is the same when a batch is sent again, so that the server
can ignore what it has.
"""

from __future__ import annotations

import itertools
import os
import urllib.request

from pyspark.sql import DataFrame

import penstock

BATCH = 500
POSITION = "bigint(conv(split(_lsn, '/')[0], 16, 10)) * 4294967296 + bigint(conv(split(_lsn, '/')[1], 16, 10))"
LINE = "to_json(struct(_op, _lsn, _ordinal, before, after), map('ignoreNullFields', 'false')) AS line"


def send(df: DataFrame, first: penstock.Lsn | None, last: penstock.Lsn) -> None:
    """Send the changes in commit order; an error status is raised, and the whole range is sent again."""
    ordered = df.selectExpr(f"{POSITION} AS position", "_ordinal", "after.id AS id", LINE)
    lines = (row.line for row in ordered.orderBy("position", "_ordinal", "id").toLocalIterator())
    batches = iter(lambda: list(itertools.islice(lines, BATCH)), [])
    for number, batch in enumerate(batches):
        headers = {"Content-Type": "application/jsonl", "Idempotency-Key": f"{first}-{last}-{number}"}
        request = urllib.request.Request(os.environ["TARGET_URL"], "\n".join(batch).encode(), headers)
        with urllib.request.urlopen(request, timeout=30):
            pass
