"""What functions are called in the names of folders."""

from __future__ import annotations

from typing import Any

_OPERATORS = {
    "truediv": "div",
    "itruediv": "div_",
    "rtruediv": "div",
    "rdiv": "div",
    "idiv": "div_",
    "setitem": "setitem_",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
} | {
    form.format(name): base.format(name)
    for name in ("add", "sub", "mul", "pow", "matmul", "mod", "floordiv")
    for form, base in (("r{}", "{}"), ("i{}", "{}_"))
}
"""Names of operators without their underscores, as the functions that do the same are called."""


def api_name(function: Any) -> str:
    """What a function is called in the names of folders: `torch.matmul`, `Tensor.__matmul__` and `@` are
    `matmul`.
    """
    name = str(getattr(function, "__name__", "") or "")
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        return _OPERATORS.get(name, name)
    return name.partition(".")[0]  # an overload of an operator of a library: `rms_norm.default`
