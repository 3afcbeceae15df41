"""A report's page in a real browser, and whatever goes wrong there."""

from pathlib import Path
from typing import Any


class Look:
    """A page that was opened, and whatever went wrong while it was."""

    def __init__(self, browser: Any, path: Path, **settings: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(**settings)
        self.page.on("console", lambda message: self._console(message))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def see_everything(self) -> None:
        """Scroll to every chart that is shown, so that it is drawn."""
        for plot in self.page.query_selector_all(".plot"):
            if plot.is_visible():
                plot.scroll_into_view_if_needed()
                plot.wait_for_selector("svg.main-svg", state="attached")

    def is_clean(self) -> None:
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("data:", "blob:"))] == [self.url]
