"""Capture against a real server: the log has exactly its changes, despite restarts and lost connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.sources.postgres.capturing import Capture, check_publication_often, merged

from penstock.changelog.sqlite.log import SqliteLog, SqliteLogReader
from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.instance import PostgresInstance
from penstock.sources.postgres.options import Heartbeat
from penstock.sources.postgres.pgoutput.decode_result import DecodeResult
from penstock.sources.postgres.replication.slot import SlotInUseError
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import until

Start = Callable[..., Capture]
Now = Callable[[], Lsn]

ACCOUNTS = "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance numeric(12,2))"
AUDIT = "CREATE TABLE audit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text)"

TYPES = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["1.5", "'NaN'", "'-Infinity'", "3.4028235e38"],
    "double precision": ["0.1", "'NaN'", "'Infinity'", "5e-324"],
    "numeric(38,10)": ["-1234567890123456789012345678.0123456789", "0"],
    "numeric(5,2)": ["999.99", "-0.01"],
    "text": ["''", "'é€😀'", "'a''b\\c'"],
    "varchar(10)": ["'abc'", "''"],
    "char(5)": ["'ab'", "'abcde'"],
    "name": ["'pg_class'", "'x'"],
    '"char"': ["'a'", "'z'"],
    "json": ["""'{"a":  1}'""", "'null'"],
    "jsonb": ["""'{"a":  1}'""", "'[]'"],
    "bytea": ["'\\x00ff'", "''"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'00000000-0000-0000-0000-000000000000'"],
    "date": ["'0001-01-01'", "'9999-12-31'"],
    "timestamp": ["'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"],
    "timestamptz": ["'1970-01-01 00:00:00+00'", "'2024-02-29 12:34:56.789+05:30'"],
}


def comparable(value: Any) -> Any:
    """A form of the value in which NaN equals itself."""
    return repr(value) if isinstance(value, float) else value


@pytest.mark.parametrize("text", [(), ("public.other.id",)])
def test_every_type_is_captured_as_select_returns_it(
    database: Any, capture: Start, now: Now, text: tuple[str, ...]
) -> None:
    """In binary and in text format: one column that is captured as text switches the whole stream to text."""
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(TYPES))
    database.execute(
        f"CREATE TABLE everything (id int PRIMARY KEY, {columns}); CREATE TABLE other (id int PRIMARY KEY)"
    )
    running = capture(text_columns=text)
    longest = max(len(values) for values in TYPES.values())
    for row in range(longest):
        values = ", ".join(values[row] if row < len(values) else "NULL" for values in TYPES.values())
        database.execute(f"INSERT INTO everything VALUES ({row}, {values})")
    running.wait(now())
    as_text = [n for n, kind in enumerate(TYPES) if kind in ("json", "jsonb", "uuid")]
    casts = {**dict.fromkeys(as_text, "::text"), list(TYPES).index("real"): "::float8"}
    listed = ", ".join(f"c{n}{casts.get(n, '')}" for n in range(len(TYPES)))
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        selected = connection.execute(f"SELECT id, {listed} FROM everything ORDER BY id").fetchall()
    captured = [tuple(change["after"].values()) for change in running.changes("everything")]
    for column in range(len(TYPES) + 1):
        found, wanted = [comparable(row[column]) for row in captured], [comparable(row[column]) for row in selected]
        assert found == wanted, list(TYPES)[column - 1]


def test_excluded_columns_are_not_captured(database: Any, capture: Start, now: Now) -> None:
    """By a column list where Postgres supports it; otherwise they are sent, and discarded."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY, secret text, name text, other int)")
    for rules in ("open", "strict"):
        running = capture(exclude_columns=("public.users.secret",), rules=rules)
        database.execute("INSERT INTO users VALUES (1, 'hidden', 'a', 7); UPDATE users SET secret = 'more', name = 'b'")
        database.execute("DELETE FROM users")
        running.wait(now())
        assert running.error("users") is None
        rows = [change["after"] for change in running.changes("users")]
        assert rows == [{"id": 1, "name": "a", "other": 7}, {"id": 1, "name": "b", "other": 7}, None]


