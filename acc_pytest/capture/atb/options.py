"""The options of `acc dump`: one table, from which the command line and the fixture's keywords come.

The flags are those of the old tool. Every command line that was valid there is valid here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ...errors import SettingsError
from . import values

AUTO_ERA = ""
"""Take the probe that is installed: the one inside CANN, else msprobe's."""
ERAS = ("msit", "msprobe")
BACKENDS = ("auto", "npu", "cpu")
DEFAULT_TYPES = ("tensor", "model")
DEFAULT_SEED = 2024


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The command to run and the dump to make, from `read_options`.

    `types` holds `model` and `op` where `onnx` needs them. `explicit` are the fields that the user set.
    """

    command: tuple[str, ...]
    types: tuple[str, ...] = DEFAULT_TYPES
    only_description: bool = False
    ids: str = ""
    ranges: str = "0,0"
    child: bool = True
    time: int = 3
    names: str = ""
    tiling: bool = False
    part: int = 2
    output: Path = Path()
    devices: str = ""
    seed: int | None = None
    symlink: bool = False
    config: Path | None = None
    log_level: str = "info"
    probe_lib: Path | None = None
    backend: str = "auto"
    era: str = AUTO_ERA
    explicit: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DumpOption:
    """One option: its field in `LaunchOptions`, its flags, the reader of its value, its help.

    `takes` says what follows the flag: one word, some words, perhaps a word, nothing.
    """

    field: str
    flags: tuple[str, ...]
    read: Callable[[Any], Any]
    help: str
    metavar: str = ""
    takes: Literal["one", "some", "perhaps", "nothing"] = "one"

    @property
    def keywords(self) -> tuple[str, ...]:
        """The flags as keywords of Python: `-ids` as `ids`, `--save-operation-ids` accordingly."""
        return tuple(flag.lstrip("-").replace("-", "_") for flag in self.flags)


OPTIONS = (
    DumpOption(
        "types",
        ("--type",),
        values.types,
        f"what to write: {' '.join(values.TYPES)} (default: {' '.join(DEFAULT_TYPES)})",
        "TYPE",
        "some",
    ),
    DumpOption(
        "only_description",
        ("-sd", "--only-save-desc"),
        values.flag,
        "write dtype, format and shape of tensors, no values",
        takes="nothing",
    ),
    DumpOption(
        "ids",
        ("-ids", "--save-operation-ids"),
        values.ids,
        "only these operations: 2, 3_1 (default: all)",
        "ID",
        "some",
    ),
    DumpOption(
        "ranges",
        ("-er", "--execute-range"),
        values.ranges,
        "only these executions: pairs of first and last, both included, or all (default: 0,0)",
        "FIRST,LAST",
        "some",
    ),
    DumpOption(
        "child",
        ("-child", "--save-operation-child"),
        values.truth,
        "with -ids: what is inside of these operations too (default: True)",
        "BOOL",
    ),
    DumpOption(
        "time",
        ("-time", "--save-time"),
        values.up_to(3),
        "0 before an operation runs, 1 after, 2 both, 3 inputs before and outputs after (default: 3)",
        "0..3",
    ),
    DumpOption(
        "names",
        ("-opname", "--operation-name"),
        values.names,
        "only operations whose names start so, in any case: linear,rope",
        "NAME",
        "some",
    ),
    DumpOption("tiling", ("-tiling", "--save-tiling"), values.flag, "write tiling data too", takes="nothing"),
    DumpOption(
        "part",
        ("-stp", "--save-tensor-part"),
        values.up_to(2),
        "0 inputs, 1 outputs, 2 both (default: 2)",
        "0..2",
    ),
    DumpOption(
        "output",
        ("-o", "--output"),
        values.path,
        "directory that gets the dump, or s3://... (default: .)",
        "DIR",
    ),
    DumpOption("devices", ("-device", "--device-id"), values.devices, "only this device (default: all)", "N"),
    DumpOption(
        "seed",
        ("-seed",),
        values.seed,
        f"make the program deterministic, with this seed (without a number: {DEFAULT_SEED})",
        "N",
        "perhaps",
    ),
    DumpOption(
        "symlink",
        ("-symlink", "--enable-symlink"),
        values.flag,
        "write equal tensors once, and links to them",
        takes="nothing",
    ),
    DumpOption(
        "config",
        ("-config", "--config-path"),
        values.config,
        "JSON file that may change while the program runs; replaces -ids -er -child -device",
        "FILE",
    ),
    DumpOption(
        "log_level",
        ("-l", "--log-level"),
        values.choice_of(*values.LOG_LEVELS),
        f"what the probe prints: {' '.join(values.LOG_LEVELS)} (default: info)",
        "LEVEL",
    ),
    DumpOption("probe_lib", ("--probe-lib",), values.path, "the probe, instead of looking for it", "FILE"),
    DumpOption(
        "backend",
        ("--backend",),
        values.choice_of(*BACKENDS),
        "npu: preload the probe into an ATB program; cpu: the program uses acc_pytest.atb_cpu "
        "(default: auto, which is $ACC_ATB_BACKEND, else npu)",
        "BACKEND",
    ),
    DumpOption(
        "era",
        ("--era",),
        values.choice_of(*ERAS),
        "which probe: msit (in CANN) or msprobe (default: the one that is installed)",
        "ERA",
    ),
)
IN_CONFIG = frozenset({"ids", "ranges", "child", "devices"})
"""Options that the file of `-config` replaces; msprobe's replaces more."""
BY_FIELD = {option.field: option for option in OPTIONS}
BY_KEYWORD = {keyword: option for option in OPTIONS for keyword in option.keywords}


