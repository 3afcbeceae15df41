"""``dualscope doctor``: is a model read correctly on this machine, in this precision?"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualscope.commands.shared_options import OFFLINE
from dualscope.core.errors import InputError
from dualscope.core.words import ADAPTER_MODES, AdapterMode

if TYPE_CHECKING:
    from dualscope.models import Model
    from dualscope.models.reading.parity import Logits
    from dualscope.tasks.lesson import Lesson

PROBE = "embedded-sst2"  # generated, so that any model can be examined without data
RATE = 0.01
FLOAT64 = 1e-9  # for two passes of ours; transformers' own softmax may be float32 inside
FLOAT32 = 5e-5  # what two float32 passes may differ by, for logits up to 1; larger logits, in proportion
OWN_ERROR = 4.0  # a lower precision may differ by so many times its own distance from float32


@dataclass(frozen=True)
class Finding:
    """One line of the examination; one with a limit can fail."""

    what: str
    value: float | str
    limit: float | None = None

    @property
    def ok(self) -> bool:
        return self.limit is None or (isinstance(self.value, float) and self.value <= self.limit)


def doctor(
    model: Annotated[
        str, typer.Option(help="embedded, a folder, a GGUF file, or a hub name (name@revision).")
    ] = "embedded",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float64, float32, tf32, bfloat16 or float16.")] = "float32",
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", help="A Python file with your family entry or learners. May be given several times."),
    ] = None,
    adapter: Annotated[str | None, typer.Option(help="A folder with a LoRA adapter (peft) for the model.")] = None,
    adapter_mode: Annotated[
        str, typer.Option(help="merged (into the weights) or active (a path of its own beside them).")
    ] = "merged",
    offline: bool = OFFLINE,
) -> None:
    """Compare the captured model with the plain one, a shared context with a full one, and this precision with
    float32. Exit code 1 where a tolerance is missed.
    """
    from dualscope.models import Model
    from dualscope.studies.plugins import load_plugins

    load_plugins([str(file) for file in plugin or []])
    columns: dict[str, list[Finding]] = {}
    reference: Logits | None = None
    for precision in dict.fromkeys(("float32", dtype)):
        try:
            loaded = Model.load(
                model,
                device=device,
                dtype=precision,
                offline=offline,
                adapter=adapter,
                adapter_mode=_mode(adapter, adapter_mode),
            )
        except InputError:
            if precision == dtype:
                raise
            typer.echo("float32 does not fit here: what this precision does to the measures is not known")
            continue
        if not columns:
            _describe(loaded)
        columns[precision], found = _examine(loaded, reference)
        reference = reference or found
        del loaded  # before the next one is loaded
    failed = _print(columns)
    if failed:
        typer.echo(f"{failed} of the tolerances missed", err=True)
        raise typer.Exit(1)


def _describe(model: "Model") -> None:
    adapter = f"adapter {model.family.adapter}" if model.family.adapter else "transformers' attention interface"
    typer.echo(f"{model.name}: family {model.family.name}, through {adapter}, {model.family.positions} positions")
    tied = "tied" if model.tied_embeddings else "separate"
    size = sum(parameter.numel() for parameter in model.hf.parameters()) / 1e6
    typer.echo(
        f"{model.n_layers} layers, {model.n_heads} heads, width {model.width}, {size:.1f} million weights, "
        f"{model.max_positions} positions, {tied} embeddings, on {model.device}"
    )


def _examine(model: "Model", reference: "Logits | None") -> "tuple[list[Finding], Logits]":
    from dualscope.models.reading.parity import logits_of

    lesson = _probe(model)
    found = logits_of(model, lesson)
    findings = [
        *_parity(model, found, reference),
        *_similarities(model, lesson),
        *_plugins(model, lesson),
        *_memory(model, lesson),
        *_throughput(model, lesson),
    ]
    return findings, found


def _mode(adapter: str | None, asked: str) -> AdapterMode:
    found: AdapterMode | None = next((mode for mode in ADAPTER_MODES if mode == asked), None)
    if found is None:
        raise InputError(f"--adapter-mode {asked}: expected {' or '.join(ADAPTER_MODES)}")
    if found == "active" and adapter is None:
        raise InputError("--adapter-mode active: there is no adapter; name its folder with --adapter DIR")
    return found


def _probe(model: "Model") -> "Lesson":
    from dualscope.tasks import Episode, Task, make_lesson

    task = Task.load(PROBE)
    if model.tokenizer.eos_token_id is None:
        task = Task(task.config.model_copy(update={"separator": "\n"}), task.source)
    episode = Episode.draw(task, shots=8, seed=0, queries=32)
    return make_lesson(episode, model.tokenizer, model.max_positions)


def _similarities(model: "Model", lesson: "Lesson") -> list[Finding]:
    """What this precision makes of the two similarities that are most exposed to rounding."""
    from dualscope.learners import Bench, identify
    from dualscope.metrics.measured import measure_cell

    gd = identify("gd", lr=RATE)
    rows = measure_cell(Bench(model, lesson), gd, metrics=["sim_aou", "sim_am_delta"]).rows
    return [
        Finding(f"{row['metric']} of gd on the probe episode", f"{row['value']:.5f}")
        for row in rows
        if row["layer"] is None
    ]


def _plugins(model: "Model", lesson: "Lesson") -> list[Finding]:
    """Every learner of a plugin on the probe episode: one that fails is a tolerance missed."""
    from dualscope.core.untrusted_files import reason
    from dualscope.learners import LEARNERS, Bench, identify
    from dualscope.metrics.measured import measure_cell
    from dualscope.studies.plugins import is_foreign

    found = []
    for name in (name for name in LEARNERS if is_foreign(LEARNERS[name])):
        learning = identify(name, lr=RATE if LEARNERS[name].needs_lr else None)
        try:
            rows = measure_cell(Bench(model, lesson), learning, metrics=["accuracy"]).rows
            said = f"works (accuracy {next(row['value'] for row in rows if row['layer'] is None):.2f})"
            found.append(Finding(f"your learner {name}", said))
        except Exception as error:  # code of other packages may raise anything
            found.append(Finding(f"your learner {name}", f"FAILED ({reason(error)})", 0.0))
    return found


def _parity(model: "Model", found: "Logits", reference: "Logits | None") -> list[Finding]:
    """Differences of logits with their limits; ``reference`` is the same model's in float32, for lower dtypes."""
    import torch

    size = max(1.0, float(found.plain.abs().max()))
    limit = FLOAT32 * size
    if model.precision not in ("float32", "float64"):
        own = torch.finfo(model.dtype).eps * size
        if reference is not None:
            own = max(own, float((found.plain - reference.plain).abs().max()))
        limit = max(limit, OWN_ERROR * own)
    missed = abs(found.calls - model.n_layers)
    return [
        Finding(f"attention calls missed, of {model.n_layers}", float(missed), 0.0),
        Finding("logits, captured - plain", float((found.captured - found.plain).abs().max()), limit),
        Finding(
            "logits, shared context - full context",
            float((found.shared - found.captured).abs().max()),
            FLOAT64 * size if model.precision == "float64" else limit,
        ),
        Finding("logits, read off the last layer - full", float((found.readout - found.shared).abs().max()), limit),
    ]


