"""The status page in a real browser, with a canned status: every state, updates, keyboard, accessibility, queries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from docs.screenshots import IMAGES, SHOTS
from playwright.sync_api import Page, expect
from tests.server.page.canned_server import CannedServer, canned_server
from tests.server.page.canned_sql import POSITIONS, SLOW, CannedSql
from tests.server.page.conftest import Tabs
from tests.server.page.homes import HOMES, ODD

from penstock.server.page import quantities
from penstock.testing.waiting import until

VERDICTS = {
    "streaming": r"All 12 tables live, \d+ ms behind",
    "empty": "Ready for a first source",
    "snapshot": r"Snapshot of 3 tables in progress, \d+% done",
    "failed_table": "1 table failed: shop.payments",
    "lost_postgres": "1 source is waiting: shop",
    "not_running": "Nothing is running",
    "many_tables": "3 tables failed",
    "shards": r"All 12 tables live, \d+ ms behind",
    "topics": "The table is live",
    "wal_alarm": "2 warnings",
    "odd_names": "1 table failed, 1 sink failed",
    "many_sources": r"All 12 tables live, \d+ ms behind",
}


@pytest.fixture
def sql() -> CannedSql:
    return CannedSql()


@pytest.fixture
def server(sql: CannedSql) -> Iterator[CannedServer]:
    with canned_server(HOMES["streaming"], routes=sql.routes()) as running:
        yield running


def serious(page: Page) -> list[str]:
    """Return what axe finds serious or critical."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {[node['html'][:160] for node in each['nodes']]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOMES)
def test_each_state_has_a_verdict_and_fits_a_phone(name: str, tab: Tabs) -> None:
    with canned_server(HOMES[name]) as server, tab.reused(server.url) as page:
        expect(page.locator("h1")).to_have_text(re.compile(f"^{VERDICTS[name]}$"))
        page.set_viewport_size({"width": 360, "height": 740})
        assert overflow(page) == 0


IN_FAST_TIER = {("failed_table", "light"), ("topics", "dark"), ("empty", "light")}
"""What axe checks in seconds; together these have every part of the page."""


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        pytest.param(name, scheme, marks=[] if (name, scheme) in IN_FAST_TIER else [pytest.mark.deep])
        for name in HOMES
        for scheme in ("light", "dark")
    ],
)
def test_axe_finds_nothing_serious(name: str, scheme: str, tabs: Tabs) -> None:
    with canned_server(HOMES[name]) as server:
        width = 1280 if scheme == "light" else 360
        page = tabs.open_live(server.url, width=width, color_scheme=scheme)
        assert serious(page) == []


def test_without_javascript_the_page_shows_the_status(tabs: Tabs, server: CannedServer) -> None:
    server.home.make = HOMES["failed_table"]
    until(lambda: "1 table failed" in httpx.get(server.url).text, "a sample of that status")
    page = tabs.open(server.url, java_script_enabled=False)
    expect(page.locator("h1")).to_have_text("1 table failed: shop.payments")
    expect(page.locator("#table-rows tr[data-name]")).to_have_count(12)
    expect(page.locator("#query-form")).to_be_hidden()
    expect(page.locator(".problem .hint").first).to_contain_text("ALTER SOURCE shop RETRY TABLE")


def test_the_page_has_no_inline_script_style_or_handler(server: CannedServer) -> None:
    response = httpx.get(server.url)
    assert "unsafe-inline" not in response.headers["content-security-policy"]
    assert re.findall(r"<style|<script(?! src=)|\sstyle=|\son\w+=|javascript:", response.text) == []
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', response.text)) == {
        *("/", "/page/icon-ok.svg", "/page/page.css", "/page/page.js", "/metrics", "/api/status", "/healthz"),
    }


def test_odd_names_are_text(tab: Tabs) -> None:
    with canned_server(HOMES["odd_names"]) as server, tab.reused(server.url) as page:
        names = page.locator("#table-rows th .name").all_inner_texts()
        assert sorted(names) == sorted(f"shop.{name}" for name in ODD)
        assert page.locator("main script, main img").count() == 0


def test_spark_is_starting(tabs: Tabs, server: CannedServer) -> None:
    server.spark_error = "Spark is being started"
    page = tabs.open_live(server.url)
    expect(page.locator("h1")).to_have_text("Spark is being started")
    server.spark_error = None
    expect(page.locator("h1")).to_contain_text("All 12 tables live")


