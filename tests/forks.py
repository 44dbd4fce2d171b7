"""The fork server of the tests: processes that start in milliseconds, because their imports are done.

multiprocessing has one fork server per process, and one list of modules that it imports before it forks; the last list
that is set before it starts wins. Lists of several files would replace each other as soon as one run collects all of
them, and each fork would import Spark and numba again. This is therefore the only list.
"""

from __future__ import annotations

import multiprocessing

from penstock.cli.main import SUMMARIES

__all__ = ["FORKS"]

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("pyspark.sql", "penstock.executor", "penstock.engine.supervisor"),
        *("penstock.sources.postgres.kind", "penstock.sources.kafka.kind"),  # kinds are imported on first use
        *("typer.rich_utils", "rich.columns", "rich.markdown", "rich._emoji_codes"),  # for help and errors
        *(f"penstock.cli.{name}" for name in SUMMARIES),
        *("tests.engine.kill_points", "tests.engine.actions"),
    ]
)
