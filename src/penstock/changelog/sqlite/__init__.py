"""The embedded change log: one SQLite file per source.

WAL mode with synchronous=FULL: a commit is on disk when it returns, readers in other processes never wait for the
writer, and a torn write leaves the last commit. Publishing is one SQLite transaction::

    chunk    one row per chunk: table, version, first and last LSN (null while staged), what it holds, checksum;
             of a staged one also xid and commit time, and which of its subtransactions were rolled back
    payload  its bytes, apart, so that giving a staged chunk its LSN rewrites a few bytes and not the data
    reach    one row per table: how many chunks it ever had published, and where the last of them ends
    frontier one row: valid, durable, the newest commit time at each of them, the last clock, tallies of small tables
    moment   one row per publication that brought a newer commit time; how a time becomes a position
    relation the versions of each table's schema
    restart  where the history of a table begins that was captured anew
    failure  definite errors of tables
    pin      what readers still need

A reader sees published chunks only; they and `durable` change in the same SQLite transaction.

**Damage.** SQLite finds a torn write, but not a byte that turned over on disk: that gives other values, or a search
that passes a row by. So nothing is believed for having been found, and nothing for not having been found:

* Every row has a seal, a checksum over its values, and the bytes of a chunk have one, which is in its row. What SQL
  chose by a condition is held to that condition again, after its seal: an index may have led to the wrong row.
* Chunks of a table are numbered as they are published, and each knows where the one before it ended. What was found
  in (a, b] is all there is if the first one's predecessor ended at or before a, numbers rise by one, and the next one
  begins after b; or, where there is no next one, `reach` says that the last number was seen. All of this is in rows
  that have been read anyway, save that of `reach`. So is the proof for a `moment`: it says what held before it.
* Sets that are read whole (versions with restarts and failures; pins; prepared chunks) have a tally in `frontier`,
  the sum of their seals and of their count: a row too few or too many shows.
* The texts of the file's own schema are held to ours when it is opened.

**Space.** Removing history frees pages. `retain` goes in steps, each of which removes some chunks or hands some free
pages back to the file system (incremental vacuum), until its time is up: capture goes on in between. Readers hold no
read transaction while their caller has a batch in hand, so that none keeps the WAL from being reused.
"""
