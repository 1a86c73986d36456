"""The options of `acc dump`: one table, from which the command line and the fixture's keywords come.

The flags are those of the old tool. Every command line that was valid there is valid here.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ...base.texts import parsed
from ...base.vocabulary import words_of
from ...errors import SettingsError

TYPES = ("model", "layer", "op", "kernel", "tensor", "cpu_profiling", "onnx", "stats")
LOG_LEVELS = ("debug", "info", "warning", "error", "fatal", "critical")
"""In the order of the probe's numbers."""
_IDS = re.compile(r"\d+(_\d+)*(,\d+(_\d+)*)*", re.ASCII)
_YES = frozenset({"yes", "true", "t", "y", "1"})
_NO = frozenset({"no", "false", "f", "n", "0"})
_LARGEST_CONFIG = 2**30
_LARGEST_SEED = 2**32 - 1
"""Python does not start with a larger PYTHONHASHSEED."""


def types(value: Any) -> tuple[str, ...]:
    """Kinds of files to write, in the given order, each once."""
    names = [value] if isinstance(value, str) else list(value)
    for name in names:
        if name not in TYPES:
            raise ValueError(f"must be one of {' '.join(TYPES)}, got {name!r}")
    if not names:
        raise ValueError(f"name at least one of {' '.join(TYPES)}")
    return tuple(dict.fromkeys(names))


def ids(value: Any) -> str:
    """Ids of operations, without the spaces that may stand around commas."""
    text = _list(value)
    if text and not _IDS.fullmatch(text):
        raise ValueError(f"{text!r}: an id is numbers joined by _, and commas separate ids, as in 2,3_1")
    return text


def ranges(value: Any) -> str:
    """Pairs of first and last execution, both included; or `all`."""
    text = _list(value)
    if text == "all":
        return text
    numbers = text.split(",")
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(f"{text!r}: give first and last execution, as in 0,2 or 0,0,5,7; or all")
    if len(numbers) % 2:
        alone = numbers[-1]
        raise ValueError(
            f"{text!r} has no pairs of first and last execution (the probe would ignore {alone}); "
            f"for execution {alone} alone write {alone},{alone}"
        )
    for first, last in zip(numbers[::2], numbers[1::2]):
        if int(first) > int(last):
            raise ValueError(
                f"the first execution must not be after the last, got {first},{last}; write {last},{first}"
            )
    return text


def names(value: Any) -> str:
    """Beginnings of operation names; the probe compares them with names in lower case."""
    return ",".join(name for name in _list(value).lower().split(",") if name)


def devices(value: Any) -> str:
    """Numbers of devices."""
    text = _list(value)
    if not all(number.isascii() and number.isdecimal() for number in text.split(",")):
        raise ValueError(f"a device must be a whole number >= 0, got {text!r}")
    return text


def truth(value: Any) -> bool:
    """True or False in one of the old tool's spellings."""
    word = str(value).lower()
    if word not in _YES | _NO:
        raise ValueError(f"must be True or False, got {value!r}")
    return word in _YES


def flag(value: Any) -> bool:
    """A switch: on the command line it is there or not."""
    if not isinstance(value, bool):
        raise ValueError(f"must be True or False, got {value!r}")
    return value


def up_to(last: int) -> Callable[[Any], int]:
    """A reader of whole numbers from 0 to `last`."""

    def read(value: Any) -> int:
        if str(value) not in map(str, range(last + 1)):
            raise ValueError(f"must be a whole number from 0 to {last}, got {value!r}")
        return int(value)

    return read


def seed(value: Any) -> int | None:
    """A seed, or `None` for no determinism."""
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be a whole number, got {value!r}") from None
    if not 0 <= number <= _LARGEST_SEED:
        raise ValueError(f"must be from 0 to {_LARGEST_SEED} (the range of PYTHONHASHSEED), got {number}")
    return number


def choice_of(*choices: str) -> Callable[[Any], str]:
    """A reader of one word out of `choices`."""

    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {' '.join(choices)}, got {value!r}")
        return str(value)

    return read


def path(value: Any) -> Path:
    """A path. Whether it exists is checked when it is used."""
    if not str(value):
        raise ValueError("the path is empty")
    return Path(value)


def config(value: Any) -> Path:
    """A dump configuration that the probe will accept: it re-reads the file while the program runs.

    The probe wants a regular file of the user's own that nobody else may write, and otherwise dumps
    nothing without a word.
    """
    file = Path(value)
    try:
        status = file.lstat()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{file}: must be a regular file (the probe does not follow links)")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"{file}: other users may write this file, so the probe refuses it; run: chmod go-w {file}"
        )
    if status.st_uid != os.getuid():
        raise ValueError(f"{file}: belongs to another user, so the probe refuses it; make your own copy")
    if not 1 <= status.st_size <= _LARGEST_CONFIG:
        raise ValueError(f"{file}: must have 1 byte to 1 GiB for the probe, got {status.st_size} bytes")
    try:
        content = parsed(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f'{file}: must hold a JSON object such as {{"dump_enable": "true", "er": "0,0"}}')
    return file.absolute()


