"""Pages to look at: made once a session."""

import json
from pathlib import Path

import pytest

from dualscope.report import write_report
from tests.report.made import make_run

EVIL = (
    '<script>window.stolen = 1</script><img src=x onerror="window.stolen = 2"> "quoted" \'single\' '
    "</script> & {{ 7*7 }}"
)


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "plain")


@pytest.fixture(scope="session")
def response_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of the embedded model in which labels change: its answers are what a page opens with."""
    from dualscope import run_study

    place = tmp_path_factory.mktemp("responses") / "run"
    study = {
        "tasks": ["embedded-sst2", "embedded-subj"],
        "learners": ["gd", "probe"],
        "lr": 1.0,
        "shots": 8,
        "seeds": 3,
        "variants": ["trained"],
    }
    run_study({**study, "queries": 8, "interventions": [{"kind": "relabel", "draws": 8}]}, place)
    return place


@pytest.fixture(scope="session")
def page(plain_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([plain_run], tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="session")
def evil_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of the embedded model on a data set whose text, labels and template are hostile."""
    from dualscope import run_study

    folder = tmp_path_factory.mktemp("evil")
    rows = [{"text": f"{EVIL} {i}", "label": i % 2} for i in range(40)]
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "name": "evil",
        "source": {"files": {"train": "train.jsonl", "test": "test.jsonl"}},
        "splits": {"train": "train", "evaluation": "test"},
        "template": 'Say "</script>": {text} Label:',
        "labels": ["<b>Negative</b>", "</script>Positive"],
    }
    (folder / "evil.yaml").write_text(json.dumps(task))
    study = {"tasks": [str(folder / "evil.yaml")], "learners": ["gd"], "lr": [0.1]}
    run_study({**study, "shots": 2, "queries": 6, "seeds": 1}, folder / "run")
    return folder / "run"
