"""The embedded change log: one SQLite file per source.

WAL mode with synchronous=FULL: a commit is on disk when it returns, readers in other processes never wait for the
writer, and a torn write leaves the last commit. Publishing is one SQLite transaction::

    chunk    one row per chunk: table version, first and last LSN (null while staged), what it holds, checksums;
             of a staged one also xid and commit time, and which of its subtransactions were rolled back
    payload  its bytes, apart, so that giving a staged chunk its LSN rewrites a few bytes and not the data
    frontier one row: valid, durable, and the newest commit time at each of them
    moment   one row per publication: the newest commit time up to there; how a time becomes a position
    pin      what readers still need
    failure  definite errors of tables
    restart  where the history of a table begins that was captured anew

A reader sees chunks with ``last_lsn <= durable`` only; both change in the same SQLite transaction.

SQLite finds a torn write, but not a byte that turned over on disk. So the bytes of a chunk have a checksum, and the row
that describes it has one of its own (`seal`): a reader is told, and never given what was not written.

Removing history frees pages. Each step of `retain` removes some chunks and hands some free pages back to the file
system (incremental vacuum), a bounded amount of each: capture goes on in between.
"""
