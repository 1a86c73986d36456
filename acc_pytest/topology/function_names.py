"""Names of functions of torch in the names of nodes, however the program called them."""

from __future__ import annotations

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


def function_name(name: str) -> str:
    """`__add__` is `add`, as `torch.add` is; an overload of an operator of a library, `rms_norm.default`, is
    `rms_norm`."""
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        return _OPERATORS.get(name, name)
    return name.partition(".")[0]
