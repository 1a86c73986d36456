"""The files beside the tensors: `model_tree.json`, `manifest.json` of the process and of each step. Each
is whole.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...dumps.torch_weights import WEIGHTS_FILE
from ...tensors.whole_file import whole_file
from .config import DumpConfig
from .names import NamedModule
from .outline import ModelOutline
from .process_folder import places_in_run
from .step import StepRecord

TREE_FILE = "model_tree.json"
FILE = "manifest.json"
FORMAT = "acc_pytest torch dump"
SCHEMA = 1


class Manifest:
    """Writes what a dump says of itself. `home` is the process folder."""

    def __init__(
        self, home: Path, config: DumpConfig, root: NamedModule, aliases: Sequence[tuple[str, ...]]
    ) -> None:
        self._home = home
        self.root = root
        self._config = _described(config)
        self._aliases = {names[0]: list(names[1:]) for names in aliases if len(names) > 1}
        self._weights: list[dict[str, Any]] = []
        self._weights_crc32: int | None = None
        self._order: dict[str, str] = {}
        self._left_out: dict[str, int] = {}

    def write(self, dumped: list[dict[str, Any]]) -> None:
        """Write the facts before the first step: the tree, and the weights that were dumped."""
        self._weights = dumped
        self._write_tree()
        self._write_process()

    def write_step(self, step: StepRecord, left_out: Mapping[str, int], *, complete: bool) -> None:
        """`{step}/manifest.json`, and what this step was the first to show: in which order modules run."""
        content = {
            "format": FORMAT,
            "schema": SCHEMA,
            "step": step.token,
            "complete": complete,
            "order": list(step.order),
            "started": list(step.started),
            "tensors": step.entries,
        }
        _write(self._home / str(step.token) / FILE, content)
        new = {name: kind for name, kind in step.order.items() if name not in self._order}
        if new:
            self._order |= new
            self._write_tree()
        if new or left_out != self._left_out:
            self._left_out = dict(left_out)
            self._write_process()

    def write_weights(self, content: dict[str, Any]) -> None:
        """`weights.json`: what `weight_digests` says of the weights. The manifest states which file it is."""
        self._weights_crc32 = _write(self._home / WEIGHTS_FILE, content)
        self._write_process()

    def write_outline(self, outline: ModelOutline) -> None:
        """`model_outline.json` and the tensors beside it."""
        outline.write(self._home)

    def _write_process(self) -> None:
        _write(
            self._home / FILE,
            {
                "format": FORMAT,
                "schema": SCHEMA,
                "writer": f"acc_pytest {__version__}",
                "versions": {"torch": torch.__version__, "python": platform.python_version()},
                "process": _process(),
                "config": self._config,
                "model": self.root.kind,
                "aliases": self._aliases,
                "order": [[name, kind] for name, kind in self._order.items()],
                "left_out": self._left_out,
                "weights": self._weights,
                "weights_crc32": self._weights_crc32,
            },
        )

    def _write_tree(self) -> None:
        order = {name: number for number, name in enumerate(self._order)}
        _write(self._home / TREE_FILE, tree(self.root, order))


def tree(root: NamedModule, ran: Mapping[str, int]) -> dict[str, Any]:
    """The three keys per module that all readers know; siblings in the order in which they ran.

    A module that never ran keeps its place behind the sibling registered before it.
    """
    keyed: list[tuple[int, int, NamedModule]] = []
    position = -1
    for number, child in enumerate(root.children):
        position = min((ran[module.name] for module in child.walk() if module.name in ran), default=position)
        keyed.append((position, number, child))
    children = [tree(child, ran) for _, _, child in sorted(keyed, key=lambda entry: entry[:2])]
    return {"name": root.name, "type": root.kind, "children": children}


def _write(path: Path, content: object) -> int:
    """Write a file as JSON; returns the CRC-32 of its bytes."""
    data = json.dumps(content, separators=(",", ":")).encode()
    with whole_file(path) as file:
        file.write(data)
    return zlib.crc32(data)


def _process() -> dict[str, Any]:
    """This process and its run."""
    process: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "argv0": sys.argv[0]}
    return process | places_in_run()


def _described(config: DumpConfig) -> dict[str, Any]:
    tokens = config.tokens
    listed = [tokens.start, tokens.stop, tokens.step] if isinstance(tokens, range) else sorted(tokens)
    return {
        "token_range": {"range": listed} if isinstance(tokens, range) else listed,
        "module_list": [
            kind if isinstance(kind, str) else kind.__name__ for kind in config.module_list or ()
        ],
        "tensor_part": config.tensor_part,
        "mode": list(config.mode),
        "api_list": list(map(str, config.api_list or ())),
        "layer_name": config.layer_name,
        "dump_statistics_mode": config.dump_statistics_mode,
        "dump_last_logits": config.dump_last_logits,
        "seed": config.seed,
        "max_elements": config.max_elements,
        "max_bytes": config.max_bytes,
        "device_id": config.device_id,
        "ranks": None if config.ranks is None else sorted(config.ranks),
    }