def test_a_status_that_cannot_be_read_is_a_verdict(tabs: Tabs, server: CannedServer) -> None:
    server.failure = "the disk is full"
    until(lambda: server.context.sampler.error, "the error")
    page = tabs.open(server.url)
    expect(page.locator("h1")).to_have_text("The status cannot be read")
    expect(page.locator(".problems")).to_contain_text("the disk is full")
    expect(page.locator(".problems")).to_contain_text("Free some space.")


def test_screenshots_of_the_documentation_are_small_and_shown() -> None:
    page = (IMAGES.parent / "how-to" / "read-the-status-page.md").read_text(encoding="utf-8")
    assert {path.stem for path in IMAGES.iterdir()} == {shot.name for shot in SHOTS}
    assert [shot.name for shot in SHOTS if f"../images/{shot.name}.png" not in page] == []
    assert [path.name for path in IMAGES.iterdir() if path.stat().st_size > 200_000] == []


# -- updates -----------------------------------------------------------------------------------------------------------


def test_numbers_change_without_a_reload(tabs: Tabs, server: CannedServer) -> None:
    page = tabs.open_live(server.url)
    page.evaluate("window.mark = 1")
    rate = page.locator("#drawing-wide .flow-label.rate").first
    shown = rate.text_content()
    until(lambda: rate.text_content() != shown, "another rate")
    assert page.evaluate("window.mark") == 1


def test_the_verdict_follows_the_state(tabs: Tabs, server: CannedServer) -> None:
    page = tabs.open_live(server.url)
    announcement = page.locator("#announcement")
    expect(announcement).to_have_text("All 12 tables live")
    server.home.make = HOMES["failed_table"]
    expect(page.locator("h1")).to_have_text("1 table failed: shop.payments")
    expect(announcement).to_contain_text("1 table failed")
    expect(page.locator("body")).to_have_attribute("data-level", "critical")
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", "/page/icon-critical.svg")
    assert page.title() == "1 table failed: shop.payments – Penstock"
    expect(page.locator("#table-rows tr").first).to_have_attribute("data-name", "shop.payments")
    server.home.make = HOMES["streaming"]
    expect(announcement).to_have_text("All 12 tables live")
    expect(page.locator(".problem:visible")).to_have_count(0)


def test_the_announcement_is_not_repeated(tabs: Tabs, server: CannedServer) -> None:
    """A screen reader announces each change of the element, so its text must stay while only numbers change."""
    page = tabs.open_live(server.url)
    page.evaluate(
        """() => {
            window.changes = 0;
            const all = { childList: true, characterData: true, subtree: true };
            new MutationObserver(() => window.changes++).observe(document.getElementById("announcement"), all);
            window.updates = 0;
            new MutationObserver(() => window.updates++).observe(document.getElementById("pipe"), all);
        }"""
    )
    until(lambda: page.evaluate("window.updates") > 3, "updates of the drawing")
    assert page.evaluate("window.changes") == 0


def test_snapshot_progress_moves(tabs: Tabs) -> None:
    with canned_server(HOMES["snapshot"]) as server:
        page = tabs.open_live(server.url)
        bar = page.get_by_label("Snapshot of shop.orders", exact=True)
        first = float(bar.get_attribute("value") or "1")
        until(lambda: float(bar.get_attribute("value") or 0) > first, "progress")
        expect(page.locator("tr[data-name='shop.returns']")).to_contain_text("waiting for a transaction of pid 4711")


def test_focus_and_typed_text_survive_updates(tabs: Tabs, server: CannedServer) -> None:
    page = tabs.open_live(server.url)
    page.locator("#query-text").fill("SELECT 1")
    chip = page.locator("#table-chips button", has_text="live")
    chip.focus()
    rate = page.locator("#drawing-wide .flow-label.rate").first
    shown = rate.text_content()
    until(lambda: rate.text_content() != shown, "an update")
    expect(chip).to_be_focused()
    expect(page.locator("#query-text")).to_have_value("SELECT 1")


def test_a_lost_connection_is_shown_and_comes_back(tabs: Tabs) -> None:
    with canned_server(HOMES["streaming"]) as server:
        page = tabs.open_live(server.url)
        port = int(server.url.rpartition(":")[2])
    expect(page.locator("#lost")).to_contain_text("The connection to Penstock is lost")
    expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
    with canned_server(HOMES["failed_table"], port=port):
        expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        expect(page.locator("#lost")).to_be_hidden()
        expect(page.locator("h1")).to_have_text("1 table failed: shop.payments")


