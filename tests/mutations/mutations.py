"""The mutations: what Penstock must never do, each as one small change of the code.

The fast tier was built to catch the first ten; the others cover related guarantees. Each is a realistic defect: the
code still runs, and is mostly correct.
"""

from __future__ import annotations

from tests.mutations.mutation import Mutation

__all__ = ["MUTATIONS"]

_SQLITE_CONTRACT = "tests/changelog/test_interface.py"

MUTATIONS = (
    Mutation(
        name="lsn-filter-after-snapshot",
        breaks="A chunk of the log that spans the position of a snapshot is read from its beginning: changes that the "
        "snapshot already contains are applied again, over later ones.",
        file="src/penstock/changelog/chunk_codec.py",
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
        tests=("tests/sources/postgres/test_instance.py::test_unpublished_changes_are_not_confirmed",),
    ),
    Mutation(
        name="history-not-compared",
        breaks="Transactions that the server sends again are not compared with the log: a restored older data "
        "directory is mistaken for the same one, and new transactions are dropped by their LSN.",
        file="src/penstock/sources/postgres/pgoutput/overlap.py",
        old="        self._verified = confirmed >= durable",
        new="        self._verified = True",
        tests=("tests/sources/postgres/test_overlap.py",),
    ),
    Mutation(
        name="membership-not-compared",
        breaks="A table that was removed from the publication and added again resumes: changes in between are lost.",
        file="src/penstock/sources/postgres/replication/publication_watch.py",
        old="    if set(before.members) - set(now.members):",
        new="    if not now.members:",
        tests=("tests/sources/postgres/test_publication_watch.py::test_change_stops_that_table_only",),
    ),
    Mutation(
        name="rewrite-not-noticed",
        breaks="A table whose values were rewritten by ALTER TABLE keeps the old values.",
        file="src/penstock/sources/postgres/replication/publication_watch.py",
        old="        changed = [oid for oid, file in now.files.items() if file and "
        "before.files.get(oid, file) != file]",
        new="        changed = list[int]()",
        tests=("tests/sources/postgres/test_publication_watch.py::test_change_stops_that_table_only",),
    ),
    Mutation(
        name="tombstone-skipped",
        breaks="A message without a value creates no image: deleted rows stay in the table.",
        file="src/penstock/envelopes/upsert.py",
        old="return enveloped(checked, F.when(tombstone, gone)",
        new="return enveloped(checked.filter(~tombstone), F.when(tombstone, gone)",
        tests=("tests/envelopes/test_none_and_upsert.py::test_row_consists_of_key_and_value",),
    ),
    Mutation(
        name="unchanged-ignored",
        breaks="The fold treats an unsent TOAST value as null, and overwrites the value.",
        file="src/penstock/tables/arrow/fold.py",
        old="    unknown = omitted_values(images)\n",
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
        breaks="The last two columns of a streamed row, if of the same type, are swapped: values have the name of "
        "another column.",
        file="src/penstock/sources/postgres/pgoutput/chunk_builder.py",
        old="    unchanged = _unchanged(length, ",
        new="    if len(arrays) > 1 and arrays[-1].type == arrays[-2].type:\n"
        "        arrays[-2:] = arrays[:-3:-1]\n"
        "    unchanged = _unchanged(length, ",
        tests=(
            "tests/sources/postgres/test_decoder_streaming.py::test_added_column_continues_in_a_new_schema_version",
        ),
    ),
    Mutation(
        name="failed-table-passes",
        breaks="A live view shows a table after its error: later changes are missing without a report.",
        file="src/penstock/live.py",
        old="upto >= logged.error.lsn:",
        new="upto < logged.error.lsn:",
        tests=("tests/engine/test_live.py",),
    ),
    Mutation(
        name="checksum-skipped",
        breaks="The bytes of a chunk are not verified: a flipped bit on disk becomes another value.",
        file="src/penstock/changelog/chunk_codec.py",
        old="if checksum(self.transactions, self.images) != expected:",
        new="if not self.images:",
        tests=("tests/changelog/test_sqlite.py::test_flipped_bit_is_detected",),
    ),
    Mutation(
        name="half-a-transaction-published",
        breaks="Only the first part of a transaction that was staged in parts becomes visible: readers see part of it.",
        file="src/penstock/changelog/sqlite/chunks.py",
        old="        for id_, row in self._parts(xid):\n            yield",
        new="        for id_, row in self._parts(xid)[:1]:\n            yield",
        tests=(
            f"{_SQLITE_CONTRACT}::test_staged_parts_are_visible_once_published_and_come_first[sqlite]",
            f"{_SQLITE_CONTRACT}::test_rolled_back_subtransactions_are_removed[sqlite]",
        ),
    ),
    Mutation(
        name="slot-leaked-on-drop",
        breaks="DROP does not drop the replication slot: it retains WAL until the disk of the server is full.",
        file="src/penstock/sources/postgres/config.py",
        old="if self._owns_slot and _drop_released(connection, self.slot):",
        new="if self._owns_slot and not self.slot:",
        tests=("tests/engine/test_lifecycle.py::test_create_and_drop",),
    ),
    # -- after the first ten ----------------------------------------------------------------------------------------
    Mutation(
        name="commit-not-synced",
        breaks="A commit of the log returns before it is on disk, and the slot is confirmed: after a power failure the "
        "transaction is lost.",
        file="src/penstock/changelog/sqlite/file.py",
        old='db.execute("PRAGMA synchronous = FULL")',
        new='db.execute("PRAGMA synchronous = NORMAL")',
        tests=("tests/changelog/test_sqlite.py::test_a_commit_is_synced_before_it_returns",),
    ),
    Mutation(
        name="published-in-two-steps",
        breaks="Chunks are committed before the frontier that publishes them: after a crash in between, the log has a "
        "transaction that Postgres sends again.",
        file="src/penstock/changelog/sqlite/writer.py",
        old="            for error in errors:\n                store_failure",
        new='            self._db.execute("COMMIT")\n'
        '            self._db.execute("BEGIN IMMEDIATE")\n'
        "            for error in errors:\n                store_failure",
        tests=("tests/changelog/test_sqlite.py::test_failed_publication_leaves_no_chunks",),
    ),
    Mutation(
        name="rolled-back-changes-published",
        breaks="Changes that a savepoint rolled back in a streamed transaction become visible at its commit: rows that "
        "never existed.",
        file="src/penstock/sources/postgres/pgoutput/decoder.py",
        old="commit.committed_at, frozenset(opened.aborted))",
        new="commit.committed_at, frozenset())",
        tests=(
            "tests/sources/postgres/test_decoder_streaming.py::test_blocks_are_published_at_commit_without_rolled_back_changes",
        ),
    ),
    Mutation(
        name="resent-transaction-doubled",
        breaks="A transaction that the server sends again after a reconnect is treated as new, and applied twice.",
        file="src/penstock/sources/postgres/pgoutput/decoder.py",
        old="if lsns[0] <= self._start:  # sent again",
        new="if lsns[0] < 0:  # sent again",
        tests=("tests/sources/postgres/test_decoder.py::test_transactions_at_or_below_the_start_are_dropped",),
    ),
    Mutation(
        name="error-recorded-late",
        breaks="The error of a table has a position after the transaction that caused it: a view at that transaction "
        "shows the table without it.",
        file="src/penstock/sources/postgres/pgoutput/decoder.py",
        old="failure.kind(str(failure.table), lsn,",
        new="failure.kind(str(failure.table), lsn + 1,",
        tests=("tests/sources/postgres/test_decoder.py::test_bad_value_stops_its_table_at_that_transaction",),
    ),
    Mutation(
        name="truncate-ignored",
        breaks="The fold ignores a TRUNCATE: removed rows stay.",
        file="src/penstock/tables/arrow/fold.py",
        old="return fold(batch, schema, lsn, len(truncates) > 0)",
        new="return fold(batch, schema, lsn, False)",
        tests=("tests/tables/test_arrow_overlay.py::test_random_histories",),
    ),
    Mutation(
        name="delete-ignored",
        breaks="The fold treats the last image of a key as a row even if it is a delete: deleted rows reappear.",
        file="src/penstock/tables/arrow/fold.py",
        old="present = np.flatnonzero(kinds[of_key] >= Image.UPDATED)",
        new="present = np.flatnonzero(kinds[of_key] >= Image.DELETED)",
        tests=("tests/tables/test_small_fold.py::test_random_histories",),
    ),
    Mutation(
        name="valid-beyond-a-lease",
        breaks="History is removed one position beyond the lease of a reader: the next change that it needs is lost.",
        file="src/penstock/changelog/sqlite/writer.py",
        old="frontier._replace(valid=int(floor), valid_at=at)",
        new="frontier._replace(valid=int(floor) + 1, valid_at=at)",
        tests=("tests/changelog/test_retention.py::test_leases_retain_history[sqlite]",),
    ),
    Mutation(
        name="needed-chunk-removed",
        breaks="Retention removes a chunk that spans `valid`: its later transactions are lost.",
        file="src/penstock/changelog/sqlite/writer.py",
        old="WHERE table_id = ? AND last_lsn <= ?",
        new="WHERE table_id = ? AND last_lsn > 0 AND first_lsn <= ?",
        tests=("tests/changelog/test_retention.py::test_retention_cuts_between_transactions_of_one_chunk[sqlite]",),
    ),
    Mutation(
        name="bad-message-passes",
        breaks="Problems that an envelope finds in a message are ignored: a row without a key, or with a key that "
        "contradicts it, is applied to the table instead of quarantined.",
        file="src/penstock/envelopes/messages.py",
        old='F.coalesce(F.col("problem"), placed, *problems)',
        new='F.coalesce(F.col("problem"), placed)',
        tests=("tests/envelopes/test_none_and_upsert.py::test_rejections_have_a_hint",),
    ),
    Mutation(
        name="repair-skips-last-row",
        breaks="The last key of each batch of a repair is not read upstream: its row is treated as deleted, and "
        "removed.",
        file="src/penstock/sources/postgres/snapshot/watermark_windows.py",
        old="self._key.among(keys[i : i + _KEYS_AT_ONCE])",
        new="self._key.among(keys[i : i + _KEYS_AT_ONCE - 1])",
        tests=("tests/sources/postgres/test_watermark_windows.py::test_many_keys_are_read_in_batches",),
    ),
    Mutation(
        name="copied-range-too-short",
        breaks="The last range of a copy ends at the page count at which the table was split: rows on later pages "
        "are missing.",
        file="src/penstock/sources/postgres/snapshot/copy.py",
        old="[*starts[1:], _LAST_PAGE]",
        new="[*starts[1:], max(pages, 1)]",
        tests=("tests/sources/postgres/test_copy.py::test_rows_added_after_the_last_range_are_copied",),
    ),
    Mutation(
        name="copied-columns-swapped",
        breaks="The last two columns of a copied row, if of the same type, are swapped.",
        file="src/penstock/sources/postgres/snapshot/copy.py",
        old="            yield pa.RecordBatch.from_arrays(arrays, schema=schema)",
        new="            if len(arrays) > 1 and arrays[-1].type == arrays[-2].type:\n"
        "                arrays[-2:] = arrays[:-3:-1]\n"
        "            yield pa.RecordBatch.from_arrays(arrays, schema=schema)",
        tests=("tests/sources/postgres/types/test_types_in_snapshot.py::test_columns_captured_as_text",),
    ),
    Mutation(
        name="tick-beyond-the-end",
        breaks="A tick reaches one offset beyond the end of each partition: the next message counts as read.",
        file="src/penstock/sources/kafka/tick_instance.py",
        old="return TopicProgress(found.id or taken.id, found.ends)",
        new="return TopicProgress(found.id or taken.id, tuple(end + 1 for end in found.ends))",
        tests=("tests/sources/kafka/test_tick_continuity.py",),
    ),
    Mutation(
        name="recorded-too-early",
        breaks="Progress in a file is recorded with the position before its step: after a crash before the log has "
        "the step, its rows count as read, and are lost.",
        file="src/penstock/sources/polling.py",
        old="self._notes.note(self._generation, upto, step.notes)",
        new="self._notes.note(self._generation, after, step.notes)",
        tests=("tests/sources/files/test_capture.py::test_crash_around_a_step_loses_and_repeats_nothing",),
    ),
)
