"""A program with a sink into a function: ``python -m tests.end_to_end.function_home HOME CALLS KILLS``.

The function appends each of its calls to the file CALLS, before it returns. KILLS lists the calls, by their number,
in which it kills the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame

import penstock


def main(home: Path, calls: Path, kills: list[int]) -> None:
    """Run the home until the process is killed."""

    def record(df: DataFrame, first: penstock.Lsn | None, last: penstock.Lsn) -> None:
        rows = sorted(tuple(row) for row in df.select("_lsn", "_ordinal", "_op", "before.id", "after.*").collect())
        with calls.open("a", encoding="utf-8") as file:
            file.write(json.dumps([first and str(first), str(last), rows]) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if len(calls.read_text(encoding="utf-8").splitlines()) in kills:
            os.kill(os.getpid(), signal.SIGKILL)

    opened = penstock.open(home)
    opened.sink("record", "shop.orders", record)
    with opened.run(penstock.session()) as running:
        while True:
            running.check()
            time.sleep(0.2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
