"""What the measured table says about single calls; meta tensors stand for the GPU's."""

from __future__ import annotations

import json

import pytest
import torch

from gfxgraph.device.operator_table import (
    CONDITIONS,
    Call,
    _entries,
    capture_behaviour,
    may_refuse,
    measured_on,
)
from tests.helpers.paths import ROOT

aten = torch.ops.aten


def on_device(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_add_captures() -> None:
    assert capture_behaviour(Call(aten.add.Tensor, (on_device(3), on_device(3)))) == "captures"


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_nonzero_reads_the_device(shape: tuple[int, ...]) -> None:
    assert capture_behaviour(Call(aten.nonzero.default, (on_device(*shape),))) == "reads the device"


@pytest.mark.parametrize("shape", [(), (1,)])
def test_item_reads_the_device_whatever_the_shape(shape: tuple[int, ...]) -> None:
    call = (on_device(*shape),)
    assert capture_behaviour(Call(aten._local_scalar_dense.default, call)) == "reads the device"


def test_item_of_a_host_tensor_captures() -> None:
    assert (
        capture_behaviour(Call(aten._local_scalar_dense.default, (torch.zeros(()),))) == "captures"
    )


def test_an_index_that_is_a_mask_reads_and_one_of_integers_captures() -> None:
    x = on_device(4)
    mask, integers = on_device(4, dtype=torch.bool), on_device(2, dtype=torch.int64)
    assert capture_behaviour(Call(aten.index.Tensor, (x, [mask]))) == "reads the device"
    assert capture_behaviour(Call(aten.index.Tensor, (x, [integers]))) == "captures"


def test_repeat_interleave_captures_if_it_is_told_the_size() -> None:
    repeats = on_device(4, dtype=torch.int64)
    behaviour = capture_behaviour(Call(aten.repeat_interleave.Tensor, (repeats,)))
    assert behaviour == "reads the device"
    told = capture_behaviour(Call(aten.repeat_interleave.Tensor, (repeats,), {"output_size": 6}))
    assert told == "captures"


def test_a_histogram_without_limits_reads_the_device() -> None:
    assert capture_behaviour(Call(aten.histc.default, (on_device(5), 3))) == "reads the device"
    assert capture_behaviour(Call(aten.histc.default, (on_device(5), 3, -1, 1))) == "captures"


def test_a_factorization_of_nothing_captures() -> None:
    assert capture_behaviour(Call(aten._linalg_svd.default, (on_device(0, 2),))) == "captures"
    assert (
        capture_behaviour(Call(aten._linalg_svd.default, (on_device(3, 2),))) == "reads the device"
    )


def test_a_copy_from_the_host_is_one() -> None:
    args = (on_device(3), torch.zeros(3))
    assert capture_behaviour(Call(aten.copy_.default, args)) == "copies from the host"


def test_a_matrix_product_needs_its_library_handle_first() -> None:
    args = (on_device(2, 2), on_device(2, 2))
    assert capture_behaviour(Call(aten.mm.default, args)) == "needs warm-up"
    assert not may_refuse(aten.mm.default)  # no reason to look at each call


def test_the_data_says_what_it_was_measured_on() -> None:
    about = measured_on()
    assert about["torch"] and about["device"] and about["date"]
    assert sum(about["counts"].values()) == sum(about["splits"].values())
    assert about["counts"]["captures"] > 5000
    assert "operators" not in about


def test_agreement_with_the_held_out_samples_is_99_percent() -> None:
    for agreement in measured_on()["agreement"].values():
        assert agreement["samples"] > 3000
        assert agreement["right"] + sum(agreement["wrong"].values()) == agreement["samples"]
        assert agreement["right"] >= 0.99 * agreement["samples"]


def test_every_entry_names_an_operator_of_torch_or_of_another_version() -> None:
    found = 0
    for name in _entries():
        _, packet, overload = name.split(".")
        found += hasattr(getattr(aten, packet, None), overload)
    assert found >= 0.9 * len(_entries())
    assert all(CONDITIONS)


def test_the_page_is_what_its_generator_makes() -> None:
    from benchmarks.tables import operators

    data = json.loads((ROOT / "src/gfxgraph/device/operators.json").read_text(encoding="utf-8"))
    assert operators.page(data) == (ROOT / "docs/operators.md").read_text(encoding="utf-8")
