"""Own demonstrations, the local page, tables, statistics, adapters, patterns, regressions: what they cannot take."""

import json
from collections.abc import Callable

from tests.hostile.inputs.bad import Bad, Place

SHOWN = ("a fine film => Positive", "a dull plot => Negative")
ASKED = (*SHOWN, "--query", "a bore")
TRIES: tuple[tuple[tuple[str, ...], str], ...] = (
    ((), "Missing|TEXT"),
    (SHOWN, "--query"),
    (("no arrow", "-q", "x"), "as in"),
    (("=> Positive", "-q", "x"), "as in"),
    (("a film =>", "-q", "x"), "as in"),
    (("", "-q", "x"), "as in"),
    (("a => A", "-q", "x"), "label|demonstration"),
    (("a => A", "b => A", "-q", "x"), "label"),
    (("a \ud800 => A", "b => B", "-q", "x"), "half a character|surrogate"),
    ((*SHOWN, "-q", ""), "empty|query"),
    ((*SHOWN, "-q", "   "), "empty|query"),
    ((*SHOWN, "-q", "word " * 5000), "long|fit|positions|tokens"),
    (("word " * 5000 + "=> A", "b => B", "-q", "x"), "long|fit|positions|tokens|demonstration"),
    ((*ASKED, "--lr", "0"), "rate|lr"),
    ((*ASKED, "--lr", "-1"), "rate|lr"),
    ((*ASKED, "--lr", "nan"), "rate|lr"),
    ((*ASKED, "--lr", "inf"), "rate|lr"),
    ((*ASKED, "--lr", "fast"), "lr"),
    ((*ASKED, "--template", ""), "template"),
    ((*ASKED, "--template", "no field"), "template|field"),
    ((*ASKED, "--template", "{a} {b}"), "an example is a mapping"),
    ((*ASKED, "--template", "{text"), "template"),
    ((*ASKED, "--template", "{text!r}"), "template"),
    ((*ASKED, "--template", "{label} Label:"), "template|label"),
    ((*ASKED, "--model", "./none"), "no such folder"),
    ((*ASKED, "--model", ""), "empty name of a model"),
    ((*ASKED, "--model", "{here}"), "config.json|model"),
    ((*ASKED, "--device", "gpu"), "gpu"),
    ((*ASKED, "--none-such"), "none-such"),
)
EXPLORES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--port", "0"), "port"),
    (("--port", "65536"), "port"),
    (("--port", "-1"), "port"),
    (("--port", "x"), "port"),
    (("--port", "9" * 400), "port"),
    (("--host", "0.0.0.0"), "--unsafe-host"),
    (("--host", ""), "host"),
    (("--host", "", "--unsafe-host"), "host"),
    (("--host", "none.such.invalid", "--unsafe-host"), "none.such.invalid"),
    (("--host", "999.1.1.1", "--unsafe-host"), "999.1.1.1"),
    (("--host", "a b", "--unsafe-host"), "a b"),
    (("--host", "x" * 300, "--unsafe-host"), "host"),
    (("--host", "é" * 70, "--unsafe-host"), "host"),
    (("--task", "sst3"), "unknown task"),
    (("--task", ""), "unknown task"),
    (("--task", "{here}/none.yaml"), "no such file"),
    (("--task", "embedded-sst2", "--task", "embedded-sst2"), "two tasks"),
    (("--data", "{here}/none"), "no such folder"),
    (("--data", "{here}"), "folder"),
    (("--data", "/dev/null"), "folder"),
    (("--model", "./none"), "no such folder"),
    (("--model", ""), "empty name of a model"),
    (("--model", "{here}"), "config.json|model"),
    (("--plugin", "{here}/none.py"), "no such file"),
    (("--plugin", "{here}"), "plugin"),
    (("--device", "gpu"), "gpu"),
    (("--device", ""), "device"),
    (("--task", "{here}/pipe.yaml"), "not a regular file"),
)
OTHERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("report", "--shipped", "none-such"), "none-such"),
    (("report", "--shipped", ""), "shipped"),
    (("report", "--shipped"), "shipped"),
    (("report", "--shipped", "regression", "--out", ""), "out|name|folder"),
    (("report", "--shipped", "regression", "--out", "{here}"), "folder"),
    (("report", "--shipped", "regression", "--out", "/dev/null/x.html"), "dev.null"),
    (("report", "{here}/none", "--latex", "{here}/x.tex"), "not a run folder"),
    (("report", "--latex", "{here}/x.tex"), "at least one run folder"),
    (("report", "--latex"), "latex"),
    (("list", "learners", "--statistics"), "--statistics"),
    (("list", "--statistics"), "Missing|KIND"),
    (("list", "tasks", "--data", "{here}"), "--statistics"),
    (("list", "tasks", "--statistics", "--data", "{here}/none"), "none"),
    (("list", "tasks", "--statistics", "--data", "/dev/null"), "dev.null"),
    (("regression",), "Missing|EXPERIMENT|experiment"),
    (("regression", ""), "experiment|invalid|Invalid"),
    *(
        (("regression", "vonoswald", "--quick", "--out", "{here}/run", *more), said)
        for more, said in (
            (("--full",), "--quick and --full"),
            (("--seeds", "0"), "seeds"),
            (("--seeds", "x"), "seeds"),
            (("--seeds", "-1"), "seeds"),
            (("--seeds", ""), "seeds"),
            (("--seeds", "1,1"), "seeds"),
            (("--seeds", "9" * 40), "seeds"),
            (("--seeds", "300001"), "seeds"),
            (("--steps", "0"), "steps"),
            (("--steps", "-1"), "steps"),
            (("--steps", "x"), "steps"),
            (("--steps", "9" * 40), "steps"),
            (("--minutes", "0"), "minutes"),
            (("--minutes", "-1"), "minutes"),
            (("--minutes", "nan"), "minutes"),
            (("--minutes", "inf"), "minutes"),
            (("--minutes", "x"), "minutes"),
            (("--device", "gpu"), "gpu"),
            (("--device", ""), "device"),
            (("--device", "cuda:x"), "cuda:x"),
        )
    ),
    (("regression", "vonoswald", "--quick", "--out", ""), "out|folder|name"),
    (("regression", "vonoswald", "--quick", "--out", "/dev/null"), "dev.null"),
    (("regression", "vonoswald", "--quick", "--out", "/dev/null/run"), "dev.null"),
)
PATTERNS = (
    "o/m@step*",
    "{here}/none-*",
    "{here}/*",
    "{here}/[",
    "{here}/**/none-*",
    "{}",
    "{,}",
    "o/m@{",
    "o/m@{a,a b}",
    "o/m-" + "{0,1,2,3,4,5,6,7,8,9}" * 9,
    "o/m-" + "{" * 3000 + "}" * 3000,
    "o/m-{" + "x," * 200_000 + "x}",
    "*" * 300 + "/none",
    "**/" * 60 + "none-*",
    "{here}/a\0*",
)
ADAPTER = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["c_attn"], "task_type": "CAUSAL_LM"}
CONFIGS: dict[str, bytes] = {
    "empty": b"",
    "a list": b"[1]",
    "cut short": b'{"peft_type": "LORA", ',
    "binary": b"\x00\xff\xfe",
    "deep": b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
    "another kind": json.dumps({**ADAPTER, "peft_type": "IA3"}).encode(),
    "a kind of three": json.dumps({**ADAPTER, "peft_type": 3}).encode(),
    "Megatron": json.dumps({**ADAPTER, "megatron_config": {"a": 1}}).encode(),
    "begun otherwise": json.dumps({**ADAPTER, "init_lora_weights": "pissa"}).encode(),
    "begun with a list": json.dumps({**ADAPTER, "init_lora_weights": []}).encode(),
    "a rank of none": json.dumps({**ADAPTER, "r": 0}).encode(),
    "a rank of text": json.dumps({**ADAPTER, "r": "x"}).encode(),
}
FOLDERS = ("", "none-such", "/dev/null", "{here}", "x" * 5000, "a\0b")


