"""Products of responses: what is left given copying, geometry, and the file that keeps them."""

import numpy as np
import pyarrow as pa
import pytest

from dualscope.core.response_products import (
    SCHEMA,
    ComparedPart,
    Copying,
    Products,
    geometry_matrix,
    given_copying,
    parts_of,
    table_of,
    weighted,
)
from dualscope.core.words import Level

CHANCE: Level = "chance"
HALF: Level = "half"
LEVELS: list[Level | None] = [*[CHANCE] * 6, *[HALF] * 6]


def products(r: np.ndarray, s: np.ndarray) -> Products:
    return Products(r @ s.T, r.T @ s, float((r**2).sum()), float((s**2).sum()))


def copying(r: np.ndarray, s: np.ndarray, sets: list[np.ndarray]) -> Copying:
    mean = np.mean(sets, 0)
    pairs = [(i, j) for i in range(len(sets)) for j in range(i)]
    sizes = [(sets[i] * sets[j]).sum() for i, j in pairs]
    agree = [
        size / np.sqrt((sets[i] ** 2).sum() * (sets[j] ** 2).sum()) for size, (i, j) in zip(sizes, pairs, strict=True)
    ]
    return Copying(products(mean, s), float((r * mean).sum()), float(np.mean(sizes)), float(np.mean(agree)))


def value(r: np.ndarray, s: np.ndarray, sets: list[np.ndarray]) -> float:
    part = ComparedPart("in-context", "answers", None, products(r, s), copying(r, s, sets))
    return part.given_copying


def world(seed: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """What is learned, what is copied, and sets of inputs that copy with noise: [draws, queries] each."""
    rng = np.random.default_rng(seed)
    learned, copied = rng.standard_normal((2, 12, 200))
    return learned, copied, [copied + 0.5 * rng.standard_normal((12, 200)) for _ in range(4)]


def test_given_copying_a_learner_is_found_and_a_copier_is_not() -> None:
    learners, copiers = [], []
    for seed in range(40):
        learned, copied, sets = world(seed)
        learners.append(value(learned + copied, learned, sets))
        copiers.append(value(learned + copied, copied, sets))
    assert np.mean(learners) == pytest.approx(1.0, abs=0.01)
    assert np.mean(copiers) == pytest.approx(0.0, abs=0.01)
    assert np.std(copiers) < 0.04


def test_where_copying_is_all_of_a_response_nothing_is_left() -> None:
    learned, copied, sets = world(0)
    assert value(copied, learned, sets) == 0.0


def test_copying_that_is_not_reproducible_takes_nothing_out() -> None:
    learned, _, _ = world(0)
    noise = [np.random.default_rng(seed).standard_normal(learned.shape) for seed in range(4)]
    own = learned + 0.5 * noise[0]
    assert value(learned, own, noise) == pytest.approx(products(learned, own).correlation)
    assert not copying(learned, own, noise).is_reproducible


def test_given_copying_by_hand() -> None:
    learned, copied, sets = world(1)
    r, s = learned + copied, 0.5 * learned + copied
    known = copying(r, s, sets)
    rp, sp, c = known.with_reference, known.with_own.total, known.size
    top = (r * s).sum() - rp * sp / c
    below = ((r * r).sum() - rp**2 / c) * ((s * s).sum() - sp**2 / c)
    assert value(r, s, sets) == pytest.approx(top / np.sqrt(below), abs=1e-12)
    arrays = given_copying(np.array([(r * s).sum()] * 3), np.array([sp] * 3), products(r, s), known)
    assert arrays == pytest.approx([value(r, s, sets)] * 3)


def test_unrelated_responses_have_no_geometry_in_common() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        grams = []
        for _ in range(2):
            raw = rng.standard_normal((2, 6, 30)) * np.array([2.0, 1.0])[:, None, None]
            flat = (raw - raw.mean(1, keepdims=True)).reshape(12, 30)
            grams.append((flat @ flat.T)[None])
        found.append(geometry_matrix(grams[0], grams[1], LEVELS)[0, 0])
    assert np.mean(found) == pytest.approx(0, abs=0.02)


def test_geometry_sees_through_a_rotation() -> None:
    rng = np.random.default_rng(1)
    flat = rng.standard_normal((12, 30))
    turned = flat @ np.linalg.qr(rng.standard_normal((30, 30)))[0]
    grams = [(one @ one.T)[None] for one in (flat, turned)]
    assert geometry_matrix(grams[0], grams[1], LEVELS)[0, 0] == pytest.approx(1.0)


def test_the_weighted_mean_leaves_out_what_has_no_value() -> None:
    assert float(weighted(np.array([1.0, np.nan, 4.0]), [1.0, 9.0, 2.0])) == pytest.approx(3.0)
    assert np.isnan(float(weighted(np.array([np.nan]), [1.0])))
    assert float(weighted(np.array([1.0, 4.0]), [-3.0, 2.0])) == pytest.approx(4.0)


def test_a_table_gives_back_what_it_was_made_of() -> None:
    learned, copied, sets = world(2)
    r, s = learned + copied, learned
    parts = [
        ComparedPart("in-context", "answers", None, products(r, s), copying(r, s, sets)),
        ComparedPart("plant:gd", "outputs", 3, products(r, s), None, 0.25),
    ]
    found, levels = parts_of(table_of(parts, LEVELS))
    assert list(levels) == LEVELS
    for one, other in zip(parts, found, strict=True):
        assert (one.reference, one.part, one.layer, one.weight) == (
            other.reference,
            other.part,
            other.layer,
            other.weight,
        )
        assert one.given_copying == pytest.approx(other.given_copying, abs=1e-12)
        np.testing.assert_allclose(one.products.queries, other.products.queries, rtol=1e-6)


def test_a_table_of_something_else_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid, match="columns are missing"):
        parts_of(pa.table({"value": [1.0]}))
    table = table_of([ComparedPart("x", "answers", None, products(np.eye(3), np.eye(3)))], LEVELS)
    broken = table.set_column(
        table.column_names.index("draws"), "draws", pa.array([[1.0, 2.0]], pa.list_(pa.float64()))
    )
    with pytest.raises(pa.ArrowInvalid, match="2 products are no square"):
        parts_of(broken)


def test_products_that_are_missing_are_said() -> None:
    table = pa.table({name: pa.nulls(1, field) for name, field in zip(SCHEMA.names, SCHEMA.types, strict=True)})
    with pytest.raises(pa.ArrowInvalid, match="products are missing"):
        parts_of(table.replace_schema_metadata({"levels": "[]"}))
