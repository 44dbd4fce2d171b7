"""Debezium's transaction metadata: ticks at offsets where upstream transactions are complete, across all topics.

::

    metadata topic ─▶ END: position, number of events per table ─────┐
                                                                     ├─▶ the first ENDs whose events were all read
    data topics ────▶ columns: transaction, order in it ─────────────┘      └─▶ per partition: offsets of the tick

- `metadata`              the metadata topic, as a config stores it, and the topic with the events of each table
- `message_columns`       messages as columns: the transaction of each, and its order in it
- `partition_runs`        messages of a partition that are not part of a tick yet
- `pending_transactions`  incomplete transactions, the start within a history, changes without a position
- `cuts`                  combines all of these: the offsets of the next tick. No I/O, no clock
- `wait_status`           the transaction that the source waits for, for `penstock status`
- `instance`              the instance: reads topics, with only the fields that are needed, and creates such ticks

The design relies on these observations of real topics of Debezium 3.6 (`tests/sources/kafka/transactions` verifies
them):

- A Postgres id is ``xid:lsn``, with the LSN of the *operation*: it differs from event to event. A transaction is
  identified by its xid, an END by the LSN of its commit, and ENDs increase. An event does not contain its commit, but
  the first item of its ``source.sequence`` is the commit right *before* its transaction. So ``before < completed``
  holds exactly if the transaction of an event is already complete, even if all its data was discarded. The first
  transaction after a snapshot may lack that commit.
- Debezium writes one transaction after the other, in commit order. After a crash it restarts at its last committed
  offset, and each partition then receives the same events as before, in the same order. So an event repeats another one
  of its partition if its position (``before``, ``total_order``) is not above all earlier positions.
- A snapshot is consistent only if Debezium creates its replication slot. If the slot exists, tables are read one after
  the other, each at its own time.
- Repeated ENDs are identical, with the same counts and times.
"""