def _list(value: Any) -> str:
    """`2, 3_1` as a shell hands it over (`["2,", "3_1"]`), or numbers from Python, as `2,3_1`."""
    pieces: Iterable[Any] = value if isinstance(value, (list, tuple)) else [value]
    return ",".join(words_of(*map(str, pieces)))


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
        types,
        f"what to write: {' '.join(TYPES)} (default: {' '.join(DEFAULT_TYPES)})",
        "TYPE",
        "some",
    ),
    DumpOption(
        "only_description",
        ("-sd", "--only-save-desc"),
        flag,
        "write dtype, format and shape of tensors, no values",
        takes="nothing",
    ),
    DumpOption(
        "ids",
        ("-ids", "--save-operation-ids"),
        ids,
        "only these operations: 2, 3_1 (default: all)",
        "ID",
        "some",
    ),
    DumpOption(
        "ranges",
        ("-er", "--execute-range"),
        ranges,
        "only these executions: pairs of first and last, both included, or all (default: 0,0)",
        "FIRST,LAST",
        "some",
    ),
    DumpOption(
        "child",
        ("-child", "--save-operation-child"),
        truth,
        "with -ids: what is inside of these operations too (default: True)",
        "BOOL",
    ),
    DumpOption(
        "time",
        ("-time", "--save-time"),
        up_to(3),
        "0 before an operation runs, 1 after, 2 both, 3 inputs before and outputs after (default: 3)",
        "0..3",
    ),
    DumpOption(
        "names",
        ("-opname", "--operation-name"),
        names,
        "only operations whose names start so, in any case: linear,rope",
        "NAME",
        "some",
    ),
    DumpOption("tiling", ("-tiling", "--save-tiling"), flag, "write tiling data too", takes="nothing"),
    DumpOption(
        "part", ("-stp", "--save-tensor-part"), up_to(2), "0 inputs, 1 outputs, 2 both (default: 2)", "0..2"
    ),
    DumpOption(
        "output", ("-o", "--output"), path, "directory that gets the dump, or s3://... (default: .)", "DIR"
    ),
    DumpOption("devices", ("-device", "--device-id"), devices, "only this device (default: all)", "N"),
    DumpOption(
        "seed",
        ("-seed",),
        seed,
        f"make the program deterministic, with this seed (without a number: {DEFAULT_SEED})",
        "N",
        "perhaps",
    ),
    DumpOption(
        "symlink",
        ("-symlink", "--enable-symlink"),
        flag,
        "write equal tensors once, and links to them",
        takes="nothing",
    ),
    DumpOption(
        "config",
        ("-config", "--config-path"),
        config,
        "JSON file that may change while the program runs; replaces -ids -er -child -device",
        "FILE",
    ),
    DumpOption(
        "log_level",
        ("-l", "--log-level"),
        choice_of(*LOG_LEVELS),
        f"what the probe prints: {' '.join(LOG_LEVELS)} (default: info)",
        "LEVEL",
    ),
    DumpOption("probe_lib", ("--probe-lib",), path, "the probe, instead of looking for it", "FILE"),
    DumpOption(
        "backend",
        ("--backend",),
        choice_of(*BACKENDS),
        "npu: preload the probe into an ATB program; cpu: the program uses acc_pytest.lab.atb "
        "(default: auto, which is $ACC_ATB_BACKEND, else npu)",
        "BACKEND",
    ),
    DumpOption(
        "era",
        ("--era",),
        choice_of(*ERAS),
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
    types = read.get("types", DEFAULT_TYPES)
    if "stats" in types and "tensor" not in types:
        raise SettingsError("--type stats: statistics are those of tensors; add tensor to --type")
    if "onnx" in types:
        types = tuple(dict.fromkeys((*types, "model", "op")))
    options = LaunchOptions(command, **{**read, "types": types}, explicit=frozenset(read))
    if options.backend == "cpu" and options.probe_lib is not None:
        raise SettingsError("--probe-lib: the backend cpu preloads no probe; leave out one of the two")
    return options


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


# A command as one text, split into words without a shell.


_ONLY_A_SHELL = frozenset("|<>&;`$")


def split_command(text: str) -> tuple[str, ...]:
    """The words of `text`; quotes hold words together as in a shell, nothing else has a meaning.

    Raises `SettingsError` for an unclosed quote, nothing at all, and whatever only a shell understands.
    """
    try:
        arguments = tuple(shlex.split(text))
    except ValueError as error:
        raise SettingsError(
            f"--exec: {text!r}: {str(error).lower()}; close the quote, or escape it with \\"
        ) from error
    if not arguments:
        raise SettingsError('--exec: no command; write --exec "python run.py"')
    if sign := _shell_sign(text):
        raise SettingsError(
            f"--exec: no shell reads this command, so {sign!r} has no meaning in it; put the line into a "
            f'script and run that (--exec "bash run.sh"), or quote the sign where it is meant literally'
        )
    return arguments


def _shell_sign(text: str) -> str:
    """The first sign outside of quotes that only a shell could obey: a pipe, another command, a variable."""
    quote, escaped = "", False
    for sign in text:
        if escaped:
            escaped = False
        elif sign == "\\" and quote != "'":
            escaped = True
        elif sign == quote:
            quote = ""
        elif not quote and sign in "'\"":
            quote = sign
        elif sign in _ONLY_A_SHELL and (not quote or (quote == '"' and sign in "`$")):
            return sign
    return ""
