"""`dualscope export` against the real clients: what they read back is what the run says, and nothing is sent."""

import csv
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dualscope.trackers import TrackedStudy, tracked_study
from tests.commands.offline_log import records
from tests.report.made import make_run

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(
        tmp_path_factory.mktemp("runs") / "a study: 1", tasks=["sst2"], learners=["gd", "lcgd"], orders=[0, 1]
    )


@pytest.fixture(scope="module")
def study(run: Path, tmp_path_factory: pytest.TempPathFactory) -> TrackedStudy:
    return tracked_study(run, tmp_path_factory.mktemp("scratch"))


@pytest.fixture
def listener() -> Iterator[tuple[str, list[object]]]:
    """Somebody who is told whenever anybody calls; every client is sent to it, and asked not to go."""
    called: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def wait() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                called.append(connection.recv(200))
                connection.close()

        threading.Thread(target=wait, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", called
        server.shutdown(socket.SHUT_RDWR)


def export(
    run: Path, to: str, out: Path, url: str, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), url)
    servers = {"WANDB_BASE_URL": url, "MLFLOW_TRACKING_URI": url, "TRACKIO_SERVER_URL": url, "WANDB_MODE": "online"}
    return subprocess.run(
        [str(python), "-m", "dualscope.cli", "export", str(run), "--to", to, "--out", str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, **proxies, **servers, "NO_PROXY": "", "PYTHONPATH": str(SOURCE)},
    )


def test_a_run_for_each_learner_with_means_over_its_seeds(study: TrackedStudy, run: Path) -> None:
    names = [one.name for one in study.runs]
    assert len(set(names)) == len(names) == 8  # zero-shot, in-context, gd, lcgd; trained and not
    gd = next(one for one in study.runs if one.name == "gd · sst2 · 4 shots · lr 0.1")
    assert {"lr": 0.1, "variant": "trained", "seeds": 5}.items() <= gd.params.items()
    assert gd.answer == "above the controls"
    assert gd.metrics["sim_aou.low"] < gd.metrics["sim_aou"] < gd.metrics["sim_aou.high"]
    import pyarrow.compute as pc

    from dualscope import Run

    rows = Run.open(run).table(learner="gd", variant="trained", metric="sim_aou", layer=1)
    assert dict(gd.by_layer["sim_aou"])[1] == pytest.approx(pc.mean(rows["value"]).as_py())
    assert [step for step, _ in gd.by_layer["sim_aou"]] == [0, 1, 2]
    assert set(gd.by_step) == {f"grad_norm/layer_{layer}" for layer in range(3)}


@pytest.mark.slow
def test_mlflow_reads_it_back(
    run: Path, study: TrackedStudy, tmp_path: Path, listener: tuple[str, list[object]]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    url, called = listener
    for turn in ("first", "second"):  # the second finds it there
        done = export(run, "mlflow", tmp_path, url)
        assert done.returncode == 0, (turn, done.stderr)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(run.name)
    found = {one.data.tags["dualscope.id"]: one for one in client.search_runs([experiment.experiment_id])}
    whole = found.pop(study.id)
    assert whole.data.tags["mlflow.note.content"] == study.answer
    files = {file.path for file in client.list_artifacts(whole.info.run_id)}
    assert "report.html" in files
    assert found.keys() == {one.id for one in study.runs}
    for one in study.runs:
        there = found[one.id]
        assert there.data.tags["mlflow.parentRunId"] == whole.info.run_id
        assert there.data.params == {key: str(value) for key, value in one.params.items()}
        assert one.metrics.items() <= there.data.metrics.items()
        for name, curve in one.by_layer.items():
            history = client.get_metric_history(there.info.run_id, f"by_layer/{name}")
            assert [(point.step, point.value) for point in history] == list(curve)
    assert called == []


def test_wandb_writes_offline(
    run: Path, study: TrackedStudy, tmp_path: Path, listener: tuple[str, list[object]]
) -> None:
    pytest.importorskip("wandb")
    url, called = listener
    done = export(run, "wandb", tmp_path, url)
    assert done.returncode == 0, done.stderr
    files = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    kept = {}
    for file in files:
        found = list(records(file))
        about = next(record.run for record in found if record.WhichOneof("record_type") == "run")
        kept[about.run_id] = (about, found)
        assert about.run_group == run.name
        assert about.host == ""
    assert kept.keys() == {study.id, *(one.id for one in study.runs)}
    for one in study.runs:
        about, found = kept[one.id]
        config = {entry.key: json.loads(entry.value_json) for entry in about.config.update}
        assert one.params.items() <= config.items()
        assert one.metrics.items() <= _told(found, "summary").items()
        layers = [point for point in _history(found) if "layer" in point]
        assert [point["layer"] for point in layers] == sorted({step for c in one.by_layer.values() for step, _ in c})
    artifact = next(r.artifact for r in kept[study.id][1] if r.WhichOneof("record_type") == "artifact")
    entry = next(entry for entry in artifact.manifest.contents if entry.path == "report.html")
    assert tmp_path in Path(entry.local_path).parents  # a copy, that is there when somebody syncs
    assert Path(entry.local_path).is_file()
    assert called == []


def _told(found: list[Any], kind: str) -> dict[str, Any]:
    last: dict[str, Any] = {}
    for record in found:
        if record.WhichOneof("record_type") == kind:
            last |= {item.key: json.loads(item.value_json) for item in record.summary.update if item.key}
    return last


def _history(found: list[Any]) -> list[dict[str, Any]]:
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.WhichOneof("record_type") == "history"
    ]