def test_replica_identity_index_and_keyless_table(database: Any, capture: Start, now: Now) -> None:
    database.execute("CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL UNIQUE, n int)")
    database.execute("ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_key")
    database.execute("CREATE TABLE keyless (n int); ALTER TABLE keyless REPLICA IDENTITY FULL")
    running = capture()
    assert {table.name.name: table.key for table in running.config.tables} == {"by_index": ("code",), "keyless": ()}
    database.execute("INSERT INTO by_index VALUES (1, 'a', 1); UPDATE by_index SET code = 'b'; DELETE FROM by_index")
    database.execute("INSERT INTO keyless VALUES (1), (1); DELETE FROM keyless WHERE ctid = '(0,1)'")
    running.wait(now())
    by_index = [(c["_op"], c["before"] and c["before"]["code"]) for c in running.changes("by_index")]
    assert by_index == [("insert", None), ("update", "a"), ("delete", "b")]
    assert [(c["_op"], c["before"]) for c in running.changes("keyless")][2:] == [("delete", {"n": 1})]


def test_toasted_key(database: Any, capture: Start, now: Now) -> None:
    """Its value is not in the new row of an UPDATE, but in the old one."""
    database.execute("CREATE TABLE wide (k text PRIMARY KEY, n int); ALTER TABLE wide ALTER k SET STORAGE EXTERNAL")
    running = capture()
    database.execute("INSERT INTO wide SELECT string_agg(md5(n::text), ''), 1 FROM generate_series(1, 80) n")
    database.execute("UPDATE wide SET n = 2")
    running.wait(now())
    assert running.error("wide") is None
    keys = [change["after"]["k"] for change in running.changes("wide")]
    assert [len(key) for key in keys] == [2560, 2560]
    assert keys[0] == keys[1]


def test_truncate_stops_a_table_with_strict_rules(database: Any, capture: Start, now: Now) -> None:
    """The publication includes TRUNCATE, so that the rows do not silently remain downstream."""
    database.execute(f"{ACCOUNTS}; {AUDIT}")
    running = capture(rules="strict")
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1); INSERT INTO audit (what) VALUES ('one')")
    database.execute("TRUNCATE accounts")
    running.wait(now())
    error = running.error("accounts")
    assert error is not None
    assert "truncated" in error.message
    assert running.error("audit") is None


@pytest.mark.parametrize("rules", ["open", "strict"])
def test_unpublished_truncate_stops_the_table(
    database: Any, capture: Start, monkeypatch: pytest.MonkeyPatch, rules: str
) -> None:
    check_publication_often(monkeypatch)
    database.execute(ACCOUNTS)
    running = capture(rules=rules)
    database.execute(f"ALTER PUBLICATION {running.config.publication} SET (publish = 'insert, update, delete')")
    error = until(lambda: running.error("accounts"), "the check of the publication")
    assert "no longer publishes truncate" in str(error)


def test_transaction_across_several_tables(database: Any, capture: Start, now: Now) -> None:
    database.execute(f"{ACCOUNTS}; {AUDIT}")
    running = capture()
    ((before,),) = database.execute("SELECT clock_timestamp()")
    with database.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO accounts VALUES (1, 'a', 10), (2, 'b', 20)")
        connection.execute("INSERT INTO audit (what) VALUES ('opened')")
        connection.execute("UPDATE accounts SET balance = balance + 5 WHERE id = 1")
        (xid,) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    database.execute("INSERT INTO audit (what) VALUES ('later')")
    running.wait(now())
    accounts, audit = running.changes("accounts"), running.changes("audit")
    assert [(c["_op"], c["_ordinal"], c["after"]["id"]) for c in accounts] == [
        ("insert", 0, 1),
        ("insert", 1, 2),
        ("update", 3, 1),
    ]
    assert [(c["_ordinal"], c["after"]["what"]) for c in audit] == [(2, "opened"), (0, "later")]
    assert {c["_lsn"] for c in accounts} == {audit[0]["_lsn"]} != {audit[1]["_lsn"]}
    assert {c["_xid"] for c in accounts} == {xid}
    assert before < accounts[0]["_committed_at"] < database.execute("SELECT clock_timestamp()")[0][0]


