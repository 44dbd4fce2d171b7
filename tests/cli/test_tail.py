"""`penstock tail`: transactions as text and as JSON, from a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.changelog.chunks import COLUMNS, chunk, inserted
from tests.changelog.writer_crashes import ROOT
from tests.cli.commands import penstock
from tests.conftest import Database

from penstock.cli.transaction_text import render
from penstock.errors import TableError
from penstock.home import Home, open_home
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.testing.thread_capture import ThreadCapture
from penstock.testing.waiting import PATIENCE, until


@pytest.fixture
def home(database: Database, tmp_path: Path) -> Iterator[Home]:
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(30,10), raw bytea, at timestamptz)")
    database.execute("CREATE TABLE items (id int PRIMARY KEY, note text); ALTER TABLE items REPLICA IDENTITY FULL")
    home = open_home(tmp_path / "home")
    home.create(database.url, "shop")
    yield home
    home.drop("shop", force=True)


@contextmanager
def captured(home: Home, database: Database) -> Iterator[None]:
    """Run only capture, in a thread; transactions committed in the block are in the log when the block ends."""
    capture = ThreadCapture(home.path, "shop")
    try:
        yield
        now = Lsn.parse(database.execute("SELECT pg_current_wal_lsn()::text")[0][0])
        until(lambda: home.frontiers("shop").durable >= now, f"the log to reach {now}")
    finally:
        capture.stop()


def test_transactions_as_json_and_text(home: Home, database: Database) -> None:
    with captured(home, database):
        database.execute(
            "INSERT INTO orders VALUES (9007199254740993, 12345678901234567890.0123456789, '\\x00ff', "
            "'2026-01-02 03:04:05.000006+00'); INSERT INTO items VALUES (1, E'say \"hi\"\\n')"
        )
        database.execute("UPDATE items SET note = 'other' WHERE id = 1")
        database.execute("DELETE FROM orders")
    answer = penstock("tail", "shop", "--from", "earliest", "--limit", "3", "--format", "json", "--home", home.path)
    assert (answer.code, answer.err) == (0, "")
    first, second, third = (json.loads(line) for line in answer.out.splitlines())
    assert list(first) == ["version", "source", "shard", "lsn", "xid", "committed_at", "tables"]
    assert (first["version"], first["source"]) == (1, "shop")
    assert Lsn.parse(first["lsn"]) < Lsn.parse(second["lsn"]) < Lsn.parse(third["lsn"])
    assert list(first["tables"]) == ["public.items", "public.orders"]
    (order,) = first["tables"]["public.orders"]
    assert list(order) == ["op", "ordinal", "unchanged", "before", "after"]
    assert (order["op"], order["ordinal"], order["unchanged"], order["before"]) == ("insert", 0, [], None)
    after = {"id": 9007199254740993, "raw": "AP8=", "at": "2026-01-02T03:04:05.000006Z"}
    assert {name: order["after"][name] for name in after} == after
    assert '"total":12345678901234567890.0123456789' in answer.out
    (update,) = second["tables"]["public.items"]
    assert (update["before"], update["after"]) == ({"id": 1, "note": 'say "hi"\n'}, {"id": 1, "note": "other"})
    (deleted,) = third["tables"]["public.orders"]
    assert (deleted["op"], deleted["before"]["id"], deleted["after"]) == ("delete", 9007199254740993, None)

    text = penstock("tail", "shop", "public.items", "--from", "earliest", "--limit", "2", "--home", home.path)
    assert (text.code, text.err) == (0, "")
    lines = text.out.splitlines()
    assert lines[0] == f"{first['lsn']}  {first['committed_at']}  xid {first['xid']}"
    assert lines[1:3] == ["  public.items", '    insert   id: 1, note: say "hi"·']
    assert '    update   id: 1, note: say "hi"· → other' in lines


def test_ctrl_c_ends_the_tail_and_releases_its_lease(home: Home, database: Database) -> None:
    with captured(home, database):
        database.execute("INSERT INTO items VALUES (1, 'x')")
    command = [sys.executable, "-m", "penstock.cli", "tail", "shop", "--from", "earliest", "--home", str(home.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, b"")
    assert lines[1] == b"  public.items\n"
    with closing(home._catalog.log("shop").reader()) as reader:
        assert [lease for lease in reader.leases() if lease.reader.startswith("tail-")] == []


def test_closed_output_pipe_ends_the_tail(home: Home, database: Database) -> None:
    with captured(home, database):
        for number in range(5):
            database.execute(f"INSERT INTO items VALUES ({number}, repeat('x', 50000))")
    command = f"{sys.executable} -m penstock.cli tail shop --from earliest --limit 5 --format json --home {home.path}"
    done = subprocess.run(
        f"{command} | head -c 100; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.stdout[-2:], done.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["bank"], "source bank does not exist", "Sources of this home: shop"),
        (["shop", "public.nothing"], "has no table public.nothing", "public.items, public.orders"),
        (["shop", "--from", "noon"], "invalid start position 'noon'", "earliest, latest"),
    ],
)
def test_invalid_arguments(home: Home, arguments: list[str], message: str, hint: str) -> None:
    answer = penstock("tail", *arguments, "--home", home.path).assert_error(2)
    assert message in answer.error
    assert hint in answer.hint


def test_error_of_a_named_table_ends_the_tail(home: Home) -> None:
    log = home._catalog.log("shop")
    with closing(log.reader()) as reader, closing(log.writer()) as writer:
        at = Lsn(reader.frontiers().durable + 8)
        writer.define(TableSchema(TableName("public", "items"), COLUMNS, ("id",)), reader.frontiers().durable)
        writer.publish([], at, errors=[TableError("public.items", at, "its columns changed", "Capture it again.")])
    answer = penstock("tail", "shop", "public.items", "--from", "earliest", "--home", home.path).assert_error(3)
    assert (answer.error, answer.hint) == ("its columns changed", "Capture it again.")


def test_error_of_one_table_is_reported_and_the_others_are_shown(home: Home) -> None:
    log = home._catalog.log("shop")
    with closing(log.reader()) as reader, closing(log.writer()) as writer:
        start = reader.frontiers().durable
        items, orders = (TableSchema(TableName("public", name), COLUMNS, ("id",)) for name in ("items", "orders"))
        for schema in (items, orders):
            writer.define(schema, start)
        failed, last = Lsn(start + 8), Lsn(start + 16)
        writer.publish([], failed, errors=[TableError("public.items", failed, "its columns changed", "Do this.")])
        writer.publish([chunk(orders, [inserted(last)])], last, committed_at=1)
        arguments = ("tail", "shop", "--from", "earliest", "--format", "json", "--home", home.path)
        answer = penstock(*arguments, "--limit", "1")
        assert (answer.code, json.loads(answer.out)["lsn"]) == (0, str(last))
        assert answer.err == f"skipped: public.items from {failed}: its columns changed\nhint: Do this.\n"
        last_error = Lsn(start + 24)
        writer.publish([], last_error, errors=[TableError("public.orders", last_error, "it failed", "Do that.")])
    answer = penstock(*arguments)
    assert (answer.code, len(answer.out.splitlines()), answer.err.count("skipped")) == (3, 1, 1)
    assert answer.err.endswith("error: it failed\nhint: Do that.\n")


def test_long_values_are_truncated_and_unchanged_values_marked() -> None:
    change = {"op": "update", "ordinal": 0, "unchanged": ["big"], "before": {"id": 1, "big": None, "note": None}}
    change["after"] = {"id": 2, "big": None, "note": "y" * 100}
    transaction = {
        "version": 1,
        "source": "shop",
        "lsn": "0/1",
        "xid": 7,
        "committed_at": "z",
        "tables": {"a.b": [change]},
    }
    assert render(json.dumps(transaction)) == (
        f"0/1  z  xid 7\n  a.b\n    update   id: 1 → 2, big: (unchanged), note: {'y' * 59}…\n"
    )
