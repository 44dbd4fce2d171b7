"""Fixtures: one browser for all tests of the page, and pages that fail the test at any error in the console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request
from tests.server.page.chromium import chromium

ANIMATED = 20_000
"""Milliseconds that a browser may take for anything, on a busy machine."""


@dataclass
class Tabs:
    """Opens pages, and records what must not happen in them: errors, and requests to other hosts."""

    browser: Browser
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ("net::ERR_",)
    """Errors that are expected: tests stop the server while pages are open."""
    contexts: list[BrowserContext] = field(default_factory=list)
    hosts: dict[Page, str] = field(default_factory=dict)

    def open(self, url: str, width: int = 1280, height: int = 900, **options: Any) -> Page:
        """Open a page in a browser context of its own; without animations, which take the time of the processor."""
        options = {"reduced_motion": "reduce", **options}
        context = self.browser.new_context(viewport={"width": width, "height": height}, **options)
        self.contexts.append(context)
        context.set_default_timeout(ANIMATED)
        page = context.new_page()
        self.hosts[page] = urlsplit(url).netloc

        def on_console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not any(part in message.text for part in self.allowed):
                self.errors.append(message.text)

        def on_request(request: Request) -> None:
            if urlsplit(request.url).netloc != self.hosts[page]:
                self.foreign.append(request.url)

        page.on("console", on_console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", on_request)
        page.goto(url)
        return page

    def open_live(self, url: str, **options: Any) -> Page:
        """Open a page, and wait until it receives events."""
        page = self.open(url, **options)
        page.wait_for_selector("#connection[data-state=live]")
        return page

    @contextmanager
    def reused(self, url: str, width: int = 1280, height: int = 900) -> Iterator[Page]:
        """Load a page in the tab that an earlier test has left: a new one takes most of the time of a short test."""
        if self.hosts:
            (page,) = self.hosts
            self.hosts[page] = urlsplit(url).netloc
            page.set_viewport_size({"width": width, "height": height})
            page.goto(url)
        else:
            page = self.open(url, width, height)
        try:
            page.wait_for_selector("#connection[data-state=live]")
            yield page
        finally:
            page.goto("about:blank")  # ends its requests, before its server ends


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def tabs(browser: Browser) -> Iterator[Tabs]:
    found = Tabs(browser)
    yield found
    _close(found)
    _assert_clean(found)


@pytest.fixture(scope="module")
def _one_tab(browser: Browser) -> Iterator[Tabs]:
    found = Tabs(browser)
    yield found
    _close(found)


@pytest.fixture
def tab(_one_tab: Tabs) -> Iterator[Tabs]:
    """One tab for all tests of a file that only load a page: see `Tabs.reused`."""
    _one_tab.errors.clear()
    _one_tab.foreign.clear()
    yield _one_tab
    _assert_clean(_one_tab)


def _close(tabs: Tabs) -> None:
    for context in tabs.contexts:
        context.close()


def _assert_clean(tabs: Tabs) -> None:
    assert tabs.errors == []
    assert tabs.foreign == []
