"""Options with values that they cannot have, for every command."""

from tests.hostile.inputs.bad import Bad, Place

WHOLE = ("", "x", "-1", "1.5", "1e3", "0x3", "9" * 40, "1,,2,x", "∞", "²")
OPTIONS: dict[str, tuple[str, ...]] = {
    "--shots": (*WHOLE, "0", "4,0", "4,4", "4,x"),
    "--seeds": (*WHOLE, "0", "300001", "1,1", "a,b", "1;2"),
    "--queries": ("", "x", "-1", "0", "1.5", "9" * 40),
    "--lr": ("", "0", "-1", "fast", "nan", "inf", "0.1,x", "1e999", "autos", ",", "0.1;0.2"),
    "--demo-labels": ("golden", "gold,gold", ",", "gold,", "GOLD", "gold flipped"),
    "--device": ("", "gpu", "cuda:x", "tpu", "cpu:0:0", "CPU"),
    "--dtype": ("", "fp16", "float", "int8", "float128", "Float32"),
    "--engine": ("", "cloud", "ray://x"),
    "--jobs": ("", "0", "-1", "x", "1.5", "9" * 400),
    "--shard": ("", "0/2", "3/2", "x", "1", "1/0", "-1/2", "1/2/3", "1/x", "²/²"),
    "--variant": ("", "untraned", "Trained", "shuffled,trained"),
    "--learner": ("", "gdd", "gd:none-such", "gd[epochs=3]", ":", "gd:"),
    "--task": ("", "sst3", "none.yaml", "/", ".", "a/b.yaml", "sst2,mr"),
    "--model": ("", "/none/such", "./none", "a b", "a/b/c", "@main", "..", "~nobody/x", "x" * 5000, "a\tb"),
    "--preset": ("", "quik", "quick.yaml", "../quick"),
    "--data": ("none-such", "/dev/null"),
    "--plugin": ("", "none-such.py", ".", "/dev/zero", "/dev/null"),
    "--out": ("", "/dev/null", "/dev/null/run", "x" * 5000, "none://x"),
    "--none-such": ("x",),
}
OTHERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("list", "none-such"), "none-such"),
    (("list",), "Missing|KIND"),
    (("validate",), "Missing|TASK"),
    (("validate", "none-such"), "unknown task"),
    (("validate", ""), "unknown task"),
    (("validate", "embedded-sst2", "--shots", "x"), "shots"),
    (("validate", "embedded-sst2", "--shots", "-1"), "shots"),
    (("validate", "embedded-sst2", "--shots", "0"), "shots"),
    (("validate", "embedded-sst2", "--seed", "-1"), "seed"),
    (("validate", "embedded-sst2", "--seed", "x"), "seed"),
    (("validate", "embedded-sst2", "--model", "./none"), "no such folder"),
    (("validate", "sst2", "--data", "none-such"), "none-such"),
    (("doctor", "--model", "./none"), "no such folder"),
    (("doctor", "--model", ""), "empty name of a model"),
    (("doctor", "--device", "gpu"), "gpu"),
    (("doctor", "--dtype", "fp16"), "fp16"),
    (("convert", "./none", "{here}/out"), "no such folder"),
    (("convert", "embedded", "{here}/out"), "nothing to convert"),
    (("convert", "embedded"), "Missing|OUT"),
    (("report",), "at least one run folder"),
    (("report", "{here}"), "not a run folder"),
    (("report", "{here}/none"), "not a run folder"),
    (("report", "/dev/null"), "not a run folder"),
    (("report", ""), "run folder|empty"),
    (("report", "none://x"), "none"),
    (("theory", "--only", "none-such"), "none-such"),
    (("theory", "--seed", "x"), "seed"),
    (("theory", "--seed", "-1"), "seed|-1"),
    (("regression", "none-such"), "none-such"),
    (("none-such",), "none-such"),
    (("--none-such",), "none-such"),
    (("run", "{here}/none.yaml"), "no such file"),
    (("run", "{here}"), "is a folder"),
    (("run", "/dev/zero"), "not a regular file"),
    (("run", "a", "b"), "unexpected|extra|b"),
    (("run", "--seeds"), "requires an argument|seeds"),
    (("run", "{here}/pipe"), "not a regular file"),
)


def _option(option: str, value: str) -> Bad:
    command = ("run", "--task", "embedded-sst2", "--dry-run", "--out", "{here}/run", option, value)
    word = option.removeprefix("--").replace("-", "[-_ ]").rstrip("s")
    said = rf"{word}|{'file|folder|such|model|plugin|run|protocol|Protocol|scheme'}"
    return Bad(f"run {option} {value[:30]!r}", command, said)


def _pipe(place: Place) -> None:
    import os

    os.mkfifo(place.folder / "pipe")


TABLE = [_option(option, value) for option, values in OPTIONS.items() for value in values]
TABLE += [
    Bad(f"command {' '.join(arguments)[:60]}", arguments, said, _pipe if "{here}/pipe" in arguments else lambda _: None)
    for arguments, said in OTHERS
]
