"""Small dumps as SGLang's dumpers and Hugging Face's model debugger write them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

Fed = Mapping[str, Any]


class SglangWriter:
    """One process of SGLang's dumper: names as of 2026, an index that counts over all steps."""

    def __init__(self, folder: Path, rank: int = 0, size: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rank, self.size, self.step = folder, rank, size, 0
        self._index = itertools.count(1)

    def dump(
        self, name: str, value: Any, *, recompute: str = "disabled", dims: str = "", **tags: Any
    ) -> Path:
        """Write one file; `tags` are the user's and the layer."""
        full = {"step": self.step, "rank": self.rank, "dump_index": next(self._index), "name": name}
        if recompute:
            full["recompute_status"] = recompute
        full |= tags
        meta = full | {
            "world_rank": self.rank,
            "world_size": self.size,
            "sglang_parallel_info": {"tp_rank": self.rank, "tp_size": self.size},
        }
        if dims:
            meta["dims"] = dims
        path = self.folder / ("___".join(f"{key}={tag}" for key, tag in full.items()) + ".pt")
        torch.save({"value": value, "meta": meta}, path)
        return path

    def module(self, path: str, inputs: Fed, outputs: Sequence[Any], **tags: Any) -> None:
        """A call of a module that calls none."""
        self.enter(path, inputs, **tags)
        self.leave(path, outputs, **tags)

    def enter(self, path: str, inputs: Fed, **tags: Any) -> None:
        """Inputs by their number or name."""
        for key, value in inputs.items():
            self.dump(f"non_intrusive__{path}.inputs.{key}".replace("__.", "__"), value, **tags)

    def leave(self, path: str, outputs: Sequence[Any], **tags: Any) -> None:
        """One output has no number."""
        for number, value in enumerate(outputs):
            end = f".{number}" if len(outputs) > 1 else ""
            self.dump(f"non_intrusive__{path}.output{end}".replace("__.", "__"), value, **tags)

    def gradient(self, name: str, value: Any) -> None:
        """A gradient, which has neither a status nor a layer."""
        self.dump(f"grad__{name}", value, recompute="")


def tensor(seed: int, *shape: int) -> torch.Tensor:
    """Numbers that no other seed has."""
    return torch.randn(*shape or (3, 4), generator=torch.Generator().manual_seed(seed))


def two_layers(writer: SglangWriter, *, scale: float = 1.0, explicit: bool = True) -> None:
    """A forward pass of two layers, each a norm and an `mlp`; `scale` makes the second `mlp` wrong."""
    ids = torch.arange(3)
    writer.enter("", {"0": ids})
    writer.dump("input_ids", ids)
    writer.dump("rids", ["a", "b"])
    hidden = tensor(1)
    writer.module("model.embed_tokens", {"0": ids}, [hidden])
    for layer in range(2):
        at = f"model.layers.{layer}"
        writer.enter(at, {"0": hidden}, layer_id=layer)
        writer.dump("positions", ids, layer_id=layer)
        normed = hidden * 2
        writer.module(f"{at}.norm", {"0": hidden}, [normed, hidden], layer_id=layer)
        writer.enter(f"{at}.mlp", {"0": normed}, layer_id=layer)
        made = normed.cos() * (scale if layer else 1)
        if explicit:
            writer.dump("mlp_act", made, layer_id=layer)
        writer.leave(f"{at}.mlp", [made], layer_id=layer)
        hidden = hidden + made
        writer.leave(at, [hidden])
    writer.module("lm_head", {"0": hidden}, [hidden.sin()])


def write_pass(folder: Path, number: int, entries: Mapping[str, Any]) -> None:
    """A file of SGLang's forward hooks."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(dict(entries), folder / f"Pass{number:05d}.pt")


class DebuggedModel:
    """Writes the tree of Hugging Face's model debugger, with files or with prints."""

    def __init__(self, folder: Path, name: str = "TinyForCausalLM", *, prints: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name, self._prints = folder, name, prints

    def value(self, value: Any, file: str) -> Any:
        """A value as the tree has it; tensors are saved."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value, file)
        if isinstance(value, (list, tuple)):
            return [self.value(inside, f"{file}_{number}") for number, inside in enumerate(value)]
        if isinstance(value, dict):
            return {key: self.value(inside, f"{file}_{key}") for key, inside in value.items()}
        return repr(value)

    def _tensor(self, value: torch.Tensor, file: str) -> dict[str, Any]:
        said: dict[str, Any] = {"shape": str(value.shape).replace("'", ""), "dtype": str(value.dtype)}
        said["shape"] = f"torch.Size({list(value.shape)})"
        if self._prints:
            said["value"] = _print(value)
        else:
            said["value"] = f"./{file}.safetensors"
            safetensors.torch.save_file({"data": value.contiguous()}, self.folder / f"{file}.safetensors")
        if value.is_floating_point():
            short = value.float()
            for key, number in (("mean", short.mean()), ("std", short.std()), ("min", short.min())):
                said[key] = f"tensor({number.item():.4e})"
            said["max"] = f"tensor({short.max().item():.4e})"
        return said

    def node(self, path: str, args: Sequence[Any] = (), children: Sequence[Any] = (), **outputs: Any) -> Any:
        """A call; `kwargs` and `outputs` may be given, outputs of nodes with children are left out."""
        full = f"{self.name}.{path}" if path else self.name
        kwargs = outputs.get("kwargs", {})
        inputs: dict[str, Any] = {}
        if args or not path:
            inputs["args"] = [self.value(arg, f"{full}_inputs_args_{n}") for n, arg in enumerate(args)]
        if kwargs or not path:
            inputs["kwargs"] = {
                key: self.value(arg, f"{full}_inputs_kwargs_{key}") for key, arg in kwargs.items()
            }
        node: dict[str, Any] = {"module_path": full, "inputs": inputs}
        if children:
            return node | {"children": list(children)}
        return node | {"outputs": self.value(outputs.get("outputs"), f"{full}_outputs")}

    def write(self, tree: Any, logits: torch.Tensor | None = None) -> Path:
        """Write both trees, and the outputs of the model, which no node names."""
        path = self.folder / f"{self.name}_debug_tree_FULL_TENSORS.json"
        path.write_text(json.dumps(tree, indent=2))
        (self.folder / f"{self.name}_debug_tree_SUMMARY.json").write_text(json.dumps(_bare(tree), indent=2))
        if logits is not None and not self._prints:
            self.value({"logits": logits}, f"{self.name}_outputs")
        return path


def _print(value: torch.Tensor) -> list[str]:
    with torch._tensor_str.printoptions(sci_mode=True, linewidth=120):
        return repr(value).splitlines()


def _bare(tree: Any) -> Any:
    """A tree without values."""
    if isinstance(tree, dict):
        return {key: _bare(inside) for key, inside in tree.items() if key != "value"}
    return [_bare(inside) for inside in tree] if isinstance(tree, list) else tree


def debugged(
    folder: Path,
    *,
    layers: int = 4,
    kept: Sequence[int] | None = None,
    scale: float = 1.0,
    prints: bool = False,
) -> Path:
    """A model of some layers, of which the tree keeps those given; `scale` makes layer 1 wrong."""
    model = DebuggedModel(folder, prints=prints)
    ids = torch.arange(3).reshape(1, 3)
    hidden = tensor(1, 1, 3, 4)
    nodes = [model.node("model.embed", [ids], outputs=hidden)]
    for layer in range(layers):
        at = f"model.layers.{layer}"
        made = hidden.cos() * (scale if layer == 1 else 1)
        inside = [
            model.node(f"{at}.norm", [hidden], outputs=hidden * 2),
            model.node(f"{at}.mlp", [hidden * 2], outputs=(made, hidden)),
        ]
        nodes.append(
            model.node(at, [hidden], inside, kwargs={"positions": (ids, None), "cache": None, "use": False})
        )
        hidden = hidden + made
    wanted = range(layers) if kept is None else kept
    tree = model.node(
        "", (), [model.node("model", (), [nodes[0], *(nodes[1 + n] for n in wanted)], kwargs={"ids": ids})]
    )
    tree["children"].append(model.node("lm_head", [hidden], outputs=hidden.sin()))
    return model.write(tree, hidden.sin())
