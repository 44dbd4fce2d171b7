"""Invariants of the demo's database that hold between any two transactions, as SQL for both Postgres and Spark.

Each query returns a row for each violation of its invariant. All tables of one query must be read at one position.
`bank_checks` and `shop_checks` insert the names of the tables in the engine that runs the query.
"""

from __future__ import annotations

__all__ = ["bank_checks", "bank_look", "shop_checks"]

_BANK = {
    "money is neither made nor lost": """
SELECT sum(balance) - sum(opening) AS difference
  FROM {accounts}
HAVING sum(balance) <> sum(opening)
""",
    "each balance is the sum of its transfers": """
SELECT a.id, a.balance, a.opening, m.net, a.transfer_count, m.transfers
  FROM {accounts} AS a
  LEFT JOIN (
       SELECT account, sum(change) AS net, count(*) AS transfers
         FROM (SELECT from_account AS account, -amount AS change FROM {transfers}
               UNION ALL
               SELECT to_account AS account, amount AS change FROM {transfers}) AS moves
        GROUP BY account
  ) AS m ON m.account = a.id
 WHERE a.balance <> a.opening + coalesce(m.net, 0)
    OR a.transfer_count <> coalesce(m.transfers, 0)
""",
    "each transfer is between two accounts": """
SELECT t.id
  FROM {transfers} AS t
  LEFT JOIN {accounts} AS giver ON giver.id = t.from_account
  LEFT JOIN {accounts} AS taker ON taker.id = t.to_account
 WHERE giver.id IS NULL OR taker.id IS NULL
""",
}

_SHOP = {
    "each order's total is the sum of its lines": """
SELECT o.id, o.total, l.total AS total_of_lines
  FROM {orders} AS o
  LEFT JOIN (SELECT order_id, sum(quantity * price) AS total FROM {order_lines} GROUP BY order_id) AS l
    ON l.order_id = o.id
 WHERE l.total IS NULL OR o.total <> l.total
""",
    "each line and payment has its order": """
SELECT dependent.order_id
  FROM (SELECT order_id FROM {order_lines} UNION ALL SELECT order_id FROM {payments}) AS dependent
  LEFT JOIN {orders} AS o ON o.id = dependent.order_id
 WHERE o.id IS NULL
""",
}


_LOOK = """
SELECT sum(a.balance) AS total, sum(coalesce(m.sides, 0)) / 2 AS transfers,
       count_if(a.balance <> a.opening + coalesce(m.net, 0) OR a.transfer_count <> coalesce(m.sides, 0)) AS broken
  FROM {accounts} AS a
  LEFT JOIN (
       SELECT side.account, sum(side.change) AS net, count(*) AS sides
         FROM {transfers} LATERAL VIEW explode(array(
              named_struct('account', from_account, 'change', -amount),
              named_struct('account', to_account, 'change', amount))) AS side
        GROUP BY side.account
  ) AS m ON m.account = a.id
"""


def bank_look(accounts: str, transfers: str) -> str:
    """Return one query for Spark with the sum of balances, the number of transfers and the number of violations.

    ``broken`` counts accounts whose balance or number of transfers does not match their transfers.
    """
    return _LOOK.format(accounts=accounts, transfers=transfers)


def bank_checks(accounts: str = "bank.accounts", transfers: str = "bank.transfers") -> dict[str, str]:
    """Return the queries of the bank's invariants, by description."""
    return {name: text.format(accounts=accounts, transfers=transfers) for name, text in _BANK.items()}


def shop_checks(
    orders: str = "shop.orders", order_lines: str = "shop.order_lines", payments: str = "shop.payments"
) -> dict[str, str]:
    """Return the queries of the shop's invariants, by description."""
    names = {"orders": orders, "order_lines": order_lines, "payments": payments}
    return {name: text.format(**names) for name, text in _SHOP.items()}
