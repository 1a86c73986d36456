"""Settings of the newest probe from the config file of msprobe (typed JSON)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .config_file import json_object
from .selection import Ranges, comma_list, id_selected, name_selected, parse_ranges

TASKS = ("tensor", "statistics", "all")
E4_KEYS = frozenset({"task", "exec_range", "op_name", "save_child", "filter_level"})
"""Keys by which the file is told from that of the last msit probes."""


@dataclass(frozen=True, slots=True)
class E4Settings:
    """Settings of the newest probe; the defaults are those of an empty config file.

    `output` is the directory in which `atb_dump_data` appears. `level` 1 writes a tensor that is the
    same edge of the graph as one already written as an alias, 2 drops the values of kernels too.
    `named`, `kernels` and `any_path` as in `ProbeSettings`.
    """

    output: str = "."
    task: str = "tensor"
    enabled: bool = False
    ranges: Ranges = ((0, 0),)
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    child: bool = False
    devices: tuple[str, ...] = ()
    level: int = 1
    named: bool = False
    kernels: bool = True
    any_path: bool = False

    @property
    def root(self) -> str:
        """The dump's root directory."""
        return f"{self.output.rstrip('/')}/atb_dump_data"

    def chosen(self, path: tuple[str, ...]) -> bool:
        """Whether the operation or kernel at these directories is selected.

        Without ids and names `child` decides between all and the top-level ones; a name is looked for
        at the start of every directory's name with `child`, else of the last one's.
        """
        if not self.ids and not self.names:
            return self.child or len(path) == 1
        components = [directory.partition("_") for directory in path]
        ids = "_".join(number for number, _, _ in components)
        if id_selected(self.ids, ids, child=self.child):
            return True
        names = [name for _, _, name in components]
        return any(name_selected(self.names, name) for name in (names if self.child else names[-1:]))

    def read(self, text: str) -> E4Settings:
        """These settings with those of a config file; a key that is missing or of another type is empty."""
        entries = json_object(text)

        def get(key: str, default: Any) -> Any:
            return entries[key] if type(entries.get(key)) is type(default) else default

        empty = E4Settings()
        task, level = get("task", empty.task), get("filter_level", empty.level)
        return replace(
            self,
            task=task if task in TASKS else empty.task,
            enabled=get("dump_enable", empty.enabled),
            ranges=parse_ranges("exec_range", get("exec_range", "0,0")),
            ids=comma_list(get("ids", "")),
            names=comma_list(get("op_name", "").lower()),
            child=get("save_child", empty.child),
            devices=comma_list(get("device", "")),
            level=level if level in (0, 1, 2) else empty.level,
        )


def is_e4_config(text: str) -> bool:
    """Whether a config file's text is the newest probe's: typed values, or keys that only it knows."""
    values = json_object(text)
    return bool(E4_KEYS & values.keys()) or isinstance(values.get("dump_enable"), bool)