def read_options(command: tuple[str, ...], raw: Mapping[str, Any]) -> LaunchOptions:
    """Check the raw values of the options, by field.

    Raises `SettingsError` naming the option for a wrong value or combination.
    """
    field_names = {field.name for field in fields(LaunchOptions)} - {"command", "explicit"}
    assert field_names == BY_FIELD.keys() >= raw.keys()
    read: dict[str, Any] = {}
    for name, value in raw.items():
        try:
            read[name] = BY_FIELD[name].read(value)
        except ValueError as error:
            raise SettingsError(f"{BY_FIELD[name].flags[0]}: {error}") from error
    options = LaunchOptions(command, **_completed(read), explicit=frozenset(read))
    if options.backend == "cpu" and options.probe_lib is not None:
        raise SettingsError("--probe-lib: the backend cpu preloads no probe; leave out one of the two")
    return options


def _completed(read: dict[str, Any]) -> dict[str, Any]:
    """With the types that others need."""
    types = read.get("types", DEFAULT_TYPES)
    if "stats" in types and "tensor" not in types:
        raise SettingsError("--type stats: statistics are those of tensors; add tensor to --type")
    if "onnx" in types:
        types = tuple(dict.fromkeys((*types, "model", "op")))
    return {**read, "types": types}


def remarks(options: LaunchOptions, era: str) -> list[str]:
    """Sentences about options that are allowed but will surprise."""
    sentences = [_about_operations(options, era), _about_tensors(options)]
    if "stats" in options.types and options.only_description:
        sentences.append("-sd: statistics are written all the same, since --type has stats")
    if options.time == 0 and options.part > 0 and "tensor" in options.types:
        sentences.append("-time 0: outputs saved before an operation runs hold whatever was in the memory")
    return [sentence for sentence in sentences if sentence]


def _about_operations(options: LaunchOptions, era: str) -> str:
    """A sentence where the choice of operations is not the one that was asked for."""
    replaced = options.explicit & (IN_CONFIG | {"names", "types"} if era == "msprobe" else IN_CONFIG)
    if options.config is not None and replaced:
        return f"{_flags(replaced)}: the probe takes these from the file of -config instead"
    if not options.child and not options.ids and era == "msit":
        return (
            "-child False: without -ids the probe writes every operation; name the operations (-ids), "
            'or use -config with "child": "false"'
        )
    return ""


def _about_tensors(options: LaunchOptions) -> str:
    """A sentence where tensors are chosen and none are written."""
    selectors = options.explicit & {"only_description", "ids", "ranges", "time", "names", "part", "symlink"}
    if selectors and "tensor" not in options.types and options.config is None and not options.tiling:
        return f"{_flags(selectors)}: chooses among tensors, and --type has no tensor"
    return ""


def _flags(names: frozenset[str]) -> str:
    return " ".join(option.flags[0] for option in OPTIONS if option.field in names)
