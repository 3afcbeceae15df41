"""Options of learners as the command line spells them: gd.epochs=3."""

from __future__ import annotations

from collections.abc import Sequence

from dualscope.core.canonical import canonical
from dualscope.core.config_file import parsed_yaml
from dualscope.core.errors import InputError, suggest
from dualscope.studies.study import Study

VALUE = "value"


def with_options(study: Study, given: Sequence[str]) -> Study:
    """The study, its learners with these options; values as in a study file.

    >>> study = Study.build({"tasks": ["sst2"], "learners": ["gd", "lcgd"]})
    >>> with_options(study, ["gd.epochs=3"]).learners[0].options
    {'epochs': 3}
    """
    entries = list(study.learners)
    for text in given:
        left, equals, written = text.partition("=")
        learner, dot, name = left.partition(".")
        if not (equals and dot and learner and name):
            raise InputError(f"--option {text}: expected LEARNER.NAME=VALUE, as in gd.epochs=3")
        if all(entry.learner != learner for entry in entries):
            known = [entry.learner for entry in entries]
            raise InputError(f"--option {text}: the study has no learner '{learner}': {suggest(learner, known)}")
        found, _ = parsed_yaml(f"{VALUE}: {written}", f"--option {left}")
        if found.keys() != {VALUE}:
            raise InputError(f"--option {left}: '{written[:60]}' is more than one value")
        value = found[VALUE]
        canonical({name: value})  # a date or an infinite number is no setting
        entries = [
            entry.model_copy(update={"options": {**entry.options, name: value}}) if entry.learner == learner else entry
            for entry in entries
        ]
    return study.model_copy(update={"learners": tuple(entries)}) if given else study
