"""The demo's upstream database: a small shop and a bank, and the load that keeps them changing."""
