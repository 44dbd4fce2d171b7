"""The status page of a real ``penstock run``: Spark starts, tables go live, Postgres is lost, a table fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Page, expect
from tests.end_to_end.conftest import Penstock
from tests.server.page.conftest import Tabs

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.server.address import Address, running_server
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import PATIENCE, until

pytestmark = pytest.mark.deep

LIVE = re.compile(r"^All 2 tables live")
TABLES = """
CREATE TABLE accounts (id int PRIMARY KEY, balance int);
INSERT INTO accounts SELECT id, 100 FROM generate_series(1, 50) id;
CREATE TABLE payments (id int PRIMARY KEY, amount int);
INSERT INTO payments VALUES (1, 1);
"""


@pytest.fixture
def postgres() -> Iterator[EmbeddedPostgres]:
    """A server of its own, because the test stops it."""
    with start_postgres() as server:
        url = server.create_database("demo")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLES)
        yield server


@pytest.fixture
def running(tmp_path: Path, postgres: EmbeddedPostgres) -> Iterator[Penstock]:
    found = Penstock(tmp_path / "home", postgres.url_for("demo"), ("--listen", "127.0.0.1:0"))
    found.start()
    yield found
    if found.process is not None and found.process.poll() is None:
        found.kill()
    until(lambda: found.capture_pid() is None, "the end of capture")


def test_the_page_of_a_running_home(running: Penstock, postgres: EmbeddedPostgres, tabs: Tabs) -> None:
    tabs.allowed += ("status of 400", "status of 503")
    server = until(lambda: address(running), "the server")
    assert server is not None
    page = tabs.open_live(server.url)
    seen = headlines(page)
    assert any("Spark" in headline for headline in seen), seen
    query_answers_and_refuses_writes(page)
    numbers_move(page, postgres)
    postgres.stop()
    show(page, re.compile("^1 source is waiting: demo$"))
    expect(page.locator(".problems")).to_contain_text("cannot reach Postgres")
    postgres.start()
    show(page, LIVE)
    postgres.execute("ALTER TABLE payments ADD COLUMN surprise double precision DEFAULT random()", "demo")
    postgres.execute("UPDATE payments SET amount = amount", "demo")
    show(page, re.compile(r"^1 table failed: demo\.payments$"))
    expect(page.locator(".problems")).to_contain_text("RETRY TABLE public.payments")
    assert running.interrupt() == 0
    expect(page.locator("#lost")).to_contain_text("The connection to Penstock is lost", timeout=PATIENCE * 1000)


def address(running: Penstock) -> Address | None:
    running.require_running()
    return running_server(running.home)


def headlines(page: Page) -> set[str]:
    """Return all verdicts until the tables are live."""
    seen: set[str] = set()

    def is_live() -> bool:
        text = page.locator("h1").text_content() or ""
        seen.add(text)
        return LIVE.match(text) is not None

    until(is_live, "live tables")
    return seen


def show(page: Page, headline: re.Pattern[str]) -> None:
    expect(page.locator("h1")).to_have_text(headline, timeout=PATIENCE * 1000)


def query_answers_and_refuses_writes(page: Page) -> None:
    state, error = page.locator("#query-state"), page.locator("#query-error")
    page.get_by_label("SQL query").fill("SELECT count(*) AS n FROM demo.accounts")
    page.keyboard.press("Control+Enter")
    expect(state).to_have_text(re.compile(r"^1 row in .*read at demo [0-9A-F]+/[0-9A-F]+$"), timeout=PATIENCE * 1000)
    expect(page.locator("#query-results tbody")).to_have_text("50")
    for statement in ("DROP SOURCE demo", "INSERT INTO demo.accounts VALUES (1)"):
        page.get_by_label("SQL query").fill(statement)
        page.keyboard.press("Control+Enter")
        expect(error).to_be_visible(timeout=PATIENCE * 1000)


def numbers_move(page: Page, postgres: EmbeddedPostgres) -> None:
    """The position of the log changes with a transaction, without a reload."""
    page.evaluate("window.mark = 1")
    line = page.locator("#drawing-wide .box.log .box-line").first
    shown = line.text_content()
    postgres.execute("UPDATE accounts SET balance = balance", "demo")
    until(lambda: line.text_content() != shown, "another position")
    assert page.evaluate("window.mark") == 1
