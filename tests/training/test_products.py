"""Gradients from factors: norms that bound the sum including its round-off, however positions cancel."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tacita.training import clipped_sum
from tacita.training.products import Convolution, Product, Rows, looked_up
from tacita.training.uses import joined

BOUND = torch.ones(1, dtype=torch.float64)


def cancelling(positions, high, wide, *, scale, rest):
    """Factors whose products cancel but for a rest."""
    left, right = torch.randn(1, positions, high) * scale, torch.randn(1, positions, wide) * scale
    left[:, 1::2], right[:, 1::2] = -left[:, ::2], right[:, ::2]
    left[:, -1] += rest * torch.randn(high)
    return left, right


def exact(left, right, rows=None):
    total = left.double().mT @ right.double()
    if rows is not None:
        total[0].index_add_(0, rows.index[0], rows.values[0].double())
    return total


@pytest.mark.parametrize("sizes", [(2, 300, 200), (8, 300, 200), (64, 40, 30), (64, 300, 200)])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e3, 1e7])
@pytest.mark.parametrize("rest", [0.0, 1e-6, 1.0])
def test_a_norm_bounds_the_share_of_a_sum_where_positions_cancel(sizes, scale, rest):
    torch.manual_seed(1)
    left, right = cancelling(*sizes, scale=scale, rest=rest * scale)
    part = Product("w", left, right)
    norm = part.norms()
    assert float(norm) >= float(exact(left, right).norm())
    across = left.double().norm() * right.double().norm()
    assert float(part.by_inner_products(across[None])) >= float(exact(left, right).norm()) * (1 - 1e-12)
    sums = {"w": torch.zeros(sizes[1:])}
    part.add_to(sums, (BOUND / norm.clamp_min(1e-300)).clamp_max(1.0))
    assert float(sums["w"].double().norm()) <= 1.0 + 1e-6


@pytest.mark.parametrize("positions", [3, 40])
def test_both_ways_to_a_norm_agree_with_the_gradient_itself(positions):
    torch.manual_seed(2)
    index = torch.randint(0, 30, (4, 6))
    rows = Rows("w", *looked_up(index, torch.randn(4, 6, 20)))
    left, right = torch.randn(4, positions, 30), torch.randn(4, positions, 20)
    whole = left.double().mT @ right.double()
    for i in range(4):
        whole[i].index_add_(0, rows.index[i], rows.values[i].double())
    part = Product("w", left, right, rows)
    across = left.double().flatten(1).norm(dim=1) * right.double().flatten(1).norm(dim=1)
    for norms in (part.norms(), part.by_making(), part.by_inner_products(across)):
        torch.testing.assert_close(norms, whole.flatten(1).norm(dim=1), rtol=1e-4, atol=0.0)
    assert (part.norms() >= whole.flatten(1).norm(dim=1)).all()
    sums = {"w": torch.zeros(30, 20)}
    part.without(torch.tensor([False, True, False, False])).add_to(sums, torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(sums["w"].double(), whole[[0, 2, 3]].sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
def test_rows_that_are_looked_up_often_are_added_up_first(order):
    index = torch.tensor([[3, 1, 3, 3], [0, 0, 0, 0]])
    values = torch.arange(16.0).view(2, 4, 2)
    back = [order.index(n) for n in range(3)]
    values = values.permute(order).contiguous().permute(back)  # in any order of memory
    rows = Rows("w", *looked_up(index, values))
    dense = torch.stack([torch.zeros(5, 2).index_add_(0, i, v) for i, v in zip(index, values, strict=True)])
    torch.testing.assert_close(rows.norms(), dense.double().flatten(1).norm(dim=1))
    sums = {"w": torch.zeros(5, 2)}
    rows.add_to(sums, torch.tensor([1.0, 0.5], dtype=torch.float64))
    torch.testing.assert_close(sums["w"], dense[0] + 0.5 * dense[1])


@pytest.mark.parametrize("places", [1, 2, 3])
@pytest.mark.parametrize("size", [3, 5])
def test_convolutions_of_any_dimension_match_autograd(places, size):
    torch.manual_seed(3)
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[places - 1](2, 4, 3, stride=2, padding=1, dilation=1)
    given = torch.randn(3, 2, *(size for _ in range(places)))
    out = layer(given)
    output = torch.randn_like(out)
    part = Convolution("w", output, given, layer.weight.detach(), (layer.stride, layer.padding, layer.dilation))
    rows = torch.stack(
        [torch.autograd.grad(layer(given[i : i + 1]), layer.weight, output[i : i + 1])[0] for i in range(3)]
    )
    wanted = rows.double().flatten(1).norm(dim=1)
    for norms in (part.norms(), part.made().norms()):
        torch.testing.assert_close(norms, wanted, rtol=1e-4, atol=0.0)
    assert (part.norms() >= wanted * (1 - 1e-6)).all()
    for each in (part, part.made()):
        sums = {"w": torch.zeros_like(layer.weight)}
        each.add_to(sums, torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64))
        torch.testing.assert_close(sums["w"], rows[0] + 0.5 * rows[2], rtol=1e-4, atol=1e-5)
    assert len(joined([part, part])) == 1


def test_a_whole_layer_keeps_to_the_bound_where_words_cancel():
    """Through the model: hidden states of a hundred million, in pairs that cancel."""
    torch.manual_seed(4)
    model = nn.Linear(200, 150, bias=False)

    def loss(parameters, record):
        out = functional.linear(record, parameters["weight"])
        return (out[::2] - out[1::2]).sum() * 1e3

    words = 1e8 * torch.randn(1, 6, 200)
    words[:, 1::2] = words[:, ::2] * (1 + 1e-7)
    got = clipped_sum(loss, {"weight": model.weight.detach()}, words, BOUND)
    assert float(got.sums["weight"].double().norm()) <= 1.0 + 1e-6
    assert float(got.norms) <= 1.0
