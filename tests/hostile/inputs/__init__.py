"""Bad inputs, each with what has to be said about it."""

from tests.hostile.inputs import (
    cards,
    command_line,
    data_files,
    model_folders,
    newer_commands,
    plugins,
    studies,
    tasks,
    third_round,
    yaml_texts,
)
from tests.hostile.inputs.bad import Bad

TABLE: list[Bad] = [
    *studies.TABLE,
    *yaml_texts.TABLE,
    *tasks.TABLE,
    *command_line.TABLE,
    *data_files.TABLE,
    *model_folders.TABLE,
    *cards.TABLE,
    *plugins.TABLE,
    *newer_commands.TABLE,
    *third_round.TABLE,
]
