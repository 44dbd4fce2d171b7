"""A program that reads topics by options given as JSON on standard input, and prints everything that Spark exposes.

It runs in a separate process with its own JVM: the Kafka reader, the UI, an event log, and logs on standard error.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.session import session
from penstock.testing.waiting import PATIENCE


def started(folder: Path) -> SparkSession:
    """Start Spark with all of its outputs enabled."""
    (folder / "events").mkdir()
    config = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }
    return session("kafka", master="local[2]", config=config)


def explained(frame: DataFrame) -> str:
    """Return what `explain` prints."""
    with redirect_stdout(StringIO()) as output:
        frame.explain(extended=True)
    return output.getvalue()


def batch(spark: SparkSession, options: dict[str, str]) -> dict[str, Any]:
    """Read a topic to its end; return the values, or the error, and the plans."""
    frame = spark.read.format("kafka").options(**options).load().selectExpr("CAST(value AS STRING) AS value", "offset")
    plans: list[str] = []
    try:
        plans.append(explained(frame))
        return {"values": sorted(row.value for row in frame.collect()), "plans": plans}
    except (PySparkException, Py4JJavaError) as error:
        return {"error": str(error), "plans": plans}


def stream(spark: SparkSession, options: dict[str, str], folder: Path) -> dict[str, Any]:
    """Read a topic as a stream to its end; return plan and progress."""
    source = spark.readStream.format("kafka").options(**options).load()
    plans = [explained(source)]
    writer = source.selectExpr("CAST(value AS STRING) AS value").writeStream.format("memory").queryName("streamed")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return {"error": str(error), "plans": plans}
    plans += [query._jsq.explainInternal(True), json.dumps([progress.json for progress in query.recentProgress])]
    return {"values": sorted(row.value for row in spark.table("streamed").collect()), "plans": plans}


def ui(spark: SparkSession) -> list[str]:
    """Return what the UI shows of queries, streams and settings."""
    url = spark.sparkContext.uiWebUrl
    assert url is not None
    app = spark.sparkContext.applicationId
    rest = f"{url}/api/v1/applications/{app}"
    executions = json.loads(fetched(f"{rest}/sql?details=true&planDescription=true&length=1000"))
    pages = [f"{url}/SQL/execution/?id={execution['id']}" for execution in executions]
    pages += [f"{url}/{page}/" for page in ("SQL", "jobs", "stages", "environment", "StreamingQuery")]
    return [json.dumps(executions), fetched(f"{rest}/environment"), *map(fetched, pages)]


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        return str(response.read().decode())


def main(folder: Path, reads: dict[str, Any]) -> None:
    spark = started(folder)
    results: dict[str, Any] = {name: batch(spark, options) for name, options in reads["batches"].items()}
    for name, options in reads["plans"].items():
        results[name] = {"plans": [explained(spark.readStream.format("kafka").options(**options).load())]}
    results |= {name: stream(spark, options, folder) for name, options in reads["streams"].items()}
    results["ui"] = ui(spark)
    spark.stop()
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.load(sys.stdin))
