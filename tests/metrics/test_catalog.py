"""The order of metrics, and so of rows, is the catalog's, whatever was imported first; and between what they lie."""

import subprocess
import sys

import pytest

from dualscope.core.statistics import ANYWHERE
from dualscope.metrics.catalog import FAMILIES, METRICS, bounds_of
from dualscope.metrics.measured import measure
from dualscope.metrics.replay import read_replays
from dualscope.metrics.splice import read_splices
from tests.metrics.cases import random_case

FIRST = ("catalog", FAMILIES[-1], "measured", "measured_response", "prediction")
EACH_FIRST = """
import os, sys, torch, transformers, scipy.stats, pyarrow  # what all of them share, once
for module in sys.argv[1:]:
    if not os.fork():
        __import__(f"dualscope.metrics.{module}")
        from dualscope import METRICS
        print(module, *METRICS, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def orders() -> dict[str, list[str]]:
    """The names of the metrics, by the module that was imported first: each in a process that had none of ours."""
    done = subprocess.run([sys.executable, "-c", EACH_FIRST, *FIRST], capture_output=True, text=True, check=True)
    return {module: names for module, *names in map(str.split, done.stdout.splitlines())}


def test_every_number_lies_within_its_metrics_bounds() -> None:
    """Intervals are cut there: bounds that a number can pass would cut the truth off."""
    asked = [name for name in METRICS if not METRICS[name].per_head]
    seen = set()
    for seed in range(4):
        for row in measure(random_case(seed), metrics=asked, per_head=True, seed=seed).rows:
            least, most = bounds_of(row["metric"])
            assert not row["value"] < least - 1e-12, row
            assert not row["value"] > most + 1e-12, row
            seen.add(row["metric"])
    assert {"accuracy", "rec2ftp", "jaccard_corrected", "explained", "sim_aou", "sim_am", "change_norm"} <= seen
    anywhere = [name for name in METRICS if bounds_of(name) == ANYWHERE]
    read = {name for name in METRICS if METRICS[name].reading in (read_replays, read_splices)}
    shares = {name for name in read if not name.endswith("_distance")}  # may overshoot, or go against the effect
    assert set(anywhere) == shares
    assert bounds_of("of a plugin that is not loaded") == ANYWHERE


@pytest.mark.parametrize("first", FIRST)
def test_whatever_module_is_imported_first(orders: dict[str, list[str]], first: str) -> None:
    assert orders[first] == list(METRICS)
