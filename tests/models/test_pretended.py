"""The pretended device refuses what a real one refuses, and computes what the CPU computes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.models.pretended import SECOND, Held, second_device


@pytest.fixture(autouse=True)
def inside() -> Iterator[None]:
    with second_device():
        yield


def test_numbers_and_gradients_are_the_cpus() -> None:
    there = torch.arange(6.0).reshape(2, 3).to(SECOND).requires_grad_()
    assert there.device == SECOND
    assert isinstance(there, Held)
    loss = (there @ torch.ones(3, 1, device=SECOND)).square().sum()
    loss.backward()
    assert loss.item() == 3**2 + 12**2
    assert there.grad is not None
    assert there.grad.device == SECOND
    assert there.grad.cpu()[:, 0].tolist() == [6.0, 24.0]
    assert torch.tensor([1, 2], device=SECOND).tolist() == [1, 2]


def test_views_and_changes_in_place() -> None:
    there = torch.zeros(2, 3, device=SECOND)
    there[0] += 1
    there.view(-1)[-1:].mul_(0).add_(5)
    assert there.cpu().tolist() == [[1, 1, 1], [0, 0, 5]]


@pytest.mark.parametrize(
    "mix",
    [
        lambda here, there: here + there,
        lambda here, there: there @ here,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: torch.stack([here.sum(), there.sum()]),
        lambda here, there: here * there.sum(),
        lambda here, there: here.add_(there),
        lambda here, there: torch.where(here > 0, there, there),
        lambda here, there: there.index_put_((torch.tensor([0]),), here[0]),
    ],
)
def test_mixing_is_refused(mix: Callable[[Any, Any], object]) -> None:
    here, there = torch.ones(2, 2), torch.ones(2, 2).to(SECOND)
    with pytest.raises(RuntimeError, match="same device"):
        mix(here, there)


def test_copies_numbers_and_indices_are_allowed() -> None:
    here, there = torch.ones(2, 2), torch.zeros(2, 2).to(SECOND)
    assert there.copy_(here).device == SECOND
    assert here.copy_(there).device == torch.device("cpu")
    assert (there * torch.tensor(2.0)).cpu().sum() == 8
    assert there[torch.tensor([1])].device == SECOND
    rows = torch.arange(6.0).reshape(3, 2).to(SECOND)
    assert rows[[2, 0]].cpu().tolist() == [[4, 5], [0, 1]]


def test_lists_of_tensors_are_taken_one_after_another() -> None:
    lists = [[torch.ones(2), torch.ones(3).to(SECOND)] for _ in range(2)]
    torch._foreach_add_(lists[0], lists[1], alpha=2)
    assert [t.sum().item() for t in lists[0]] == [6, 9]
    assert [t.device.type for t in torch._foreach_norm(lists[0])] == ["cpu", "meta"]
    with pytest.raises(RuntimeError, match="same device"):
        torch._foreach_add_(lists[0], lists[1][::-1])
