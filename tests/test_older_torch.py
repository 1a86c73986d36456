"""older_torch: what stands in for a missing function computes what torch's own does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from acc_pytest.older_torch import rms_norm, rounded_once


@pytest.mark.skipif(not hasattr(F, "rms_norm"), reason="torch 2.4 is the first with rms_norm")
def test_the_norm_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 5, 7, generator=generator, dtype=torch.float64)
    weight = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    theirs = F.rms_norm(x, [5, 7], weight, 1e-3)
    monkeypatch.delattr(F, "rms_norm")
    # a sum of 35 squares, a root and two products, in float64
    torch.testing.assert_close(rms_norm(x, (5, 7), weight, 1e-3), theirs, rtol=40 * 2**-53, atol=0)


class Refusing:
    """An aten operator as it was before it knew float16."""

    def __init__(self, func: Any) -> None:
        self.func, self._schema, self.refused = func, func._schema, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(one.dtype == torch.float16 for one in (*args, *kwargs.values())):
            self.refused += 1
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")
        return self.func(*args, **kwargs)


def test_what_refuses_float16_is_computed_in_float32_and_rounded_once() -> None:
    a, b = torch.randn(2, 3).half(), torch.randn(3, 2).half()
    old = Refusing(torch.ops.aten.mm.default)
    found = rounded_once(old, (a, b), {})
    assert old.refused == 1
    assert torch.equal(found, (a.float() @ b.float()).half())
    assert torch.equal(rounded_once(old, (a.float(), b.float()), {}), a.float() @ b.float())


def test_what_is_written_in_place_is_written_there() -> None:
    a, b, out = torch.randn(2, 3).half(), torch.randn(3, 2).half(), torch.empty(2, 2).half()
    rounded_once(Refusing(torch.ops.aten.mm.out), (a, b), {"out": out})
    assert torch.equal(out, (a.float() @ b.float()).half())


def test_other_complaints_stay() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        rounded_once(torch.ops.aten.mm.default, (torch.ones(2, 3), torch.ones(2, 3)), {})