def test_rolled_back_changes_are_not_captured(database: Any, capture: Start, now: Now) -> None:
    database.execute(ACCOUNTS)
    running = capture()
    with database.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO accounts VALUES (1, 'a', 10)")
        connection.rollback()
        connection.execute("INSERT INTO accounts VALUES (2, 'a', 10)")
        connection.execute("SAVEPOINT s")
        connection.execute("INSERT INTO accounts VALUES (3, 'a', 10)")
        connection.execute("ROLLBACK TO s")
    running.wait(now())
    assert [c["after"]["id"] for c in running.changes("accounts")] == [2]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_updates_key_changes_deletes_and_truncate(database: Any, capture: Start, now: Now, identity: str) -> None:
    database.execute(f"{ACCOUNTS}; ALTER TABLE accounts REPLICA IDENTITY {identity}")
    running = capture()
    for statement in (
        "INSERT INTO accounts VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)",
        "UPDATE accounts SET owner = 'z' WHERE id = 1",
        "UPDATE accounts SET id = 9 WHERE id = 1",
        "DELETE FROM accounts WHERE id = 2",
        "TRUNCATE accounts",
        "INSERT INTO accounts VALUES (4, 'd', NULL)",
    ):
        database.execute(statement)
    running.wait(now())
    found = running.changes("accounts")
    full = identity == "FULL"
    old = [c["before"] and (c["before"]["id"], c["before"]["owner"]) for c in found]
    assert [c["_op"] for c in found] == ["insert"] * 3 + ["update"] * 2 + ["delete", "truncate", "insert"]
    assert old[3:6] == ([(1, "a"), (1, "z"), (2, "b")] if full else [None, (1, None), (2, None)])
    assert old[6] is found[6]["after"] is None
    assert found[4]["after"]["id"] == 9
    assert list(merged({}, found)) == [4]


def test_unchanged_toast(database: Any, capture: Start, now: Now) -> None:
    database.execute("CREATE TABLE docs (id int PRIMARY KEY, body text, n int)")
    database.execute("ALTER TABLE docs ALTER body SET STORAGE EXTERNAL")
    running = capture()
    database.execute("INSERT INTO docs VALUES (1, repeat('x', 20000), 1)")
    database.execute("UPDATE docs SET n = 2")
    database.execute("UPDATE docs SET id = 5, n = 3")
    database.execute("UPDATE docs SET body = 'short'")
    running.wait(now())
    found = running.changes("docs")
    assert [(c["_unchanged"], c["after"]["body"]) for c in found[1:]] == [
        (["body"], None),
        (["body"], None),
        (None, "short"),
    ]
    assert merged({}, found[:3]) == {5: {"id": 5, "body": "x" * 20000, "n": 3}}


def test_large_transaction_is_complete_and_in_order(database: Any, capture: Start, now: Now) -> None:
    """Larger than the buffer: it is staged in parts, and none of them is visible before the commit."""
    database.execute(f"{ACCOUNTS}; {AUDIT}")
    running = capture()
    with database.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO accounts SELECT n, repeat('x', 100), n FROM generate_series(1, 200000) n")
        connection.execute("INSERT INTO audit (what) VALUES ('all in')")
        connection.execute("UPDATE accounts SET balance = 0 WHERE id % 100 = 0")
    running.wait(now())
    found = running.changes("accounts")
    assert len({c["_lsn"] for c in found}) == 1
    assert [c["after"]["id"] for c in found] == [*range(1, 200001), *range(100, 200001, 100)]
    assert [c["_ordinal"] for c in found] == [*range(200000), *range(200001, 202001)]
    assert [c["_ordinal"] for c in running.changes("audit")] == [200000]
    with closing(SqliteLogReader(running.log)) as reader:
        parts = reader._db.execute("SELECT count(*) FROM chunk WHERE xid IS NOT NULL").fetchone()[0]
    assert parts >= 1


