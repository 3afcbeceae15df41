"""Plugins that change what other cells share: theirs is refused in words, and the others' rows are as without them."""

import time
from pathlib import Path
from typing import Any

import pytest

from dualscope import run_study

KEPT = ("model", "variant", "task", "seed", "learner", "metric", "layer", "value", "low", "high", "n")
HEAD = """
import random, threading, time
import numpy, torch
import dualscope.models.reading.trace, dualscope.metrics.cosine
from dualscope import LEARNERS, Learned, Learner
"""
LEARNER = '''
@LEARNERS.register("meddles-{name}")
class L{number}(Learner):
    """One that meddles."""
    def learn(self, bench, lr, options):
        {code}
        return Learned(bench.zero_shot)
'''
SHARED = {
    "zero-shot": "bench.zero_shot.attn_out.mul_(2.0)",
    "zero-shot-data": "bench.zero_shot.label_logprobs.data[0] += 1",
    "in-context": "bench.in_context.attn_out.zero_()",
    "scores": "bench.in_context.attn_scores[0, 0, 0, -1] = 7.0",
    "module-attribute": "bench.model.hf.transformer.h[0].attn.scaling = 0.5",
    "configuration": "bench.model.hf.config.layer_norm_epsilon = 0.5",
    "training": "bench.model.hf.train()",
    "patched-class": "type(bench.zero_shot).predictions = property(lambda self: self.labels)",
    "patched-function": "torch.nn.functional.softmax = lambda *a, **k: a[0]",
    "patched-ours": "dualscope.metrics.cosine.cosine = lambda *a, **k: a[0]",
    "thread": "threading.Thread(target=lambda: time.sleep(20), daemon=True).start()",
}
SETTINGS = {
    "threads": "torch.set_num_threads(2)",
    "dtype": "torch.set_default_dtype(torch.float64)",
    "grad": "torch.set_grad_enabled(False)",
    "generators": "torch.manual_seed(3); random.seed(3); numpy.random.seed(3)",
    "precision": "torch.set_float32_matmul_precision('medium')",
    "another": "bench.learned('gd', 0.1).trace.attn_out.mul_(3.0)",
}


def _written(codes: dict[str, str], tmp_path: Path) -> str:
    file = tmp_path / "meddling.py"
    pieces = [LEARNER.format(name=name, number=i, code=code) for i, (name, code) in enumerate(codes.items())]
    file.write_text(HEAD + "".join(pieces))
    return str(file)


def _of_gd(run: Any) -> list[str]:
    return sorted(repr([row[n] for n in KEPT]) for row in run.rows().to_pylist() if row["learner"] == "gd")


@pytest.fixture
def plain(fields: dict[str, Any], tmp_path: Path) -> list[str]:
    return _of_gd(run_study(fields, tmp_path / "plain", device="cpu").run)


def test_what_was_shared_is_shared_no_more(
    fields: dict[str, Any], plain: list[str], forget: None, tmp_path: Path
) -> None:
    names = [name for name in SHARED if name != "thread"]
    plugin = _written(SHARED, tmp_path)
    study = fields | {"seeds": 1, "plugins": [plugin], "learners": [*(f"meddles-{name}" for name in names), "gd"]}
    result = run_study(study, tmp_path / "run", device="cpu")
    reasons = {failure.about.rpartition("· ")[2]: failure.reason for failure in result.failures}
    assert set(reasons) == {f"meddles-{name}" for name in names}
    assert all("changed what other cells share" in reason for reason in reasons.values()), reasons
    assert set(_of_gd(result.run)) <= set(plain)
    assert len(_of_gd(result.run)) * 2 == len(plain)


def test_settings_are_put_back(fields: dict[str, Any], plain: list[str], forget: None, tmp_path: Path) -> None:
    import torch

    before = (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
    study = fields | {
        "plugins": [_written(SETTINGS, tmp_path)],
        "learners": [*(f"meddles-{name}" for name in SETTINGS), "gd"],
    }
    result = run_study(study, tmp_path / "run", device="cpu")
    assert not result.failures
    assert _of_gd(result.run) == plain
    assert (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()) == before


def test_while_a_thread_goes_on_nothing_is_kept(
    fields: dict[str, Any], forget: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dualscope.studies.execute import plugin_isolation

    monkeypatch.setattr(plugin_isolation, "FAREWELL", 0.1)
    plugin = _written({"thread": SHARED["thread"].replace("20", "3")}, tmp_path)
    study = fields | {"seeds": 1, "plugins": [plugin], "learners": ["meddles-thread", "gd"]}
    result = run_study(study, tmp_path / "run", device="cpu")
    reasons = {failure.about.rpartition("· ")[2]: failure.reason for failure in result.failures}
    assert "a thread that goes on running" in reasons["meddles-thread"]
    assert all("thread" in reason for reason in reasons.values())
    while plugin_isolation.left_running():
        time.sleep(0.05)
    assert run_study(study | {"learners": ["gd"]}, tmp_path / "run", device="cpu").complete
