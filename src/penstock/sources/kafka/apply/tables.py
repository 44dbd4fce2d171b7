"""The tables of a source that reads Kafka topics, as live views and apply use them.

Apply reads the messages of a range once, validates them and merges them::

    (position, upto] ─▶ messages, decoded, persisted
        ├─ topic deleted and recreated?  these are not the captured messages: fail the table, merge nothing
        ├─ rejected messages?  stop: merge up to the tick before the first of them, then fail the table
        │                      quarantine: store them, up to a limit, and skip them
        ├─ DEBEZIUM: changes consistent with the current rows?  no: fail the table in the same way
        └─ folded, merged; position, and the state that DEBEZIUM needs, in the same commit

A range ends at a tick. It has at least one tick, and otherwise at most two million messages. The columns of the table
do not change within it: a range that begins with new columns adds them to the base table first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from penstock.envelopes import Enveloped
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.sources.kafka.apply.changes import Changes, changes_of, memory_after
from penstock.sources.kafka.apply.debezium_checks import first_contradiction, missing_changes_hint
from penstock.sources.kafka.apply.messages import messages_of, raw_messages, require_captured_topic
from penstock.sources.kafka.apply.quarantine import Quarantine, first_faults
from penstock.sources.kafka.apply.tail import check_quarantine_limit, live_quarantine, live_topic, rows_in, topic_tail
from penstock.sources.kafka.faults import Fault, fault_error, quarantine_hint, quarantine_limit_hint
from penstock.sources.kafka.ticks import apply_lease_name, last_tick_within
from penstock.sources.kafka.topic_log import RangePart, TopicLog
from penstock.sources.kafka.topic_table import TopicTable
from penstock.sources.kafka.with_options import OnError
from penstock.tables.base_state import State
from penstock.tables.interface import BaseTable
from penstock.tables.message_tables import AppliedTable, MessageTables

__all__ = ["TopicApply", "TopicTables"]


class TopicTables(MessageTables):
    """The tables of one `TopicLog`."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log

    def live(self, spark: SparkSession, rows: DataFrame, at: State, schema: TableSchema, upto: Lsn) -> DataFrame:
        """Overlay the rows of a table with the messages up to `upto`."""
        return live_topic(spark, self._log, rows, at, schema, upto)

    def apply(self, spark: SparkSession, table: AppliedTable, at: State, upto: Lsn) -> None:
        """Merge messages, range by range."""
        TopicApply(spark, self._log, table).merge(at, upto)

    def quarantine(
        self, spark: SparkSession, stored: Path, base: BaseTable | None, at: State | None, upto: Lsn | None
    ) -> DataFrame:
        """Return the stored messages, and those that apply will add."""
        quarantine = Quarantine(spark, stored)
        if base is None or at is None or upto is None:
            return quarantine.rows()
        return live_quarantine(spark, self._log, quarantine, base, at, upto)

    def check_limit(self, spark: SparkSession, stored: Path, base: BaseTable, at: State, upto: Lsn, local: str) -> None:
        """Raise the error of a quarantine that exceeds its limit."""
        check_quarantine_limit(spark, self._log, Quarantine(spark, stored), base, at, upto, local)


# -- apply -------------------------------------------------------------------------------------------------------------

_MOST_MESSAGES = 2_000_000


