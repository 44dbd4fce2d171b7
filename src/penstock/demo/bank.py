"""The demo's bank: transfers between accounts, with a constant sum of all balances.

::

    bank.transfers   one row per transfer: from_account, to_account, amount
    bank.accounts    opening (never changes), balance, transfer_count

One transaction inserts a transfer and updates both of its accounts. Therefore, between any two transactions,

- Σ balance = Σ opening, and
- for every account, balance = opening + Σ amounts in - Σ amounts out, and transfer_count is the number of both.

A reader that sees a violation has seen part of a transaction. `penstock.demo.invariants` has the SQL. An account may be
overdrawn; therefore a transfer never fails.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

__all__ = ["create_bank"]

_TABLES = """
CREATE SCHEMA bank;
CREATE TABLE bank.accounts (
    id             integer PRIMARY KEY,
    owner          text NOT NULL,
    opening        numeric(14, 2) NOT NULL,
    balance        numeric(14, 2) NOT NULL,
    transfer_count bigint NOT NULL DEFAULT 0,
    opened_on      date NOT NULL,
    changed_at     timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE bank.transfers (
    id           bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    from_account integer NOT NULL REFERENCES bank.accounts,
    to_account   integer NOT NULL REFERENCES bank.accounts,
    amount       numeric(14, 2) NOT NULL CHECK (amount > 0),
    memo         varchar(40),
    made_at      timestamptz NOT NULL DEFAULT now(),
    CHECK (from_account <> to_account)
);
COMMENT ON TABLE bank.accounts IS 'Accounts of the demo''s bank; the sum of all balances never changes';
COMMENT ON TABLE bank.transfers IS 'Transfers between accounts; each one comes with two changed balances';
"""

_TRANSFER = """
CREATE FUNCTION bank.transfer(giver integer, taker integer, moved numeric, memo text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    -- Locks are taken in the order of ids: two transfers never wait for each other.
    PERFORM FROM bank.accounts WHERE id IN (giver, taker) ORDER BY id FOR UPDATE;
    INSERT INTO bank.transfers (from_account, to_account, amount, memo) VALUES (giver, taker, moved, memo);
    UPDATE bank.accounts SET balance = balance - moved, transfer_count = transfer_count + 1, changed_at = now()
     WHERE id = giver;
    UPDATE bank.accounts SET balance = balance + moved, transfer_count = transfer_count + 1, changed_at = now()
     WHERE id = taker;
END
$$;
"""

_ACCOUNTS = """
INSERT INTO bank.accounts (id, owner, opening, balance, opened_on)
SELECT i, 'Owner ' || i, money, money, date '2020-01-01' + i % 2000
  FROM generate_series(1, {accounts}) AS i, LATERAL (SELECT 1000 + i * 37 % 9000 + i % 100 / 100.0) AS m (money)
"""


def create_bank(connection: psycopg.Connection[Any], accounts: int = 1000) -> None:
    """Create schema ``bank`` with this number of accounts and no transfers, in one transaction."""
    with connection.transaction():
        connection.execute(_TABLES)
        connection.execute(_TRANSFER)
        connection.execute(sql.SQL(_ACCOUNTS).format(accounts=sql.Literal(accounts)))
