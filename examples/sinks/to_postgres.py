"""Keep a copy of a table in another Postgres database.

    home.sink("copy", "shop.orders", "to_postgres:copy_orders")

`TARGET_DATABASE` is the URL of the other database, which has the same table `orders`. Each call is one transaction
there. A repeated call leaves the same rows.
"""

from __future__ import annotations

import io
import os

import psycopg
import pyarrow.csv
from pyspark.sql import DataFrame

import penstock

STAGING = """
CREATE TEMP TABLE change (lsn pg_lsn, ordinal bigint, op text, old_id bigint, id bigint, customer text, amount numeric)
ON COMMIT DROP
"""
TRUNCATED = """
DELETE FROM change USING (SELECT lsn, ordinal FROM change WHERE op = 'truncate' ORDER BY 1 DESC, 2 DESC LIMIT 1) last
WHERE (change.lsn, change.ordinal) <= (last.lsn, last.ordinal)
"""
DELETE = "DELETE FROM orders USING change WHERE orders.id = change.old_id"
UPSERT = """
INSERT INTO orders (id, customer, amount)
SELECT id, customer, amount
FROM (SELECT DISTINCT ON (id) * FROM change WHERE id IS NOT NULL ORDER BY id, lsn DESC, ordinal DESC) latest
WHERE NOT EXISTS (
  SELECT FROM change WHERE change.old_id = latest.id AND (change.lsn, change.ordinal) > (latest.lsn, latest.ordinal)
)
ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, amount = excluded.amount
"""


def copy_orders(df: DataFrame, first: penstock.Lsn | None, last: penstock.Lsn) -> None:
    """Apply the changes of one range."""
    rows = df.selectExpr(
        "_lsn", "_ordinal", "_op", "before.id as old_id", "after.id", "after.customer", "after.amount"
    ).toArrow()
    text = io.BytesIO()
    pyarrow.csv.write_csv(rows, text, pyarrow.csv.WriteOptions(include_header=False))
    with psycopg.connect(os.environ["TARGET_DATABASE"]) as connection:
        connection.execute(STAGING)
        with connection.cursor().copy("COPY change FROM STDIN (FORMAT csv)") as copy:
            copy.write(text.getbuffer())
        if first is None or connection.execute(TRUNCATED).rowcount:
            connection.execute("DELETE FROM orders")
        connection.execute(DELETE)
        connection.execute(UPSERT)
