"""Make the screenshots of the status page for the documentation: ``python -m docs.screenshots``.

The page is the real one, served by the real server over a canned status (`tests.server.page.homes`), in a real
Chromium. It looks best where the font Inter is installed (Debian: fonts-inter).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser
from tests.server.page.canned_server import canned_server
from tests.server.page.canned_sql import CannedSql
from tests.server.page.chromium import chromium
from tests.server.page.homes import HOMES

__all__ = ["IMAGES", "SHOTS", "Shot", "main"]

IMAGES = Path(__file__).parent / "images"


@dataclass(frozen=True)
class Shot:
    """A screenshot: the state of the home, the colours, and the size of the window."""

    name: str
    home: str
    scheme: str
    width: int
    height: int


SHOTS = (
    Shot("status-page-light", "streaming", "light", 1200, 1010),
    Shot("status-page-dark", "streaming", "dark", 1200, 1010),
    Shot("status-page-failed", "failed_table", "light", 1200, 640),
    Shot("status-page-snapshot", "snapshot", "light", 1200, 860),
    Shot("status-page-phone", "streaming", "dark", 390, 900),
)


def main() -> None:
    """Make all screenshots."""
    IMAGES.mkdir(exist_ok=True)
    with chromium() as browser:
        for shot in SHOTS:
            path = IMAGES / f"{shot.name}.png"
            _take(browser, shot, path)
            print(f"{path.name}: {path.stat().st_size // 1024} kB")


def _take(browser: Browser, shot: Shot, path: Path) -> None:
    with canned_server(HOMES[shot.home], history_step=3, routes=CannedSql().routes(), seconds=1.0) as server:
        page = browser.new_page(
            viewport={"width": shot.width, "height": shot.height},
            color_scheme="dark" if shot.scheme == "dark" else "light",
        )
        page.goto(server.url)
        page.wait_for_selector("#connection[data-state=live]")
        page.wait_for_timeout(3500)  # until numbers and animations have settled
        page.screenshot(path=path)
        page.close()


if __name__ == "__main__":
    main()
