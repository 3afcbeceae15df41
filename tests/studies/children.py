"""Runs of studies in other processes, which tests kill, race and starve."""

import multiprocessing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dualscope import Run, run_study

# A server that has imported what a run imports, and forks: a child computes at once, and can be killed while it does.
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = [
    *("dualscope.studies.execute.worker", "dualscope.learners", "dualscope.metrics.catalog", "dualscope.tasks"),
    *("dualscope.models.loading.load", "dualscope.results.opened_run", "dualscope.report.page", "pandas"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *("transformers.models.gpt2.modeling_gpt2", "transformers.models.bloom.modeling_bloom"),
]
assert all(find_spec(name) for name in PRELOADED)  # of what is not there the server says nothing
CONTEXT.set_forkserver_preload(PRELOADED)


def compute(fields: dict[str, Any], out: str, options: dict[str, Any], outcomes: Any = None) -> None:
    """Run a study; the ids of the cells that this very process computed go to the queue."""
    import torch

    torch.set_num_threads(1)
    result = run_study(fields, out, device="cpu", **options)
    if outcomes is not None:
        outcomes.put((sorted(result.computed), [(f.key, f.reason) for f in result.failures]))


def start(fields: dict[str, Any], out: Path | str, outcomes: Any = None, **options: Any) -> Any:
    process = CONTEXT.Process(target=compute, args=(fields, str(out), options, outcomes))
    process.start()
    return process


def finish(fields: dict[str, Any], out: Path | str, **options: Any) -> tuple[list[str], list[tuple[str, str]]]:
    """Run a study to its end in a process of its own: what it computed, and what failed."""
    outcomes = CONTEXT.Queue()
    process = start(fields, out, outcomes, **options)
    answer: tuple[list[str], list[tuple[str, str]]] = outcomes.get(timeout=300)
    process.join()
    assert process.exitcode == 0
    return answer


def rows(out: Path | str) -> str:
    """All rows of a run, every number with all its digits: equal texts are bitwise equal rows."""
    return repr(Run.open(out).rows().to_pydict())


def files(out: Path | str) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in Path(out).rglob("*") if path.is_file())
