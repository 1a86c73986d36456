"""Stand-ins for the `CompilerConfig` of each TorchAir release: its options, and its refusal of any other.

What a release has is taken from its sources (specification, 1.2); the checks of values are those that our
functions meet.
"""

from __future__ import annotations

import os
import re
from typing import Any


class Options:
    """Takes the options it was made with, and no others; `check` may refuse a value."""

    def __init__(self, **options: Any) -> None:
        vars(self).update(options)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self):
            raise ValueError(f"{type(self).__name__} has no option {name}")
        getattr(self, f"check_{name}", lambda _value: None)(value)
        vars(self)[name] = value


class DumpConfig(Options):
    def check_dump_path(self, value: str) -> None:
        if not os.path.isdir(value):
            raise FileNotFoundError(value)

    def check_dump_step(self, value: str) -> None:
        if not re.match(r"^(((\d+)|(\d+-{0,1}\d+))\|{0,1})*$", value):
            raise ValueError(value)


class CompilerConfig:
    """The newest release."""

    dump_options: tuple[str, ...] = ("dump_step", "dump_layer", "dump_data", "dump_config_path")
    data_path = True

    def __init__(self) -> None:
        self.debug = Options(
            graph_dump=Options(type=None, _path=None),
            data_dump=Options(type=None, filter=None, **({"path": None} if self.data_path else {})),
        )
        self.fusion_config = Options(fusion_switch_file=None)
        options = dict.fromkeys(self.dump_options, "")
        self.dump_config = DumpConfig(enable_dump=False, dump_mode="all", dump_path="./", **options)
        self.mode = Options(value="max-autotune")


class Pta710(CompilerConfig):
    dump_options: tuple[str, ...] = ("dump_step", "dump_layer")


class Pta700(Pta710):
    data_path = False


class Pta60rc1(Pta700):
    dump_options = ()


class WithoutUnderscore(CompilerConfig):
    """No release that is known: one whose graph directory is plainly `path`."""

    def __init__(self) -> None:
        super().__init__()
        self.debug.graph_dump = Options(type=None, path=None)


RELEASES: dict[str, type[CompilerConfig]] = {
    "7.2.0": CompilerConfig,
    "7.1.0": Pta710,
    "7.0.0": Pta700,
    "6.0.rc1": Pta60rc1,
    "without _path": WithoutUnderscore,
}