def insert_until(stop: threading.Event, url: str, written: list[int], pause: float = 0.002) -> threading.Thread:
    """Insert one account per transaction; `written` has those that the server confirmed."""

    def write() -> None:
        at = 0
        while not stop.is_set():
            try:
                with psycopg.connect(url, autocommit=True) as connection:
                    while not stop.is_set():
                        at += 1
                        connection.execute("INSERT INTO accounts VALUES (%s, 'x', 0)", [at])
                        written.append(at)
                        time.sleep(pause)
            except psycopg.OperationalError:
                time.sleep(0.1)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def run_for_a_while(running: Capture) -> None:
    """Run until the log has advanced."""
    before = running.durable()
    running.start()
    until(lambda: running.durable() > before, "the log to advance")
    running.stop()


def test_stop_and_start_neither_lose_nor_repeat_changes(database: Any, capture: Start, now: Now) -> None:
    database.execute(ACCOUNTS)
    running = capture(run=False)
    stop: threading.Event = threading.Event()
    written: list[int] = []
    writing = insert_until(stop, database.url, written)
    for _ in range(6):
        run_for_a_while(running)
    stop.set()
    writing.join()
    running.start()
    running.wait(now())
    assert [c["after"]["id"] for c in running.changes("accounts")] == written
    assert running.transient == [] or all(isinstance(error, SlotInUseError) for error in running.transient)


def test_slot_is_never_confirmed_beyond_the_log(database: Any, capture: Start, now: Now) -> None:
    database.execute(ACCOUNTS)
    running = capture()
    stop: threading.Event = threading.Event()
    writing = insert_until(stop, database.url, [], pause=0)
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    confirmed: list[Lsn] = []

    def confirmed_often() -> bool:
        (at,) = connection.execute(query, [running.config.slot]).fetchone()
        confirmed.append(Lsn.parse(at))
        assert confirmed[-1] <= running.durable()
        return len(set(confirmed)) > 3

    with database.connect() as connection:
        until(confirmed_often, "confirmations")
    stop.set()
    writing.join()
    assert confirmed == sorted(confirmed)
    running.stop()
    # the server may not read the last feedback of a connection that closes: the slot may be behind the log, never ahead
    (last,) = database.execute(query.replace("%s", f"'{running.config.slot}'"))[0]
    assert confirmed[-1] <= Lsn.parse(last) <= running.durable()


def test_unpublished_changes_are_not_confirmed(tmp_path: Path) -> None:
    """Feedback confirms the durable frontier of the instance, from another thread and at any time."""
    config = PostgresInstanceConfig(source="shop", connection="", publication="p", slot="s", tables=())
    instance = PostgresInstance(config, SqliteLog(tmp_path / "shop.db"))
    confirmed = []

    class Writer:
        def publish(self, chunks: Any, durable: Lsn, **arguments: Any) -> None:
            confirmed.append(instance.durable_frontier())
            if durable > 10:
                raise DefiniteError("the disk is full")

    writer: Any = Writer()
    instance._publish(writer, DecodeResult(durable=Lsn(10), committed_at=1))
    with pytest.raises(DefiniteError):
        instance._publish(writer, DecodeResult(durable=Lsn(20), committed_at=2))
    assert confirmed == [0, 10]
    assert instance.durable_frontier() == 10


