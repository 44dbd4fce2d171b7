"""Apply for the tables of topics: messages of a range are read once, judged, and merged.

::

    (position, upto] ─▶ messages, decoded, kept at hand
        ├─ refused?  stop: merged up to the tick before the first of them, then an error of the table
        │            quarantine: put aside (`penstock.tables.quarantine`), up to a limit; then as if they were not there
        ├─ DEBEZIUM: do the changes follow from the rows that are there?  no: an error of the table, likewise
        └─ folded, merged; position, and what DEBEZIUM remembers, in the same commit

A range is as long as ticks allow: at least one, and else not more than some million messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from penstock.engine.table import FollowedTable
from penstock.envelopes import Enveloped
from penstock.positions import Lsn
from penstock.sources.kafka.ticks import taken_by, tick_within
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_table import TopicTable
from penstock.sources.kafka.with_options import OnError
from penstock.spark.topics.changes import Changes, changes_of, memory_after
from penstock.spark.topics.messages import messages_of, raw_messages
from penstock.tables.base_state import State
from penstock.tables.debezium_checks import first_breach, missing_changes
from penstock.tables.quarantine import Fault, Quarantine, ended_by, first_faults, how_to_go_on, how_to_raise_the_limit
from penstock.tables.topic_tail import rows_in, topic_tail

__all__ = ["TopicApply"]

_MOST_MESSAGES = 2_000_000


class TopicApply:
    """Brings one table of a topic on, range by range."""

    def __init__(self, spark: SparkSession, log: TopicLog, table: FollowedTable) -> None:
        made = log.table(table.record.upstream)
        assert made is not None, "every table of such a log is made by a topic"
        self._spark = spark
        self._log = log
        self._made: TopicTable = made
        self._table = table
        self._quarantine = Quarantine(spark, table.quarantine)

    def merge(self, at: State, upto: Lsn) -> None:
        """Take in what there is in (at, upto]; a `TableError` says that it ends before that."""
        self._tell(at.position)
        while at.position < upto:
            step = self._fitting(at.position, upto)
            if not self._take(at, step):
                return
            self._table.look_up()
            if self._table.at is None:
                return
            at = self._table.at
            self._tell(at.position)

    def _tell(self, position: Lsn) -> None:
        """Let capture know which messages are needed no more: what Kafka removes before them is no loss."""
        with closing(self._log.reader()) as reader:
            reader.pin(taken_by(self._made.topic.name), position)

    def _fitting(self, after: Lsn, upto: Lsn) -> Lsn:
        """Return how far to go at once: to a tick up to which there are not too many messages."""
        with closing(self._log.reader()) as reader:
            if reader.extent(self._made.name, after, upto).rows <= _MOST_MESSAGES:
                return upto
        return tick_within(self._log.bounds(self._made, after, upto), _MOST_MESSAGES)

    def _take(self, at: State, upto: Lsn) -> bool:
        """Merge one range; say whether there was anything in it."""
        read = messages_of(self._spark, self._log, self._made, at.position, upto)
        if read is None:
            return False
        rows = self._table.base.current()
        with _at_hand(read) as messages:
            changes = changes_of(messages, self._made, at.memory, rows)
            found = changes.found
            faults = first_faults(changes)
            if faults and self._stops(found):
                self._end(at, upto, faults, self._hint())
            if faults:
                self._add_to_quarantine(at, upto, found)
            if apart := first_breach(changes, rows, self._table.base.schema, self._made):
                self._end(at, upto, [apart], missing_changes(self._log))
            self._commit(changes, at, upto)
        return True

    def _commit(self, changes: Changes, at: State, upto: Lsn) -> None:
        base = self._table.base
        if not base.schema.key:
            base.append(rows_in(changes.found.images, base.schema), upto)
            return
        tail = topic_tail(self._spark, self._log, changes, base.schema, at.position, upto, lenient=True)
        base.merge(tail.net, upto, tail.contents, memory=memory_after(changes))

    # -- messages that cannot be taken in ---------------------------------------------------------------------------

    def _stops(self, found: Enveloped) -> bool:
        """Whether the table ends at messages that are refused: by its option, or as there are too many."""
        how = self._log.how
        if how.on_error is OnError.STOP:
            return True
        limit = how.quarantine_limit
        return limit is not None and self._quarantine.count() + found.refused.count() > limit

    def _add_to_quarantine(self, at: State, upto: Lsn, found: Enveloped) -> None:
        incarnation = self._table.base.incarnation()
        after = max(at.position, self._quarantine.reached(incarnation))
        raw = raw_messages(self._spark, self._log, self._made, after, upto) if after < upto else None
        if raw is not None:
            self._quarantine.add(raw, found.refused, incarnation, upto)

    def _end(self, at: State, upto: Lsn, faults: list[Fault], hint: str) -> None:
        """Merge what lies before the first of some faults, and raise the error of the table."""
        error = ended_by(self._log, self._made, at.position, upto, faults, hint)
        before = Lsn(error.lsn - 1)
        if at.position < before and self._take(at, before):
            self._table.look_up()
        raise error

    def _hint(self) -> str:
        if self._log.how.on_error is OnError.QUARANTINE:
            return how_to_raise_the_limit(self._log, self._table.record.local)
        return how_to_go_on(self._log)


@contextmanager
def _at_hand(messages: DataFrame) -> Iterator[DataFrame]:
    """Keep messages while they are needed: they are read and decoded once."""
    if messages.isLocal():
        yield messages
        return
    kept = messages.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()
