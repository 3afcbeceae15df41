"""Texts that are no YAML, or more than YAML should be: as study files and as task files."""

from tests.hostile.inputs.bad import Bad, Place

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{new}: &{new} {{<<: [{','.join([f'*{old}'] * 10)}]}}\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "an empty file"),
    "blank": ("\n\n  \n", "an empty file"),
    "a comment": ("# nothing\n", "an empty file"),
    "a mark": ("---\n", "an empty file|NoneType|found"),
    "a list": ("- a\n- b\n", "found a list"),
    "a text": ("just words\n", "found a str"),
    "a number": ("3\n", "found a int"),
    "nothing": ("null\n", "an empty file"),
    "a tab": ("tasks:\n\t- sst2\n", "malformed YAML"),
    "an open bracket": ("tasks: [sst2\n", "malformed YAML"),
    "an open brace": ("tasks: {a: 1\n", "malformed YAML"),
    "an open quote": ("tasks: 'sst2\n", "malformed YAML"),
    "a bad escape": ('name: "\\q"\n', "malformed YAML"),
    "two documents": ("a: 1\n---\nb: 2\n", "malformed YAML"),
    "twice": ("name: a\nname: b\n", "is given twice"),
    "an unknown alias": ("name: *nobody\n", "malformed YAML"),
    "python": ("name: !!python/object/apply:os.system ['true']\n", "malformed YAML"),
    "a tag": ("name: !mine x\n", "malformed YAML"),
    "a directive": ("%FOO\nname: a\n", "malformed YAML|unknown field|missing"),
    "binary": (b"\x00\x01\x02\xff\xfe", "not UTF-8|malformed YAML"),
    "utf-16": ("name: mine\n".encode("utf-16"), "not UTF-8|malformed YAML"),
    "latin-1": ("name: caf\xe9\n".encode("latin-1"), "not UTF-8"),
    "a NUL": ("name: a\0b\n", "malformed YAML"),
    "an escaped NUL": ('name: "a\\0b"\n', "has a NUL|unknown field"),
    "a surrogate": ('name: "\\ud800"\n', "half a character|malformed YAML|unknown field"),
    "control characters": ("name: \x07\n", "malformed YAML"),
    "deep lists": ("name: " + "[" * 5000 + "]" * 5000, "malformed YAML|nested too deeply"),
    "deep maps": ("{a: " * 3000 + "1" + "}" * 3000, "malformed YAML|nested too deeply"),
    "deep indents": ("".join(" " * i + "a:\n" for i in range(1500)), "malformed YAML|nested too deeply"),
    "laughs": (LAUGHS, "its aliases stand for more than 100,000 values"),
    "laughs in a field": (LAUGHS + "tasks: *i\n", "its aliases stand for more than 100,000 values"),
    "merges": (MERGES, "its aliases stand for more than 100,000 values"),
    "merged into the root": (MERGES + "<<: *i\n", "its aliases stand for more than 100,000 values"),
    "laughs as keys": (LAUGHS + "? *i\n: 1\n", "its aliases stand for more than 100,000 values"),
    "quadratic": ("a: &a [" + "x," * 2000 + "]\nb: [" + "*a," * 2000 + "]\n", "its aliases stand for more"),
    "itself": ("a: &a [*a]\n", "refers to itself"),
    "itself in a map": ("a: &a {b: *a}\n", "refers to itself"),
    "many digits": ("seeds: " + "9" * 5000 + "\n", "a number of 5000 characters"),
    "base sixty": ("seeds: 1" + ":59" * 50_000 + "\n", "a number of 150001 characters"),
    "hexadecimal": ("seeds: 0x" + "f" * 5000 + "\n", "a number of 5002 characters"),
    "a date that is none": ("name: 2001-99-99\n", "malformed YAML"),
    "a list as a key": ("? [a, b]\n: 1\n", "malformed YAML|unknown field"),
    "a map as a key": ("? {a: b}\n: 1\n", "malformed YAML|unknown field"),
    "a set": ("!!set {a, b}\n", "found a set|unknown field"),
    "large": ("a: " + "x" * (3 * 2**20) + "\n", "MB are not read"),
    "many lines": ("".join(f"field{i}: 1\n" for i in range(8_000)), "unknown field|aliases stand for"),
    "numbers as keys": ("1: a\n2: b\n", "keys should be strings|is missing"),
    "truth as a key": ("true: a\n", "keys should be strings|is missing"),
    "windows lines": ("name: 'a\r\n", "malformed YAML"),
}


def _make(name: str, content: str | bytes, said: str, command: tuple[str, ...]) -> Bad:
    def make(place: Place) -> None:
        place.write("bad.yaml", content)

    return Bad(f"{command[0]} {name}", command, rf"bad\.yaml.*({said})", make)


TABLE = [
    _make(name, content, said, command)
    for name, (content, said) in TEXTS.items()
    for command in (("run", "{here}/bad.yaml", "--dry-run"), ("validate", "{here}/bad.yaml"))
]
