"""The job array of examples/slurm, run as Slurm runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dualscope import Run

SCRIPT = Path(__file__).parents[2] / "examples/slurm/study.sbatch"
STUDY = """
models: [embedded]
variants: [trained]
tasks: [embedded-sst2]
seeds: 2
shots: 4
queries: 8
lr: [0.1]
learners: [gd]
controls: []
"""


def test_it_is_a_script_with_directives() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    lines = SCRIPT.read_text().splitlines()
    directives = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    code = [i for i, line in enumerate(lines) if line and not line.startswith("#")]
    assert lines[0] == "#!/bin/bash"
    assert max(directives) < min(code)  # Slurm reads none behind the first command
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+=\S+", lines[i]) for i in directives)


@pytest.mark.slow
def test_parts_make_the_whole(tmp_path: Path) -> None:
    """Two parts, then the end; each in the environment that an array's task has."""
    (tmp_path / "study.yaml").write_text(STUDY)
    command = tmp_path / "bin" / "dualscope"
    command.parent.mkdir()
    command.write_text(f'#!/bin/bash\nexec {sys.executable} -m dualscope.cli "$@"\n')
    command.chmod(0o755)
    out = tmp_path / "run"

    def sbatch(task: int) -> str:
        slurm = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_CPUS_PER_TASK": "1", "SLURM_ARRAY_TASK_COUNT": "1"}
        environment = os.environ | slurm | {"PATH": f"{command.parent}:{os.environ['PATH']}"}
        arguments = ["bash", str(SCRIPT), "2", str(tmp_path / "study.yaml"), str(out), "--device", "cpu"]
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    stored = []
    for task in (1, 2):
        assert "3 cells, 3 computed now" in sbatch(task)
        stored.append(Run.open(out).stored())
    assert (len(stored[0]), len(stored[1])) == (3, 6)
    assert not (out / "report.html").exists()
    assert "6 cells, 0 computed now" in sbatch(0)
    assert (out / "report.html").exists()
    bare = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    alone = subprocess.run(["bash", str(SCRIPT), "2", "s", "o"], env=bare, capture_output=True, text=True, check=False)
    assert alone.returncode != 0
    assert "start it with sbatch --array" in alone.stderr