class TopicApply:
    """Applies messages to one table of a topic, range by range."""

    def __init__(self, spark: SparkSession, log: TopicLog, table: AppliedTable) -> None:
        topic_table = log.table(table.name)
        assert topic_table is not None, "every table of a topic log belongs to a topic"
        self._spark = spark
        self._log = log
        self._topic_table: TopicTable = topic_table
        self._part = RangePart(topic_table, Lsn.ZERO, Lsn.ZERO)
        """The part of the log that is being applied, with the table as of then."""
        self._table = table
        self._quarantine = Quarantine(spark, table.quarantine)

    def merge(self, at: State, upto: Lsn) -> None:
        """Apply the messages in (at, upto]; raise `TableError` if the table fails before `upto`."""
        self._record_position(at.position)
        while at.position < upto:
            self._part = self._log.parts(self._topic_table, at.position, upto)[0]
            if self._merge_range(at, self._next_end(at.position, self._part.upto)):
                self._table.load_state()
                if self._table.at is None:
                    return
                at = self._table.at
                self._record_position(at.position)
            elif self._part.upto < upto:
                at = at._replace(position=self._part.upto)  # without messages: the next part begins there
            else:
                return

    def _record_position(self, position: Lsn) -> None:
        """Record the position for capture: earlier messages are applied, so Kafka may remove them without a loss."""
        with closing(self._log.reader()) as reader:
            reader.set_lease(apply_lease_name(self._topic_table.topic.name), position)

    def _next_end(self, after: Lsn, upto: Lsn) -> Lsn:
        """Return the end of the next range: a tick up to which there are not too many messages."""
        with closing(self._log.reader()) as reader:
            if reader.extent(self._topic_table.name, after, upto).rows <= _MOST_MESSAGES:
                return upto
        return last_tick_within(self._log.bounds(self._topic_table, after, upto), _MOST_MESSAGES)

    def _merge_range(self, at: State, upto: Lsn) -> bool:
        """Merge one range; return whether it contained messages."""
        table = self._part.table
        read = messages_of(self._spark, self._log, table, at.position, upto)
        if read is None:
            return False
        base, schema = self._table.base, table.table_schema()
        if len(schema.columns) > len(base.schema.columns):
            base.evolve(schema)
        rows = base.current()
        with _persisted(read) as messages:
            changes = changes_of(messages, table, at.memory, rows)
            found = changes.found
            faults = first_faults(changes)  # reads and persists all messages
            if changes.few is None:
                require_captured_topic(self._log, self._topic_table, at.position)
            if faults and self._stops(found):
                self._end(at, upto, faults, self._hint())
            if faults:
                self._add_to_quarantine(at, upto, found)
            if breach := first_contradiction(changes, rows, self._table.base.schema, table):
                self._end(at, upto, [breach], missing_changes_hint(self._log))
            self._commit(changes, at, upto)
        return True

    def _commit(self, changes: Changes, at: State, upto: Lsn) -> None:
        base = self._table.base
        if not base.schema.key:
            base.append(rows_in(changes.found.images, base.schema), upto)
            return
        tail = topic_tail(self._spark, self._log, changes, base.schema, at.position, upto, lenient=True)
        base.merge(tail.net, upto, tail.contents, memory=memory_after(changes))

    # -- rejected messages ------------------------------------------------------------------------------------------

    def _stops(self, found: Enveloped) -> bool:
        """Whether rejected messages fail the table: because of its option, or because the limit is reached."""
        how = self._log.how
        if how.on_error is OnError.STOP:
            return True
        limit = how.quarantine_limit
        return limit is not None and self._quarantine.count() + found.rejected.count() > limit

    def _add_to_quarantine(self, at: State, upto: Lsn, found: Enveloped) -> None:
        incarnation = self._table.base.incarnation()
        after = max(at.position, self._quarantine.reached(incarnation))
        raw = raw_messages(self._spark, self._log, self._topic_table, after, upto) if after < upto else None
        if raw is not None:
            self._quarantine.add(raw, found.rejected, incarnation, upto)

    def _end(self, at: State, upto: Lsn, faults: list[Fault], hint: str) -> None:
        """Merge the messages before the first fault, and raise the error of the table."""
        error = fault_error(self._topic_table, self._log.bounds(self._topic_table, at.position, upto), faults, hint)
        before = Lsn(error.lsn - 1)
        if at.position < before and self._merge_range(at, before):
            self._table.load_state()
        raise error

    def _hint(self) -> str:
        if self._log.how.on_error is OnError.QUARANTINE:
            return quarantine_limit_hint(self._log.source, self._table.local)
        return quarantine_hint(self._log.source, self._log.what)


@contextmanager
def _persisted(messages: DataFrame) -> Iterator[DataFrame]:
    """Persist messages while they are needed, so that they are read and decoded once."""
    if messages.isLocal():
        yield messages
        return
    kept = messages.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()
