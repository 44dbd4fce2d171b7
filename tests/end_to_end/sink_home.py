"""A running home with capture and sinks, but without tables: ``python -m tests.end_to_end.sink_home HOME``.

It starts in a second, because it needs no Spark: base tables stay as they were when their initial snapshot was
complete. The process runs until it is killed.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from penstock.home import Home
from penstock.model import TableName
from penstock.testing.memory_tables import MemoryTables


class NoTables:
    """Stands for the snapshot and apply of a source, which do nothing."""

    failure = None

    def __init__(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        pass

    def reload(self) -> None:
        pass

    def resume_tables(self) -> None:
        pass

    def release_tables(self, names: Collection[TableName]) -> set[TableName]:
        return set(names)


def main(home: Path) -> None:
    """Run the home until SIGTERM."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.engine.source_runner.TableLoops", NoTables)
        patch.setattr("penstock.engine.runner._RECONCILE_SECONDS", 0.2)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with Home(home).run(MemoryTables(), lambda text: print(text, flush=True)):
            try:
                signal.pause()
            except KeyboardInterrupt:
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
