"""The change log in Kafka: two topics with one partition each, for a source that many machines read.

::

    <name>.data    the bytes of chunks, in parts below the message size limit
    <name>.index   a sequence of records, one per operation on the log: the log *is* this sequence

    writer ── one Kafka transaction per step ──▶ parts to data, then one record to index ──▶ commit
                                                   │ read_committed
    reader ◀── tails the index into memory ────────┘
       └── extent ─▶ (pickled, sent) ─▶ any machine reads <name>.data by offset, without the index

**Records.** ``create`` begins a log. ``open`` announces a new writer and drops unprepared staged parts. ``define``,
``stage``, ``settle`` and ``publish`` are the writer's calls. `retain` writes ``state``, which advances `valid` and
repeats all small data (tables, errors, leases, open staged parts). Readers write ``pin`` to set a lease. All records
except ``pin`` carry consecutive serial numbers, so that a missing record is detected.

**Why it is atomic.** Each step has one record, and a reader applies a record as a whole (a record beyond the message
size limit consists of several messages of one Kafka transaction). A record never refers to data that is not in the log,
because it is built from offsets that the broker has confirmed.

**Why nothing is published twice or lost.** A step that fails is repeated with a new producer. Creating one
(`init_transactions`) commits or aborts the pending transaction before it returns. The writer then reads the index to
its end, and the serial number shows whether the step is there.

**Single writer.** The transactional id is the log's name: a new producer fences the old one, whose transactions fail
from then on. The ``open`` record names the new writer, so that the old one can distinguish a successor from a broker
that aborted its transaction.

**When `publish` returns**, every reader can read the record: Kafka acknowledges a commit shortly before the commit
marker is in the partition, so the writer waits until its own reader has seen the record.

**Publications are self-contained.** A ``publish`` record repeats the descriptions of the staged parts that it
publishes, so that no earlier record is needed to read it. `retain` can therefore truncate the index immediately before
the first publication that is still needed. A reader that starts there applies publications first and learns the names
of tables from the ``state`` record after them, which always exists: the index is truncated only after it was written.

**Data is read uncommitted.** The index determines which data is committed; the marker in the data topic may arrive
slightly later, and waiting for it would gain nothing. Checksums verify that the bytes are those that were written.
"""
