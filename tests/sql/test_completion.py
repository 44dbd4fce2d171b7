"""Completion: the words that the grammar would accept next."""

from __future__ import annotations

import pytest

from penstock.sql.completion import KnownNames, candidates
from tests.sql.kinds import KINDS

KNOWN = KnownNames(
    {"shop": ("orders", "order items"), "bank": ("accounts",)},
    ["orders_out", "everything"],
    {"penstock": ("sources", "tables")},
)
SINK = "CREATE SINK x FROM shop.orders INTO KAFKA"
SHOP = "CREATE SOURCES x FROM POSTGRES CONNECTION 'postgresql://db/shop'"


def after(text: str) -> list[str]:
    return candidates(text, KINDS, KNOWN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "SHO",
            [
                *("SHOW CREATE SINK", "SHOW CREATE SOURCES", "SHOW ERRORS", "SHOW READERS", "SHOW REPAIRS"),
                *("SHOW SINKS", "SHOW SOURCES", "SHOW TABLES"),
            ],
        ),
        ("show s", ["SINKS", "SOURCES"]),
        ("SHOW TABLES ", [";", "FROM", "IN", "LIKE"]),
        ("SHOW TABLES FROM shop ", [";", "LIKE"]),
        ("SHOW READERS FROM s", ["shop"]),
        ("SUBSCRIBE ", ["bank", "shop"]),
        ("SUBSCRIBE shop.", ['"order items"', "orders"]),
        ("SELECT * FROM ", ["bank", "penstock", "shop"]),
        ("SELECT * FROM penstock.", ["sources", "tables"]),
        ("DROP SOURCES p", []),
        ("SHOW TABLES FROM ", ["bank", "shop"]),
        ("SHOW TABLES FROM s", ["shop"]),
        ("SELECT 1; SHOW CREATE SOURCES ", ["bank", "shop"]),
        ("ALTER SOURCES ", ["bank", "shop"]),
        ("ALTER SOURCES shop ", ["ACCEPT INTERFERENCE", "ADD TABLE", "DROP TABLE", "RETRY TABLE", "SET"]),
        ("ALTER SOURCES shop RETRY TABLE ", ['"order items"', "orders"]),
        ("ALTER SOURCES shop SET (retain ", ["history"]),
        ("CREATE SOURCES x FROM ", ["KAFKA", "LOAD GENERATOR", "POSTGRES"]),
        ("CREATE SOURCES x FROM LOAD ", ["GENERATOR"]),
        ("CREATE SOURCES x FROM POSTGRES C", ["CONNECTION", "CONNECTIONS"]),
        (f"{SHOP} FOR ", ["ALL TABLES", "SCHEMAS", "TABLES"]),
        (f"{SHOP} FOR ALL ", ["TABLES"]),
        (f"{SHOP} WITH (sn", ["snapshot", "snapshot rate", "snapshot sessions", "snapshot wait"]),
        (f"{SHOP} WITH (failover, heart", ["heartbeat", "heartbeat interval"]),
        (f"{SHOP} WITH (snapshot = ", ["'chunked'", "'parallel'"]),
        (f"{SHOP} WITH (failover = ", ["FALSE", "OFF", "ON", "TRUE"]),
        ("CREATE SOURCE c FROM KAFKA ENVELOPE ", ["DEBEZIUM", "DEBEZIUM UPSERT", "NONE", "UPSERT"]),
        ("DROP SINK ", ["IF EXISTS", "everything", "orders_out"]),
        ("SHOW CREATE SINK o", ["orders_out"]),
        ("ALTER SINK orders_out ", ["RETRY", "SET"]),
        ("ALTER SINK orders_out SET (retain ", ["limit"]),
        ("CREATE SINK x FROM ", ["bank", "shop"]),
        ("CREATE SINK x FROM shop.", ['"order items"', "orders"]),
        ("CREATE SINK x FROM shop ", [".", "INTO"]),
        ("CREATE SINK x FROM shop INTO ", ["KAFKA"]),
        (f"{SINK} ENVELOPE ", ["CHANGES", "DEBEZIUM", "TRANSACTIONS", "UPSERT"]),
        (f"{SINK} T", ["TOPIC", "TOPIC PREFIX"]),
        (f"{SINK} WITH (subject strategy = ", ["'record'", "'topic record'", "'topic'"]),
        ("VERIFY ", ["bank", "shop"]),
        ("VERIFY shop.", ['"order items"', "orders"]),
        ("VERIFY shop.or", ["orders"]),
        ("SELECT * FROM shop.", ['"order items"', "orders"]),
        ("SELECT * FROM `bank`.a", ["accounts"]),
        ("SELECT * FROM shop.orders JO", ["JOIN"]),
        ("SELECT * FROM shop.orders GROUP", ["GROUP BY"]),
        ("SELECT * FROM shop.orders, ", ["bank", "penstock", "shop"]),
        (f"{SHOP} WITH (snapshot = 'pa", []),
        ("SHOW SOURCES -- S", []),
        ("SELECT 'SHO", []),
    ],
)
def test_candidates(text: str, expected: list[str]) -> None:
    assert after(text) == expected


def test_an_empty_line_offers_statements_and_queries() -> None:
    found = after("")
    assert {"CREATE SOURCES", "SHOW TABLES", "VERIFY", "SELECT", "WITH"} <= set(found)


def test_optional_clauses_are_offered_after_a_required_clause() -> None:
    assert {"FOR ALL TABLES", "PASSWORD", "WITH"} <= set(after(f"{SHOP} "))