def _nothing(place: Place) -> None:
    """The command alone is bad."""


def _pipe(place: Place) -> None:
    import os

    os.mkfifo(place.folder / "pipe.yaml")


def _adapter(config: bytes, weights: bytes | None = None) -> Callable[[Place], None]:
    def make(place: Place) -> None:
        place.model()
        place.write("adapter/adapter_config.json", config)
        place.write("adapter/adapter_model.safetensors", _weights() if weights is None else weights)

    return make


def _weights() -> bytes:
    import torch
    from safetensors.torch import save

    return bytes(save({"base_model.model.none_such.lora_A.weight": torch.zeros(2, 2)}))


def _pickled(place: Place) -> None:
    place.write("adapter/adapter_config.json", json.dumps(ADAPTER))
    place.write("adapter/adapter_model.bin", b"\x80\x04.")


def _run(*more: str) -> tuple[str, ...]:
    return ("run", "--task", "embedded-sst2", "--lr", "0.1", "--out", "{here}/run", *more)


def _merging(name: str, config: bytes, weights: bytes | None = None) -> Bad:
    model = ("--model", "{here}/model", "--adapter", "{here}/adapter")
    return Bad(f"adapter {name}", _run("--dry-run", *model), "adapter", _adapter(config, weights))


TABLE = [Bad(f"try {i} {' '.join(more)[:40]!r}", ("try", *more), said) for i, (more, said) in enumerate(TRIES)]
TABLE += [
    Bad(f"explore {i} {' '.join(more)[:40]!r}", ("explore", "--no-browser", *more), said, _pipe)
    for i, (more, said) in enumerate(EXPLORES)
]
TABLE += [Bad(f"newer {i} {' '.join(arguments)[:60]!r}", arguments, said) for i, (arguments, said) in enumerate(OTHERS)]
TABLE += [Bad(f"pattern {name[:40]!r}", _run("--dry-run", "--model", name), "model|pattern") for name in PATTERNS]
TABLE += [Bad(f"adapter in {name[:30]!r}", _run("--dry-run", "--adapter", name), "adapter") for name in FOLDERS]
TABLE += [_merging(f"of {name}", content) for name, content in CONFIGS.items()]
TABLE += [
    _merging(f"with weights that are {name}", json.dumps(ADAPTER).encode(), content)
    for name, content in {"empty": b"", "text": b"{}", "cut": b"\x10" + b"\0" * 7 + b'{"a"'}.items()
]
TABLE.append(Bad("adapter pickled", _run("--dry-run", "--adapter", "{here}/adapter"), "pickled", _pickled))
