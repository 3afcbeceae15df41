"""`dualscope run` as a person meets it."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualscope.commands.run import free_folder, holds_another, run_name, with_options
from dualscope.core.errors import InputError
from dualscope.studies.study import Study

HEAVY = ("torch", "transformers", "datasets", "plotly", "duckdb", "ray")
MORE = ("--seeds", "6", "--variant", "trained")
REPORTING = f"""
import sys
from dualscope.cli import main
sys.argv = ["dualscope", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    print("exit code", stop.code, file=sys.stderr)
print("imported:", *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
"""


def _python(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", REPORTING, *map(str, arguments)], capture_output=True, text=True)


def test_nothing_is_imported_that_is_not_needed(arguments: list[Any]) -> None:
    first = _python(*arguments)
    assert "imported: torch transformers\n" in first.stderr, first.stderr
    assert "8 cells, 8 computed now" in first.stdout
    again = _python(*arguments)
    assert "imported:\n" in again.stderr, again.stderr
    assert "8 cells, 0 computed now" in again.stdout
    tables = first.stdout[: first.stdout.index("8 cells")]
    assert tables == again.stdout[: again.stdout.index("8 cells")]


def test_the_tables(cli: Callable[..., Any], arguments: list[Any], tmp_path: Path) -> None:
    result = cli(*arguments, "--variant", "trained", "--variant", "untrained", "--verbose")
    assert result.code == 0, result.err
    assert "[16/17]" in result.err  # the last step is the report
    for words in (
        "accuracy",
        "zero-shot",
        "in-context",
        "sim_aou (against in-context)",
        "untrained",
        "verdict on tiny",
    ):
        assert words in result.out
    assert "16 cells, 16 computed now" in result.out
    assert str(tmp_path / "run") in result.out.replace("\n", "")
    assert (tmp_path / "run/summary.csv").is_file()


def test_the_answer_comes_first(cli: Callable[..., Any], arguments: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict, one small table, the command that would give an answer; the rest on request."""
    monkeypatch.setattr(sys, "argv", ["dualscope", *map(str, arguments)])
    result = cli(*arguments, "--variant", "trained")
    lines = result.out.splitlines()
    assert lines[0] == "tiny, 4 shots"
    assert lines[1].startswith("Likeness of the whole change. ")
    assert "sim_aou (against" not in result.out
    assert [line.split()[0] for line in lines[2:] if re.match(r" (zero-shot|in-context|gd)\b", line)] == [
        "zero-shot",
        "in-context",
        "gd",
    ]
    assert len(lines) < 25, result.out
    full = cli(*arguments, "--variant", "trained", "--verbose").out
    assert "sim_aou (against in-context)" in full
    assert full.splitlines()[:2] == lines[:2]


def test_json(cli: Callable[..., Any], arguments: list[Any]) -> None:
    content = json.loads(cli(*arguments, "--variant", "trained", "--json").out)
    assert (content["cells"], content["computed"], content["failures"]) == (8, 8, [])
    accuracy = [row for row in content["summary"] if row["metric"] == "accuracy"]
    assert {row["learner"] for row in accuracy} == {"zero-shot", "in-context", "gd", "gd/random-update"}
    assert all(row["low"] <= row["value"] <= row["high"] for row in accuracy)
    assert content["verdicts"][0]["setting"]["model"] == "tiny"


def test_metrics_without_accuracy(cli: Callable[..., Any], arguments: list[Any], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("metrics: [sim_aou, snr]")
    result = cli(*arguments[:1], tmp_path / "study.yaml", *arguments[1:], "--variant", "trained", "--verbose")
    assert result.code == 0, result.err
    assert "sim_aou" in result.out


def test_what_has_no_room_in_the_context_is_said(cli: Callable[..., Any], arguments: list[Any]) -> None:
    result = cli(*arguments, "--shots", "40", "--seeds", "1", "--variant", "trained")
    assert re.search(r"sst2: \d+ of 40 demonstrations fit", result.out.replace("\n", " ")), result.out


def test_shards_are_summed_up_together(cli: Callable[..., Any], arguments: list[Any], tmp_path: Path) -> None:
    asked = (*arguments, "--variant", "trained")
    for shard in ("1/2", "2/2"):
        assert cli(*asked, "--shard", shard).code == 0
    whole = (tmp_path / "run/summary.csv").read_text()
    cli(*asked)
    assert (tmp_path / "run/summary.csv").read_text() == whole
    assert "2" in {line["seeds"] for line in csv.DictReader(whole.splitlines())}


def test_the_report_is_of_the_last_run_where_rows_cannot_tell(
    cli: Callable[..., Any], arguments: list[Any], tmp_path: Path
) -> None:
    from dualscope.report.reported_run import ReportedRun

    asked = (*arguments, "--variant", "trained")
    said = {}
    for queries in ("6", "10", "6"):
        assert cli(*asked, "--queries", queries).code == 0
        summary = list(csv.DictReader((tmp_path / "run/summary.csv").read_text().splitlines()))
        source = ReportedRun(tmp_path / "run")
        assert [row["value"] for row in source.summary] == pytest.approx(
            [float(row["value"]) for row in summary], nan_ok=True
        )
        said[queries] = source.superseded
    assert said["10"] > 0
    assert cli(*asked, "--shots", "2").code == 0  # of the first two, neither is of the last run: the newer counts
    source = ReportedRun(tmp_path / "run")
    rows = [row for cell in source.cells for row in source.table(cell).to_pylist() if row["metric"] == "accuracy"]
    assert {row["n"] for row in rows if row["shots"] == 4} == {10}
    assert source.superseded == said["10"]


def test_an_adapter_is_merged_or_refused(cli: Callable[..., Any], arguments: list[Any], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from dualscope.models import Model

    refused = cli(*arguments, "--adapter", tmp_path / "nowhere")
    assert (refused.code, refused.out) == (2, "")
    assert "nowhere': no such folder" in refused.err
    hf = Model.load(arguments[2], device="cpu").hf
    targets = sorted({name.rpartition(".")[2] for name, _ in hf.named_modules()} & {"c_attn", "q_proj"})
    config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    peft.get_peft_model(hf, config).save_pretrained(str(tmp_path / "mine"))
    options = (*arguments, "--variant", "trained", "--seeds", 1, "--json")
    for given, name in ((), "tiny"), (("--adapter", tmp_path / "mine"), "tiny+mine"):
        result = json.loads(cli(*options, *given).out)
        assert {row["model"] for row in result["summary"]} == {name}
        assert result["computed"] == result["cells"] > 0  # nothing of the one is taken for the other's


def test_failures_are_exit_code_1(
    cli: Callable[..., Any], arguments: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dualscope.learners import LEARNERS

    monkeypatch.setattr(LEARNERS["gd"], "learn", lambda *rest: 1 / 0)
    result = cli(*arguments, "--variant", "trained")
    assert result.code == 1
    assert "ZeroDivisionError" in result.out
    assert "4 failed" in result.out
    assert "Traceback" not in result.out + result.err


def test_a_clip_that_never_bites_is_said(cli: Callable[..., Any], arguments: list[Any], tmp_path: Path) -> None:
    study = tmp_path / "clip.yaml"
    clips = "".join(
        f"  - {{learner: lcgd-clipped, options: {{threshold: {threshold}}}}}\n" for threshold in ("1.0e-6", "1.0e+6")
    )
    study.write_text(f"learners:\n{clips}controls: []\n")
    plain = [a for i, a in enumerate(arguments) if "--learner" not in (a, arguments[i - 1])]
    out = " ".join(cli(*plain, study, "--variant", "trained").out.split())  # lines are wrapped
    assert "lcgd-clipped[threshold=1000000.0], trained: no step was clipped on sst2 (lr 0.1)" in out
    assert out.count("no step was clipped") == 1


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_no_cell_can_be_computed_with_is_bad_input(
    cli: Callable[..., Any], arguments: list[Any], model_folder: str, tmp_path: Path, jobs: int
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model_folder, broken)
    for file in broken.glob("tokenizer*"):
        file.unlink()
    asked = [broken if argument == model_folder else argument for argument in arguments]
    result = cli(*asked, "--variant", "trained", "--jobs", jobs)
    assert result.code == 2
    assert result.out == ""
    assert result.err.strip().splitlines()[-1].startswith("error: model '")
    assert "has no tokenizer" in result.err
    both = cli(*arguments, "--model", broken, "--variant", "trained")
    assert both.code == 1  # the other model's cells are there
    assert both.out.count("has no tokenizer") == 1
    assert "and 7 more" in both.out


def test_a_study_of_failures_lists_them(
    cli: Callable[..., Any], arguments: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dualscope.studies.execute.worker import Worker

    monkeypatch.setattr(Worker, "_bench", lambda *rest: 1 / 0)
    asked = [argument for argument in arguments if argument != "--no-report"]  # there is nothing to report
    result = cli(*asked, "--variant", "trained")
    assert result.code == 1
    assert "8 failed" in result.out
    assert "Traceback" not in result.out + result.err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--shard", "3/2"], "--shard 3/2"),
        (["--shots", "four"], "--shots four"),
        (["--lr", "fast"], "lr"),
        (["--seeds", "x"], "seeds"),
        (["--engine", "cloud"], "unknown engine 'cloud'"),
        (["--device", "gpu"], "--device gpu: expected auto, cpu, cuda"),
        (["--learner", "gdd"], "did you mean gd"),
        (["--task", "sst3"], "unknown task 'sst3'"),
        (["--preset", "quik"], "did you mean quick"),
        (["--data", "nowhere"], "nowhere"),
        (["--plugin", "nowhere.py"], "nowhere.py"),
        (["missing.yaml"], "missing.yaml"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    cli: Callable[..., Any], arguments: list[Any], extra: list[str], words: str, tmp_path: Path
) -> None:
    result = cli(*arguments, *extra)
    assert result.code == 2
    assert words in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_is_130_and_the_run_resumes(
    cli: Callable[..., Any], arguments: list[Any], tmp_path: Path, jobs: int
) -> None:
    command = [sys.executable, "-c", REPORTING, *map(str, arguments), "--jobs", str(jobs), *MORE]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )
    cells = tmp_path / "run/cells"
    while process.poll() is None and not (cells.is_dir() and os.listdir(cells)):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    _, err = process.communicate(timeout=60)
    assert "exit code 130" in err, err
    assert "the same command goes on" in err
    left = len(os.listdir(cells))
    counted = re.search(r"(\d+) cells, (\d+) computed now", cli(*arguments, *MORE).out)
    assert counted
    assert 0 < left < int(counted[1]) == left + int(counted[2])
    assert not (tmp_path / "run/claims").exists()
    assert not (tmp_path / "run/aside").exists()


def test_the_name_says_what_is_run() -> None:
    assert run_name("quick", [], []) == "quick"
    assert run_name("", ["org/gpt@main"], ["tasks/mine.yaml"]) == "gpt-main-mine"
    assert run_name("controls", ["a", "b", "c", "d"], []) == "controls-4-models"


def test_the_same_study_resumes_and_another_has_its_own(tmp_path: Path) -> None:
    first, second = (Study.build({"tasks": ["sst2"], "seeds": n}) for n in (1, 2))
    place = Path(free_folder("quick", first, str(tmp_path)))
    assert place.name == "quick"
    place.mkdir()
    (place / "study.yaml").write_text(first.dump())
    assert free_folder("quick", first, str(tmp_path)) == str(place)
    assert Path(free_folder("quick", second, str(tmp_path))).name == "quick-2"
    assert holds_another(str(place), second)
    assert not holds_another(str(place), first)


def test_options_of_learners() -> None:
    study = Study.build({"tasks": ["sst2"], "learners": ["gd", "lcgd"]})
    found = with_options(study, ["gd.epochs=3", "lcgd.readout=attention", "gd.layers=[0, 1]"])
    assert [entry.options for entry in found.learners] == [{"epochs": 3, "layers": [0, 1]}, {"readout": "attention"}]
    for wrong in ("epochs=3", "gd.epochs", "gdd.epochs=3"):
        with pytest.raises(InputError, match="--option"):
            with_options(study, [wrong])


def test_paths_are_kept_in_full_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: str, task_files: tuple[str, str]
) -> None:
    """What is written with a relative path is stored with a full one, and is still the same study."""
    from dualscope.studies.execute.runner import Runner

    monkeypatch.chdir(Path(model_folder).parent)
    study = Study.build({"models": "mine=tiny", "tasks": [task_files[0]], "seeds": 1})
    runner = Runner(study, tmp_path / "mine", device="cpu")
    assert runner.models == [model_folder]
    assert {cell.episode.model.name for cell in runner.plan().whole} <= {"mine"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.yaml").write_text(runner.study.dump())
    assert free_folder("mine", study, str(tmp_path)) == str(tmp_path / "mine")


def test_two_folders_of_one_name_can_be_told_apart(
    tmp_path: Path, model_folder: str, task_files: tuple[str, str]
) -> None:
    import shutil

    from dualscope.studies.execute.runner import Runner

    other = shutil.copytree(model_folder, tmp_path / "elsewhere" / "tiny")
    fields = {"tasks": [task_files[0]], "seeds": 1, "lr": [0.1]}
    with pytest.raises(InputError, match=r"two models are called 'tiny'.*--model a=FOLDER"):
        Runner(Study.build({"models": [model_folder, str(other)], **fields}), tmp_path / "run").plan()
    named = Study.build({"models": [f"a={model_folder}", f"b={other}"], **fields})
    cells = Runner(named, tmp_path / "run", device="cpu").plan().cells
    assert {cell.columns(None)["model"] for cell in cells} == {"a", "b"}
    with pytest.raises(InputError, match="NAME=FOLDER"):
        Runner(Study.build({"models": "a=", **fields}), tmp_path / "run")


def test_dry_run(cli: Callable[..., Any], arguments: list[Any], tmp_path: Path) -> None:
    plan = json.loads(cli(*arguments, "--dry-run", "--json").out)
    assert len(plan["cells"]) == 8
    assert all(cell["seconds"] > 0 and cell["bytes"] > 0 and not cell["stored"] for cell in plan["cells"])
    for cell in plan["cells"]:
        parts = cell["memory"]
        assert cell["bytes"] == sum(parts.values()) - min(parts["activations"], parts["graphs"])
        assert 0 < parts["weights"] < 2**20
        assert parts["libraries"] > 2**28
        assert bool(parts["changes"]) == (" gd" in cell["cell"])
    assert not (tmp_path / "run/cells").exists()
    said = cli(*arguments, "--dry-run").out
    assert "8 of 8 listed cells to do" in said
    assert len(said.splitlines()) < 16, "counts by model and task; the cells one by one on request"
    assert "in-context" not in said
    in_full = " ".join(cli(*arguments, "--dry-run", "--verbose").out.split())
    assert in_full.count("to do") == 1 + 8
    assert re.search(r"up to \d+ MB a process: weights \d+ MB, context .*, libraries 600 MB", " ".join(said.split()))
    searched = " ".join(cli(*arguments, "--dry-run", "--lr", "auto").out.split())
    assert re.search(r"learning rate, over 2 seeds: up to 8 pieces, about [\d.]+ s", searched)
    assert re.search(r"then \d+ cells with what is chosen, about [\d.]+ s", searched)
    counted = json.loads(cli(*arguments, "--dry-run", "--lr", "auto", "--json").out)
    assert len(counted["cells"]) + counted["cells_after_choices"] == 8
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
