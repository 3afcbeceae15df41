"""Photographs the explorer for its page and the README: python -m docs.images.explorer"""

from pathlib import Path
from typing import Any

from benchmarks.page import chromium

from dualscope.explorer.explorer import Explorer
from dualscope.explorer.offer import Offer
from dualscope.explorer.server import in_background

HERE = Path(__file__).parent
PATIENCE = 120_000  # milliseconds


def opened(browser: Any, address: str, width: int, height: int, scheme: str = "light") -> Any:
    """The page with a layer and one of its heads open."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.wait_for_selector("html[data-settled]", state="attached")
    page.click("#layers button:nth-child(3)")
    page.click("#heads-cells button:nth-child(2)")
    page.wait_for_selector("#tokens-rows .reading:nth-child(4)")
    return page


def main() -> None:
    with in_background(Explorer(Offer.of())) as address, chromium() as browser:
        opened(browser, address, 1380, 1180).close()  # the first answer waits for what is imported late
        page = opened(browser, address, 1380, 1180)
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(500)
        page.screenshot(path=HERE / "explorer.png")
        page.locator("#tokens").screenshot(path=HERE / "explorer-words.png")
        page.close()
        page = opened(browser, address, 1380, 1180, "dark")
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(500)
        page.screenshot(path=HERE / "explorer-dark.png")
        page.close()
        page = opened(browser, address, 390, 844)
        page.locator("#answers").scroll_into_view_if_needed()
        page.evaluate("document.getElementById('answers').scrollIntoView()")
        page.wait_for_timeout(500)
        page.screenshot(path=HERE / "explorer-narrow.png")
    for path in sorted(HERE.glob("explorer*.png")):
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
