"""Placeholders for tiling data."""

from __future__ import annotations

import pytest

from acc_pytest.lab.atb.probe.e3 import placeholder


@pytest.mark.parametrize(
    ("kernel", "length"),
    [
        ("AtbRopeKernel", 68),
        ("SplitF16Output2Kernel", 32),
        ("SplitF16Output3Kernel", 52),
        ("UnpadFlashAttentionBF16NdKernel", 64),
        ("SomethingNewKernel", 32),
    ],
)
def test_a_kernels_placeholder_has_the_length_of_its_data(kernel: str, length: int) -> None:
    assert placeholder(kernel) == "\0" * length
