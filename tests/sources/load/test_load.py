"""Generated loads: the same seed gives the same history in any portions, and its invariants hold."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.sources.source_capture import SourceCapture

from penstock.changelog.user_rows import updates
from penstock.errors import UsageError
from penstock.model import Image, TableName
from penstock.sources.load_generator.scenarios import BIDS, OPENING, Auction, Bank, Scenario
from penstock.sources.load_generator.source import LoadSource
from penstock.sources.polling_steps import Changes


def history_rows(scenario: Scenario, *counts: int) -> list[tuple[Any, ...]]:
    """Generate transactions in portions; return each row with its transaction, table and image."""
    found, done = [], 0
    for count in counts:
        for changes in scenario.next(count):
            found += _rows(changes, done)
        done += count
    return sorted(found, key=lambda row: (row[0], str(row[1])))


def _rows(changes: Changes, done: int) -> list[tuple[Any, ...]]:
    count = len(changes.rows)
    of = np.zeros(count, np.int64) if changes.transactions is None else changes.transactions
    images = [changes.images] * count if isinstance(changes.images, Image) else changes.images.tolist()
    rows = changes.rows.to_pylist()
    return [(done + int(of[i]) + 1, changes.table, int(images[i]), tuple(rows[i].values())) for i in range(count)]


@pytest.mark.parametrize("make", [lambda: Bank("b", 7, 5), lambda: Auction("a", 7, 60)], ids=["bank", "auction"])
def test_history_is_the_same_in_any_portions(make: Any) -> None:
    whole = history_rows(make(), 200)
    assert history_rows(make(), 1, 1, 50, 3, 145) == whole
    later = make()
    later.go_to(120)
    assert [(n + 120, *rest) for n, *rest in history_rows(later, 80)] == [row for row in whole if row[0] > 120]


def test_another_seed_is_another_history() -> None:
    assert history_rows(Bank("b", 1, 5), 20) != history_rows(Bank("b", 2, 5), 20)


def test_every_transfer_moves_its_amount() -> None:
    balances: dict[int, int] = {}
    accounts, transfers = TableName("b", "accounts"), TableName("b", "transfers")
    history = history_rows(Bank("b", 3, 5), 2000)
    for number in range(1, 2001):
        rows = [row for row in history if row[0] == number]
        new = dict(row[3] for row in rows if row[1] == accounts and row[2] >= Image.UPDATED)
        old = dict(row[3] for row in rows if row[1] == accounts and row[2] == Image.BEFORE)
        if number > 1:
            ((_, payer, payee, amount),) = [row[3] for row in rows if row[1] == transfers]
            assert payer != payee
            assert old == {payer: balances[payer], payee: balances[payee]}
            assert new == {payer: balances[payer] - amount, payee: balances[payee] + amount}
        balances |= new
        assert sum(balances.values()) == 5 * OPENING
    assert len(set(balances.values())) > 1


def test_auctions_have_their_bids() -> None:
    history = history_rows(Auction("a", 3, 120), 1 + 2 * (BIDS + 1))
    rows = {name: [row[3] for row in history if row[1].name == name] for name in ("auctions", "bids", "users")}
    assert [row[0] for row in rows["auctions"]] == [0, 1]
    assert [row[0] for row in rows["bids"]] == list(range(2 * BIDS))
    assert [row[2] for row in rows["bids"]] == [0] * BIDS + [1] * BIDS
    users = {row[0] for row in rows["users"]}
    assert {row[1] for row in rows["bids"]} | {row[1] for row in rows["auctions"]} <= users == set(range(120))
    assert all(bid[4] <= rows["auctions"][bid[2]][3] for bid in rows["bids"])


def captured(tmp_path: Path, **options: Any) -> SourceCapture:
    return SourceCapture(tmp_path, LoadSource.of("bank", **{"bank": True, "rate": 1e6, "accounts": 10, **options}))


def test_bank_resumes_after_a_restart(tmp_path: Path) -> None:
    capture = captured(tmp_path, rate=2000.0)
    first = datetime.now(UTC)
    capture.run_until(lambda: capture.durable() > 20)
    reached = capture.durable()
    capture.run_until(lambda: capture.durable() > reached + 20)
    other = captured(tmp_path / "other")
    other.run_until(lambda: other.durable() >= capture.durable())
    for table in ("accounts", "transfers"):
        whole = other.images(table, upto=capture.durable())
        assert capture.images(table).drop_columns(["_committed_at"]) == whole.drop_columns(["_committed_at"])
    times = capture.images("transfers").column("_committed_at").to_pylist()
    assert times == sorted(times)
    assert times[0] >= first


def test_every_position_is_one_transaction_and_its_changes_are_numbered(tmp_path: Path) -> None:
    capture = captured(tmp_path, transactions=50)
    capture.run_until(lambda: capture.durable() == 50)
    accounts, transfers = capture.images("accounts"), capture.images("transfers")
    assert transfers.column("_lsn").to_pylist() == list(range(2, 51))
    assert transfers.column("_ordinal").to_pylist() == [2] * 49
    assert accounts.column("_lsn").to_pylist() == [1] * 10 + [n for n in range(2, 51) for _ in range(4)]
    assert accounts.column("_ordinal").to_pylist() == [*range(10), *([0, 0, 1, 1] * 49)]
    assert capture.durable() == 50


def test_changes_of_accounts_add_up_at_every_position(tmp_path: Path) -> None:
    capture = captured(tmp_path, transactions=300)
    capture.run_until(lambda: capture.durable() == 300)
    batch = capture.images("accounts").combine_chunks().to_batches()[0]
    diffs = updates(batch, TableName("bank", "accounts"))
    moved = np.asarray(diffs.column("_diff")) * np.asarray(diffs.column("balance"))
    positions = np.asarray(batch.column("_lsn"))
    assert [int(moved[positions <= upto].sum()) for upto in range(1, 301)] == [10 * OPENING] * 300


def test_time_passes_while_idle(tmp_path: Path) -> None:
    capture = captured(tmp_path, transactions=5)
    before = datetime.now(UTC)

    def passed() -> bool:
        with closing(capture.log.reader()) as reader:
            return reader.frontiers().passed > before

    capture.run_until(lambda: capture.durable() == 5)
    before = datetime.now(UTC)
    capture.run_until(passed)
    with closing(capture.log.reader()) as reader:
        assert reader.position_at(before) == 5


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "exactly one of BANK and AUCTION"),
        ({"bank": True, "auction": True}, "exactly one of BANK and AUCTION"),
        ({"auction": True, "accounts": 5}, "option accounts cannot be combined with AUCTION"),
        ({"bank": True, "users": 5}, "option users cannot be combined with BANK"),
        ({"bank": True, "rate": 0}, "rate"),
        ({"bank": True, "rat": 1}, 'unrecognized option "rat"'),
        ({"bank": True, "accounts": 1}, "accounts"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        LoadSource.of("bank", **options)


def test_source_description() -> None:
    source = LoadSource.of("bank", bank=True, seed=4)
    assert source.check().ready
    assert source.place() == "a generated bank, seed 4"
    assert [str(schema.table) for schema in source.describe()] == ["bank.accounts", "bank.transfers"]
    assert source.describe()[0].columns == pa.schema([("id", pa.int64()), ("balance", pa.int64())])
    (config,) = source.create_instances(4)
    assert config.altered(LoadSource.of("bank", bank=True, seed=4, rate=5.0)).rate == 5.0
    with pytest.raises(UsageError, match="cannot be captured again individually"):
        config.restarted(config.produced()[:1])
