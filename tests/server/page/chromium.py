"""A real Chromium for the tests of the page, and for the screenshots of the documentation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

__all__ = ["MISSING", "chromium", "chromium_path"]

MISSING = (
    "the tests of the status page need Chromium, and none was found in PATH (chromium, chromium-browser, "
    "google-chrome); install it: apt-get install chromium"
)
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--disable-component-update", "--disable-sync", "--force-color-profile=srgb"),
)


def chromium_path() -> str | None:
    """Return the path of the browser, if there is one."""
    return next((path for path in map(shutil.which, _NAMES) if path), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser while the ``with`` block lasts; raise `FileNotFoundError` with a hint if there is none."""
    path = chromium_path()
    if path is None:
        raise FileNotFoundError(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()
