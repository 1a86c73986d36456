"""Which expected pairs of dumps of other tools are planned, and does the verdict name the fault? No timing.

    python benchmarks/other_dumps.py ../shared/conformance/other_dumps
    python benchmarks/other_dumps.py ../shared/conformance/other_dumps --only 'engine/llama/*/acc_*' --details

An expected pair is found where a planned pair opens the same values on both sides; `moved` ones do so from
other files of the same bytes. A planned pair is wrong where both its tensors are in expected pairs, but in
none together.
"""

from __future__ import annotations

import argparse
import json
import math
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.errors import AccError
from acc_pytest.mapping.pair import Pair
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair

NEEDED = ("linear", "norm", "attention", "embedding", "logits", "residual", "layer", "mlp", "api")
"""Kinds of expected pairs none of which may be missing; `attention_core` counts as attention."""
SAME_VALUES = 1e-6
ROUNDED = 5e-3
"""How far sums may be from those of the expected file, which does not round them to the dtype of the dump."""


@dataclass(frozen=True, slots=True)
class Values:
    """Both sides of a pair as vectors, and the files that they were read from."""

    golden: torch.Tensor
    mine: torch.Tensor
    golden_files: frozenset[str]
    mine_files: frozenset[str]
    label: str

    @property
    def distance(self) -> float:
        return _distance(self.golden, self.mine)


@dataclass(slots=True)
class Outcome:
    """What became of one expected file."""

    name: str
    refused: str = ""
    expected: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    moved: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    distances_off: list[str] = field(default_factory=list)
    planned: int = 0
    red: list[str] = field(default_factory=list)
    fault: str = ""
    first_root: str = ""
    reason: str = ""

    @property
    def right(self) -> bool:
        """Whether the verdict is as expected: green, or red with the first root at the fault or inside."""
        if self.fault:
            return f"{self.first_root}.".startswith(f"{self.fault}.")
        return not self.red


def _distance(golden: torch.Tensor, mine: torch.Tensor) -> float:
    norm, error = float(golden.norm()), float((golden - mine).norm())
    return error / norm if norm else error


class Sets:
    """The dumps of the conformance data, unpacked where they are packed."""

    def __init__(self, home: Path, work: Path) -> None:
        self._home, self._work = home, work

    def path(self, name: str) -> Path:
        """The directory of a set."""
        stored = self._home / name
        if stored.is_dir():
            return stored
        unpacked = self._work / name
        if not unpacked.exists():
            unpacked.parent.mkdir(parents=True, exist_ok=True)
            with tarfile.open(self._home / f"{name}.tar.xz") as archive:
                archive.extractall(unpacked.parent, filter="data")
        return unpacked


def side_values(side: Mapping[str, Any], place: Path) -> tuple[torch.Tensor, frozenset[str]]:
    """A side of an expected pair, put together as it says."""
    parts = [_part(part, place) for part in side["parts"]]
    how = side.get("combine", "single")
    if how == "sum":
        whole = torch.stack(parts).sum(0)
    else:
        whole = torch.cat(parts, side["dim"]) if how == "cat" else parts[0]
    for change in side.get("then", ()):
        whole = whole.reshape(change["reshape"]) if "reshape" in change else whole[change["rows"]]
    return whole.reshape(-1), frozenset(str((place / part["file"]).resolve()) for part in side["parts"])


def _part(part: Mapping[str, Any], place: Path) -> torch.Tensor:
    path = place / part["file"]
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        loaded: Any = load_file(path)
    else:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    if part.get("key") is not None:
        loaded = loaded[part["key"]]
    if part.get("index") is not None:
        loaded = loaded[part["index"]]
    tensor: torch.Tensor = loaded.detach().float()
    if part.get("reshape"):
        tensor = tensor.reshape(part["reshape"])
    if part.get("slice"):
        dim, start, stop = part["slice"]
        tensor = tensor.narrow(dim, start, stop - start)
    return tensor


def planned_values(pairs: Sequence[Pair]) -> Iterator[Values]:
    """What the planned pairs open, as far as they can be opened."""
    for pair in pairs:
        try:
            opened = open_pair(pair)
        except AccError:
            continue
        golden_files, mine_files = (
            frozenset(str(Path(ref.path).resolve()) for ref in side.refs) for side in (pair.golden, pair.mine)
        )
        label = f"{pair.golden.node} {pair.golden.slot} = {pair.mine.node} {pair.mine.slot} [{pair.policy}]"
        for compared in opened.comparisons:
            golden, mine = (
                each.read(0, math.prod(each.shape)).detach().float().reshape(-1)
                for each in (compared.golden, compared.mine)
            )
            yield Values(golden, mine, golden_files, mine_files, label)


