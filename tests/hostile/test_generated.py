"""What nobody thought of: values and bytes by chance. Bad or not, what they meet is words, and never a traceback."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualscope.core.config_file import read_config, read_yaml
from dualscope.core.errors import InputError
from dualscope.models.loading.digest import model_digest
from dualscope.models.loading.load import load_tokenizer
from dualscope.studies.execute.cost import shape_of
from dualscope.studies.plan import parse_shard
from dualscope.studies.study import Study
from dualscope.tasks import Task, TaskConfig
from dualscope.tasks.sources import read_rows
from tests.hostile.inputs import data_files
from tests.hostile.inputs.bad import ROWS

MANY = 2000 if os.environ.get("DUALSCOPE_WHOLE") else 60
USUAL = settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("gd") | st.just("sst2")
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
STUDIES = st.dictionaries(st.sampled_from([*Study.model_fields, "preset", "shot"]), VALUES, max_size=4)
TASKS = st.dictionaries(st.sampled_from([*TaskConfig.model_fields, "label_value"]), VALUES, max_size=5)


@contextmanager
def told(words: str = "") -> Iterator[None]:
    """It may be fine; where it is not, an `InputError` says these words, and nothing else is raised."""
    try:
        yield
    except InputError as error:
        if words not in str(error):
            raise


@USUAL
@given(STUDIES)
def test_studies(fields: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.yaml"
        file.write_text(json.dumps(fields))
        with told():
            study = Study.resolve({}, file)
            assert Study.build(yaml.safe_load(study.dump())) == study


@USUAL
@given(TASKS)
def test_tasks(fields: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.yaml"
        file.write_text(json.dumps({"name": "a", "template": "{text} L:", "labels": ["a", "b"], **fields}))
        with told("task.yaml"):
            Task.load(file)


@USUAL
@given(st.text(max_size=60) | st.binary(max_size=60))
def test_texts(content: str | bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "any.yaml"
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        for read in (read_yaml, lambda path: read_config(path, TaskConfig)):
            with told("any.yaml"):
                read(file)


@USUAL
@given(st.text(max_size=12))
def test_values_of_options(text: str) -> None:
    for field in ("seeds", "lr", "shots", "dtype", "variants", "demo_labels"):
        with told():
            Study.resolve({field: text})
    with told("--shard"):
        number, shards = parse_shard(text)
        assert 1 <= number <= shards


def _mutated(data: bytes, seed: int) -> bytes:
    """Some bytes changed, cut out or put in."""
    rng = np.random.default_rng(seed)
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(found)))
        kind = rng.integers(4)
        if kind == 0:
            found[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del found[at : at + int(rng.integers(1, 40))]
        elif kind == 2:
            found[at:at] = rng.bytes(int(rng.integers(1, 40)))
        else:
            found[at : at + 4] = rng.bytes(4)
        if not found:
            break
    return bytes(found)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_mutated_model_files(model_folder: str, tmp_path: Path, name: str) -> None:
    for seed in range(MANY // 10):
        model = Path(shutil.copytree(model_folder, tmp_path / str(seed)))
        (model / name).write_bytes(_mutated((model / name).read_bytes(), seed))
        for read in (model_digest, shape_of, load_tokenizer):
            with told("model"):
                read(str(model))
        shutil.rmtree(model)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_mutated_data(tmp_path: Path, suffix: str) -> None:
    whole = "\n".join(map(json.dumps, ROWS)).encode() if suffix == "jsonl" else data_files.WHOLE
    file = tmp_path / f"data.{suffix}"
    for seed in range(MANY):
        file.write_bytes(_mutated(whole, seed))
        with told("data."):
            read_rows(file)
