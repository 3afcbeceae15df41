"""dualscope validate: look at a task before spending hours on it."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dualscope.commands.shared_options import OFFLINE
from dualscope.core.errors import InputError

if TYPE_CHECKING:
    from dualscope.tasks import Episode, Example, Lesson, Task

SHOTS = 32  # as in a study
SHOWN = 2  # demonstrations in the few-shot prompt


def validate(
    task: str = typer.Argument(..., metavar="TASK", help="A name from `list tasks`, or a YAML file."),
    model: str | None = typer.Option(None, "--model", help="Show tokens and lengths for this model."),
    data: Path | None = typer.Option(None, "--data", help="Read DIR/<task>/<split>.jsonl, not the hub."),
    shots: int | None = typer.Option(
        None, "--shots", show_default=str(SHOTS), help="How many demonstrations to try to fit."
    ),
    seed: int = typer.Option(0, "--seed", help="Which draw to show."),
    chat: bool = typer.Option(
        False, "--chat", help="As turns of a conversation, through the chat template of --model."
    ),
    offline: bool = OFFLINE,
) -> None:
    """Show a task's prompts, classes, label tokens and lengths, and how many demonstrations fit a model."""
    from dualscope.tasks import Episode, Task

    if chat and model is None:
        raise InputError("--chat needs --model: the chat template is its tokenizer's")
    loaded = Task.load(task, data=data, offline=offline, chat=chat)
    _list_bad_rows(loaded)
    asked = SHOTS if shots is None else shots
    # A small split is no reason to stop where no more was asked for, or where no model learns from it.
    if shots is None or model is None:
        splits = loaded.config.splits
        kept = 1 if splits.train == splits.evaluation else 0  # one has to be left as a query
        asked = min(asked, max(1, len(loaded.train) - kept))
    episode = Episode.draw(loaded, shots=asked, seed=seed)
    _show_splits(loaded)
    if shots is None and asked < SHOTS:
        typer.echo(f"  fewer than the default of {SHOTS} shots: {asked} are shown; give a run --shots {asked}")
    if model is None:
        _show_prompts(episode)
        lengths = [len(loaded.prompt(query)) for query in episode.queries]
        typer.echo(
            f"\nlengths of {len(lengths)} quer{'y' if len(lengths) == 1 else 'ies'} in characters: {_spread(lengths)}"
        )
        typer.echo("give --model to see tokens, and how many demonstrations fit")
        return
    from dualscope.models.loading.load import load_tokenizer

    tokenizer, positions = load_tokenizer(model, offline)
    _show_prompts(episode, tokenizer)
    _show_tokens(episode, model, tokenizer, positions)


def _list_bad_rows(task: "Task") -> None:
    """Every row that cannot be used, of both splits; then the summary is the error."""
    from dualscope.tasks.mapping import BadRows, counted

    splits = task.config.splits
    found: list[BadRows] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for split in dict.fromkeys((splits.train, splits.evaluation)):
            try:
                _ = task.train if split == splits.train else task.evaluation
            except BadRows as error:
                if error.is_whole:  # one mistake about all rows, such as a column's name
                    raise
                found.append(error)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"warning: {message}", err=True)
    bad = sum(len(error.rows) for error in found)
    if bad == 1:
        raise found[0]
    for one in found:
        typer.echo(f"{one.where}: {counted(len(one.rows), 'row')} bad", err=True)
        for row in one.rows:
            typer.echo(f"  {row.where}: {row.why}", err=True)
    if bad:
        raise InputError(
            f"task '{task.name}': {counted(bad, 'row')} bad: mend them, or leave such rows out with "
            "`on_bad_rows: skip` in the task file"
        )


def _show_splits(task: "Task") -> None:
    typer.echo(f"task {task.name}")
    for role, split, examples in (
        ("demonstrations", task.config.splits.train, task.train),
        ("queries", task.config.splits.evaluation, task.evaluation),
    ):
        balance = ", ".join(f"{word} {n}" for word, n in zip(task.labels, _balance(examples, task), strict=True))
        typer.echo(f"  {role} from '{split}': {len(examples)} examples ({balance})")


def _show_prompts(episode: "Episode", tokenizer: Any = None) -> None:
    task = episode.task
    query = task.prompt(episode.queries[0])
    shown = list(zip(episode.demonstrations, episode.labels("icl"), strict=True))[:SHOWN]
    if task.chat:
        from dualscope.tasks.chat import turns_of

        turns = turns_of(tokenizer)
        zero = turns.conversation([], query)
        few = turns.conversation([(task.prompt(e), task.labels[label]) for e, label in shown], query)
    else:
        separator = "<EOS>" if task.separator is None else task.separator
        zero = query
        few = "".join(task.prompt(e) + task.answer(label) + separator for e, label in shown) + query
    typer.echo(f"\nzero-shot prompt (query {episode.queries[0].id}, answer{task.answer(episode.queries[0].label)}):")
    typer.echo(zero)
    typer.echo(f"\nfew-shot prompt (seed {episode.seed}, the first {len(shown)} demonstrations, the same query):")
    typer.echo(few)


def _show_tokens(episode: "Episode", model: str, tokenizer: Any, positions: int) -> None:
    from dualscope.tasks import make_lesson

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        lesson = make_lesson(episode, tokenizer, positions)
    typer.echo(f"\nin the tokens of {model} ({positions} positions)")
    first, last = ("before the first turn", "end of an answer") if episode.task.chat else ("BOS", "separator")
    typer.echo(f"  {first} {_pieces(lesson.bos, tokenizer)}, {last} {_pieces(lesson.separator, tokenizer)}")
    for word, tokens in zip(episode.task.labels, lesson.answers, strict=True):
        typer.echo(f"  label word {word}: {_pieces(tokens, tokenizer)}")
    typer.echo(f"  queries: {_spread([len(query) for query in lesson.queries])} tokens")
    typer.echo(f"  unknown to the model: {_unknown(lesson, tokenizer)}")
    typer.echo(f"  context: {len(lesson.context)} tokens")
    typer.echo(f"  {lesson.shots_used} of {lesson.shots} demonstrations fit")
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"  warning: {message}")


def _unknown(lesson: "Lesson", tokenizer: Any) -> str:
    """The share of the texts' tokens that stand for what a vocabulary does not have."""
    from dualscope.tasks.tokens import unknown_token

    unknown = unknown_token(tokenizer)
    if unknown is None:
        return "nothing (its vocabulary has a token for every text)"
    texts = [*lesson.queries, *(demonstration.prompt for demonstration in lesson.demonstrations)]
    missed, total = sum(text.count(unknown) for text in texts), sum(map(len, texts))
    if not missed:
        return "none of the texts' tokens"
    return f"{missed / total:.1%} of the texts' tokens ({missed} of {total} are {tokenizer.unk_token!r})"


def _pieces(tokens: tuple[int, ...], tokenizer: Any) -> str:
    names = tokenizer.convert_ids_to_tokens(list(tokens))
    return " ".join(f"{name!r} ({token})" for name, token in zip(names, tokens, strict=True)) or "none"


def _balance(examples: "Sequence[Example]", task: "Task") -> list[int]:
    labels = getattr(examples, "labels", None)  # of a split of gigabytes, without its texts
    counts = Counter((example.label for example in examples) if labels is None else labels.tolist())
    return [counts[label] for label in range(len(task.labels))]


def _spread(lengths: list[int]) -> str:
    ordered = sorted(lengths)
    return f"shortest {ordered[0]}, median {ordered[len(ordered) // 2]}, longest {ordered[-1]}"
