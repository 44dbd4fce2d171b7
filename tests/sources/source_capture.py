"""Run source instances in a thread, on a log of their own, for tests of source kinds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.changelog.interface import LoggedTable
from penstock.changelog.sqlite.log import SqliteLog
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.interface import Instance, InstanceConfig, Source
from penstock.sources.kinds import kind
from penstock.testing.waiting import until


class SourceCapture:
    """A source with its log and its state, in a folder."""

    _pauses = 0
    """How often instances found nothing to capture, and paused."""

    def __init__(self, folder: Path, source: Source) -> None:
        self.source = source
        self.config: InstanceConfig = source.create_instances(1)[0].prepare()
        self.log = SqliteLog(folder / "log.db")
        self.log.create(self.config.start())
        self.state = folder / "state"
        self._raised: BaseException | None = None

    def instance(self) -> Instance:
        """Create an instance."""
        return (
            kind(self.source.NAME)
            .factory()
            .instantiate(self.config, self.config.reading(self.log, self.state), self.state)
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run an instance in the background; its exception is raised here."""
        stop = threading.Event()
        self._raised = None

        def work() -> None:
            try:
                self._counted(self.instance()).run(stop, lambda: None)
            except BaseException as error:
                self._raised = error

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if self._raised is not None:
            raise self._raised

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition, or until the instance raises."""
        until(lambda: self._raised is not None or holds(), f"a condition of source {self.config.source}")

    def until_idle(self) -> None:
        """Wait until a poll that started after this call has found nothing to capture, or until the instance raises."""
        pauses = self._pauses + 2
        self.until(lambda: self._pauses >= pauses)

    def _counted(self, instance: Instance) -> Instance:
        """Count how often an instance pauses."""
        pause = getattr(instance, "pause", None)
        if pause is None:  # it is not a polling instance
            return instance

        def counted() -> float:
            self._pauses += 1
            return float(pause())

        setattr(instance, "pause", counted)  # noqa: B010
        return instance

    def run_until(self, holds: Callable[[], bool]) -> None:
        """Run until a condition holds."""
        with self.running():
            self.until(holds)

    def durable(self) -> Lsn:
        """Return the durable position of the log."""
        with closing(self.log.reader()) as reader:
            return reader.frontiers().durable

    def table(self, name: str) -> LoggedTable:
        """Return a table of the log."""
        with closing(self.log.reader()) as reader:
            return reader.tables()[TableName(self.source.name, name)]

    def images(self, name: str, after: int = 0, upto: int | None = None) -> pa.Table:
        """Return the images of a table in a range."""
        table = TableName(self.source.name, name)
        with closing(self.log.reader()) as reader:
            extent = reader.extent(table, Lsn(after), self.durable() if upto is None else Lsn(upto))
            batches = list(reader.read(extent, reader.tables()[table].schema.columns))
        return pa.Table.from_batches(batches) if batches else pa.table({"row": [], "_lsn": []})

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of all images of a table."""
        found: list[dict[str, Any]] = self.images(name).column("row").to_pylist()
        return found
