"""The mutations: what Penstock must never do, each as one small change of the code.

The first ten are those that the fast tier was built to catch; the others guard what lies beside them. Each is a defect
that somebody could write: the code still runs, and mostly does what it should.
"""

from __future__ import annotations

from tests.mutations.mutation import Mutation

__all__ = ["MUTATIONS"]

_SQLITE_CONTRACT = "tests/changelog/test_interface.py"

MUTATIONS = (
    Mutation(
        name="lsn-filter-after-snapshot",
        breaks="A chunk of the log that spans the position of a snapshot is read from its beginning: changes that the "
        "snapshot holds already are applied again, over later ones.",
        file="src/penstock/changelog/frames.py",
        old='first = int(np.searchsorted(lsns, after, side="right"))',
        new="first = 0",
        tests=(f"{_SQLITE_CONTRACT}::test_ranges_cut_inside_chunks[sqlite]",),
    ),
    Mutation(
        name="slot-confirmed-early",
        breaks="The slot may be confirmed up to a transaction before the log has it: after a crash in between, "
        "Postgres does not send it again, and it is lost.",
        file="src/penstock/sources/postgres/instance.py",
        old="        writer.publish(\n            *(found.chunks, found.durable),",
        new="        self._durable = found.durable\n"
        "        writer.publish(\n            *(found.chunks, found.durable),",
        tests=("tests/sources/postgres/test_instance.py::test_what_the_log_has_not_taken_is_not_confirmed",),
    ),
    Mutation(
        name="history-not-compared",
        breaks="What the server sends again is not held against the log: an older data directory that was put back is "
        "taken for the same one, and new transactions are dropped by their LSN.",
        file="src/penstock/sources/postgres/overlap.py",
        old="        self._passed = confirmed >= durable",
        new="        self._passed = True",
        tests=("tests/sources/postgres/test_restored.py::test_the_wal_has_grown_past_the_log",),
    ),
    Mutation(
        name="membership-not-compared",
        breaks="A table that was taken out of the publication and put back goes on: what was written then is lost.",
        file="src/penstock/sources/postgres/watch.py",
        old="    if set(before.members) - set(now.members):",
        new="    if not now.members:",
        tests=("tests/sources/postgres/test_changed_upstream.py::test_what_ends_a_table_and_no_other",),
    ),
    Mutation(
        name="rewrite-not-noticed",
        breaks="A table whose values were rewritten by ALTER TABLE goes on with the old ones.",
        file="src/penstock/sources/postgres/watch.py",
        old="        changed = [oid for oid, file in now.files.items() if file and "
        "before.files.get(oid, file) != file]",
        new="        changed = list[int]()",
        tests=("tests/sources/postgres/test_changed_upstream.py::test_what_ends_a_table_and_no_other",),
    ),
    Mutation(
        name="tombstone-skipped",
        breaks="A message without a value makes no image: rows that were deleted stay in the table.",
        file="src/penstock/envelopes/upsert.py",
        old="return enveloped(checked, F.when(tombstone, gone)",
        new="return enveloped(checked.filter(~tombstone), F.when(tombstone, gone)",
        tests=("tests/envelopes/test_none_and_upsert.py::test_a_row_is_its_key_and_its_value",),
    ),
    Mutation(
        name="unchanged-ignored",
        breaks="The fold takes a TOAST value that was not sent for a null, and writes that over the value.",
        file="src/penstock/spark/net.py",
        old="    unknown = _unknown(images)\n",
        new="    unknown: dict[int, Flags] = {}\n",
        tests=("tests/tables/test_small_fold.py::test_random_histories",),
    ),
    Mutation(
        name="last-chunk-lost",
        breaks="A range of the log ends before the chunk that spans its end: the last transactions of the range are "
        "missing, and the reader moves past them.",
        file="src/penstock/changelog/sqlite/chunks.py",
        old="if first > upto:",
        new="if last > upto:",
        tests=(f"{_SQLITE_CONTRACT}::test_ranges_cut_inside_chunks[sqlite]",),
    ),
    Mutation(
        name="columns-swapped",
        breaks="The last two columns of a streamed row, if of the same type, change places: values stand under the "
        "name of another column.",
        file="src/penstock/sources/postgres/build.py",
        old="    unchanged = _unchanged(length)\n",
        new="    if len(arrays) > 1 and arrays[-1].type == arrays[-2].type:\n"
        "        arrays[-2:] = arrays[:-3:-1]\n"
        "    unchanged = _unchanged(length)\n",
        tests=("tests/sources/postgres/test_decoder_parts.py::test_an_added_column_goes_on_in_a_new_version",),
    ),
    Mutation(
        name="failed-table-passes",
        breaks="A live view shows a table beyond its error: changes after it are missing, and nothing says so.",
        file="src/penstock/live.py",
        old="upto >= logged.error.lsn:",
        new="upto < logged.error.lsn:",
        tests=("tests/engine/test_live.py",),
    ),
    Mutation(
        name="checksum-skipped",
        breaks="The bytes of a chunk are not verified: a flipped bit on disk becomes another value.",
        file="src/penstock/changelog/frames.py",
        old="if checksum(self.transactions, self.images) != expected:",
        new="if not self.images:",
        tests=("tests/changelog/test_sqlite.py::test_a_flipped_bit_is_found",),
    ),
    Mutation(
        name="half-a-transaction-published",
        breaks="Of a transaction that was staged in parts, only the first part becomes visible: readers see it torn.",
        file="src/penstock/changelog/sqlite/chunks.py",
        old="        for id_, row in self._parts(xid):\n            yield",
        new="        for id_, row in self._parts(xid)[:1]:\n            yield",
        tests=(
            f"{_SQLITE_CONTRACT}::test_staged_parts_are_seen_when_published_and_stand_before_the_rest[sqlite]",
            f"{_SQLITE_CONTRACT}::test_subtransactions_that_were_rolled_back_are_gone[sqlite]",
        ),
    ),
    Mutation(
        name="slot-leaked-on-drop",
        breaks="DROP leaves the replication slot behind: it holds back WAL until the disk of the server is full.",
        file="src/penstock/sources/postgres/config.py",
        old="if self._owns_slot and _drop_released(connection, self.slot):",
        new="if self._owns_slot and not self.slot:",
        tests=("tests/engine/test_lifecycle.py::test_create_and_drop",),
    ),
    # -- beside the ten ---------------------------------------------------------------------------------------------
    Mutation(
        name="commit-not-synced",
        breaks="A commit of the log returns before it is on disk, and the slot is confirmed: after a power failure the "
        "transaction is nowhere.",
        file="src/penstock/changelog/sqlite/file.py",
        old='db.execute("PRAGMA synchronous = FULL")',
        new='db.execute("PRAGMA synchronous = NORMAL")',
        tests=("tests/changelog/test_sqlite.py::test_a_commit_is_synced_before_it_returns",),
    ),
    Mutation(
        name="published-in-two-steps",
        breaks="Chunks are committed before the frontier that shows them: after a crash in between, the log holds a "
        "transaction that Postgres sends again.",
        file="src/penstock/changelog/sqlite/writer.py",
        old="            for error in errors:\n                store_failure",
        new='            self._db.execute("COMMIT")\n'
        '            self._db.execute("BEGIN IMMEDIATE")\n'
        "            for error in errors:\n                store_failure",
        tests=("tests/changelog/test_sqlite.py::test_a_publication_that_fails_after_its_chunks_leaves_none_of_them",),
    ),
    Mutation(
        name="rolled-back-changes-published",
        breaks="What a savepoint rolled back in a transaction in progress becomes visible at its commit: rows that "
        "never existed.",
        file="src/penstock/sources/postgres/decoder.py",
        old="commit.committed_at, frozenset(opened.aborted))",
        new="commit.committed_at, frozenset())",
        tests=(
            "tests/sources/postgres/test_decoder_parts.py::test_blocks_become_visible_at_their_commit_without_what_was_rolled_back",
        ),
    ),
    Mutation(
        name="resent-transaction-doubled",
        breaks="A transaction that the server sends again after a reconnect is taken for a new one, and counted twice.",
        file="src/penstock/sources/postgres/decoder.py",
        old="if lsns[0] <= self._start:  # sent again",
        new="if lsns[0] < 0:  # sent again",
        tests=("tests/sources/postgres/test_decoder.py::test_transactions_at_or_below_the_start_are_dropped",),
    ),
    Mutation(
        name="error-recorded-late",
        breaks="The error of a table stands one position after the transaction that it ends at: a view of that "
        "position shows the table without the transaction.",
        file="src/penstock/sources/postgres/decoder.py",
        old="TableError(str(failure.table), lsn,",
        new="TableError(str(failure.table), lsn + 1,",
        tests=("tests/sources/postgres/test_decoder.py::test_a_bad_value_ends_its_table_at_that_transaction",),
    ),
    Mutation(
        name="truncate-ignored",
        breaks="The fold passes over a TRUNCATE: rows that were removed by it stay.",
        file="src/penstock/spark/net.py",
        old="return fold(batch, schema, lsn, len(truncates) > 0)",
        new="return fold(batch, schema, lsn, False)",
        tests=("tests/spark/test_overlay_arrow.py::test_random_histories",),
    ),
    Mutation(
        name="delete-ignored",
        breaks="The fold takes the last image of a key for a row, also where it is a delete: rows come back.",
        file="src/penstock/spark/net.py",
        old="present = np.flatnonzero(kinds[of_key] >= Image.UPDATED)",
        new="present = np.flatnonzero(kinds[of_key] >= Image.DELETED)",
        tests=("tests/tables/test_small_fold.py::test_random_histories",),
    ),
    Mutation(
        name="valid-beyond-a-pin",
        breaks="History is removed one position beyond what a reader pinned: the next change that it needs is gone.",
        file="src/penstock/changelog/sqlite/writer.py",
        old="frontier._replace(valid=int(floor), valid_at=at)",
        new="frontier._replace(valid=int(floor) + 1, valid_at=at)",
        tests=("tests/changelog/test_retention.py::test_pins_hold_history_back[sqlite]",),
    ),
    Mutation(
        name="needed-chunk-removed",
        breaks="Retention removes a chunk that spans `valid`: its later transactions are gone with it.",
        file="src/penstock/changelog/sqlite/writer.py",
        old="WHERE table_id = ? AND last_lsn <= ?",
        new="WHERE table_id = ? AND last_lsn > 0 AND first_lsn <= ?",
        tests=("tests/changelog/test_retention.py::test_retention_cuts_between_transactions_of_one_chunk[sqlite]",),
    ),
    Mutation(
        name="bad-message-passes",
        breaks="What an envelope objects to in a message is not noted: a row without a key, or one that contradicts "
        "its key, gets into the table instead of the quarantine.",
        file="src/penstock/envelopes/messages.py",
        old='F.coalesce(F.col("problem"), placed, *problems)',
        new='F.coalesce(F.col("problem"), placed)',
        tests=("tests/envelopes/test_none_and_upsert.py::test_refusals_name_the_way_out",),
    ),
    Mutation(
        name="repair-skips-last-row",
        breaks="Of each batch of keys that are to be repaired, the last one is not read upstream: its row is taken for "
        "deleted, and removed.",
        file="src/penstock/sources/postgres/windows.py",
        old="self._key.among(keys[i : i + _KEYS_AT_ONCE])",
        new="self._key.among(keys[i : i + _KEYS_AT_ONCE - 1])",
        tests=("tests/sources/postgres/test_windows.py::test_many_keys_are_read_in_batches",),
    ),
    Mutation(
        name="copied-range-too-short",
        breaks="The last range of a copy ends with the pages that the table had when it was divided: rows behind them "
        "are missing.",
        file="src/penstock/sources/postgres/copy.py",
        old="[*starts[1:], _LAST_PAGE]",
        new="[*starts[1:], max(pages, 1)]",
        tests=("tests/sources/postgres/test_copy.py::test_a_table_that_grows_behind_the_last_range",),
    ),
    Mutation(
        name="copied-columns-swapped",
        breaks="The last two columns of a copied row, if of the same type, change places.",
        file="src/penstock/sources/postgres/copy.py",
        old="            yield pa.RecordBatch.from_arrays(arrays, schema=schema)",
        new="            if len(arrays) > 1 and arrays[-1].type == arrays[-2].type:\n"
        "                arrays[-2:] = arrays[:-3:-1]\n"
        "            yield pa.RecordBatch.from_arrays(arrays, schema=schema)",
        tests=("tests/sources/postgres/types/test_copied.py::test_columns_kept_as_text",),
    ),
    Mutation(
        name="tick-beyond-the-end",
        breaks="A tick reaches one offset beyond the end of each partition: the next message is taken for read.",
        file="src/penstock/sources/kafka/tick_instance.py",
        old="return Reached(found.id or taken.id, found.ends)",
        new="return Reached(found.id or taken.id, tuple(end + 1 for end in found.ends))",
        tests=("tests/sources/kafka/test_ticks_continuity.py",),
    ),
    Mutation(
        name="noted-too-early",
        breaks="What was read of a file is noted with the position before its step: after a crash before the log has "
        "the step, its rows count as read, and are lost.",
        file="src/penstock/sources/polling.py",
        old="self._notes.note(self._generation, upto, step.notes)",
        new="self._notes.note(self._generation, after, step.notes)",
        tests=("tests/sources/files/test_capture.py::test_a_crash_around_a_step_loses_and_repeats_nothing",),
    ),
)
