"""Logs of PyTorch's `DebugMode`: the text of `debug_string()`, a line for each operator that ran.

    [nn.Mod] Llama.model.norm
      aten::rsqrt(t$1: f32[2, 6, 1])  ->  t$3: f32[2, 6, 1]  # {'input_hash': ((9.5,), {}), 'hash': 3.25}

Two blanks stand for one level of nesting. Functions of torch, which `record_torchfunction` adds, have
no norms: their operators have. With `log_tensor_hashes` a line ends with a Python literal in which
each tensor is its L1 norm in float64 (`norm`, the default): a statistic, by which two tensors can be told to
be nearly equal. What the other function gives (`hash_tensor`) is a whole number and says equal or not; it is
not read. A tensor is known again by the number behind its `$`, so an input has a norm where the operator that
made it was logged with one.

A broken line costs its own tensors. No part of a line is executed.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import FormatError
from .dtypes import by_name
from .file_bytes import byte_count, content_within
from .header import Location, Statistics, TensorHeader, WithoutValues, member_of, until_changed

Index = tuple[int | str, ...]

_LARGEST = 1 << 28
_LONGEST_LINE = 1 << 20
_DEEPEST = 50
_MODULE = re.compile(r"( *)\[nn\.Mod\] ([^\s.][^\n]*)")
_CALL = re.compile(r"( *)(\w+::\w[\w.]*)\((.*)\)")
_FUNCTION = re.compile(r"^ *(?:torch[\w.]*\(|<)", re.MULTILINE)
"""A function of torch that operators ran in, as `record_torchfunction` logs it; its name may be a repr."""
_HEAD = re.compile(rb"(?: {2})*(?:\[nn\.Mod\] \S|\w+::\w[\w.]*\()")
_TENSOR = re.compile(r"\b(?:dt|ft|t)(?:\$(\d{1,18}))?: ([a-z]\w*)\[((?:\d{1,18}(?:, \d{1,18}){0,63})?)\]")
_ENDLESS = {"nan": math.nan, "inf": math.inf}
_COMMENT = "  # {"
_ARROW = "  ->  "
_ABBREVIATED = {
    "b8": "bool",
    "bf16": "bfloat16",
    "c32": "complex32",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0fnu": "float8_e8m0fnu",
}
"""Words of torch for dtypes that are nobody else's."""