def check(name: str, expected: Mapping[str, Any], sets: Sets) -> Outcome:
    """Plan one pair of dumps, look for the expected pairs, and compare."""
    outcome = Outcome(name)
    places = [sets.path(expected[side]) for side in ("golden", "mine")]
    try:
        golden = open_dump(str(places[0]))
        made = plan(golden, open_dump(str(places[1]), golden=golden))
    except AccError as error:
        outcome.refused = str(error)
        return outcome
    outcome.planned = len(made.pairs)
    _compare_pairs(outcome, expected, places, made.pairs)
    rows, diagnosis = run(made)
    outcome.red = [f"{row.mine.node} {row.mine.slot}: {row.sentence}" for row in rows if row.red]
    outcome.fault = (expected.get("fault") or {}).get("at", "")
    if diagnosis.roots:
        first = diagnosis.roots[0]
        outcome.first_root = first.row.mine.node.removeprefix("root.")
        outcome.reason = first.sentence
    return outcome


def _compare_pairs(
    outcome: Outcome, expected: Mapping[str, Any], places: Sequence[Path], pairs: Sequence[Pair]
) -> None:
    planned = list(planned_values(pairs))
    wanted = []
    for entry in expected.get("pairs", ()):
        golden, golden_files = side_values(entry["golden"], places[0])
        mine, mine_files = side_values(entry["mine"], places[1])
        label = f"{entry['what']} {entry['module']} {entry['slot']}"
        wanted.append(Values(golden, mine, golden_files, mine_files, label))
        outcome.expected[entry["what"]] += 1
        found = [each for each in planned if _equal(each.golden, golden) and _equal(each.mine, mine)]
        if not found:
            outcome.missing[entry["what"]] += 1
            outcome.lost.append(label)
            continue
        outcome.moved += not any(
            each.mine_files >= mine_files or mine_files >= each.mine_files for each in found
        )
        best = min((each.distance for each in found), key=lambda value: abs(value - entry["rel_l2"]))
        if abs(best - entry["rel_l2"]) > max(1e-6, 1e-3 * entry["rel_l2"]):
            outcome.distances_off.append(f"{label}: {best:.4g}, expected {entry['rel_l2']:.4g}")
    for each in planned:
        golden_in = {number for number, other in enumerate(wanted) if _equal(each.golden, other.golden)}
        mine_in = {number for number, other in enumerate(wanted) if _equal(each.mine, other.mine)}
        if golden_in and mine_in and not golden_in & mine_in:
            outcome.wrong.append(each.label)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.numel() != other.numel():
        return False
    return torch.equal(one, other) or _distance(other, one) <= ROUNDED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("conformance", type=Path)
    parser.add_argument("--only", default="*", help="glob on the names of expected files")
    parser.add_argument("--work", type=Path, help="where archives are unpacked; kept")
    parser.add_argument("--details", action="store_true", help="name what is missing, wrong or red")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        sets = Sets(given.conformance, given.work or Path(temporary))
        home = given.conformance / "expected"
        outcomes = []
        for path in sorted(home.rglob("*.json")):
            name = str(path.relative_to(home).with_suffix(""))
            if fnmatchcase(name, given.only):
                outcomes.append(check(name, json.loads(path.read_text()), sets))
                _print(outcomes[-1], given.details)
        _print_totals(outcomes)


def _print(outcome: Outcome, details: bool) -> None:
    if outcome.refused:
        print(f"{outcome.name:70} not opened: {outcome.refused:.90}")
        return
    found = sum(outcome.expected.values()) - sum(outcome.missing.values())
    verdict = "right" if outcome.right else "WRONG"
    print(
        f"{outcome.name:70} {found}/{sum(outcome.expected.values())} found ({outcome.moved} moved), "
        f"{len(outcome.wrong)} wrong, {len(outcome.distances_off)} off, {outcome.planned} planned, "
        f"{len(outcome.red)} red, {verdict}: {outcome.first_root or 'no root'}"
    )
    if details:
        for title in ("lost", "wrong", "distances_off", "red"):
            for line in getattr(outcome, title):
                print(f"    {title}: {line}")
        if outcome.fault:
            print(f"    fault at {outcome.fault}; said: {outcome.reason}")


def _print_totals(outcomes: Sequence[Outcome]) -> None:
    opened = [outcome for outcome in outcomes if not outcome.refused]
    expected: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for outcome in opened:
        expected += outcome.expected
        missing += outcome.missing
    right = sum(outcome.right for outcome in opened)
    print(f"\n{len(opened)} of {len(outcomes)} opened, {right} verdicts right")
    print(f"{sum(len(outcome.wrong) for outcome in opened)} wrong pairs")
    for what, count in sorted(expected.items()):
        needed = what.partition(":")[0].removesuffix("_core") in NEEDED
        note = "" if needed or not missing[what] else "  (not needed)"
        print(f"{what:28} {count - missing[what]:5} of {count:5}{note}")


if __name__ == "__main__":
    main()