def test_idle_table_on_a_busy_server_does_not_hold_back_the_slot(database: Any, capture: Start, now: Now) -> None:
    """The frontier and the slot follow the server, although no captured table changes."""
    database.execute(ACCOUNTS)
    running = capture()
    database.execute("CREATE TABLE busy (n int); INSERT INTO busy SELECT generate_series(1, 10000)")
    end = now()
    running.wait(end)
    confirmed = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{running.config.slot}'"
    until(lambda: Lsn.parse(database.execute(confirmed)[0][0]) >= end, "the slot")
    assert running.changes("accounts") == []
    assert PostgresInstance(running.config, SqliteLog(running.log)).durable_frontier() == 0
    assert running.instance.durable_frontier() >= end


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_capture_resumes_after_a_postgres_restart(tmp_path: Path, how: str) -> None:
    with start_postgres() as server:
        server.execute(ACCOUNTS)
        running = Capture(server.url, tmp_path / "log.db", "shop")
        running.start()
        stop: threading.Event = threading.Event()
        written: list[int] = []
        writing = insert_until(stop, server.url, written)
        until(lambda: len(written) > 20, "some rows")
        server.stop(how)
        until(lambda: bool(running.transient), "a transient error")
        server.start()
        count = len(written)
        until(lambda: len(written) > count + 20, "more rows")
        stop.set()
        writing.join()
        try:
            running.wait(Lsn.parse(server.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]))
            found = [c["after"]["id"] for c in running.changes("accounts")]
            assert len(found) == len(set(found))
            assert set(written) <= set(found)
            assert found == [row[0] for row in server.execute("SELECT id FROM accounts ORDER BY id")]
            assert all(error.hint for error in running.transient)
        finally:
            running.stop()


def test_unsupported_value_stops_that_table(database: Any, capture: Start, now: Now) -> None:
    database.execute(f"CREATE TABLE days (id int PRIMARY KEY, day date); {AUDIT}")
    running = capture()
    database.execute("INSERT INTO days VALUES (1, '2024-01-01')")
    database.execute("INSERT INTO days VALUES (2, 'infinity'); INSERT INTO audit (what) VALUES ('one')")
    database.execute("INSERT INTO days VALUES (3, '2024-01-02'); INSERT INTO audit (what) VALUES ('two')")
    running.wait(now())
    error = running.error("days")
    assert error is not None
    assert "column day" in error.message
    assert [c["after"]["id"] for c in running.changes("days")] == [1]
    assert [c["after"]["what"] for c in running.changes("audit")] == ["one", "two"]


def test_dropped_slot_is_a_permanent_error(database: Any, capture: Start) -> None:
    database.execute(ACCOUNTS)
    running = capture(run=False)
    database.execute(f"SELECT pg_drop_replication_slot('{running.config.slot}')")
    with pytest.raises(DefiniteError, match=r"slot .* no longer exists: changes since .* are lost") as caught:
        running.instance.run(threading.Event(), lambda: None)
    assert "penstock drop" in caught.value.hint


def test_dropped_publication_is_a_permanent_error(database: Any, capture: Start) -> None:
    """Postgres 18 would continue, and send nothing."""
    database.execute(ACCOUNTS)
    running = capture(run=False)
    database.execute(f'DROP PUBLICATION "{running.config.publication}"')
    with pytest.raises(DefiniteError, match="publication"):
        running.instance.run(threading.Event(), lambda: None)


