"""``dualscope run --dry-run``: what would be done, in numbers, and what is refused before."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_dry_run(cli: Callable[..., Any], arguments: list[Any], tmp_path: Path) -> None:
    plan = json.loads(cli(*arguments, "--dry-run", "--json").out)
    assert len(plan["cells"]) == 16
    assert all(cell["seconds"] > 0 and cell["bytes"] > 0 and not cell["stored"] for cell in plan["cells"])
    for cell in plan["cells"]:
        parts = cell["memory"]
        assert cell["bytes"] == sum(parts.values()) - min(parts["activations"], parts["graphs"])
        assert 0 < parts["weights"] < 2**20
        assert parts["libraries"] > 2**28
        assert bool(parts["changes"]) == (" gd" in cell["cell"])
    assert not (tmp_path / "run/cells").exists()
    said = cli(*arguments, "--dry-run").out
    assert "16 of 16 listed cells to do" in said
    assert len(said.splitlines()) < 16, "counts by model and task; the cells one by one on request"
    assert "in-context" not in said
    in_full = " ".join(cli(*arguments, "--dry-run", "--verbose").out.split())
    assert in_full.count("to do") == 1 + 16
    assert re.search(r"up to \d+ MB a process: weights \d+ MB, context .*, libraries 600 MB", " ".join(said.split()))
    searched = " ".join(cli(*arguments, "--dry-run", "--lr", "auto").out.split())
    assert re.search(r"learning rate, over 2 seeds: up to 8 pieces, about [\d.]+ s", searched)
    assert re.search(r"then \d+ cells with what is chosen, about [\d.]+ s", searched)
    counted = json.loads(cli(*arguments, "--dry-run", "--lr", "auto", "--json").out)
    assert len(counted["cells"]) + counted["cells_after_choices"] == 16
    assert [search["pieces"] for search in counted["choices"]] == [8]
    refused = cli(*arguments, "--dry-run", "--shots", "81")
    assert (refused.code, refused.out) == (2, "")
    assert "81 shots were asked for, and the split 'train' has 80 examples" in refused.err


def test_what_trains_more_needs_more(cli: Callable[..., Any], arguments: list[Any]) -> None:
    """All weights, by Adam, on many examples a step: declared by the learner, whether or not it has a rate."""
    tuned = ("lr=0.1", "epochs=1", "loss=all", "parameters=all", "optimiser=adam")
    options = [*(f"gd-tuned.{setting}" for setting in tuned), "kv-distilled.lr=0.001"]
    more = [part for name in ("gd-all", "gd-tuned", "kv-distilled") for part in ("--learner", name)]
    more += [part for option in options for part in ("--option", option)]
    plan = json.loads(cli(*arguments, *more, "--dry-run", "--json").out)
    found = {
        cell["cell"].rpartition(" · ")[2].split("[")[0].split(" lr")[0]: cell["memory"]
        for cell in plan["cells"]
        if " under " not in cell["cell"]
    }
    weights = found["gd-all"]["weights"]
    assert found["gd"]["changes"] < weights < found["gd-all"]["changes"]
    assert found["gd-all"]["gradients"] == weights
    assert found["gd-tuned"]["gradients"] == 4 * weights
    assert found["kv-distilled"]["changes"] > 0
    assert found["kv-distilled"]["gradients"] == 4 * found["gd"]["gradients"]
    assert found["zero-shot"]["changes"] == found["in-context"]["gradients"] == 0


def test_corrupted_labels_on_one_side(cli: Callable[..., Any], tmp_path: Path) -> None:
    arguments = ["run", "--task", "embedded-sst2", "--seeds", "1", "--queries", "4", "--shots", "2"]
    arguments += ["--variant", "trained", "--out", str(tmp_path / "run"), "--dry-run", "--json"]
    refused = cli(*arguments, "--corrupt", "icl")
    assert refused.code == 2
    assert "--demo-labels flipped or random" in refused.err
    wrong = cli(*arguments, "--demo-labels", "flipped", "--corrupt", "ilc")
    assert wrong.code == 2
    assert "corrupt" in wrong.err
    assert cli(*arguments, "--demo-labels", "flipped", "--corrupt", "icl").code == 0


def test_what_a_learner_cannot_have_is_said_on_request(cli: Callable[..., Any], tmp_path: Path) -> None:
    """A newcomer's first run has a probe, which has no random update and no plant by its nature."""
    default = ["run", "--task", "embedded-sst2", "--seeds", "1", "--out", tmp_path / "run", "--dry-run"]
    assert "probe" not in cli(*default).out
    in_full = " ".join(cli(*default, "--verbose").out.split())
    assert "note: left out probe/random-update" in in_full
    assert "note: probe is not planted" in in_full
    assert any("not planted" in note for note in json.loads(cli(*default, "--json").out)["notes"])