def _memory(model: "Model", lesson: "Lesson") -> list[Finding]:
    """What a gradient learner needs for this lesson, by part, and how many queries are read at once."""
    from dualscope.models.loading.device_and_precision import total_memory
    from dualscope.models.reading.footprint import TRAINED_TWICE, Demand, Shape, footprint
    from dualscope.models.reading.memory import batch_size, in_words, weight_bytes

    own = max(len(query) for query in lesson.queries) + 1
    shape = Shape.of(model.hf.config.to_dict(), weight_bytes(model.hf) // model.dtype.itemsize)
    task = Demand(
        queries=len(lesson.queries),
        query_tokens=own,
        context_tokens=len(lesson.context),
        demonstration_tokens=max(len(d.prompt) + len(d.label) + 1 for d in lesson.training),
        changes=1 + (shape.parameters <= TRAINED_TWICE and model.precision != "float64"),
        device="cuda" if model.device.type == "cuda" else "cpu",
        memory=total_memory(model.device),
    )
    need = footprint(shape, model.dtype.itemsize, task)
    asked = f"{task.queries} queries, {task.context_tokens} tokens of context"
    return [
        Finding(
            f"memory for gd on the probe episode ({asked})",
            f"{in_words(need.total)} of {in_words(total_memory(model.device))} on {model.device}",
        ),
        *(Finding(f"  {name}", in_words(size)) for name, size in need.parts.items()),
        *([Finding("  traces in files, not in memory", in_words(need.files))] if need.files else []),
        Finding("queries in a batch", str(batch_size(model, own, len(lesson.context)))),
    ]


def _throughput(model: "Model", lesson: "Lesson") -> list[Finding]:
    """Queries a second, the second time round: the first one warms the device up."""
    import torch

    findings = []
    for name in ("zero-shot", "in-context"):
        for _ in range(2):
            start = time.perf_counter()
            model.read(lesson, model.prefix(lesson.context) if name == "in-context" else None)
            if model.device.type == "cuda":
                torch.cuda.synchronize(model.device)
            taken = time.perf_counter() - start
        findings.append(Finding(f"{name} queries a second", f"{len(lesson.queries) / taken:.0f}"))
    return findings


def _print(columns: dict[str, list[Finding]]) -> int:
    """One line a finding, one column a precision; how many tolerances were missed."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", *columns, box=None, pad_edge=False)
    for findings in zip(*columns.values(), strict=True):
        table.add_row(findings[0].what, *(_cell(finding) for finding in findings))
    Console().print(table)
    return sum(not finding.ok for findings in columns.values() for finding in findings)


def _cell(finding: Finding) -> str:
    if isinstance(finding.value, str):
        return finding.value
    if not finding.limit:
        return f"{finding.value:.0f}" if finding.ok else f"{finding.value:.0f} FAILED"
    return f"{finding.value:.1e} (limit {finding.limit:.1e}){'' if finding.ok else ' FAILED'}"
