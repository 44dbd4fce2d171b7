"""Debezium's transaction metadata: ticks at offsets where upstream transactions are whole, over all topics together.

::

    metadata topic ─▶ END: position, how many events of which table ─┐
                                                                     ├─▶ the first ENDs of which all events are there
    data topics ────▶ marks: transaction, place in it ───────────────┘      └─▶ per partition: offsets of the tick

- `metadata`        the metadata topic, as a config stores it
- `narrow_formats`  formats that decode only the fields that are needed here
- `marks`           messages as columns: the transaction of each, and its place in it
- `routes`          which topic has the events of which table
- `stretches`       messages of a partition that are in no tick yet
- `in_flight`       incomplete transactions, where to start in the middle, changes without a position
- `cuts`            all of these together: what a tick may contain. No I/O, no clock
- `waiting`         what the source waits for, for the status
- `instance`        the instance that reads topics and makes such ticks

What real topics of Debezium 3.6 showed, and what all this rests on (`tests/sources/kafka/transactions` looks again):

- An id of Postgres is ``xid:lsn``, with the LSN of the *operation*: it differs from event to event. A transaction is
  known by its xid, an END by the LSN of its commit, and ENDs rise. An event does not tell its commit; but the first of
  its ``source.sequence`` is the commit right *before* its transaction. So ``before < completed`` says exactly whether
  the transaction of an event was completed already, whatever was forgotten about it. The first transaction after a
  snapshot may not know it.
- Debezium writes one transaction after the other, in the order of commits. Killed, it begins again at a place that it
  noted before, and each partition has from there on what it had before, in the same order. So in a partition an event
  is a repeat if its position (``before``, ``total_order``) is not above all positions that were there before it.
- ENDs are repeated as they were, with the same counts and times.
"""
