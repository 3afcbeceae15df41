"""What a stranger installs: the wheel, in an environment of its own, outside the tree."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata

import dualscope

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "dualscope"


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, REPOSITORY)
    return next(folder.glob("dualscope-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts' folder of a new environment that has the wheel; dependencies are lent by this one."""
    home = tmp_path_factory.mktemp("elsewhere") / "environment"
    venv.create(home, with_pip=False)
    scripts = home / ("Scripts" if sys.platform == "win32" else "bin")
    pip("--python", scripts / "python", "install", "--quiet", "--no-deps", wheel)
    site = next(home.glob("**/site-packages"))
    # A path file adds a folder without reading the path files in it, so the editable install stays behind.
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return scripts


def run(command: list[object], folder: Path) -> str:
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # the wheel alone
    result = subprocess.run(list(map(str, command)), cwd=folder, env=ours, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_file_is_in_the_wheel(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("dualscope/")}
    ours = {
        f"dualscope/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == ours


@pytest.mark.parametrize(
    "what",
    [
        "models/embedded/model.safetensors",
        "models/embedded/tokenizer.json",
        "tasks/catalog/sst2.yaml",
        "studies/presets/quick.yaml",
        "report/published.json",
        "report/templates/page.html.j2",
        "explorer/page/index.html.j2",
        "explorer/page/main.js",
        "regression/shipped_results/garg/regression.parquet",
        "py.typed",
    ],
)
def test_what_the_first_day_needs_is_in_the_wheel(wheel: Path, what: str) -> None:
    assert f"dualscope/{what}" in zipfile.ZipFile(wheel).namelist()


def test_the_metadata_are_those_of_a_package_index(wheel: Path) -> None:
    """What `twine check` asks: valid fields, and a description that can be shown."""
    with zipfile.ZipFile(wheel) as packed:
        name = next(name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(packed.read(name), validate=True)
    assert metadata.name == "dualscope"
    assert str(metadata.version) == dualscope.__version__
    assert metadata.description_content_type == "text/markdown"
    assert (metadata.description or "").startswith("# dualscope")
    assert metadata.license_expression == "MIT"


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "type"} <= citation.keys()
    preferred = citation["preferred-citation"]
    assert {"type", "title", "authors", "year"} <= preferred.keys()
    assert {citation["version"], preferred["version"]} == {dualscope.__version__}
    assert f"version = {{{dualscope.__version__}}}" in (REPOSITORY / "docs" / "citing.md").read_text(encoding="utf-8")


def test_the_paper_cites_what_its_list_has() -> None:
    """And has the length and the parts that the Journal of Open Source Software asks for."""
    text = (REPOSITORY / "paper" / "paper.md").read_text(encoding="utf-8")
    _, head, body = text.split("---\n", 2)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= yaml.safe_load(head).keys()
    listed = re.findall(
        r"^@\w+\{(\w+),", (REPOSITORY / "paper" / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(listed) == len(set(listed))
    assert set(re.findall(r"@(\w+)", body)) == set(listed)
    assert "# Statement of need" in body
    assert 750 <= len(body.split()) <= 1250


def test_agents_have_forty_lines() -> None:
    lines = (REPOSITORY / "AGENTS.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    named = re.findall(r"\b(?:docs|src|tests)/[\w./-]*\w", "\n".join(lines))
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_the_installed_package_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    where = run([installed / "python", "-c", "import dualscope; print(dualscope.__file__)"], tmp_path)
    assert installed.parent in Path(where.strip()).parents


def test_commands_of_the_installed_package(installed: Path, tmp_path: Path) -> None:
    command = installed / "dualscope"
    assert run([command, "--version"], tmp_path) == f"dualscope {dualscope.__version__}\n"
    assert "sst2" in run([command, "list", "tasks"], tmp_path)
    assert "quick" in run([command, "list", "presets"], tmp_path)
    assert "few-shot prompt" in run([command, "validate", "embedded-sst2"], tmp_path)


def test_the_lock_pins_all_that_we_depend_on() -> None:
    """A name in pyproject.toml that the lock lacks would be installed in whatever version is newest."""
    import tomllib
    from re import findall, sub

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    locks = "".join((REPOSITORY / f"requirements{part}.lock").read_text() for part in ("", "-dev"))
    pins = dict(findall(r"(?m)^(?:# )?([\w.-]+)==(\S+)", locks))
    locked = {sub(r"[-_.]+", "-", name).lower() for name in pins}
    names = {sub(r"[-_.]+", "-", findall(r"[\w.-]+", name)[0]).lower() for name in wanted}
    # Trackio holds back a package that others here need newer, so that it is tried in an environment of its own.
    assert names - {"dualscope", "trackio"} <= locked
    assert pins["torch"] == "2.13.0"
    assert {"pip", "setuptools"} <= pins.keys()
    hashed = set(findall(r"(?m)^([\w.-]+)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", locks))
    assert pins.keys() - hashed == {"torch"}  # its builds differ: it is installed by its version


@pytest.mark.parametrize("name", [name for name in dir(dualscope) if name != "__version__"])
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    public = getattr(dualscope, name)
    assert name in dir(dualscope)
    assert public.__doc__


def test_an_unknown_public_name() -> None:
    with pytest.raises(AttributeError, match="No dualscope attribute Models"):
        getattr(dualscope, "Mod" + "els")
