"""detected.md: what is detected, and how. Each line names what the code says then, and the test that shows it."""

from __future__ import annotations

from dataclasses import dataclass

from docs.generate.markdown import table

__all__ = ["DETECTED", "Detected", "page"]

BOTH, START, RUNNING = "running and at start", "at start", "running"
_RETRY = "`RETRY TABLE`"
_AFRESH = "drop the source, capture it again"
_POSTGRES = "tests/sources/postgres/"
_CHANGED = _POSTGRES + "test_changed_upstream.py::test_what_ends_a_table_and_no_other"
_CONTINUITY = _POSTGRES + "test_continuity.py::test_where_a_loss_is_possible_capture_stops"


@dataclass(frozen=True)
class Detected:
    """A way in which continuity can break."""

    what: str
    proof: str
    noticed: str
    says: str
    """Words of the message, as they stand in the code; empty where nothing needs to be said."""
    on: str
    test: str


DETECTED: dict[str, list[Detected]] = {
    "The server": [
        Detected(
            "An older data directory or storage snapshot was put back; its WAL ends before the log",
            "The end of the WAL is compared with the end of the log",
            START,
            "its WAL ends at",
            _AFRESH,
            _POSTGRES + "test_restored.py::test_the_wal_ends_before_the_log",
        ),
        Detected(
            "The same, and its WAL has grown past the log since",
            "The server sends again what lies behind the slot's confirmed position. The last transaction of the log"
            " must be among it (position, id, commit time), and no other change behind that one. Nothing is confirmed"
            " before",
            START,
            "has another history than the log",
            _AFRESH,
            _POSTGRES + "test_restored.py::test_the_wal_has_grown_past_the_log",
        ),
        Detected(
            "It crashed and forgot how far its slot was",
            "The same: what is sent again is what the log has",
            START,
            "",
            "goes on by itself",
            _POSTGRES + "test_restored.py::test_a_crash_that_lost_how_far_the_slot_was",
        ),
        Detected(
            "Another server answers at the address",
            "System identifier",
            BOTH,
            "its system identifier is",
            "let the address lead to the old one, or " + _AFRESH,
            _POSTGRES + "test_failover.py::test_another_server_at_the_address",
        ),
        Detected(
            "A standby was promoted that had not all of the log",
            "The new timeline's history: where it forked, against the end of the log",
            BOTH,
            "is ahead of the server after failover",
            _AFRESH,
            _POSTGRES + "test_failover.py::test_a_log_that_is_ahead_of_the_promoted_server",
        ),
        Detected(
            "A standby was promoted, or a backup restored to a point in time, without the slot",
            "The slot is not marked as synchronised",
            BOTH,
            "was not synchronised to it",
            _AFRESH,
            _POSTGRES + "test_failover.py::test_a_slot_that_was_not_synchronised",
        ),
        Detected(
            "The old primary is back",
            "Its timeline is an earlier one, or began elsewhere",
            BOTH,
            "it is at an earlier state of it",
            "take it out of the connection",
            _CONTINUITY,
        ),
        Detected(
            "It keeps the connection open and says nothing, or something before it does",
            "It is asked for an answer every second; 30 s without one, or 5 s more than half of `wal_sender_timeout`,"
            " are too many",
            BOTH,
            "has not answered for",
            "goes on by itself; `penstock status` says since when there is no answer",
            _POSTGRES + "test_silent_peer.py::test_capture_notices_and_goes_on",
        ),
    ],
    "The slot": [
        Detected(
            "Dropped",
            "It is looked up",
            BOTH,
            "is gone: changes since",
            _AFRESH,
            _POSTGRES + "test_instance.py::test_a_slot_that_is_gone",
        ),
        Detected(
            "Dropped and created again, or advanced",
            "It is confirmed beyond the end of the log",
            START,
            "was confirmed up to",
            _AFRESH,
            _POSTGRES + "test_instance.py::test_a_slot_that_is_ahead_of_the_log",
        ),
        Detected(
            "Invalidated: WAL was removed, or rows of the catalog were",
            "`pg_replication_slots` says so",
            BOTH,
            "Postgres has invalidated the slot",
            _AFRESH,
            _POSTGRES + "test_slot.py::test_an_invalidated_slot",
        ),
        Detected(
            "Read by another process",
            "Postgres lets one read it",
            START,
            "is in use by another session",
            "stop the other one",
            _POSTGRES + "test_slot.py::test_a_second_deployment_fails_closed",
        ),
    ],
    "The publication": [
        Detected(
            "Dropped",
            "It is looked up, every 2 s",
            BOTH,
            "is gone",
            _AFRESH,
            _POSTGRES + "test_instance.py::test_a_publication_that_is_gone",
        ),
        Detected(
            "Dropped and created again",
            "Its OID",
            BOTH,
            "was dropped and created again",
            _AFRESH,
            _POSTGRES + "test_changed_upstream.py::test_a_publication_made_anew_ends_the_source",
        ),
        Detected(
            "Altered, also when altered back: `publish = 'insert'` for a while, another owner",
            "The version (`xmin`) of its row in the catalog",
            BOTH,
            "was altered upstream, and that it published all changes meanwhile",
            _RETRY,
            _CHANGED + "[running-inserts only for a while]",
        ),
        Detected(
            "A table was taken out, also when put back; its schema was",
            "OID and version of the row that makes it a member",
            BOTH,
            "it was taken out of the publication",
            _RETRY,
            _CHANGED + "[running-out and in]",
        ),
        Detected(
            "A row filter or column list came or went, also when it went again",
            "The same",
            BOTH,
            "or is published otherwise there",
            _RETRY,
            _CHANGED + "[stopped-row filter for a while]",
        ),
    ],
    "A table": [
        Detected(
            "Values were rewritten: `ALTER COLUMN … TYPE … USING`",
            "It lies in another file, and the row of the column in the catalog has another version",
            BOTH,
            "it was rewritten upstream, and columns were altered",
            _RETRY,
            _CHANGED + "[stopped-values rewritten]",
        ),
        Detected(
            "Rewritten in another way: unlogged for a while, `pg_repack`",
            "It lies in another file, no row is older than the last look, and no TRUNCATE came in the stream",
            BOTH,
            "was changed by that cannot be proven",
            _RETRY,
            _CHANGED + "[running-unlogged for a while]",
        ),
        Detected(
            "`VACUUM FULL`, `CLUSTER`, `TRUNCATE`, defaults, rights, indexes",
            "Rows keep their transaction (`xmin`); TRUNCATE is in the stream",
            BOTH,
            "",
            "goes on by itself",
            _POSTGRES + "test_changed_upstream.py::test_what_is_harmless",
        ),
        Detected(
            "A column was dropped and added again",
            "Its number in the catalog",
            BOTH,
            "columns were dropped upstream and added again",
            _RETRY,
            _CHANGED + "[stopped-column dropped and added]",
        ),
        Detected(
            "Columns were dropped, renamed, or changed in type",
            "The stream describes the table before its next change",
            BOTH,
            "its columns changed upstream",
            _RETRY,
            _POSTGRES + "test_schema_changes.py::test_ddl_ends_that_table_and_no_other",
        ),
        Detected(
            "Renamed, or moved to another schema",
            "Its name, by its OID",
            BOTH,
            "it was renamed to",
            _RETRY + " when it has its name again; or drop it and add the other",
            _CHANGED + "[stopped-renamed]",
        ),
        Detected(
            "Dropped; or dropped and created again, or swapped with another",
            "Its OID",
            BOTH,
            "it was dropped upstream",
            _RETRY,
            _CHANGED + "[stopped-swapped]",
        ),
        Detected(
            "Its key or replica identity changed",
            "The stream describes the table before its next change; without an identity, Postgres refuses changes",
            BOTH,
            "its replica identity is now NOTHING",
            _RETRY,
            _POSTGRES + "test_schema_changes.py::test_ddl_ends_that_table_and_no_other",
        ),
        Detected(
            "A partition was detached, also when attached again; a table with rows was attached",
            "The version of its place among the partitions",
            BOTH,
            "a partition was detached or dropped upstream",
            _RETRY,
            _POSTGRES + "test_changed_upstream.py::test_a_partition_that_was_away",
        ),
        Detected(
            "Emptied, under the strict rules",
            "TRUNCATE comes in the stream",
            BOTH,
            "it was truncated, which the strict rules do not follow",
            _RETRY,
            _POSTGRES + "test_instance.py::test_truncate_ends_a_table_under_strict_rules",
        ),
        Detected(
            "Row-level security was enabled, or a right taken away",
            "The stream carries all rows all the same; copies, `verify` and `repair` ask first",
            "when it is copied",
            "row-level security would hide rows from the copy",
            "as `penstock check` says",
            _POSTGRES + "test_preflight.py::test_row_security",
        ),
        Detected(
            "A value came that cannot be kept exactly",
            "It is decoded",
            RUNNING,
            "capture of {name} stopped",
            "as the message says, then " + _RETRY,
            _POSTGRES + "test_instance.py::test_a_value_that_cannot_be_kept_ends_that_table",
        ),
    ],
    "A topic": [
        Detected(
            "Deleted, or deleted and made again",
            "The topic's id",
            BOTH,
            "was deleted and made again",
            _RETRY + " where the source can do it, or " + _AFRESH,
            "tests/sources/kafka/test_ticks_continuity.py::test_what_does_not",
        ),
        Detected(
            "Messages were lost at its end",
            "It ends before what was taken of it",
            BOTH,
            "and was taken up to",
            _RETRY + " where the source can do it, or " + _AFRESH,
            "tests/sources/kafka/test_ticks_continuity.py::test_what_does_not",
        ),
        Detected(
            "Messages that are still needed were removed: retention, deleted records",
            "It begins behind what is still to be read",
            BOTH,
            "is still to be read",
            _RETRY + " where the source can do it, or " + _AFRESH,
            "tests/sources/kafka/test_ticks_trouble.py",
        ),
        Detected(
            "A broker does not tell its offsets",
            "An offset below 0 is none",
            BOTH,
            "the broker told no offset",
            "goes on by itself",
            "tests/sources/kafka/test_offsets.py",
        ),
    ],
    "A file": [
        Detected(
            "It shrank, or was overwritten",
            "Its beginning, as far as it was read, is compared",
            BOTH,
            "is not what was read of it any more",
            "give new contents a new name; " + _RETRY,
            "tests/sources/files/test_capture.py::test_a_file_that_is_not_what_was_read_any_more_ends_the_table",
        ),
    ],
    "The home": [
        Detected(
            "It is a copy, or an older one put back, of a home that went on",
            "The slot is confirmed beyond the end of its log",
            START,
            "was confirmed up to",
            "use the home that went on; or " + _AFRESH,
            "tests/engine/test_copied_home.py::test_the_copy_of_a_home_neither_runs_nor_drops",
        ),
        Detected(
            "It is run twice",
            "A lock",
            START,
            "is using the home",
            "stop the other one",
            "tests/engine/test_lock.py::test_a_second_one_is_refused_and_told_who_has_it",
        ),
        Detected(
            "Its log was damaged on disk",
            "Checksums, and a chain over all chunks of a table",
            "when it is read",
            "the change log {path} is damaged",
            _AFRESH,
            "tests/changelog/test_sqlite.py::test_damaged_pages_are_found",
        ),
    ],
}

