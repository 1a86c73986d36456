"""Scope maps: the modules whose inputs and outputs the values of an inference engine are.

Engines name values after operators of their own graph. What says whose they are lies beside the values, or is
a fixed vocabulary:

    llama.onnx            metadata of the nodes (exporter of torch); also of a graph converted from it later
    run.events.json       rows with `key` and `modules`, as ExecuTorch's Inspector gives them
    __module.model.norm/aten::mul/Multiply_1   OpenVINO: names of the frontend of torch
    00003_Vcur-0.npy      llama.cpp: the names of its graph
    blocks.0.ln1.hook_out TransformerLens: the names of its hooks

`scope_map` gives names of values for names of slots (`model.norm.output`), in the order of time.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..tensors import location
from ..tensors.wire import fields
from .base import Listing

_SCOPES = "pkg.torch.onnx.name_scopes"
_QUOTED = re.compile(r"'([^'\\]*)'")
"""A name in the text of a Python list, which the exporter writes: paths of modules have no quotes."""
Places = Sequence[tuple[str, str]]
"""Names of slots and of the values in them."""


class _Operator(NamedTuple):
    """An operator of a graph: the modules around it, what it reads and what it makes."""

    modules: Sequence[str]
    inputs: Sequence[str]
    outputs: Sequence[str]


def scope_map(homes: Sequence[Path], listing: Listing, widths: Mapping[str, int]) -> Places:
    """The slots of modules that values are in, by a scope map in one of `homes` or by the vocabulary of an
    engine; empty where there is none. `widths` are their last dimensions."""
    names = set(widths)
    places: Places = ()
    for home in homes:
        for file in sorted(listing.files(home)):
            operators: Sequence[_Operator] = ()
            if file.endswith(".onnx"):
                operators = _of_onnx(home / file)
            elif file.endswith(".events.json"):
                operators = _of_events(home / file)
            made = {name for operator in operators for name in operator.outputs}
            if 2 * len(made & names) > len(names):
                # Of graphs that were converted from one another, one has these names and the most scopes.
                places = max(places, _ends(operators, names), key=len)
    return places or _ends(_of_names(widths), names) or _by_vocabulary(widths)


def _ends(operators: Sequence[_Operator], values: Collection[str]) -> Places:
    """The output of each module: what the last of its operators makes, where that is among `values`. Its
    input is what its operators read and did not make, where that is one value."""
    last: dict[str, tuple[int, str]] = {}
    read: dict[str, dict[str, None]] = {}
    made: dict[str, set[str]] = {}
    for number, operator in enumerate(operators):
        outputs = [name for name in operator.outputs if name in values]
        for module in filter(None, dict.fromkeys(operator.modules)):
            inside = made.setdefault(module, set())
            read.setdefault(module, {}).update(
                (name, None) for name in operator.inputs if name in values and name not in inside
            )
            inside.update(operator.outputs)
            last.pop(module, None)
            if outputs:
                last[module] = number, outputs[0]
    places = []
    for module in sorted(filter(_one_output, last), key=lambda module: (last[module][0], -module.count("."))):
        if len(read[module]) == 1:
            places.append((f"{module}.input.0", next(iter(read[module]))))
        places.append((f"{module}.output", last[module][1]))
    return places


def _one_output(module: str) -> bool:
    """Whether a module hands out one tensor: tables of positions are two, and the graph names neither."""
    return "rotary" not in module.rpartition(".")[2]


# ONNX: ModelProto.graph = 7, GraphProto.node = 1, NodeProto.input = 1, .output = 2, .metadata_props = 9.


def _of_onnx(file: Path) -> Sequence[_Operator]:
    """The operators of a graph that have scopes; none where the file is no sound ONNX file."""
    try:
        # Weights may be inside: the file is mapped, and only what is looked at is read.
        with (
            open(location.on_disk(file), "rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            graphs = [span for number, _, span in fields(data, 0, len(data)) if number == 7]
            nodes = [span for graph in graphs for number, _, span in fields(data, *graph) if number == 1]
            return [operator for span in nodes if (operator := _node(data, *span)) is not None]
    except (OSError, ValueError):
        return ()


def _node(data: mmap.mmap, start: int, stop: int) -> _Operator | None:
    texts: dict[int, list[str]] = {1: [], 2: []}
    scopes: list[str] = []
    for number, _, span in fields(data, start, stop):
        if number in texts:
            texts[number].append(data[slice(*span)].decode())
        elif number == 9:
            entry = {key: data[slice(*text)].decode() for key, _, text in fields(data, *span)}
            if entry.get(1) == _SCOPES:
                scopes = _QUOTED.findall(entry.get(2, ""))
    return _Operator(scopes[:-1], texts[1], texts[2]) if scopes else None


# ExecuTorch: rows of its Inspector.


def _of_events(file: Path) -> Sequence[_Operator]:
    try:
        rows = json.loads(location.bytes_of(file))
        events = [_Operator([str(m) for m in row["modules"]], (), [str(row["key"])]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return _unwrapped(events)


def _unwrapped(operators: Sequence[_Operator]) -> Sequence[_Operator]:
    """The operators without the one module around the model, which golden has not."""
    modules = {module for operator in operators for module in operator.modules if module}
    outer = {module.partition(".")[0] for module in modules}
    wrapper = f"{min(outer, default='')}."
    if len(outer) != 1 or not any(module.startswith(f"{wrapper}model.") for module in modules):
        return operators
    return [
        operator._replace(modules=[m.removeprefix(wrapper) for m in operator.modules if m != wrapper[:-1]])
        for operator in operators
    ]


# OpenVINO: names of the operators of a model that was traced by torch, in an order in which they can run.

_TRACED = re.compile(r"__module\.([^/]+)/[^/]+/")


def _of_names(names: Iterable[str]) -> Sequence[_Operator]:
    """The operators by their names; a module that has none of its own among them may hand out anything."""
    paths = {name: match[1] for name in names if (match := _TRACED.match(name))}
    modules = sorted({*paths.values()}, key=len)
    return _unwrapped(
        [
            _Operator([m for m in modules if f"{path}.".startswith(f"{m}.")], (), [name])
            for name, path in paths.items()
        ]
    )


# Vocabularies. Of several values of a name the last one that is as wide as the first is what a module hands
# out (a product, then with its bias), the last of all what the next one is handed.

_VOCABULARIES = tuple(
    tuple((re.compile(pattern), place) for pattern, place in vocabulary)
    for vocabulary in (
        (
            (r"embed\.hook_out", "model.embed_tokens.output"),
            (r"blocks\.(\d+)\.ln1\.hook_out", r"model.layers.\1.input_layernorm.output"),
            (r"blocks\.(\d+)\.attn\.([qkvo])\.hook_out", r"model.layers.\1.self_attn.\2_proj.output"),
            (r"blocks\.(\d+)\.attn\.o\.hook_in", r"model.layers.\1.self_attn.o_proj.input.0"),
            (r"blocks\.(\d+)\.ln2\.hook_in", r"model.layers.\1.post_attention_layernorm.input.0"),
            (r"blocks\.(\d+)\.ln2\.hook_out", r"model.layers.\1.post_attention_layernorm.output"),
            (r"blocks\.(\d+)\.mlp\.gate\.hook_out", r"model.layers.\1.mlp.gate_proj.output"),
            (r"blocks\.(\d+)\.mlp\.in\.hook_out", r"model.layers.\1.mlp.up_proj.output"),
            (r"blocks\.(\d+)\.mlp\.out\.hook_in", r"model.layers.\1.mlp.down_proj.input.0"),
            (r"blocks\.(\d+)\.mlp\.out\.hook_out", r"model.layers.\1.mlp.down_proj.output"),
            (r"blocks\.(\d+)\.attn\.hook_out", r"model.layers.\1.self_attn.output"),
            (r"blocks\.(\d+)\.mlp\.hook_out", r"model.layers.\1.mlp.output"),
            (r"blocks\.(\d+)\.hook_out", r"model.layers.\1.output"),
            (r"ln_final\.hook_out", "model.norm.output"),
            (r"unembed\.hook_out", "lm_head.output"),
        ),
        (
            (r"(?:inp_)?embd", "model.embed_tokens.output"),
            (r"attn_norm-(\d+)", r"model.layers.\1.input_layernorm.output"),
            (r"Qcur-(\d+)", r"model.layers.\1.self_attn.q_proj.output"),
            (r"Kcur-(\d+)", r"model.layers.\1.self_attn.k_proj.output"),
            (r"Vcur-(\d+)", r"model.layers.\1.self_attn.v_proj.output"),
            (r"Qcur-(\d+)", r"model.layers.\1.self_attn.attn.input.0"),
            (r"Kcur-(\d+)", r"model.layers.\1.self_attn.attn.input.1"),
            (r"kqv_out-(\d+)", r"model.layers.\1.self_attn.o_proj.input.0"),
            (r"attn_out-(\d+)", r"model.layers.\1.self_attn.o_proj.output"),
            (r"attn_out-(\d+)", r"model.layers.\1.self_attn.output"),
            (r"ffn_inp-(\d+)", r"model.layers.\1.post_attention_layernorm.input.0"),
            (r"ffn_norm-(\d+)", r"model.layers.\1.post_attention_layernorm.output"),
            (r"ffn_gate-(\d+)", r"model.layers.\1.mlp.gate_proj.output"),
            (r"ffn_up-(\d+)", r"model.layers.\1.mlp.up_proj.output"),
            (r"ffn_swiglu-(\d+)", r"model.layers.\1.mlp.down_proj.input.0"),
            (r"ffn_out-(\d+)", r"model.layers.\1.mlp.down_proj.output"),
            (r"ffn_out-(\d+)", r"model.layers.\1.mlp.output"),
            (r"l_out-(\d+)", r"model.layers.\1.output"),
            (r"result_norm", "model.norm.output"),
            (r"result_output", "lm_head.output"),
        ),
    )
)
_NUMBER = re.compile(r"^\d+_")
_FEWEST = 6
"""Rows of a vocabulary that a dump must have: names of other tools may be like some."""


def _by_vocabulary(widths: Mapping[str, int]) -> Places:
    for vocabulary in _VOCABULARIES:
        rows = {row for name in widths for row, _ in _in(vocabulary, name)}
        if len(rows) >= _FEWEST:
            chosen: dict[str, str] = {}
            for name, width in widths.items():
                for _, place in _in(vocabulary, name):
                    if ".input." in place or width == widths[chosen.get(place, name)]:
                        chosen[place] = name
            outputs = {name for place, name in chosen.items() if ".output" in place}
            return [place for place in chosen.items() if ".output" in place[0] or place[1] not in outputs]
    return ()


def _in(vocabulary: Sequence[tuple[re.Pattern[str], str]], name: str) -> Iterator[tuple[int, str]]:
    """The row of a vocabulary that has a name, which a number may precede, and the slot that it means."""
    for row, (pattern, place) in enumerate(vocabulary):
        if (match := pattern.fullmatch(_NUMBER.sub("", name))) is not None:
            yield row, match.expand(place)
