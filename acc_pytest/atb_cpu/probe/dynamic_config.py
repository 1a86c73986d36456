"""What the config file of the last msit probes chooses, while a process runs.

All values are texts: `{"dump_enable":"true","er":"0,0","ids":"0,1","child":"true","device":""}`. It
replaces the variables for ids, range, child and device.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import selection
from .config_file import json_object
from .selection import Ranges


@dataclass(frozen=True, slots=True)
class DynamicSettings:
    """The file's content; the defaults are those of a file without a key."""

    enabled: bool = False
    ranges: Ranges = ((0, 0),)
    ids: tuple[str, ...] = ()
    child: bool = True
    devices: tuple[str, ...] = ()

    def chosen(self, ids: str, name: str, names: tuple[str, ...]) -> bool:
        """Whether the directory with these leading numbers is saved; `names` come from the environment.

        Without any selection, `child` off means the top-level operations.
        """
        if not self.ids and not names:
            return self.child or "_" not in ids
        by_id = selection.id_selected(self.ids, ids, child=self.child)
        return by_id or selection.name_selected(names, name)


def parse(text: str) -> DynamicSettings:
    """The settings in a file's text; a key that is missing, empty or no text takes its default."""
    values = json_object(text)

    def get(key: str, default: str) -> str:
        value = values.get(key)
        return value if isinstance(value, str) and value else default

    return DynamicSettings(
        enabled=get("dump_enable", "false") == "true",
        ranges=selection.parse_ranges("er", get("er", "0,0")),
        ids=selection.items(get("ids", "")),
        child=get("child", "true") == "true",
        devices=selection.items(get("device", "")),
    )