@pytest.fixture(scope="module")
def with_trackio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own, since Trackio holds back packages that ours pin; the rest is lent by this one."""
    home = tmp_path_factory.mktemp("trackio")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "--disable-pip-version-check",
        "install",
        "-q",
        "trackio",
    ]
    if subprocess.run(pip, capture_output=True).returncode:
        pytest.skip("Trackio cannot be installed here")
    site = next(home.glob("**/site-packages"))
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


READ = """
import json, sys, trackio
from trackio.sqlite_storage import SQLiteStorage
name = sys.argv[1]
print(json.dumps({run.name: [run.config, SQLiteStorage.get_logs(name, run.name)] for run in trackio.Api().runs(name)}))
"""


@pytest.mark.slow
def test_trackio_reads_it_back(
    run: Path, study: TrackedStudy, tmp_path: Path, with_trackio: Path, listener: tuple[str, list[object]]
) -> None:
    url, called = listener
    for turn in ("first", "second"):
        done = export(run, "trackio", tmp_path, url, with_trackio)
        assert done.returncode == 0, (turn, done.stderr)
    read = subprocess.run(
        [str(with_trackio), "-c", READ, "a-study-1"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRACKIO_DIR": str(tmp_path)},
    )
    found = json.loads(read.stdout)
    assert found.keys() == {run.name, *(one.name for one in study.runs)}
    for one in study.runs:
        config, logs = found[one.name]
        assert one.params.items() <= config.items()
        first = next(log for log in logs if "accuracy" in log)
        assert first["accuracy"] == pytest.approx(one.metrics["accuracy"])
        for name, curve in one.by_layer.items():
            there = [(log["step"], log[f"by_layer/{name}"]) for log in logs if f"by_layer/{name}" in log]
            assert there == [(step, pytest.approx(value)) for step, value in curve]
    assert (tmp_path / "media" / "a-study-1" / "files" / "report.html").is_file()
    assert called == []


def test_csv_is_the_same_numbers(cli: Callable[..., Any], run: Path, study: TrackedStudy, tmp_path: Path) -> None:
    assert cli("export", run, "--to", "csv", "--out", tmp_path).code == 0
    with (tmp_path / "runs.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["name"] for line in lines] == [one.name for one in study.runs]
    for line, one in zip(lines, study.runs, strict=True):
        assert all(math.isclose(float(line[name]), value) for name, value in one.metrics.items())
    with (tmp_path / "curves.csv").open(encoding="utf-8") as file:
        points = list(csv.DictReader(file))
    assert len(points) == sum(len(c) for one in study.runs for cs in (one.by_layer, one.by_step) for c in cs.values())
    from dualscope import Run

    assert (tmp_path / "rows.csv").read_text().count("\n") == Run.open(run).rows().num_rows + 1


@pytest.mark.parametrize("to", ["mlflow", "wandb", "trackio"])
def test_a_missing_client_is_one_sentence(
    cli: Callable[..., Any], run: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.delitem(sys.modules, "dualscope.trackers", raising=False)
    monkeypatch.setitem(sys.modules, to, None)
    code, _, err = cli("export", run, "--to", to)
    assert code == 2
    assert err.strip() == f"error: --to {to} needs its client: pip install 'dualscope[{to}]'"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--to", "csv"], "not a run folder"),
        (["RUN", "--to", "csv", "--out", "https://example.org"], "this machine alone"),
        (["RUN", "--to", "csv", "--out", "/dev/null/x"], "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said(run: Path, arguments: list[str], said: str) -> None:
    from typer.testing import CliRunner

    from dualscope.cli import app

    result = CliRunner().invoke(app, ["export", *(str(run) if a == "RUN" else a for a in arguments)])
    assert result.exit_code != 0
    assert said in str(result.exception)


def test_names_that_are_formulas_are_texts(
    cli: Callable[..., Any], model_folder: str, task_files: tuple[str, str], tmp_path: Path
) -> None:
    """A spreadsheet would run them; what we read back ourselves has the name as it is."""
    named = tmp_path / "=cmd()"
    shutil.copytree(model_folder, named)
    out = tmp_path / "run"
    sizes = ("--seeds", 1, "--shots", 2, "--queries", 4, "--learner", "gd", "--lr", 0.1, "--device", "cpu")
    assert cli("run", "--model", named, "--task", task_files[0], *sizes, "--out", out).code == 0
    assert cli("export", out, "--to", "csv", "--out", tmp_path / "csv").code == 0
    for file in (out / "summary.csv", *sorted((tmp_path / "csv").glob("*.csv"))):
        with file.open(newline="", encoding="utf-8") as lines:
            cells = [cell for line in csv.reader(lines) for cell in line]
        assert any("'=cmd()" in cell for cell in cells), file
        assert not [cell for cell in cells if cell[:1] in ("=", "@", "+")], file
    assert "'=cmd()" not in (out / "report.html").read_text(encoding="utf-8")
    assert cli("report", out, "--out", tmp_path / "again.html").code == 0
    assert "'=cmd()" not in (tmp_path / "again.html").read_text(encoding="utf-8")
