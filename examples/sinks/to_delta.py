"""Keep a copy of a table, and the history of its changes, in Delta tables of your own.

    home.sink("copy", "shop.orders", "to_delta:merge")
    home.sink("history", "shop.orders", "to_delta:append")

`TARGET_FOLDER` is the folder of both tables.
"""

from __future__ import annotations

import os

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

import penstock

POSITION = "bigint(conv(split(_lsn, '/')[0], 16, 10)) * 4294967296 + bigint(conv(split(_lsn, '/')[1], 16, 10))"


def append(df: DataFrame, first: penstock.Lsn | None, last: penstock.Lsn) -> None:
    """Append the changes; Delta skips a write whose version it has already."""
    rows = df.select("_op", "_lsn", "_ordinal", "_committed_at", "before", "after")
    once = {"txnAppId": "orders history", "txnVersion": int(last)}
    rows.write.format("delta").mode("append").options(**once).save(f"{os.environ['TARGET_FOLDER']}/history")


def merge(df: DataFrame, first: penstock.Lsn | None, last: penstock.Lsn) -> None:
    """Apply the last change of each row; a repeated call leaves the same rows."""
    path = f"{os.environ['TARGET_FOLDER']}/orders"
    if first is None:
        df.select("after.*").write.format("delta").mode("overwrite").save(path)
        return
    target = DeltaTable.forPath(df.sparkSession, path)
    changes = df.withColumn("at", F.expr(f"struct({POSITION}, _ordinal)"))
    truncated = changes.where("_op = 'truncate'").agg(F.max("at").alias("truncated_at"))
    if truncated.where("truncated_at IS NOT NULL").count():
        changes = changes.crossJoin(truncated).where("at > truncated_at")
        target.delete()
    old = F.struct("before.id", F.lit(None).cast(df.schema["after"].dataType).alias("row"))
    new = F.struct("after.id", F.col("after").alias("row"))
    newest = Window.partitionBy("id").orderBy(F.desc("at"), F.col("row").isNull())
    net = changes.select("at", F.explode(F.array(old, new)).alias("one")).select("at", "one.*").where("id IS NOT NULL")
    net = net.withColumn("number", F.row_number().over(newest)).where("number = 1")
    columns = {name: f"new.row.{name}" for name in df.select("after.*").columns}
    (
        target.alias("old")
        .merge(net.alias("new"), "old.id = new.id")
        .whenMatchedDelete("new.row IS NULL")
        .whenMatchedUpdate(set=columns)
        .whenNotMatchedInsert("new.row IS NOT NULL", values=columns)
        .execute()
    )
