"""Spark looks for data sources in modules of this name; ``format("penstock")`` needs no registration."""

from penstock.spark.datasource import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
