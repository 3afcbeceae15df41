"""The pages on Python: a page a subject, every public name on one of them."""

import inspect
from typing import Any

from docs.pages.markdown import cell, table

SUBJECTS = {
    "compare": ("Compare", ("compare", "Comparison", "InputError")),
    "models": ("Models and traces", ("Model", "Trace", "Delta")),
    "tasks": (
        "Tasks and episodes",
        ("Task", "catalog_names", "Example", "Episode", "Lesson", "make_lesson", "GENERATORS"),
    ),
    "learners": (
        "Learners",
        ("LEARNERS", "Learner", "Learned", "Bench", "choose_settings", "INTERVENTIONS", "Intervention"),
    ),
    "metrics": ("Metrics", ("METRICS", "Case", "measure")),
    "studies": ("Studies and runs", ("Study", "run_study", "Run")),
}
HEAD = """\
# Python

Every public name, by subject: its signature, the shapes of its tensors, what it raises, and an example that the tests
run. They are all imported from `dualscope` itself, when they are first used: `import dualscope` is instant.

```python
from dualscope import compare

print(compare("embedded", "embedded-sst2", ["gd", "lcgd"], shots=8, queries=20))
```

What a person got wrong is an `InputError`, whose message names what was found and what is accepted; anything else that
is raised is a fault of ours. Shapes stand in brackets, `[queries, layers, width]`; layers count from the input, from 0.
The [notebooks](../notebooks/your-model.ipynb) show the names at work, and [the words](../concepts.md#all-words) say
what they stand for.
"""


def contents() -> str:
    rows = [
        [f"[`{name}`]({page}.md#{path_of(name)})", cell(summary(name))]
        for page, (_, names) in SUBJECTS.items()
        for name in names
    ]
    return f"{HEAD}\n{table(['name', ''], rows)}\n"


def path_of(name: str) -> str:
    """Where a public name is described: its own place, or that of the class which it is another name of."""
    import dualscope

    public: Any = getattr(dualscope, name)
    own = getattr(public, "__name__", name)
    return f"dualscope.{name}" if own == name else f"{public.__module__}.{own}"


def summary(name: str) -> str:
    """The first sentence of a public name's docstring; a registry says its own above its definition."""
    import dualscope
    from dualscope.core.registry import Registry

    public: Any = getattr(dualscope, name)
    if isinstance(public, Registry):
        return f"Every {public.noun} by its name"
    text = (inspect.getdoc(public) or "").split("\n\n")[0]
    return " ".join(text.split()).replace("``", "`").split(". ")[0].rstrip(".")


def subject(page: str) -> str:
    title, names = SUBJECTS[page]
    return "\n\n".join([f"# {title}", *map(entry, names)]) + "\n"


def entry(name: str) -> str:
    path = path_of(name)
    shown = f"::: {path}"
    if path != f"dualscope.{name}":
        shown += f"\n    options: {{heading: {name}, toc_label: {name}, inherited_members: true}}"
    return shown
