"""The columns of rows: which they are, and that their order in files is that of all of them."""

from dualscope.core.rows import CELL_COLUMNS, COLUMNS, SUMMARY_KEYS, CellColumns, Row


def test_the_order_in_files_has_every_column_once() -> None:
    assert sorted(CELL_COLUMNS) == sorted(CellColumns.__annotations__)
    assert sorted(COLUMNS) == sorted(Row.__annotations__)
    assert set(CELL_COLUMNS) - set(SUMMARY_KEYS) == {"init_seed", "seed", "order", "shots_used"}
