"""Formats that commands which make or convert dumps read: files to be converted, the switch of fusion."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from acc_pytest.capture.dump_info import InfoConversion
from acc_pytest.capture.torchair import switch_path, write_fusion_switch
from acc_pytest.errors import FormatError
from acc_pytest.tensors.info_file import SUFFIX

from . import dumps, field_mutations, json_mutations
from .case import Format, Seed


def formats() -> list[Format]:
    """All of them."""
    return [
        Format("dump-info-ge", _of("mine", "*.*.*"), field_mutations.ge_record, _converted),
        Format("dump-info-fx", _of("golden", "*.npy"), field_mutations.numpy, _converted),
        Format("fusion-switch", _switches, json_mutations.mutated, _switched),
    ]


def _of(side: str, pattern: str) -> Callable[[Path], Sequence[Seed]]:
    """Files of one side of a TorchAir pair, each in a folder of its own."""

    def seeds(directory: Path) -> list[Seed]:
        found = []
        for number, seed in enumerate(dumps.seeds(dumps.torchair(directory.parent) / side, pattern, most=20)):
            if seed.file.endswith(".txt"):
                continue
            home = directory / str(number)
            home.mkdir(parents=True)
            name = Path(seed.file).name
            (home / name).write_bytes((seed.home / seed.file).read_bytes())
            found.append(Seed(home, name))
        return found

    return seeds


def _switches(directory: Path) -> list[Seed]:
    directory.mkdir(parents=True)
    passes = {"ALL": "on", "SoftmaxFusionPass": "off"}
    write_fusion_switch(directory / "x.json", graph_fusion=passes, ub_fusion="off")
    return [Seed(directory, "x.json")]


def _converted(home: Path, _file: str) -> None:
    """What `acc dump-info` makes of a file that rests. What fails is counted there, and told here."""
    conversion = InfoConversion(str(home), clock=itertools.count(0, 100).__next__)
    conversion.scan()
    for source in conversion.scan():
        conversion.convert(source)
    for info in home.glob(f"*{SUFFIX}.np?"):
        info.unlink()
    for said in conversion.failed.values():
        raise FormatError(said)


def _switched(home: Path, file: str) -> None:
    switch_path(str(home / file))
