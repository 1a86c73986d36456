"""`OpcheckSettings`: the options of single-operator checks as one frozen object."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config_file import check_choice
from ..errors import SettingsError
from ..tensors.stores.address import path_on_disk
from ..vocabulary import (
    BACKENDS,
    DEFAULT_STANDARD,
    DUMPED,
    PRECISION_MODES,
    SECOND_DEVICE,
    SOCS,
    option_name,
)
from .select import ids_from, names_from

_CHOICES = {"opcheck_backend": BACKENDS, "opcheck_soc": SOCS, "precision_mode": PRECISION_MODES}


@dataclass(frozen=True, slots=True)
class OpcheckSettings:
    """The operators to check, and the rules to check them by.

    `sources` are operation CSVs and directories; `input` and `other` directories to look for tensors
    in, empty where the source says where they are; `ids` and `names` select, empty for all; `soc` is
    empty where the source may say it; `precision` is as what float tensors are read; `backend` says whose
    outputs are judged, `device` is its NPU, `optimization` asks it for copies with one optimisation off each.
    `columns` are the old report's further metrics that the CSV has.
    """

    sources: tuple[str, ...]
    input: str = ""
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    standard: str = DEFAULT_STANDARD
    other: str = ""
    soc: str = ""
    precision: str = "keep"
    backend: str = DUMPED
    device: int = 0
    optimization: bool = False
    columns: tuple[str, ...] = ()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> OpcheckSettings:
        """Settings from option values by field.

        Raises `SettingsError` naming the option, `DumpError` for what lies in a store.
        """
        get = values.get
        for name, choices in _CHOICES.items():
            if name in values:
                check_choice(option_name(name), values[name], choices)
        settings = cls(
            sources=tuple(map(path_on_disk, get("opcheck", ()))),
            input=path_on_disk(get("opcheck_input", "")),
            ids=ids_from(get("opcheck_ids", "")),
            names=names_from(get("opcheck_opname", "")),
            standard=get("opcheck_standard", DEFAULT_STANDARD),
            other=path_on_disk(get("opcheck_other", "")),
            soc=get("opcheck_soc", ""),
            precision=get("precision_mode", "keep"),
            backend=get("opcheck_backend", DUMPED),
            device=_device(get("device_id", "0")),
            optimization=bool(get("opcheck_optimization", False)),
            columns=tuple(get("opcheck_metric", ())),
        )
        settings._check()
        return settings

    def _check(self) -> None:
        """Raise `SettingsError` for directories that are not there and options that contradict each other."""
        for option, path in (("input", self.input), ("other", self.other)):
            if path and not os.path.isdir(path):
                raise SettingsError(f"--acc-opcheck-{option} {path}: no such directory")
        if self.optimization and self.backend == DUMPED:
            raise SettingsError(
                "acc_opcheck_optimization runs operators again with other parameters, which needs an NPU; "
                "add -o acc_opcheck_backend=torch_atb (-rerun)"
            )
        if self.optimization and self.other:
            raise SettingsError(
                "acc_opcheck_optimization: the second device's dump has operators only as they were "
                "dumped; leave --acc-opcheck-other out"
            )
        if self.standard == "three-way" and not self.other:
            raise SettingsError(
                "--acc-opcheck-standard three-way: needs the same operators' dump of a second device; "
                "give it with --acc-opcheck-other DIR"
            )
        if self.other and self.standard not in SECOND_DEVICE:
            raise SettingsError(
                f"--acc-opcheck-other: the standard {self.standard} uses no second device; "
                f"add --acc-opcheck-standard {' or '.join(SECOND_DEVICE)}"
            )


def _device(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise SettingsError(f"acc_device_id must be the number of an NPU, >= 0, got {text}")
    return int(text)
