"""Follow tables of a home with Spark, on this machine or on a cluster.

    python examples/follow_tables.py HOME SOURCE public.account,public.transfer CHECKPOINT OUTPUT

The first run starts with a snapshot of the tables; later runs resume from the checkpoint. Each micro-batch ends at a
transaction boundary and is written to one file of JSON lines in OUTPUT, named after the batch: a batch that Spark
repeats overwrites its file with the same rows. At the end the program prints the number of rows of each table.

Spark's own settings determine where it runs: `spark.master` in spark-defaults.conf, for example, or
`PYSPARK_SUBMIT_ARGS="--master spark://host:7077 pyspark-shell"`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import penstock


def main(home: str, source: str, tables: str, checkpoint: str, output: str) -> None:
    """Read all available changes, then stop."""
    spark = penstock.configure(SparkSession.builder.appName("follow tables")).getOrCreate()

    def write(batch: DataFrame, number: int) -> None:
        lines = batch.orderBy("_lsn", "_ordinal").toJSON().collect()
        Path(output).mkdir(parents=True, exist_ok=True)
        (Path(output) / f"{number:06}.jsonl").write_text("".join(f"{line}\n" for line in lines))

    changes = (
        spark.readStream.format("penstock")
        .option("home", home)
        .option("source", source)
        .option("table", tables)
        .option("startingPosition", "earliest")
        .option("maxRowsPerTrigger", "500")
        .load()
    )
    query = changes.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    for table in tables.split(","):
        live = spark.read.format("penstock").options(home=home, source=source, table=table, rows="live").load()
        print(f"{table} {live.count()}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
