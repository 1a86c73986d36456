"""`OpcheckSettings`: the options of single-operator checks as one frozen object."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.vocabulary import (
    BACKENDS,
    DEFAULT_STANDARD,
    DUMPED,
    OPCHECK,
    PRECISION_MODES,
    SECOND_DEVICE,
    SOCS,
    option_name,
    selectable,
    words_of,
)
from ..errors import DumpError, SettingsError, guarded
from ..judging.threshold import JudgeContext
from ..reference.case import Case
from ..reference.sources import Entry, entries_of_csv, entries_of_directory
from ..settings import check_choice
from ..tensors.address import path_on_disk

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
        device = get("device_id", "0")
        if not (device.isascii() and device.isdecimal()):
            raise SettingsError(f"acc_device_id must be the number of an NPU, >= 0, got {device}")
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
            device=int(device),
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


# The selection of operations by ids of their path and substrings of their names, as in the old tool.


_ID = re.compile(r"^\d+(_\d+)*$")


def ids_from(text: str) -> tuple[str, ...]:
    """The ids in `24_1, 2_3_5`. Raises `SettingsError` for what is no id."""
    ids = words_of(text)
    for entry_id in ids:
        if not _ID.match(entry_id):
            raise SettingsError(
                f"--acc-opcheck-ids {entry_id}: an id is numbers joined by _; commas separate ids: 24_1,2_3_5"
            )
    return ids


def names_from(text: str) -> tuple[str, ...]:
    """The parts of names in `self, Linear`, in lower case."""
    return words_of(text.lower())


def selected(entries: Iterable[Entry], ids: Sequence[str], names: Sequence[str]) -> Iterator[Entry]:
    """Entries that one of `ids` names or lies above, and whose class name one of `names` is part of.

    No ids or no names select everything.
    """
    for entry in entries:
        if ids and not any(entry.ids == entry_id or entry.ids.startswith(f"{entry_id}_") for entry_id in ids):
            continue
        if names and not any(name in entry.name.lower() for name in names):
            continue
        yield entry


# The view of a single operator for threshold rules, markers, `-m` and standards. Needs no torch.


def context_of(case: Case | Entry) -> JudgeContext:
    """The texts that the `match` of a rule is tried on: class, full name and ids, outermost id, step."""
    return JudgeContext(
        id=case.full_name,
        mine_op_type=case.name,
        mine_path=case.ids,
        mine_name=case.full_name,
        level="op",
        layer=layer_of(case.ids),
        step=case.step,
        policy=OPCHECK,
    )


def layer_of(ids: str) -> str:
    """The id of the top-level operation that an operator lies in: its layer, in most models."""
    return ids.partition("_")[0] or "model"


# All entries that a session checks: from every source, selected, each with the names of its test.


Named = tuple[tuple[str, ...], Entry]
"""The names of the collectors above an entry and its own, and the entry."""

_NOT_IN_IDS = re.compile(r"[^\w+\-.]")


def listed(settings: OpcheckSettings) -> tuple[Named, ...]:
    """The chosen entries in order. Raises `AccError` for what is no source, and when nothing is chosen."""
    sources = ", ".join(settings.sources)
    with guarded(f"listing the operations of {sources}"):
        entries = list(_all(settings.sources))
        chosen = list(selected(entries, settings.ids, settings.names))
    if not entries:
        raise DumpError(f"{sources}: lists no operation; was it dumped with --type op tensor?")
    if not chosen:
        kinds = ", ".join(sorted({entry.name for entry in entries})[:8])
        raise DumpError(
            f"none of {len(entries)} operations is selected by --acc-opcheck-ids and --acc-opcheck-opname; "
            f"there are {kinds}, with ids such as {entries[0].ids or '(none)'}; commas separate several"
        )
    return tuple(_named(chosen))


def _all(sources: Iterable[str]) -> Iterator[Entry]:
    number, groups = 0, Counter[str]()
    for source in sources:
        if os.path.isdir(source):
            entries = entries_of_directory(Path(source), number)
        else:
            stem = selectable(Path(source).stem, _NOT_IN_IDS)
            group = f"{stem}-{groups[stem]}" if groups[stem] else stem
            groups[stem] += 1
            entries = entries_of_csv(Path(os.path.abspath(source)), group, number)
        for entry in entries:
            number += 1
            yield entry


def _named(entries: Iterable[Entry]) -> Iterator[Named]:
    """Entries with names that are unique: an operation that is listed again gets a number in brackets."""
    counts: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        group, name = (selectable(text, _NOT_IN_IDS) for text in (entry.group, entry.full_name))
        again = counts[group, name]
        counts[group, name] += 1
        yield (OPCHECK, group, f"{name}[{again}]" if again else name), entry


# The columns of the CSV of single-operator checks: those of the old tool's result sheet, then ours.


OLD_COLUMNS = {
    "op_id": "case.op_id",
    "op_name": "case.op_name",
    "op_param": "case.op_param",
    "tensor_path": "case.tensor_path",
    "out_tensor_id": "case.out_tensor_id",
    "precision_standard": "case.precision_standard",
    "precision_result": "case.precision_result",
    "rel_precision_rate(%)": "metrics.rel_precision_rate",
    "max_rel_error": "metrics.max_rel_error",
}
"""The old result sheet's columns, in its order; and where a `Row` has the value."""

METRIC_COLUMNS = {
    "abs": {"abs_precision_rate(%)": "metrics.abs_precision_rate", "max_abs_error": "metrics.max_abs_error"},
    "cos_sim": {"cosine_similarity": "metrics.cosine_similarity"},
    "kl": {"kl_divergence": "metrics.kl_divergence"},
}
"""Columns that the old sheet has when its `-metric` asks for them."""

OUR_COLUMNS = {
    "verdict": "verdict",
    "standard": "case.standard",
    "thresholds": "thresholds",
    "slot": "mine.slot",
    "dtype": "mine.dtype",
    "shape": "mine.shape",
    "mean_rel_error": "metrics.mean_rel_error",
    "max_scaled_error": "metrics.max_scaled_error",
    "rmse": "metrics.rmse",
    "error_balance": "metrics.error_balance",
    "max_ulp_error": "metrics.max_ulp_error",
    "max_ulp_of_exact": "metrics.max_ulp_of_exact",
    "ulp_histogram": "case.ulp_histogram",
    "elements": "counts.elements",
    "beyond": "counts.beyond_tolerance",
    "golden_nan": "counts.golden_nan",
    "golden_inf": "counts.golden_inf",
    "my_nan": "counts.my_nan",
    "my_inf": "counts.my_inf",
    "worst_index": "worst.index",
    "worst_golden_value": "worst.golden",
    "worst_my_value": "worst.mine",
    "my_data_path": "mine.path",
    "rank": "rank",
    "notes": "note",
    "source": "case.source",
    "test_id": "test_id",
}
"""Our columns, appended to the old ones."""


def columns(metrics: tuple[str, ...], custom: tuple[str, ...], optimization: bool = False) -> dict[str, str]:
    """The report's columns: the old sheet's with these of its metrics, the user's own, ours."""
    result = dict(OLD_COLUMNS)
    for name, group in METRIC_COLUMNS.items():
        if not metrics or name in metrics:
            result |= group
    result |= {name: f"custom.{name}" for name in custom}
    result["fail_reason"] = "reason"
    if optimization:
        result["optimization_closed"] = "case.optimization_closed"
    return result | OUR_COLUMNS
