"""The names of functions in the names of folders."""

from __future__ import annotations

from typing import Any

from ...topology.function_names import function_name


def api_name(function: Any) -> str:
    """The name of a function in the names of folders: `torch.matmul`, `Tensor.__matmul__` and `@` are
    `matmul`.
    """
    return function_name(str(getattr(function, "__name__", "") or ""))
