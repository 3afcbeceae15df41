"""One explorer with the embedded model for all tests of this folder."""

from collections.abc import Iterator
from typing import Any

import pytest

from dualscope.explorer.explorer import Explorer
from dualscope.explorer.offer import Offer
from dualscope.explorer.server import in_background
from tests.explorer.served import Served
from tests.explorer.visit import Visit


@pytest.fixture(scope="session")
def explorer() -> Explorer:
    return Explorer(Offer.of(tasks=["embedded-sst2", "embedded-cb"]))


@pytest.fixture(scope="session")
def served(explorer: Explorer) -> Iterator[Served]:
    with in_background(explorer) as address:
        yield Served(address, explorer)


@pytest.fixture
def visit(browser: Any, served: Served) -> Iterator[Visit]:
    found = Visit(browser, served, accept_downloads=True)
    yield found
    found.is_clean()
    found.page.close()