def test_reduced_motion_stops_all_animations(tabs: Tabs, server: CannedServer) -> None:
    page = tabs.open_live(server.url, reduced_motion="no-preference")
    moving = "document.getAnimations().filter((one) => one.playState === 'running').length"
    until(lambda: page.evaluate(moving) > 0, "the water to flow")
    page.emulate_media(reduced_motion="reduce")
    until(lambda: page.evaluate(moving) == 0, "no animation")


# -- tables ------------------------------------------------------------------------------------------------------------


def names_shown(page: Page) -> list[str]:
    shown = page.locator("#table-rows tr[data-name]:not([hidden])")
    return list(shown.evaluate_all("rows => rows.map(row => row.dataset.name)"))


def test_200_tables_are_searched_filtered_and_sorted(tabs: Tabs) -> None:
    with canned_server(HOMES["many_tables"], seconds=1.0) as server:
        page = tabs.open_live(server.url)
        assert len(names_shown(page)) == 200
        assert names_shown(page)[:3] == [f"saas.tenant_{place}_events" for place in ("017", "088", "131")]
        page.get_by_role("button", name="failed 3").click()
        assert len(names_shown(page)) == 3
        expect(page.locator("#table-rows .error-row:visible")).to_have_count(3)
        page.get_by_role("button", name="all", exact=True).click()
        page.get_by_label("Search tables").fill("_19")
        assert names_shown(page) == [f"saas.tenant_{place}_events" for place in (*range(190, 195), *range(195, 200))]
        page.get_by_role("button", name="Unapplied").click()
        expected = [f"saas.tenant_{place}_events" for place in (*range(199, 194, -1), *range(190, 195))]
        assert names_shown(page) == expected
        page.evaluate("window.mark = document.querySelector('#table-rows tr:not([hidden])')")
        server.home.make = lambda seconds: HOMES["many_tables"](seconds + 500)  # other positions: an update
        position = page.locator("#table-rows td.place").nth(60)
        shown = position.text_content()
        until(lambda: position.text_content() != shown, "an update")
        assert names_shown(page) == expected
        assert page.evaluate("window.mark === document.querySelector('#table-rows tr:not([hidden])')")
        page.get_by_label("Search tables").fill("nothing like it")
        page.get_by_role("button", name="Show all tables").click()
        assert len(names_shown(page)) == 200


# -- charts ------------------------------------------------------------------------------------------------------------


def test_charts_show_values_under_the_pointer_and_by_keyboard(tabs: Tabs) -> None:
    with canned_server(HOMES["streaming"], history_step=20) as server:
        page = tabs.open_live(server.url)
        plot = page.get_by_role("slider", name="Changes per second, last hour")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.66, box["y"] + 20)
        tip = page.locator(".tip:visible")
        expect(tip).to_have_text(re.compile(r"^\d\d:\d\d:\d\d.*shop[\d,.]+( k)?/s.*bank[\d,.]+( k)?/s$", re.DOTALL))
        page.mouse.move(0, 0)
        expect(tip).to_have_count(0)
        plot.focus()
        page.keyboard.press("Home")
        first = plot.get_attribute("aria-valuetext")
        page.keyboard.press("PageUp")
        assert plot.get_attribute("aria-valuetext") != first
        expect(tip).to_contain_text("shop")
        page.keyboard.press("Escape")
        expect(tip).to_have_count(0)


NUMBERS: dict[str, Any] = {
    "rateText": (quantities.rate_text, (0, 0.4, 9.9, 9.96, 12, 9999, 12_345, 450_000, 3_000_000, 2.5e9)),
    "lagText": (quantities.lag_text, (0.4, 1, 42.4, 999.4, 1000, 59_900, 61_000, 3_600_000, 100_000_000, 864_000_000)),
    "sizeText": (quantities.size_text, (0, 999, 1000, 1536, 102_400, 5 << 20, 7 << 30, 3 << 40)),
}


def test_script_and_server_format_numbers_alike(tabs: Tabs, server: CannedServer) -> None:
    page = tabs.open(server.url)
    for name, (function, values) in NUMBERS.items():
        assert [page.evaluate(f"{name}({value})") for value in values] == [function(value) for value in values]


