"""Every tensor file of the real dumps opens, or says why it has no values; the recorded facts hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import AccError, NoPayload
from acc_pytest.tensors import ge_file
from acc_pytest.tensors.atb_bin import text_of
from acc_pytest.tensors.dtypes import by_atb_code, layout_name
from acc_pytest.tensors.ref import TensorRef, readable
from acc_pytest.tensors.statistics import statistics_in, statistics_of
from tests.newer import known
from tests.slow import slow

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "conformance"
PROBE = DATA / "probe"
pytestmark = pytest.mark.skipif(not PROBE.is_dir(), reason=f"no conformance data at {DATA}")

LARGE = ("A", "C", "D_e4")

# Dumps by the name under which expected_facts.json of their directory lists them.
FACTS = {
    ("A", "atb"): "A/atb",
    ("A_bf16", "atb"): "A_bf16/atb",
    ("B_e2", "atb"): "B_e2/atb",
    ("C", "atb"): "C/atb",
    ("D_desc", "atb"): "D_desc/atb",
    ("D_e4", "atb"): "D_e4/atb",
    ("D_e4", "atb_named"): "D_e4/atb_named",
    ("D_e4", "atb_level2"): "D_e4/atb_level2",
    ("D_stats", "atb"): "D_stats/atb",
}


def facts(key: tuple[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PROBE / key[0] / "expected_facts.json").read_text())[key[1]]
    return found


def execution_of(path: Path) -> str:
    """The directory `{device}_{pid}/{N}` of a tensor below `tensors/` or `data/`."""
    parts = path.parts
    start = max(i for i, part in enumerate(parts) if part in ("tensors", "data"))
    return str(Path(*parts[: start + 3]))


def bins(dump: Path) -> Iterator[TensorRef]:
    for path in sorted(dump.rglob("*tensor*.bin")):
        yield TensorRef(str(path), root=execution_of(path))


@pytest.mark.parametrize("key", [slow(key) if key[0] in LARGE else key for key in FACTS], ids="/".join)
def test_every_bin_opens_or_says_why_not(key: tuple[str, str]) -> None:
    kinds: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    names = {"description": "desc", "statistics": "stats"}
    selves = 0
    for ref in bins(PROBE / FACTS[key]):
        header = ref.header()
        kinds[names.get(header.payload, header.payload)] += 1
        codes[str(header.dtype.atb_code)] += 1
        if header.payload in names:
            with pytest.raises(NoPayload):
                ref.open()
            continue
        if header.alias == Path(ref.path).name:
            selves += 1
            with pytest.raises(NoPayload, match="alias of itself"):
                ref.open()
            continue
        if known(header.dtype):
            assert tuple(ref.open().shape) == header.shape
    expected = facts(key)["bins"]
    assert dict(kinds) == expected["by_payload_kind"]
    assert dict(codes) == expected["by_dtype_code"]
    assert selves == (55 if key == ("D_e4", "atb_level2") else 0)


@pytest.mark.parametrize("key", FACTS, ids="/".join)
def test_the_selected_tensors_are_as_recorded(key: tuple[str, str]) -> None:
    for fact in facts(key)["selected_tensors"]:
        path = PROBE / FACTS[key] / fact["path"]
        ref = TensorRef(str(path), root=execution_of(path))
        header = ref.header()
        assert hashlib.sha256(path.read_bytes()).hexdigest() == fact["file_sha256"]
        assert header.dtype == by_atb_code(int(fact["dtype"]))
        assert header.layout == layout_name(int(fact["format"]))
        assert ",".join(map(str, header.shape)) == fact["dims"]
        assert header.offset == fact["header_bytes"]
        assert header.alias == fact.get("data", "")
        if "payload_sha256" in fact and known(header.dtype):
            flat = ref.open().reshape(-1)
            payload = flat.view(torch.uint8).numpy().tobytes()
            assert hashlib.sha256(payload).hexdigest() == fact["payload_sha256"]
            assert flat[:8].tolist() == fact["first_values"]
        if "max" in fact:
            found = header.statistics
            assert found is not None
            written = [float(fact[name]) for name in ("max", "min", "mean", "l2norm")]
            assert [found.max, found.min, found.mean, found.l2norm] == written


def same_tensor_of_a(path: Path) -> TensorRef:
    """The tensor of dump A at the same step and node as one of another dump of the same run."""
    execution = Path(execution_of(path))
    (root,) = (PROBE / "A" / "atb").glob("msit_dump_*/tensors/0_*")
    return TensorRef(str(root / execution.name / path.relative_to(execution)))


def raw(ref: TensorRef) -> bytes:
    return ref.open().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_aliases_have_the_values_that_the_full_dump_stored() -> None:
    aliases = [ref for ref in bins(PROBE / "D_e4" / "atb") if ref.header().payload == "alias"]
    assert len(aliases) == 1202
    for ref in aliases:
        assert raw(ref) == raw(same_tensor_of_a(Path(ref.path))), ref.path


def test_statistics_text_of_the_probe_is_reproduced_to_the_byte() -> None:
    compared = 0
    for ref in bins(PROBE / "D_stats" / "atb"):
        compared += 1
        if not known(ref.header().dtype):
            continue
        tensor = same_tensor_of_a(Path(ref.path)).open()
        lines = Path(ref.path).read_text().splitlines()
        assert [f"{key}={value}" for key, value in text_of(tensor).items()] == lines[6:10], ref.path
    assert compared == 2130


def test_statistics_of_the_data_agree_with_the_statistics_dump() -> None:
    for ref in list(bins(PROBE / "D_stats" / "atb"))[::7]:
        written = ref.header().statistics
        if not known(ref.header().dtype):
            continue
        computed = statistics_of(same_tensor_of_a(Path(ref.path)).open())
        assert written is not None
        for name in ("max", "min", "mean", "l2norm"):
            # Six decimals are kept; float32 squares each round by 2^-24 before they are added.
            assert getattr(computed, name) == pytest.approx(getattr(written, name), rel=2**-24, abs=0.6e-6)


@pytest.mark.parametrize("name", ["atb", "atb_named", "atb_stats_top", "atb_level2"])
def test_the_statistic_files_have_the_recorded_rows(name: str) -> None:
    recorded = facts(("D_e4", name))["csv"]
    assert recorded
    for path, fact in recorded.items():
        found = statistics_in(str(PROBE / "D_e4" / name / path))
        assert len(found) == fact["data_rows"]
        assert all(header.statistics is not None for header in found.values())


def test_statistics_of_the_torch_hooks_are_read() -> None:
    files = list((PROBE / "D_stats" / "golden").rglob("statistics.csv"))
    assert files
    for path in files:
        found = statistics_in(str(path))
        assert found
        assert all(header.dtype.kind != "raw" for header in found.values())


def test_every_golden_tensor_and_array_opens() -> None:
    paths = [path for suffix in ("pth", "npy") for path in DATA.rglob(f"*.{suffix}")]
    assert paths
    for path in paths:
        ref = TensorRef(str(path))
        assert tuple(ref.open().shape) == ref.header().shape


def test_the_operator_dumps_open() -> None:
    for ref in bins(DATA / "opcheck" / "ait_dump"):
        header = ref.header()
        if header.dtype.kind != "raw" and known(header.dtype):
            assert tuple(ref.open().shape) == header.shape


def plain_files() -> Iterator[TensorRef]:
    """A part of the tensor files of each format, and of records with several tensors their members."""
    for suffix in ("bin", "pt", "pth", "npy", "safetensors"):
        paths = sorted(DATA.rglob(f"*.{suffix}"))
        yield from (TensorRef(str(path)) for path in paths[:: max(1, len(paths) // 200)])
    for path in sorted((DATA / "torchair").rglob("*.[0-9]*"))[:200]:
        if path.is_file():
            with contextlib.suppress(AccError):
                yield from (TensorRef(str(path), member) for member in ge_file.members(str(path)))


def test_what_a_header_calls_plain_lies_in_its_file_as_it_is_opened() -> None:
    kinds: Counter[str] = Counter()
    for ref in plain_files():
        header = readable(ref)
        if header is None or not header.plain or not known(header.dtype):
            continue
        content = Path(ref.path).read_bytes()[header.offset : header.offset + header.nbytes]
        opened = ref.open()
        assert tuple(opened.shape) == header.shape, ref
        assert opened.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() == content, ref
        kinds[Path(ref.path).suffix if not ref.member else "member"] += 1
    assert min(kinds[kind] for kind in (".bin", ".pt", ".pth", ".npy", ".safetensors", "member")) > 20
