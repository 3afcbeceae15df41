"""What is in a file that Weights & Biases writes offline: records in blocks of 32 KiB, in the client's own messages."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEAD = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(file: Path) -> Iterator[Any]:
    """Every record, in order."""
    from wandb.proto import wandb_internal_pb2

    data, at, part = file.read_bytes(), HEAD, b""
    assert data[:4] == b":W&B"
    while at + HEAD <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEAD:  # a head is never cut: the rest of the block is empty
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + HEAD])
        part = (
            data[at + HEAD : at + HEAD + length]
            if kind in (FULL, FIRST)
            else part + data[at + HEAD : at + HEAD + length]
        )
        at += HEAD + length
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            yield record
