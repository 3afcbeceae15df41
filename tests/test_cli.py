"""The command line: instant, thin, and errors that are messages."""

import inspect
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dualscope
from dualscope.cli import COMMANDS, app, examples_of, help_of
from dualscope.core.errors import InputError
from dualscope.tasks import catalog_names

PAPERS = ("sst2", "sst5", "mr", "subj", "agnews", "cb")


def python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["list", "tasks"]])
def test_nothing_heavy_is_imported_for_what_should_be_instant(arguments: Any) -> None:
    heavy = ("torch", "transformers", "datasets", "duckdb", "plotly", "ray", "pandas", "pyarrow", "scipy")
    python(
        "import sys, contextlib, io\n"
        f"sys.argv = ['dualscope', *{arguments!r}]\n"
        "from dualscope.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()\n"
        f"loaded = [name for name in {heavy!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )


def test_importing_the_package_imports_almost_nothing() -> None:
    python("import sys, dualscope; assert not {'numpy', 'pydantic', 'yaml', 'torch'} & set(sys.modules)")


def test_what_runs_no_model_does_not_wait_for_transformers() -> None:
    python("import sys, dualscope.learners, dualscope.studies.execute.worker; assert 'transformers' not in sys.modules")


def test_a_run_folder_is_opened_without_what_plans_one() -> None:
    """These are half of the time that opening 20,000 packed cells takes; the names are there all the same."""
    python(
        "import sys, dualscope.studies.run_folder.storage as storage, dualscope.studies as studies\n"
        "assert not {'pydantic', 'yaml', 'pandas', 'torch', 'multiprocessing'} & set(sys.modules)\n"
        "assert studies.Run is studies.RunFolder is storage.RunFolder and studies.run_study is studies.execute_study"
    )


def test_a_plan_and_a_report_need_no_torch() -> None:
    """It takes seconds to import and a quarter of a gigabyte; a run folder of another machine is read without it."""
    python(
        "import sys, dualscope.findings.verdict, dualscope.report, dualscope.studies.execute.runner;"
        "assert 'torch' not in sys.modules"
    )


def test_version(cli: Callable[..., Any]) -> None:
    assert cli("--version") == (0, f"dualscope {dualscope.__version__}\n", "")


def test_help_names_every_command(cli: Callable[..., Any]) -> None:
    code, out, _ = cli("--help")
    assert code == 0
    for command in ("list", "validate", "run", "report", "doctor", "theory", "regression", "train", "convert"):
        assert f" {command} " in out


def test_no_arguments_is_help(cli: Callable[..., Any]) -> None:
    assert "Usage: dualscope" in "".join(cli()[1:])


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("tasks", (*PAPERS, "rte", "trec", "dbpedia_14", "boolq", "imdb", "cola")),
        ("models", ("embedded", "xglm", "gpt2")),
        ("variants", ("trained", "untrained", "trained-embeddings")),
        ("learners", ("zero-shot", "in-context", "gd", "lcgd", "gd-linearized")),
        ("metrics", ("accuracy", "rec2ftp", "sim_aou", "sim_am", "jaccard")),
        ("presets", ("quick",)),
    ],
)
def test_list(cli: Callable[..., Any], kind: str, names: Any) -> None:
    code, out, err = cli("list", kind)
    assert (code, err) == (0, "")
    header, rule, *lines = out.splitlines()
    assert len(header.split()) > 1
    assert set(rule) == {"─"}
    listed = {line.split()[0] for line in lines}
    assert set(names) <= listed
    assert all(len(line.split()) > 1 for line in lines), "each has a line about it"


def test_list_of_something_else(cli: Callable[..., Any]) -> None:
    code, _, err = cli("list", "horses")
    assert code == 2
    assert "'horses'" in err
    assert "Traceback" not in err


def test_unknown_option_is_exit_code_2(cli: Callable[..., Any]) -> None:
    code, _, err = cli("validate", "sst2", "--modle", "x")
    assert code == 2
    assert "--modle" in err


def test_validate_without_a_model(cli: Callable[..., Any], tiny_task_file: Path) -> None:
    code, out, err = cli("validate", tiny_task_file)
    assert (code, err) == (0, "")
    assert "demonstrations from 'train': 60 examples" in out
    assert out.count("Label: ") == 2, "two demonstrations with their answers"
    assert "zero-shot prompt" in out
    assert "few-shot prompt" in out


