"""Writes and runs notebook.ipynb: python docs/make_notebook.py."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

HERE = Path(__file__).parent
CELLS = [
    (
        "text",
        """# Is in-context learning gradient descent?

The same demonstrations, learned twice: in the prompt, and by gradient descent on the weights. The model here
is the small one that comes with dualscope. It was trained to learn in context, so what it shows says nothing
about large language models; put the name of one in its place.""",
    ),
    (
        "code",
        """import dualscope

model = dualscope.Model.load("embedded")
task = dualscope.Task.load("embedded-sst2")
episode = dualscope.Episode.draw(task, shots=8, seed=0, queries=24)
for example in episode.demonstrations[:3]:
    print(task.prompt(example) + task.answer(example.label))""",
    ),
    (
        "text",
        """`compare` reads every query without demonstrations, with them in the context, and after each
gradient learner,
and measures all default metrics.""",
    ),
    (
        "code",
        """result = dualscope.compare(model, task, learners=["gd", "lcgd"], shots=8, seed=0, queries=24)
for row in result.table("accuracy").to_pylist():
    print(f"{row['learner']:12} {row['value']:.2f}")""",
    ),
    (
        "text",
        """How alike are the two changes of the attention output, layer by layer? 1 is the same direction.
A number means
something only beside its controls, which a study has and this one episode has not.""",
    ),
    (
        "code",
        """for learner, values in result.layers("sim_aou").items():
    print(f"{learner:6}", " ".join(f"{value:6.3f}" for value in values))""",
    ),
    (
        "text",
        """A study is a grid of such cells, kept in a folder; the same call goes on where it stopped. Here: trained
against untrained weights, one seed, few queries, so the verdict will not decide.""",
    ),
    (
        "code",
        """import tempfile
from pathlib import Path

from dualscope.studies import Run, run_study

folder = Path(tempfile.mkdtemp()) / "run"
study = {
    "tasks": ["embedded-sst2"],
    "variants": ["trained", "untrained"],
    "learners": ["gd", "random-update"],
    "lr": [1.0],
    "shots": 8,
    "seeds": 1,
    "queries": 24,
}
run_study(study, folder)
Run.open(folder).query(
    "select variant, learner, round(value, 3) as sim_aou from rows "
    "where metric = 'sim_aou' and layer is null order by all"
).to_pylist()""",
    ),
    ("text", "And the report: one file, which opens without a network."),
    (
        "code",
        """from dualscope.report import write_report

page = write_report([folder], folder / "report.html")
print(page.name, "written,", "has the verdict:", "The answers" in page.read_text())""",
    ),
]


def notebook() -> nbformat.NotebookNode:
    """The notebook without outputs."""
    made = new_notebook(
        cells=[new_markdown_cell(text) if kind == "text" else new_code_cell(text) for kind, text in CELLS],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    for number, part in enumerate(made.cells):
        part["id"] = f"cell-{number}"  # the same every time
    return made


if __name__ == "__main__":
    done = NotebookClient(notebook(), timeout=600, kernel_name="python3").execute()
    for part in done.cells:
        part.metadata.pop("execution", None)  # when it ran is of no interest
        if part.cell_type == "code":  # nor are the warnings of this machine's notebook server
            part.outputs = [output for output in part.outputs if output.get("name") != "stderr"]
    done.metadata.pop("language_info", None)
    nbformat.write(done, HERE / "notebook.ipynb")
    print(f"wrote {HERE.name}/notebook.ipynb")
