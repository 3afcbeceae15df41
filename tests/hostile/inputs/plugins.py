"""Plugins that cannot be imported, or that register what is none."""

from tests.hostile.inputs.bad import Bad, Place

TEXTS: dict[str, str | bytes] = {
    "a syntax error": "def (",
    "an indentation": "  x = 1\n y = 2\n",
    "an exception": "1 / 0\n",
    "an exit": "import sys\nsys.exit(3)\n",
    "an exit of zero": "raise SystemExit\n",
    "a missing module": "import none_such_module\n",
    "a missing name": "from dualscope import none_such\n",
    "a NUL": b"x = 1\0\n",
    "not UTF-8": b"x = '\xff'\n",
    "binary": bytes(range(256)),
    "a name that is taken": "from dualscope import LEARNERS, Learner\nLEARNERS.add('gd', Learner)\n",
    "recursion": "def f():\n    f()\nf()\n",
    "an assertion": "assert False, 'no'\n",
}


def _plugin(name: str, content: str | bytes, command: tuple[str, ...]) -> Bad:
    def make(place: Place) -> None:
        place.write("bad.py", content)

    return Bad(f"{command[0]} plugin {name}", (*command, "--plugin", "{here}/bad.py"), r"bad\.py", make)


TABLE = [
    _plugin(name, content, command)
    for name, content in TEXTS.items()
    for command in (("list", "learners"), ("run", "--task", "embedded-sst2", "--dry-run", "--out", "{here}/run"))
]