_INTRO = """# What is detected, and how

Penstock copies a table once and then follows its changes. That is right for as long as nothing is missing between the
two, and between one change and the next. This page lists the ways in which that can break upstream, what proves it,
and what happens then. Each line is shown by a test.

What is meant by *noticed*: at start is at every connect, also after a lost connection. While capture runs, the
catalogs of Postgres are looked at every 2 s, and at once when the stream describes a table again.

A table that stops keeps what was right: it can be read up to the position of its error, and the others go on."""

_OUTRO = """## What is not detected

- **Between two looks**, for 2 s at most, readers see a table that should have stopped. Its error then stands before
  that.
- **An older data directory, and a slot of the same name made by hand in it**: the slot then begins behind the log's
  last transaction, and nothing is sent again that could be compared. Let Penstock make the slot, or drop the source
  after such a restore.
- **A file of a table that was changed behind Postgres's back**, or WAL that was lost with `fsync = off` or on a disk
  that lies.
- **Rows of a Debezium snapshot that reach Kafka more than two seconds after its last row**, for a partition that gets
  no later change: Debezium does not count them. They follow with the next transaction that is whole.
- **The copy of a home that was made a moment ago**, while nothing has happened upstream since: neither of the two has
  a reason to doubt. The one that is started first goes on; the other one is refused from then on.

## What stops a table although nothing is missing

- `VACUUM FULL` or `CLUSTER` of a table **all of whose rows are younger than the last look**: that its rows were not
  changed cannot be seen. The same holds for `pg_repack` and its kin, which write every row anew.
- A publication that was given **another owner or name**: its options may have been others for a moment.

`RETRY TABLE` brings such a table back by a fresh copy."""


def page() -> str:
    parts = [_INTRO]
    for title, lines in DETECTED.items():
        rows = [[d.what, d.proof, d.noticed, _said(d.says), d.on] for d in lines]
        header = ["what happened", "what proves it", "noticed", "what you see", "how to continue"]
        parts += [f"## {title}", table(header, rows)]
    return "\n\n".join([*parts, _OUTRO])


def _said(says: str) -> str:
    return f"“… {says.replace('{name}', 'TABLE').replace('{path}', 'FILE')} …”" if says else "nothing"