# -- query -------------------------------------------------------------------------------------------------------------


def test_a_query_shows_rows_and_the_position_that_it_read(tabs: Tabs, server: CannedServer, sql: CannedSql) -> None:
    page = tabs.open_live(server.url)
    page.get_by_label("SQL query").fill("SELECT * FROM shop.orders")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#query-state")).to_contain_text("5 rows (more exist")
    expect(page.locator("#query-state")).to_contain_text("in 312 ms, read at")
    for source, position in POSITIONS.items():
        expect(page.locator("#query-state")).to_contain_text(f"{source} {position}")
    assert page.locator("#query-results tbody tr").all_inner_texts()[:2] == ["1\t<script>alert(1)</script>", "2\tnull"]
    expect(page.locator("#query-results td").nth(8)).to_have_text("12345678901234567890")  # more than a double holds
    expect(page.locator("#query-results th").nth(1)).to_contain_text("<b>note</b>")
    assert page.locator("#query-results script, #query-results b").count() == 0
    assert sql.requests == [{"sql": "SELECT * FROM shop.orders", "read_only": True, "limit": 1000, "format": "json"}]


def test_a_write_is_refused_with_a_hint(tabs: Tabs, server: CannedServer) -> None:
    tabs.allowed += ("status of 400",)
    page = tabs.open_live(server.url)
    page.get_by_label("SQL query").fill("DROP SOURCE shop")
    page.get_by_role("button", name="Run").click()
    error = page.locator("#query-error")
    expect(error).to_contain_text("only queries are allowed here")
    expect(error).to_contain_text("penstock sql")
    page.get_by_role("button", name="SHOW SOURCES").click()
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#query-results tbody tr")).to_have_count(2)
    expect(error).to_be_hidden()


def test_a_query_is_cancelled(tabs: Tabs, server: CannedServer, sql: CannedSql) -> None:
    page = tabs.open_live(server.url)
    page.get_by_label("SQL query").fill(SLOW)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#query-results th")).to_have_count(2)
    expect(page.get_by_role("button", name="Run")).to_be_disabled()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#query-state")).to_have_text("Cancelled.")
    expect(page.get_by_role("button", name="Run")).to_be_enabled()
    until(lambda: sql.cancelled == ["q1"] and sql.closed == ["q1"], "the end of the query")


@pytest.mark.parametrize(
    ("query", "message"), [("SELECT broken", "division by zero"), ("SELECT cut short", "the answer broke off")]
)
def test_a_query_that_fails_says_so(query: str, message: str, tabs: Tabs, server: CannedServer) -> None:
    page = tabs.open_live(server.url)
    page.get_by_label("SQL query").fill(query)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#query-error")).to_contain_text(message)


# -- keyboard ----------------------------------------------------------------------------------------------------------

FOCUSED = """() => {
    const node = document.activeElement, style = getComputedStyle(node), box = node.getBoundingClientRect();
    const name = node.getAttribute("aria-label") || node.id || node.textContent.trim();
    const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
    return [name, outlined, box.width > 0 && box.height > 0];
}"""


def test_the_keyboard_reaches_everything_with_visible_focus(tabs: Tabs, sql: CannedSql) -> None:
    with canned_server(HOMES["failed_table"], routes=sql.routes()) as server:
        page = tabs.open_live(server.url)
        page.wait_for_selector(".chart")
        reached: list[str] = []
        for _ in range(80):
            page.keyboard.press("Tab")
            name, has_outline, is_visible = page.evaluate(FOCUSED)
            assert has_outline, name
            assert is_visible, name
            reached.append(name)
            if name == "query-text":
                break
        expected = ["Skip to tables", "Penstock, status", "Tables", "Sources", "Sinks", "Query"]
        assert reached[: len(expected)] == expected
        rest = {"Commit to readable, last hour", "all", "failed 1", "live 11", "table-search", "Table", "Unapplied"}
        assert rest <= set(reached)
        page.keyboard.type("SELECT * FROM shop.orders")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#query-state")).to_contain_text("5 rows")
        expect(page.get_by_role("button", name="Run")).to_be_focused()


def test_the_skip_link_leads_to_the_tables(tabs: Tabs, server: CannedServer) -> None:
    page = tabs.open_live(server.url)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#tables")).to_be_focused()
