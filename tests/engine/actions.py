"""Operations on a source, for processes that are killed while they run one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.catalog.store import Catalog
from penstock.engine.reconcile import alter, describe, set_options
from penstock.engine.requests import pending_requests
from penstock.engine.table_names import named_source
from penstock.errors import TransientError
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.sources.postgres.config import PostgresInstanceConfig


def create(path: Path, urls: Any, options: dict[str, Any], name: str = "shop") -> None:
    Home(path).create(urls, name, **options)


def create_with_secret(path: Path, url: str) -> None:
    options = "PASSWORD 'canary-7' WITH (allow literal secrets = true)"
    Home(path).sql(f"CREATE SOURCES shop FROM POSTGRES CONNECTION '{url}' FOR ALL TABLES {options}")


def drop(path: Path, name: str = "shop", *, keep_tables: bool = False) -> None:
    Home(path).drop(name, keep_tables=keep_tables)


def drop_keeping_tables(path: Path) -> None:
    drop(path, keep_tables=True)


def drop_by_force(path: Path) -> None:
    """Drop the source while Postgres is unreachable."""

    def unreachable(_: object) -> list[str]:
        message = "no answer"
        raise TransientError(message)

    PostgresInstanceConfig.cleanup = unreachable  # type: ignore[method-assign, assignment]
    PostgresInstanceConfig.settle = lambda self, _: unreachable(self)  # type: ignore[method-assign, assignment]
    Home(path).drop("shop", force=True)


def change(path: Path, options: dict[str, Any]) -> None:
    home = Home(path)
    home.alter("shop", **options)
    catalog = Catalog(catalog_path(path))
    set_options(catalog, named_source(catalog, "shop"))


def add_table(path: Path) -> None:
    Home(path).add_table("shop", "public.invoices AS bills")
    reconcile_requests(path)


def drop_table(path: Path) -> None:
    Home(path).drop_table("shop", "public.orders")
    reconcile_requests(path)


def retry_table(path: Path) -> None:
    Home(path).retry("shop", "public.orders")
    reconcile_requests(path)


def reconcile_requests(path: Path) -> None:
    """Complete the pending requests for tables, as `penstock run` does while capture is stopped."""
    catalog = Catalog(catalog_path(path))
    for record in catalog.sources():
        requests = pending_requests(catalog, record.name)
        if requests:
            alter(path, catalog, record, requests, describe(record, requests))