@pytest.mark.parametrize(
    "ddl",
    [
        'ALTER PUBLICATION "{}" DROP TABLE accounts',
        "DROP TABLE accounts; CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance numeric(12,2))",
    ],
)
def test_unpublished_table_stops(database: Any, capture: Start, now: Now, ddl: str) -> None:
    database.execute(f"{ACCOUNTS}; {AUDIT}")
    running = capture(run=False)
    database.execute(ddl.format(running.config.publication))
    before = running.durable()
    running.start()
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1); INSERT INTO audit (what) VALUES ('one')")
    running.wait(now())
    error = running.error("accounts")
    assert error is not None
    assert error.lsn == before + 1
    assert ("dropped upstream" if "DROP TABLE accounts;" in ddl else "no longer in publication") in error.message
    assert "RETRY TABLE public.accounts" in error.hint
    assert running.error("audit") is None
    assert len(running.changes("audit")) == 1


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ('ALTER PUBLICATION "{}" DROP TABLE accounts', "no longer in publication"),
        ("DROP TABLE accounts", "dropped upstream"),
        ('ALTER PUBLICATION "{}" SET TABLE accounts WHERE (id > 5), audit', "row filter"),
    ],
)
def test_publication_changes_are_detected_while_running(
    database: Any, capture: Start, now: Now, monkeypatch: pytest.MonkeyPatch, ddl: str, expected: str
) -> None:
    if "WHERE" in ddl:
        database.needs(15, "row filters")
    wait_for_check = check_publication_often(monkeypatch)
    database.execute(f"{ACCOUNTS}; {AUDIT}")
    running = capture()
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1)")
    running.wait(now())
    proven = running.durable()
    wait_for_check()
    database.execute(ddl.format(running.config.publication))
    until(lambda: running.error("accounts") is not None, "the check of the publication")
    error = running.error("accounts")
    assert error is not None
    assert expected in error.message
    assert error.lsn > proven
    database.execute("INSERT INTO audit (what) VALUES ('one')")
    running.wait(now())
    assert (len(running.changes("audit")), running.error("audit")) == (1, None)


@pytest.mark.parametrize("kind", [Heartbeat.MESSAGE, Heartbeat.TABLE])
def test_heartbeats_advance_an_idle_server(database: Any, capture: Start, kind: Heartbeat) -> None:
    database.execute(ACCOUNTS)
    running = capture(heartbeat=kind, heartbeat_interval=0.1)
    before = running.durable()
    until(lambda: running.durable() > before + 500, "heartbeats to arrive")
    if kind is Heartbeat.TABLE:
        assert database.execute("SELECT id FROM dblog_meta.heartbeats") == [(1,)]


def test_slot_in_use_is_a_transient_error(database: Any, capture: Start, tmp_path: Path) -> None:
    database.execute(ACCOUNTS)
    running = capture()
    second = tmp_path / "second.db"
    SqliteLog(second).create(running.durable())
    until(lambda: bool(database.execute("SELECT 1 FROM pg_replication_slots WHERE active")), "an active slot")
    with pytest.raises(SlotInUseError, match=running.config.slot) as caught:
        PostgresInstance(running.config, SqliteLog(second)).run(threading.Event(), lambda: None)
    assert isinstance(caught.value, TransientError)
    assert caught.value.hint


def test_slot_ahead_of_the_log_is_a_permanent_error(database: Any, capture: Start, now: Now) -> None:
    database.execute(ACCOUNTS)
    running = capture(run=False)
    database.execute("INSERT INTO accounts VALUES (1, 'a', 1)")
    database.execute(f"SELECT pg_replication_slot_advance('{running.config.slot}', pg_current_wal_lsn())")
    with pytest.raises(DefiniteError, match="the changes in between are lost"):
        running.instance.run(threading.Event(), lambda: None)


def test_another_server_is_rejected(database: Any, capture: Start) -> None:
    database.execute(ACCOUNTS)
    running = capture(run=False)
    for changed in ({"system": "1234"}, {"timeline": 7}):
        other = PostgresInstance(running.config.model_copy(update=changed), SqliteLog(running.log))
        with pytest.raises(DefiniteError, match="does not continue the history"):
            other.run(threading.Event(), lambda: None)


def test_terminated_walsender_is_a_transient_error(database: Any, capture: Start, now: Now) -> None:
    database.execute(ACCOUNTS)
    running = capture()
    for at in range(3):
        database.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = "
            f"'{running.config.slot}'"
        )
        database.execute(f"INSERT INTO accounts VALUES ({at}, 'a', 1)")
        until(lambda at=at: len(running.transient) > at, "a transient error")  # type: ignore[misc]
        running.wait(now())
    assert [c["after"]["id"] for c in running.changes("accounts")] == [0, 1, 2]