def test_validate_with_a_model(
    cli: Callable[..., Any], tiny_task_file: Path, tmp_path: Path, byte_tokenizer: Any
) -> None:
    from transformers import GPT2Config

    GPT2Config(n_positions=120, vocab_size=len(byte_tokenizer), n_layer=2, n_embd=8, n_head=2).save_pretrained(tmp_path)
    byte_tokenizer.save_pretrained(tmp_path)
    code, out, _ = cli("validate", tiny_task_file, "--model", tmp_path, "--shots", 20)
    assert code == 0
    assert "(120 positions)" in out
    assert "label word Positive: 'ĠPositive'" in out
    fit = next(line for line in out.splitlines() if line.endswith("demonstrations fit"))
    assert 0 < int(fit.split()[0]) < 20


@pytest.mark.parametrize("name", [name for name in catalog_names() if name.startswith("embedded-")])
def test_validate_generated_tasks(cli: Callable[..., Any], name: str) -> None:
    code, out, err = cli("validate", name)
    assert (code, err) == (0, "")
    assert "few-shot prompt" in out


@pytest.mark.shared
@pytest.mark.parametrize("name", PAPERS)
def test_validate_real_data(cli: Callable[..., Any], name: str, shared: Path) -> None:
    code, out, _ = cli("validate", name, "--data", shared / "data")
    assert code == 0
    assert "zero-shot prompt (query " in out


@pytest.fixture
def failing() -> Iterator[Any]:
    """A command that raises what it is told to, taken away again afterwards."""
    raised: list[BaseException] = []

    @app.command("fail-in-a-test", hidden=True)
    def fail() -> None:
        raise raised[0]

    yield raised
    app.registered_commands.pop()


def test_bad_input_is_one_message(cli: Callable[..., Any], failing: list[BaseException]) -> None:
    failing.append(InputError("the file x has no y"))
    assert cli("fail-in-a-test") == (2, "", "error: the file x has no y\n")


def test_interruption_is_130(cli: Callable[..., Any], failing: list[BaseException]) -> None:
    failing.append(KeyboardInterrupt())
    code, _, err = cli("fail-in-a-test")
    assert code == 130
    assert "Traceback" not in err


def test_a_fault_of_ours_is_one_line_and_its_traceback_a_file(
    cli: Callable[..., Any], failing: list[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failing.append(ZeroDivisionError("by \x1b[2J nothing"))
    code, out, err = cli("fail-in-a-test")
    (file,) = tmp_path.iterdir()
    assert (code, out) == (70, "")
    assert (
        err == f"error: a fault in dualscope (ZeroDivisionError: by \\x1b[2J nothing); please report it with {file}\n"
    )
    assert "Traceback" in file.read_text()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    failing.append(ZeroDivisionError())
    assert "its traceback could not be written" in cli("fail-in-a-test").err


def test_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "dualscope.cli", "validate", "nothing-like-it"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error: unknown task 'nothing-like-it'")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_breaks_lines_where_the_terminal_ends_and_keeps_examples(name: str) -> None:
    written = inspect.cleandoc(COMMANDS[name].__doc__ or "").split("\n\n")
    told, examples = help_of(COMMANDS[name]), examples_of(COMMANDS[name])
    prose = [part for part in written if not part.lstrip().startswith("dualscope ")]
    assert [part.split() for part in told.split("\n\n")] == [part.split() for part in prose]
    assert all("\n" not in paragraph for paragraph in told.split("\n\n"))
    lines = [line.strip() for part in written if part not in prose for line in part.splitlines()]
    assert [line.replace("\\[", "[") for line in examples.split("\n\n")] == (["Examples:", *lines] if lines else [""])
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "1000", "TERM": "dumb", "NO_COLOR": "1"}).stdout
    assert told.split("\n\n")[0] in shown
    assert all(line in shown for line in lines)


@pytest.mark.parametrize("given", [["list", "metric"], ["export", "run", "--to", "mlflo"]])
def test_a_choice_that_there_is_not_is_refused_in_words(cli: Callable[..., Any], given: list[str]) -> None:
    refused = cli(*given)
    assert refused.code == 2
    assert f"'{given[-1]}' is not one of" in " ".join(refused.err.split())
    assert "Value error" not in refused.err