@dataclass(frozen=True, slots=True)
class LoggedTensor:
    """A tensor of a line: its number (`None` without), dtype by name, shape, L1 norm (`None` without)."""

    number: int | None
    dtype: str
    shape: tuple[int, ...]
    l1norm: float | None


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A line: how far it is indented, the module that begins, or the operator with its tensors by place.

    What is indented further than a module, and follows it, ran in it. A function of torch has no name.
    """

    indent: int
    name: str
    is_module: bool
    inputs: Mapping[Index, LoggedTensor]
    outputs: Mapping[Index, LoggedTensor]


class DebugLog(WithoutValues):
    """The format object of these logs; a member is `{line} {input|output}{[place]...}`."""

    name = "DebugMode log"
    lacking = "a log of DebugMode has the norm of a tensor, not its values"

    def matches(self, head: bytes) -> bool:
        """Whether a log starts so: with a module, or with an operator and its namespace."""
        return _HEAD.match(head) is not None

    def header(self, place: Location) -> TensorHeader:
        """Dtype, shape and norm of one tensor. Raises `FormatError`."""
        return member_of(place, _headers(place.path), "tensor")


FORMAT = DebugLog()


@until_changed(maxsize=8)
def read_log(path: str) -> tuple[LoggedCall, ...]:
    """The modules and operators of a log, in the order of its lines. Raises `FormatError`."""
    content = content_within(path, _LARGEST, "a log")
    return tuple(_parsed(path, content.decode("utf-8", "surrogateescape")))


def member(line: int, side: str, index: Index) -> str:
    """The member of a tensor: the number of its call in `read_log`, and its place there."""
    return f"{line} {side}" + "".join(f"[{key}]" for key in index)


@until_changed(maxsize=8)
def _headers(path: str) -> Mapping[str, TensorHeader]:
    headers = {}
    for line, call in enumerate(read_log(path)):
        for side, tensors in (("input", call.inputs), ("output", call.outputs)):
            for index, tensor in tensors.items():
                headers[member(line, side, index)] = TensorHeader(
                    by_name(tensor.dtype),
                    tensor.shape,
                    "statistics",
                    statistics=Statistics(None, None, None, None, l1norm=tensor.l1norm),
                )
    return MappingProxyType(headers)


def _parsed(path: str, text: str) -> Iterator[LoggedCall]:
    norms: dict[int, float | None] = {}
    # Beside functions of torch the lines of a module are indented as far as its name, no further.
    less = 1 if _FUNCTION.search(text) else 0
    for line in text.split("\n"):
        if len(line) > _LONGEST_LINE:
            continue
        if module := _MODULE.fullmatch(line.rstrip()):
            yield LoggedCall(len(module[1]) - less, module[2], True, {}, {})
        elif call := _called(path, line.rstrip(), norms):
            yield call
        elif _FUNCTION.match(line):
            yield LoggedCall(len(line) - len(line.lstrip()), "", False, {}, {})


def _called(path: str, line: str, norms: dict[int, float | None]) -> LoggedCall | None:
    """The operator of a line; `norms` are those of tensors by their number, and are brought up to date."""
    text, comment, rest = line.rpartition(_COMMENT)
    log = _literal(comment[-1] + rest) if comment else {}
    call_text, arrow, results = (text if comment else line).rpartition(_ARROW)
    call = _CALL.fullmatch(call_text if arrow else results)
    if call is None:
        return None
    log = log if isinstance(log, dict) else {}
    operands, returns = list(_tensors(path, call[3])), list(_tensors(path, results if arrow else ""))
    inputs = _placed(operands, _leaves(log.get("input_hash")), norms)
    hashed = log.get("hash")
    several = isinstance(hashed, (tuple, list)) and len(hashed) == len(returns)
    outputs = _placed(returns, _leaves(((hashed,) if not several else hashed, {})), {})
    if not outputs:
        outputs = {(place,): tensor for place, tensor in enumerate(returns)}
    for tensor in outputs.values():
        if tensor.number is not None:
            norms[tensor.number] = tensor.l1norm
    return LoggedCall(len(call[1]), call[2], False, _with_shapes(inputs), _with_shapes(outputs))


def _with_shapes(tensors: Mapping[Index, LoggedTensor]) -> dict[Index, LoggedTensor]:
    return {index: tensor for index, tensor in tensors.items() if tensor.l1norm is not None}


def _tensors(path: str, text: str) -> Iterator[LoggedTensor]:
    for match in _TENSOR.finditer(text):
        shape = tuple(int(size) for size in match[3].split(", ") if size)
        try:
            byte_count(path, shape, 64)
        except FormatError:
            continue
        dtype = _ABBREVIATED.get(match[2], match[2])
        yield LoggedTensor(int(match[1]) if match[1] else None, by_name(dtype).name, shape, None)


def _placed(
    tensors: list[LoggedTensor], leaves: list[tuple[Index, object]], norms: Mapping[int, float | None]
) -> dict[Index, LoggedTensor]:
    """Tensors by their place among the arguments, each with its norm.

    Where there are no hashes, tensors are numbered as they stand, and have the norms of those that made them.
    """
    if len(leaves) != len(tensors):
        leaves = [
            ((place,), norms.get(tensor.number) if tensor.number is not None else None)
            for place, tensor in enumerate(tensors)
        ]
    return {
        index: LoggedTensor(tensor.number, tensor.dtype, tensor.shape, _norm(value))
        for tensor, (index, value) in zip(tensors, leaves)
    }


def _norm(value: object) -> float | None:
    """The L1 norm of a hash, or of several hashes of one tensor: norms are floats, digests whole numbers."""
    if isinstance(value, tuple):
        return next((number for number in value if isinstance(number, float)), None)
    return value if isinstance(value, float) else None


def _leaves(hashes: object) -> list[tuple[Index, object]]:
    """The hashes of `(arguments, keyword arguments)` that are not `None`, each with its place."""
    if not isinstance(hashes, tuple) or len(hashes) != 2:
        return []
    positional, named = hashes
    leaves: list[tuple[Index, object]] = []
    if isinstance(positional, (tuple, list)):
        for place, value in enumerate(positional):
            _gather(value, (place,), leaves)
    if isinstance(named, dict):
        for name, value in named.items():
            _gather(value, (str(name),), leaves)
    return leaves


def _gather(value: object, index: Index, leaves: list[tuple[Index, object]]) -> None:
    several = isinstance(value, tuple) and value and all(isinstance(child, (float, int)) for child in value)
    if several and len({type(child) for child in value}) > 1:  # type: ignore[attr-defined]
        leaves.append((index, value))  # two hashes of one tensor
    elif isinstance(value, (list, tuple)):
        for place, child in enumerate(value):
            _gather(child, (*index, place), leaves)
    elif isinstance(value, dict):
        for name, child in value.items():
            _gather(child, (*index, str(name)), leaves)
    elif value is not None:
        leaves.append((index, value))


def _literal(text: str) -> object:
    """The value of a Python literal in which `nan` and `inf` may stand; `None` for anything else."""
    try:
        with warnings.catch_warnings():
            # The parser warns about odd numbers, and a warning may be an error in the user's run.
            warnings.simplefilter("ignore")
            return _value(ast.parse(text, mode="eval").body, 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, depth: int) -> object:
    """Raises `ValueError` for what is no literal."""
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple):
        return tuple(_value(element, depth + 1) for element in node.elts)
    if isinstance(node, ast.List):
        return [_value(element, depth + 1) for element in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _value(key, depth + 1) for key in node.keys]
        return {
            key: _value(element, depth + 1) for key, element in zip(keys, node.values) if isinstance(key, str)
        }
    # A number that Python has no literal for: one without a value or an end, or a negative one.
    if isinstance(node, ast.Name) and node.id in _ENDLESS:
        return _ENDLESS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _value(node.operand, depth + 1)
        if isinstance(number, (int, float)):
            return -number
    raise ValueError("no literal")
