"""older_torch: what stands in for a missing function computes what torch's own does."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import acc_pytest
from acc_pytest.base.older_torch import rms_norm, rounded_once, tree_leaves

PACKAGE = Path(acc_pytest.__file__).parent
NEWER = {
    "torch.nn.functional.rms_norm": "2.4",
    "torch._utils._rebuild_tensor_v3": "2.2",
    "torch.compiler.set_stance": "2.6",
}
"""Names that the package asks for before it uses them, with the release that has them."""
PRIVATE = {
    "base/older_torch.py",
    "capture/torch_hooks/recorder.py",
    "capture/fx_backend/backend.py",
}
"""Modules that import private names of torch. All but the first take only such as every release has."""


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


def test_leaves_are_those_of_torch() -> None:
    tree = {"a": [1, (2, None)], "b": {"c": [[], torch.ones(1)]}}
    assert tree_leaves(tree)[:3] == [1, 2, None]
    assert len(tree_leaves(tree)) == 4


def test_this_torch_has_every_name_that_the_package_uses() -> None:
    missing = {name for path in modules() for name in names_of_torch(path) if not exists(name)}
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    assert missing == {name for name, since in NEWER.items() if release < tuple(map(int, since.split(".")))}


def test_private_names_are_imported_where_old_releases_are_known() -> None:
    private = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        for line in re.findall(
            r"^ *(?:from|import) (torch\b.*)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if re.search(r"[. ]_", line)
    }
    assert private == PRIVATE


def modules() -> Iterator[Path]:
    yield from PACKAGE.rglob("*.py")


def names_of_torch(path: Path) -> Iterator[str]:
    """Full names of what a module imports from torch, and of the attributes of torch that it uses."""
    tree, names = ast.parse(path.read_text(encoding="utf-8")), {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and f"{node.module}.".startswith("torch."):
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            names |= {one.asname: one.name for one in node.names if one.asname and one.name[:6] == "torch."}
    yield from names.values()
    for node in ast.walk(tree):
        parts, inner = [], node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in names:
            yield ".".join([names[inner.id], *reversed(parts)])


def exists(name: str) -> bool:
    """Whether this torch has it. Classes of extensions have no names before the extension is loaded."""
    found: Any = torch
    parts = name.split(".")
    for place, part in enumerate(parts[1:], 2):
        if found is torch.classes:
            return True
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:place]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True
