"""The change log in Kafka: two topics of one partition each, for a source that many machines read.

::

    <name>.data    the bytes of chunks, in parts below the message limit
    <name>.index   what happened to the log, one record after the other: the log *is* this sequence

    writer ── one Kafka transaction per step ──▶ parts to data, then one record to index ──▶ commit
                                                   │ read_committed
    reader ◀── tails the index into memory ────────┘
       └── extent ─▶ (pickled, sent) ─▶ any machine reads <name>.data by offset, and needs no index

**Records.** ``create`` begins a log. ``open`` is a new writer: unprepared staged parts are dropped. ``define``,
``stage``, ``settle`` and ``publish`` are the writer's calls. ``state`` is what `retain` leaves: it moves `valid` and
repeats all that is small (tables, errors, pins, open staged parts). ``pin`` is written by readers. All but pins
carry a serial number, without gaps: a record that is missing is found.

**Why it is atomic.** A step has one record, and a reader applies a record as a whole (one beyond the message limit
comes in several messages of one Kafka transaction). Nothing refers to data that is not in the log: the record is made
from the offsets that the broker has confirmed.

**Why nothing is published twice or lost.** A step that fails is repeated with a new producer. Making one
(`init_transactions`) ends what was pending, either way, before it returns; then the index is read to its end, and the
serial number tells whether the step is there.

**One writer.** The transactional id is the log's name: a new producer fences the old one, whose transactions fail from
then on. The ``open`` record names the new writer, so that the old one can tell a successor from a broker that gave up
on it.

**When `publish` returns** the record can be read by everybody: a Kafka commit is answered a little before its marker
is in the partition, so the writer waits until its own reader has seen the record.

**Publications stand for themselves.** A ``publish`` record repeats the descriptions of the staged parts that it
publishes, so that no earlier record is needed to read it. `retain` may thus cut the index right before the first
publication that is still needed. A reader that begins there applies publications first and learns the names of tables
from the ``state`` record behind them, which is always there: the index is cut only after it was written.

**Data is read uncommitted.** The index says what is committed; the marker in the data topic may come a moment later,
and waiting for it would gain nothing. Checksums say whether the bytes are those that were written.
"""
