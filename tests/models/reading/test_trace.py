"""Files written piece by piece are safetensors files, and no piece is larger than it may be."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from weakref import finalize

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dualscope.core.errors import InputError
from dualscope.core.spec import LearnerSpec
from dualscope.learners import Bench, identify
from dualscope.metrics import METRICS
from dualscope.metrics.icl_update import RESPONSES
from dualscope.metrics.measured import Measured, measure_cell
from dualscope.models import Trace
from dualscope.models.loading.load import split
from dualscope.models.model import Model
from dualscope.models.reading import trace as tensor_stream
from dualscope.models.reading.footprint import HELD, Demand, Shape, footprint
from dualscope.models.reading.trace import NAMES, in_file, is_in_file, rows_of, stream
from tests.learners.setting import tiny_bench, tiny_lesson, wrapped
from tests.models.pretended import SECOND, move, second_device


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    values = torch.randint(0, 2, shape) if dtype == torch.bool else torch.randint(0, 100, shape)
    return values.to(dtype)


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=5),
    kinds=st.lists(st.sampled_from(list(NAMES)), min_size=5, max_size=5),
    piece=st.sampled_from([1, 7, 64, 2**26]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, ...]], kinds: list[torch.dtype], piece: int
) -> None:
    wanted = {str(i): drawn(shape, kinds[i]) for i, shape in enumerate(shapes)}
    path = tmp_path_factory.mktemp("stream") / "file"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_stream, "PIECE", piece)
        stream(wanted, path, {"ids": "ä\nb"})
    found = load_file(path)
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    with safe_open(str(path), "pt") as file:
        assert file.metadata() == {"ids": "ä\nb"}


def test_no_more_than_a_piece_is_brought_to_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought: list[int] = []
    cpu: Any = Tensor.cpu

    def counted(tensor: Tensor) -> Tensor:
        brought.append(tensor.nbytes)
        found: Tensor = cpu(tensor)
        return found

    monkeypatch.setattr(Tensor, "cpu", counted)
    monkeypatch.setattr(tensor_stream, "PIECE", 1000)
    large = torch.zeros(100, 3, 8).transpose(1, 2)
    stream({"large": large}, tmp_path / "file", {})
    assert max(brought) <= 1000
    assert sum(brought) == large.nbytes
    assert (tmp_path / "file").stat().st_size > large.nbytes


WANT = frozenset({"exits", "mass", "kendall", "direct", "next_tokens", "context_products"})
# Three demonstrations allow too few draws for these.
OF_DRAWS = {one for one in METRICS if METRICS[one].function.__module__.endswith("responses_of_draws")} | {*RESPONSES}
EVERY = [name for name in METRICS if METRICS[name].wants <= WANT and name not in OF_DRAWS]
BESIDE = (
    *(identify("gd", {"draw": draw}, "reorder", 0.1) for draw in range(1, 6)),
    identify("null-context"),
    identify("zero-shot-offset"),
    identify("kv-distilled", {"fit": 6, "lr": 0.001, "steps": 4}),
    identify("lcgd", lr=0.1),
    identify("in-context", control="redraw"),
)
CELLS: list[tuple[LearnerSpec, tuple[LearnerSpec, ...]]] = [
    (identify("gd", lr=0.1), BESIDE),
    (identify("in-context"), ()),
    (identify("zero-shot"), ()),
    (identify("probe"), ()),
    (identify("kernel", {"layer": 1, "temperature": 0.1}), ()),
    (identify("dilution"), ()),
    (identify("task-vector", {"layer": 1, "dummies": 2}), ()),
    (identify("gd", control="random-update", lr=0.1), ()),
    (identify("gd-linearized", lr=0.1), ()),
    (identify("context-patch"), ()),
]


@contextmanager
def keeping(limit: int, chunk: int = 2**18) -> Iterator[None]:
    """Inside, tensors of more bytes than ``limit`` go to files, and metrics look at ``chunk`` numbers at once."""
    with pytest.MonkeyPatch.context() as patch:
        for place in ("models.reading.read", "descent.direct_effect"):
            patch.setattr(f"dualscope.{place}.tensor_limit", lambda _model: limit)
        patch.setattr("dualscope.metrics.cosine.CPU_CHUNK", chunk)
        yield


def measured(
    bench: Bench,
    cell: tuple[LearnerSpec, tuple[LearnerSpec, ...]],
    subset: Literal["all", "f2t"] = "all",
    names: Sequence[str] = EVERY,
) -> Measured:
    learning, beside = cell
    reference = None if learning.name == "zero-shot" else identify("in-context")
    return measure_cell(
        bench, learning, beside, reference=reference, metrics=names, per_head=True, per_query=True, subset=subset
    )


def assert_same(found: Measured, wanted: Measured, but: Collection[str] = ()) -> None:
    numbers = []
    named = []
    for one in (found, wanted):
        rows = [row for row in one.rows if row["metric"] not in but]
        values = [(row["value"], row["low"], row["high"]) for row in rows]
        numbers.append(torch.tensor(values, dtype=torch.float64))
        keys = ("metric", "reference", "layer", "head", "step", "n")
        named.append([[value for key, value in row.items() if key in keys] for row in rows])
    assert named[0] == named[1]
    torch.testing.assert_close(numbers[0], numbers[1], rtol=1e-10, atol=1e-10, equal_nan=True)
    assert found.queries.schema == wanted.queries.schema


@pytest.mark.parametrize("family", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_every_metric_of_every_kind_of_learner(family: str) -> None:
    plain = tiny_bench(family, want=WANT, queries=4)
    wanted = [measured(plain, cell) for cell in CELLS]
    assert not plain.in_context.is_in_files
    with keeping(limit=0):
        bench = tiny_bench(family, want=WANT, queries=4)
        for cell, one in zip(CELLS, wanted, strict=True):
            found = measured(bench, cell)
            assert_same(found, one)
            # Derivatives cannot be kept in files.
            assert is_in_file(found.result.trace.attn_out) == (cell[0].name != "gd-linearized")
        assert {row["metric"] for one in wanted for row in one.rows} >= set(EVERY) - {
            "clipped_steps",
            "indirect_effect",
            "sim_aou_above",
            "sim_dw_mismatched",
        }


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(limit=st.integers(0, 4000), chunk=st.integers(1, 3000), queries=st.integers(1, 9))
def test_whatever_is_kept_and_however_it_is_cut(limit: int, chunk: int, queries: int) -> None:
    cell = CELLS[0][0], BESIDE[5:6]
    wanted = measured(tiny_bench(want=WANT, queries=queries), cell, subset="f2t")
    with keeping(limit, chunk):
        assert_same(measured(tiny_bench(want=WANT, queries=queries), cell, subset="f2t"), wanted)


class Counting(TorchDispatchMode):
    """The most bytes that tensors made inside held at once, those in files left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and not is_in_file(tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        self.held += (size := storage.nbytes())
        self.peak = max(self.peak, self.held)

        def gone() -> None:
            self.held -= size
            self._seen.discard(key)

        finalize(storage, gone)


def held_by(traces: list[Trace], where: Callable[[torch.Tensor], bool]) -> int:
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if where(tensor):
            sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    for trace in traces:
        trace.map(note)
    return sum(sizes.values())


def test_what_is_held_is_a_layer_and_not_a_trace() -> None:
    queries, names = (20, ["sim_aou", "sim_aou_centered", "sim_aou_mismatched", "sim_am_delta", "sim_aou_random"])
    lengths: list[int] = []
    for limit in (2**40, 0):
        with keeping(limit, chunk=1):
            bench = tiny_bench("llama", queries=queries)
            learnings = [identify(name, lr=rate) for name, rate in (("zero-shot", None), ("gd", 0.1))]
            traces = [bench.result(learning).trace for learning in learnings] + [bench.in_context]
            lengths = [len(query) for query in bench.lesson.queries]
            in_files, in_memory = held_by(traces, is_in_file), held_by(traces, lambda t: not is_in_file(t))
            with Counting() as counted:
                measure_cell(bench, learnings[1], metrics=names)
            shape = Shape.of(bench.model.hf.config.to_dict(), 10**6)
            demand = Demand(queries, max(lengths), memory=None if limit else 0)
            told = footprint(shape, 8, demand)
            assert in_files == told.files
            assert told.traces <= in_memory <= told.traces + 3 * queries * 64  # labels and their probabilities
    layer = queries * max(shape.width, shape.heads * max(lengths)) * 8
    assert 0 < counted.peak <= HELD * layer < told.files


def test_metrics_of_traces_in_files_compute_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a device that refuses to be mixed with the CPU, where the files are."""
    for where in ("dualscope.models.reading.memory", "dualscope.learners.bench"):
        monkeypatch.setattr(f"{where}.total_memory", lambda _device: 2**34)
    whole = wrapped("llama")
    lesson, cell = tiny_lesson(whole, queries=2), (identify("gd", lr=0.1), (identify("null-context"),))
    # A pretended device draws no numbers.
    names = [name for name in EVERY if not name.startswith("sim_aou_random")]
    wanted = measured(Bench(whole, lesson, want=WANT), cell, names=names)
    with second_device(), keeping(limit=0):
        parted = wrapped("llama")
        move(parted.hf, split(parted.hf, [SECOND, torch.device("cpu")]))
        bench = Bench(Model(parted.hf, parted.tokenizer), lesson, want=WANT)
        found = measured(bench, cell, names=names)
        assert is_in_file(bench.in_context.attn_out)
        assert bench.in_context.label_logprobs.device == SECOND
        for learning, _ in CELLS[3:7]:
            bench.result(learning)
    # Changes act otherwise where there are two devices, and round otherwise.
    assert_same(found, wanted, but=[name for name in EVERY if METRICS[name].reads_twice])


def test_a_trace_in_files_is_saved_as_any_other(tmp_path: Path) -> None:
    tiny_bench(want=WANT).in_context.save(tmp_path / "memory")
    with keeping(limit=0):
        tiny_bench(want=WANT).in_context.save(tmp_path / "files")
    assert (tmp_path / "memory").read_bytes() == (tmp_path / "files").read_bytes()


def test_files_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    tensor = in_file((3, 2, 4), torch.float32)
    assert str(tensor.untyped_storage().filename).startswith(str(tmp_path))
    assert not list(tmp_path.iterdir())
    tensor.fill_(7)
    assert rows_of(tensor, torch.tensor([2, 0])).eq(7).all()
    assert is_in_file(rows_of(tensor, torch.tensor([2, 0])))
    assert rows_of(tensor, torch.tensor([], dtype=torch.long)).shape == (0, 2, 4)


def test_where_there_is_no_room_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"do not fit into memory, and not into .*set TMPDIR"):
        in_file((2**20, 2**10, 2**14), torch.float64)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="nowhere"):
        in_file((2, 2, 2), torch.float64)
