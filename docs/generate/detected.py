"""detected.md: what is detected, and how. Each entry quotes a message of the code and names a test that shows it."""

from __future__ import annotations

from dataclasses import dataclass

from docs.generate.markdown import table

__all__ = ["DETECTED", "Detected", "page"]

BOTH, START, RUNNING = "at start and while running", "at start", "while running"
_RETRY = "`RETRY TABLE`"
_RECREATE = "drop the source and capture it again"
_POSTGRES = "tests/sources/postgres/"
_CHANGED = _POSTGRES + "test_publication_watch.py::test_change_stops_that_table_only"
_CONTINUITY = _POSTGRES + "test_continuity.py::test_possible_loss_is_a_permanent_error"


@dataclass(frozen=True)
class Detected:
    """A way in which changes can be lost, and how it is detected."""

    what: str
    proof: str
    noticed: str
    says: str
    """A part of the message, literally as in the code; empty if there is no message."""
    on: str
    test: str


DETECTED: dict[str, list[Detected]] = {
    "The server": [
        Detected(
            "An older data directory or storage snapshot was restored, and its WAL ends before the log",
            "The end of the WAL is compared with the end of the log",
            START,
            "its WAL ends at",
            _RECREATE,
            _POSTGRES + "test_restored_data_directory.py::test_restored_wal_ends_before_the_log",
        ),
        Detected(
            "The same, and its WAL has grown past the end of the log since",
            "The server resends the transactions after the slot's confirmed position. They must contain the last"
            " transaction of the log (same position, xid and commit time), and no change after it up to the end of the"
            " log. Until this is verified, nothing is confirmed",
            START,
            "has another history than the log",
            _RECREATE,
            _POSTGRES + "test_restored_data_directory.py::test_restored_wal_has_grown_past_the_log",
        ),
        Detected(
            "The server crashed and lost the confirmed position of its slot",
            "The same check: the transactions sent again are those in the log",
            START,
            "",
            "resumes automatically",
            _POSTGRES + "test_restored_data_directory.py::test_capture_resumes_after_a_crash_of_the_server",
        ),
        Detected(
            "Another server is at the address",
            "System identifier",
            BOTH,
            "its system identifier is",
            "make the address reach the previous server, or " + _RECREATE,
            _POSTGRES + "test_failover.py::test_another_server_at_the_address_is_rejected",
        ),
        Detected(
            "A standby was promoted that had not received all WAL that the log contains",
            "The fork position in the history of the new timeline is before the end of the log",
            BOTH,
            "is ahead of the server after failover",
            _RECREATE,
            _POSTGRES + "test_failover.py::test_log_ahead_of_the_promoted_server_is_rejected",
        ),
        Detected(
            "A standby was promoted, or a backup was restored to a point in time, without a synchronized slot",
            "The slot is not marked `synced`",
            BOTH,
            "was not synchronized to it",
            _RECREATE,
            _POSTGRES + "test_failover.py::test_slot_that_was_not_synchronized_is_rejected",
        ),
        Detected(
            "The old primary was started again after a failover",
            "Its timeline is an earlier one, or has the same number and began at another position",
            BOTH,
            "it is on an earlier timeline",
            "remove it from the connection string",
            _CONTINUITY,
        ),
        Detected(
            "The server, or a proxy, keeps the connection open but sends nothing",
            "Each feedback message, one per second, requests a reply. The limit is 30 s without one, or half of"
            " `wal_sender_timeout` plus 5 s if that is longer (300 s if the timeout is off)",
            BOTH,
            "has not answered for",
            "resumes automatically; `penstock status` shows the time of the last answer",
            _POSTGRES + "test_silent_peer.py::test_capture_detects_a_silent_server_and_resumes",
        ),
    ],
    "The slot": [
        Detected(
            "Dropped",
            "The slot does not exist",
            BOTH,
            "no longer exists: changes since",
            _RECREATE,
            _POSTGRES + "test_instance.py::test_dropped_slot_is_a_permanent_error",
        ),
        Detected(
            "Dropped and created again, or advanced",
            "Its confirmed position is after the end of the log",
            START,
            "is confirmed up to",
            _RECREATE,
            _POSTGRES + "test_instance.py::test_slot_ahead_of_the_log_is_a_permanent_error",
        ),
        Detected(
            "Invalidated: required WAL or catalog rows were removed",
            "`pg_replication_slots` reports it",
            BOTH,
            "Postgres invalidated replication slot",
            _RECREATE,
            _POSTGRES + "test_slot.py::test_invalidated_slot_is_rejected",
        ),
        Detected(
            "In use by another process",
            "Postgres allows one reader, and reports its pid",
            START,
            "is in use by another session",
            "stop the other process",
            _POSTGRES + "test_slot.py::test_second_deployment_is_rejected",
        ),
    ],
    "The publication": [
        Detected(
            "Dropped",
            "The publication does not exist",
            BOTH,
            "no longer exists: changes since",
            _RECREATE,
            _POSTGRES + "test_instance.py::test_dropped_publication_is_a_permanent_error",
        ),
        Detected(
            "Dropped and created again",
            "Its OID changed",
            BOTH,
            "was dropped and created again",
            _RECREATE,
            _POSTGRES + "test_publication_watch.py::test_recreated_publication_stops_the_source",
        ),
        Detected(
            "Altered, even if it was altered back since: `publish = 'insert'` for a while, another owner",
            "The `xmin` of its row in `pg_publication` changed",
            BOTH,
            "was altered upstream, and may not have published all changes",
            _RETRY,
            _CHANGED + "[running-temporarily only inserts]",
        ),
        Detected(
            "A table, or its schema, was removed, even if it was added again since",
            "OID and `xmin` of the catalog row of its membership changed",
            BOTH,
            "the table was removed from publication",
            _RETRY,
            _CHANGED + "[running-removed and added]",
        ),
        Detected(
            "A row filter or column list was added or removed, even if that was reverted since",
            "The same check",
            BOTH,
            "differently: changes may be missing",
            _RETRY,
            _CHANGED + "[stopped-temporary row filter]",
        ),
    ],
    "A table": [
        Detected(
            "Its values were rewritten: `ALTER COLUMN … TYPE … USING`",
            "It has a new filenode, and the `xmin` of the column's catalog row changed",
            BOTH,
            "the table was rewritten upstream, and columns were altered",
            _RETRY,
            _CHANGED + "[stopped-values rewritten]",
        ),
        Detected(
            "Rewritten otherwise: unlogged for a while, `pg_repack`",
            "It has a new filenode, no row is older than the last check, and the stream contains no TRUNCATE",
            BOTH,
            "and the rewrite may have changed rows",
            _RETRY,
            _CHANGED + "[running-unlogged temporarily]",
        ),
        Detected(
            "Harmless: `VACUUM FULL`, `CLUSTER`, `TRUNCATE`, changed defaults, privileges or indexes",
            "Rows keep their `xmin`; TRUNCATE is in the stream",
            BOTH,
            "",
            "resumes automatically",
            _POSTGRES + "test_publication_watch.py::test_harmless_change_does_not_stop_the_table",
        ),
        Detected(
            "A column was dropped and added again",
            "Its column number (`attnum`) changed",
            BOTH,
            "columns were dropped upstream and added again",
            _RETRY,
            _CHANGED + "[stopped-column dropped and added]",
        ),
        Detected(
            "Columns changed their type, or were renamed or dropped where that is not followed",
            "The stream describes the table before its next change, and column numbers (`attnum`) are compared",
            BOTH,
            "its columns changed upstream",
            _RETRY,
            _POSTGRES + "test_schema_changes.py::test_ddl_stops_that_table_only",
        ),
        Detected(
            "Renamed, or moved to another schema",
            "Its OID has another name",
            BOTH,
            "was renamed to",
            _RETRY + " after it has its old name again; or `DROP TABLE` and `ADD TABLE` with the new name",
            _CHANGED + "[stopped-renamed]",
        ),
        Detected(
            "Dropped, dropped and created again, or swapped with another table",
            "Its OID changed",
            BOTH,
            "was dropped upstream",
            _RETRY,
            _CHANGED + "[stopped-swapped]",
        ),
        Detected(
            "Its key or replica identity changed",
            "The stream describes the table before its next change; without a replica identity, Postgres rejects UPDATE"
            " and DELETE",
            BOTH,
            "its replica identity is now NOTHING",
            _RETRY,
            _POSTGRES + "test_schema_changes.py::test_ddl_stops_that_table_only",
        ),
        Detected(
            "A partition was detached, even if it was attached again since; a table with rows was attached",
            "The `xmin` of its row in `pg_inherits` changed",
            BOTH,
            "a partition was detached or dropped upstream",
            _RETRY,
            _POSTGRES + "test_publication_watch.py::test_reattached_partition_stops_the_table",
        ),
        Detected(
            "Truncated, with `rules = 'strict'`",
            "TRUNCATE is in the stream",
            BOTH,
            "it was truncated, which the strict rules do not follow",
            _RETRY,
            _POSTGRES + "test_instance.py::test_truncate_stops_a_table_with_strict_rules",
        ),
        Detected(
            "Row-level security was enabled, or a privilege was revoked",
            "The stream still contains all rows; snapshots, `verify` and `repair` check it before they read",
            "before rows are read",
            "row-level security hides rows from the snapshot",
            "run the SQL that `penstock check` prints",
            _POSTGRES + "test_preflight.py::test_row_security",
        ),
        Detected(
            "A value cannot be stored exactly",
            "It is checked when it is decoded",
            RUNNING,
            "capture of {name} stopped",
            "follow the hint of the error, then " + _RETRY,
            _POSTGRES + "test_instance.py::test_unsupported_value_stops_that_table",
        ),
    ],
    "A topic": [
        Detected(
            "Deleted, or deleted and created again",
            "Its topic id changed",
            BOTH,
            "was deleted and recreated",
            _RETRY + " if the source supports it, or " + _RECREATE,
            "tests/sources/kafka/test_tick_continuity.py::test_capture_cannot_resume",
        ),
        Detected(
            "Messages at its end were lost",
            "It ends before the offset that was read",
            BOTH,
            "but was already read up to",
            _RETRY + " if the source supports it, or " + _RECREATE,
            "tests/sources/kafka/test_tick_continuity.py::test_capture_cannot_resume",
        ),
        Detected(
            "Messages were removed before they were read: retention, deleted records",
            "It begins after the offset to be read next",
            BOTH,
            "was not read yet",
            _RETRY + " if the source supports it, or " + _RECREATE,
            "tests/sources/kafka/test_tick_errors.py",
        ),
        Detected(
            "A broker returns no offset",
            "The returned offset is negative",
            BOTH,
            "the broker returned no offset",
            "resumes automatically",
            "tests/sources/kafka/test_offsets.py",
        ),
    ],
    "A file": [
        Detected(
            "Truncated or overwritten",
            "It is shorter than the part that was read, or the checksum over the first and last 4 kB of that part"
            " differs",
            BOTH,
            "was truncated or rewritten after it was read",
            "write new contents to a new file; " + _RETRY,
            "tests/sources/files/test_capture.py::test_rewritten_file_fails_the_table",
        ),
    ],
    "The home": [
        Detected(
            "It is a copy, or a restored backup, of a home that was used since",
            "The confirmed position of the slot is after the end of its log",
            START,
            "is confirmed up to",
            "use the newer home, or " + _RECREATE,
            "tests/engine/test_copied_home.py::test_copied_home_neither_captures_nor_drops",
        ),
        Detected(
            "Two processes run it",
            "A lock file",
            START,
            "is using the home",
            "stop the other process",
            "tests/engine/test_locks.py::test_second_process_is_rejected_and_the_error_names_the_holder",
        ),
        Detected(
            "Its change log is damaged on disk",
            "Checksums, and a chain of all chunks of a table",
            "when it is read",
            "the change log {path} is damaged",
            _RECREATE,
            "tests/changelog/test_sqlite.py::test_damaged_pages_are_detected",
        ),
    ],
}

