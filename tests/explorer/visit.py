"""A page of the explorer in a real browser, and what a visitor does on it."""

from typing import Any

import pytest

from tests.explorer.served import Served, state

PATIENCE = 180_000  # milliseconds, for machines that do something else as well


class Visit:
    """A page that was opened, what a visitor does on it, and whatever went wrong meanwhile."""

    def __init__(self, browser: Any, served: Served, **settings: Any) -> None:
        self.served, self.complaints = served, list[str]()
        self.requests: list[str] = []
        self.page = browser.new_page(**settings)
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda message: self._console(message))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(served.address)
        self.settle()

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning", "trace"):
            self.complaints.append(message.text)

    def settle(self) -> None:
        self.page.wait_for_selector("html[data-ready]", state="attached")
        self.page.wait_for_selector("html[data-settled]", state="attached")

    def until(self, expression: str) -> None:
        """Not playwright's own waiting, which evaluates text: the page's policy forbids that."""
        for _ in range(PATIENCE // 20):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(20)
        pytest.fail(f"never came true: {expression}")

    def store(self, expression: str) -> Any:
        """Something of the page's own store."""
        return self.page.evaluate(f"import('/page/store.js').then(store => {expression})")

    def adopt(self, **more: Any) -> None:
        self.page.evaluate("given => import('/page/store.js').then(store => store.adopt(given))", state(**more))
        self.settle()

    def shares(self, learner: str) -> list[float]:
        found = self.page.eval_on_selector_all(
            f'[data-learner="{learner}"] .bar', "all => all.map(one => Number(one.dataset.share))"
        )
        assert found
        return list(found)

    def texts(self) -> list[str]:
        return list(self.page.eval_on_selector_all("#demonstrations textarea", "all => all.map(one => one.value)"))

    def is_clean(self) -> None:
        assert self.complaints == []
        away = [url for url in self.requests if not url.startswith((self.served.origin + "/", "data:", "blob:"))]
        assert away == []

    def overflow(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))
