"""The embedded change log: one SQLite file per source.

The file uses WAL mode with synchronous=FULL: a commit is on disk when it returns, readers in other processes never wait
for the writer, and a torn write leaves the last commit intact. Publishing is one SQLite transaction::

    chunk    one row per chunk: table, version, first and last LSN (null while staged), contents, checksum; if it was
             staged, also xid, commit time and the subtransactions that were rolled back
    payload  the bytes of a chunk, in a separate table: assigning an LSN to a staged chunk does not rewrite its data
    reach    one row per table: the number of chunks ever published and the end of the last one
    frontier one row: valid, durable, the newest commit time at each of them, the last clock, tallies of small tables
    moment   one row per publication with a newer commit time; maps a time to a position
    relation the versions of each table's schema
    restart  the start of history of a table that was captured again
    failure  permanent errors of tables
    pin      the leases of readers

Readers see only published chunks; these and `durable` change in the same SQLite transaction.

**Damage.** SQLite detects a torn write, but not a flipped bit on disk, which changes a value or makes a search miss a
row. The log therefore verifies every row that it finds, and proves that no row is missing:

* Every row has a seal, a checksum over its values. The checksum of a chunk's bytes is in the chunk's row. After the
  seal, the code checks again the condition by which SQL selected the row: a damaged index may return a wrong row.
* The chunks of a table are numbered in the order of publication, and each records the end of the previous one. The
  chunks found in (a, b] are complete if the previous chunk of the first one ends at or before a, the numbers are
  consecutive, and the next chunk begins after b; if there is no next chunk, `reach` must contain the last number found.
  Except for `reach`, this needs only rows that are read anyway. Likewise, a row of `moment` states the time and
  position before it, which proves that no earlier row is missing.
* Sets of rows that are always read as a whole (versions with restarts and failures; leases; prepared chunks) have a
  tally in `frontier`, the sum of their seals plus their count, which reveals a missing or additional row.
* When the file is opened, the SQL text of its schema must be equal to the expected text.

**Space.** Removing history frees pages. `retain` works in steps, each of which removes some chunks or returns some free
pages to the file system (incremental vacuum), until its time is up; capture continues in between. Readers hold no read
transaction while their caller processes a batch, so they do not prevent SQLite from reusing the WAL.
"""