_INTRO = """# What is detected, and how

Penstock takes a snapshot of a table once and then applies its changes. The result is correct as long as no change is
missing, between the snapshot and the stream or within the stream. This page lists the events upstream that can break
this, how Penstock detects each of them, and how to continue. A test covers each entry.

*At start* means whenever capture connects, also after a lost connection. *While running*, Penstock checks the catalogs
of Postgres every 2 s, and at once when the stream describes a table again.

A table that stops stays readable up to the position of its error. The other tables continue."""

_OUTRO = """## What is not detected

- **Between two checks**, for at most 2 s, readers see a table that should have stopped. The position of its error is
  before that.
- **An older data directory in which a slot of the same name was created by hand**: that slot begins after the last
  transaction of the log, so the server resends nothing that could be compared. Let Penstock create the slot, or drop
  the source after such a restore.
- **Table files that were changed by a program other than Postgres**, and WAL that was lost because of `fsync = off` or
  a disk that reports writes as durable when they are not.
- **Late rows of a Debezium snapshot**: rows that reach Kafka after no row of that snapshot has arrived for two
  seconds, in a partition that receives no later change. The snapshot then counts as complete, because Debezium does
  not count its rows. The late rows become visible with the next complete transaction.
- **A topic that lost messages at its end and was filled up again** before the next poll (`timestamp frequency ms`), or
  while no capture was running: an unclean leader election discards messages, and producers then write other messages at
  the same offsets. Penstock compares offsets, not leader epochs. Rows of discarded messages that were already applied
  stay in the table, and the messages that replaced them are not read. With `ENVELOPE DEBEZIUM`, changes that contradict
  the rows of the table stop it; other envelopes have no such check. `penstock check` warns about a topic with
  `unclean.leader.election.enable=true`.
- **Messages that compaction removed in the middle of a topic** before they were applied: offsets have gaps anyway,
  because of transactions. With `ENVELOPE UPSERT` and `DEBEZIUM UPSERT`, the latest message of each key remains, so only
  earlier states are lost, as well as a deletion that was not applied within `delete.retention.ms`: that row stays. With
  `ENVELOPE NONE`, rows are missing. A source with `ENVELOPE DEBEZIUM` is not created on a compacted topic, but a
  topic whose `cleanup.policy` changes later is only reported by `penstock check`.
- **A file that was changed in its middle** and still has the same length: of the part that was read, the checksum
  covers the first and the last 4 kB. The table keeps the rows that were read first. Write new contents to a new file.
- **A copy of a home that was made a moment ago**, while nothing has changed upstream since: both homes are consistent
  with the server. The one that starts first continues; from then on, the other one is rejected.

## What stops a table although nothing is missing

- `VACUUM FULL` or `CLUSTER` of a table **whose rows are all younger than the last check**: it cannot be proven that
  its rows are unchanged. The same applies to `pg_repack` and similar tools, which write every row as a new one.
- A publication whose **owner or name** was changed: its options may have been different for a moment.

`RETRY TABLE` takes a new snapshot of such a table."""


def page() -> str:
    parts = [_INTRO]
    for title, lines in DETECTED.items():
        rows = [[d.what, d.proof, d.noticed, _quoted(d.says), d.on] for d in lines]
        header = ["event", "how it is detected", "when", "message", "how to continue"]
        parts += [f"## {title}", table(header, rows)]
    return "\n\n".join([*parts, _OUTRO])


def _quoted(says: str) -> str:
    return f"“… {says.replace('{name}', 'TABLE').replace('{path}', 'FILE')} …”" if says else "none"
