"""The CPU stand-in of ATB and its probe write what the real probe wrote of the same networks and inputs."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.lab.atb import LanguageModel, ModelSpec, Runtime
from acc_pytest.lab.atb.models.flash import BLOOM_WEIGHTS
from acc_pytest.lab.atb.probe import probe_from_environment
from acc_pytest.lab.atb.probe.settings import Era
from acc_pytest.tensors.ref import TensorRef
from tests.newer import in_this_torch

PROBE = Path(__file__).parents[3] / ".." / "shared" / "conformance" / "probe"
pytestmark = pytest.mark.skipif(
    not PROBE.is_dir(), reason="conformance data (../shared/conformance) is not here"
)

COMMON = {"ATB_SAVE_TENSOR": "1", "ATB_SAVE_CHILD": "1", "ATB_SAVE_TENSOR_PART": "2"}


def command(types: str, ranges: str = "0,0", time: int = 3, **more: str) -> dict[str, str]:
    """The variables that `msit llm dump` sets for these options."""
    return {
        **COMMON,
        "ATB_DUMP_TYPE": types.replace(" ", "|"),
        "ATB_SAVE_TENSOR_RANGE": ranges,
        "ATB_SAVE_TENSOR_TIME": str(1 if time == 3 else time),
        "ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER": str(int(time == 3)),
        **({"ATB_SAVE_TENSOR_STATISTICS": "1"} if "stats" in types else {}),
        **more,
    }


@dataclass(frozen=True)
class Real:
    """One real dump, what it was asked for, and which of its executions ran."""

    path: str
    environ: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    named: bool = False

    @property
    def directory(self) -> Path:
        return PROBE / self.path


LLAMA = (
    Real("A/atb", command("tensor model layer op kernel cpu_profiling", "0,3", ATB_SAVE_TILING="1")),
    Real("D_desc/atb", command("tensor model layer", "1,1", ATB_SAVE_TENSOR="2")),
    Real("D_stats/atb", command("tensor stats model layer", "1,2")),
    Real(
        "D_misc/time2",
        command("tensor model", "2,2", 2, ATB_SAVE_TENSOR_IDS="8_0_1,8_0_2,8_1,9_3"),
    ),
    Real(
        "D_misc/time0",
        command("tensor model", "2,2", 0, ATB_SAVE_TENSOR_IDS="8_1,9_3", ATB_SAVE_CHILD="0"),
    ),
    Real(
        "D_misc/opname_in",
        command(
            "tensor model",
            "3,3",
            ATB_SAVE_TENSOR_RUNNER="linearoperation,rope",
            ATB_SAVE_TENSOR_PART="0",
        ),
    ),
    Real("D_misc/device_filter", command("tensor model", ATB_DEVICE_ID="3")),
    Real("D_misc/dynamic_config", command("tensor model"), config="D_misc/e3_dump_config.json"),
    Real("D_misc/cpu_profiling_raw", {"ATB_DUMP_TYPE": "cpu_profiling"}),
    Real("D_e4/atb", config="D_e4/config_atb.json"),
    Real("D_e4/atb_named", config="D_e4/config_atb_named.json", named=True),
    Real("D_e4/atb_stats_top", config="D_e4/config_atb_stats_top.json"),
    Real("D_e4/atb_level2", config="D_e4/config_atb_level2.json"),
)
LLAMA_SHORT = (Real("D_misc/onnx", command("onnx layer model op")),)
LLAMA_BF16 = (Real("A_bf16/atb", command("tensor model layer op", "1,1")),)
LLAMA_RANKS = (Real("C/atb", command("tensor model layer op kernel", "1,1")),)
BLOOM = (Real("B_e2/atb", command("tensor model layer op kernel", "0,1", 1)),)


@dataclass(frozen=True)
class Run:
    """One execution of a network, which several real dumps show."""

    spec: ModelSpec
    prompt: tuple[int, ...]
    decoded: tuple[int, ...]
    weights: str
    warm_up: bool = True


RUNS = {
    "llama": Run(ModelSpec(), (112, 113, 120, 17, 5, 101, 42), (39, 102, 13), "A"),
    "short": Run(ModelSpec(), (112, 113, 120, 17, 5, 101, 42), (39,), "A"),
    "bf16": Run(ModelSpec(dtype="bfloat16"), (67, 44, 127, 57, 43, 28, 92), (120, 108, 122), "A_bf16"),
    "ranks": Run(ModelSpec(ranks=2), (112, 113, 120, 17, 5, 101, 42), (39, 102, 13), "A"),
    "bloom": Run(
        ModelSpec(family="bloom", layers=3, intermediate=128, models=1),
        (100, 111, 53, 25, 5, 31, 32),
        (51, 121, 121),
        "B_e2",
        warm_up=False,
    ),
}


class Tee:
    """Hands what one rank reports to the probes of all dumps that are made at once."""

    def __init__(self, probes: Sequence[object]) -> None:
        self._probes = probes

    def __getattr__(self, name: str) -> object:
        def call(*values: object) -> None:
            for probe in self._probes:
                getattr(probe, name)(*values)

        return call


def workers(real: Real) -> list[tuple[int, int]]:
    """(device, pid) of every rank, from the names of directories."""
    names = {p.name for p in real.directory.glob("*/tensors/*_*")}
    names |= {p.name for p in real.directory.glob("*/data/*_*")}
    if names:
        pairs = (name.split("_") for name in sorted(names))
        return [(int(device), int(pid)) for device, pid in pairs]
    (pid,) = {p.name for p in real.directory.glob("*/*/*")}
    return [(0, int(pid))]


def weights_of(name: str) -> dict[str, torch.Tensor]:
    """Golden's parameters by name, out of the golden dump or, without weights there, out of that of mine."""
    files = list((PROBE / name).glob("golden/*/torch_tensors/*/weights/*.pth"))
    if files:
        return {
            f.name.removeprefix("root.").removesuffix(".pth"): torch.load(f, weights_only=True) for f in files
        }
    (tensors,) = (PROBE / name).glob("atb/*/tensors/*")
    return _bloom(tensors) if name == "B_e2" else _llama(tensors)


def _value(tensors: Path, path: str) -> torch.Tensor:
    (found,) = tensors.glob(path)
    return TensorRef(str(found)).open().clone()


def _llama(tensors: Path) -> dict[str, torch.Tensor]:
    made = {
        "model.embed_tokens.weight": _value(tensors, "1/0_*/before/intensor0.bin"),
        "model.norm.weight": _value(tensors, "1/4_*/before/intensor1.bin"),
        "lm_head.weight": _value(tensors, "1/5_*/before/intensor1.bin"),
    }
    names = {
        "input_layernorm": 0,
        "self_attn.o_proj": 22,
        "post_attention_layernorm": 28,
        "mlp.down_proj": 44,
    }
    for layer in range(2):
        home, base = f"1/{layer + 2}_*/before/intensor", f"model.layers.{layer}."
        made |= {f"{base}{n}.weight": _value(tensors, f"{home}{i}.bin") for n, i in names.items()}
        qkv, gate_up = _value(tensors, f"{home}4.bin").chunk(3), _value(tensors, f"{home}32.bin").chunk(2)
        made |= {f"{base}self_attn.{n}_proj.weight": part for n, part in zip("qkv", qkv)}
        made |= {f"{base}mlp.{n}_proj.weight": part for n, part in zip(("gate", "up"), gate_up)}
    return made


def _bloom(tensors: Path) -> dict[str, torch.Tensor]:
    places = {
        "word_embeddings.weight": "0/0_*/after/intensor0.bin",
        "word_embeddings_layernorm.weight": "0/1_*/after/intensor1.bin",
        "word_embeddings_layernorm.bias": "0/1_*/after/intensor2.bin",
        "ln_f.weight": "0/5_*/after/intensor1.bin",
        "ln_f.bias": "0/5_*/after/intensor2.bin",
    }
    for layer in range(3):
        for index, name in enumerate(BLOOM_WEIGHTS):
            if name != "-":
                places[f"h.{layer}.{name}"] = f"0/{layer + 2}_*/after/intensor{index}.bin"
    made = {f"transformer.{name}": _value(tensors, path) for name, path in places.items()}
    return {**made, "lm_head.weight": _value(tensors, "0/8_*/after/intensor1.bin")}


def make(run: Run, reals: Sequence[Real], directory: Path) -> None:
    """Execute the network once, with a probe for every real dump."""
    ranks: list[list[Any]] = [[] for _ in range(run.spec.ranks)]
    for real in reals:
        (root,) = (p.name for p in real.directory.iterdir())
        timestamp = re.search(r"\d{8}_\d{6}$", root)
        environ = {**real.environ, "ATB_OUTPUT_DIR": f"{directory}/{real.path}/"}
        if timestamp:
            environ["ATB_TIMESTAMP"] = timestamp[0]
        if real.config:
            copy = directory / Path(real.config).name
            shutil.copyfile(PROBE / real.config, copy)
            copy.chmod(0o600)
            environ["ATB_DUMP_CONFIG"] = str(copy)
        era: Era = "E2" if root.startswith("ait") else "E3"
        for rank, (device, pid) in enumerate(workers(real)):
            probe = probe_from_environment(
                rank, device=device, pid=pid, environ=environ, era=era, named=real.named
            )
            ranks[rank].append(probe)
    tees: list[Any] = [Tee(probes) for probes in ranks]
    model = LanguageModel(run.spec, weights_of(run.weights), Runtime(tees))
    if run.warm_up:
        model.warm_up(len(run.prompt))
    model.step(run.prompt)
    for token in run.decoded:
        model.step([token])


DUMPS = {"llama": LLAMA, "short": LLAMA_SHORT, "bf16": LLAMA_BF16, "ranks": LLAMA_RANKS, "bloom": BLOOM}
ALL = [pytest.param(run, real, id=real.path) for run, reals in DUMPS.items() for real in reals]
WITHOUT_TENSORS = ("D_misc/device_filter", "D_misc/cpu_profiling_raw", "D_misc/onnx")
TENSORS = [p for p in ALL if p.id not in WITHOUT_TENSORS]
ROUNDOFF = {"1": 2.0**-11, "27": 2.0**-8, "0": 2.0**-24}
FLOATS = {"1": torch.float16, "27": torch.bfloat16, "0": torch.float32}
STATISTICS = ("max", "min", "mean", "l2norm")


class Ours:
    """Our dumps, every run made when it is first asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._made: dict[str, Path] = {}

    def of(self, run: str, real: Real) -> Path:
        return self.root(run) / real.path

    def root(self, run: str) -> Path:
        if run not in self._made:
            directory = self._factory.mktemp(run)
            make(RUNS[run], DUMPS[run], directory)
            self._made[run] = directory
        return self._made[run]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Ours:
    return Ours(tmp_path_factory)


@cache
def listing(root: Path, pattern: str = "*") -> dict[str, Path]:
    """Files by their path below `root`."""
    names = (
        f"{directory}/{name}"
        for directory, _, names in os.walk(root)
        for name in fnmatch.filter(names, pattern)
    )
    return {name[len(f"{root}/") :]: Path(name) for name in names}


def parts(path: Path) -> tuple[dict[str, str], bytes]:
    """The header's attributes in order, and what follows the header."""
    header, end, payload = in_this_torch(path.read_bytes()).partition(b"$End=1\n")
    assert end, path
    return dict(line.split("=", 1) for line in header.decode("ascii").splitlines()), payload


def ids(path: Path) -> tuple[int, ...]:
    return tuple(int(part.split("_")[0]) for part in path.parts if re.match(r"\d+_[A-Z]", part))


def executions(root: Path) -> list[Path]:
    return [
        p for pattern in ("*/tensors/*/*", "*/data/*/*") for p in root.glob(pattern) if p.name.isdecimal()
    ]


@pytest.mark.parametrize(("run", "real"), ALL)
def test_the_same_files_are_there(ours: Ours, run: str, real: Real) -> None:
    # after the run, the command line tool turns profiles into CSV and adds ONNX to topology
    profile = re.compile(r"(operation_statistic_\d+)\.csv$")
    names = (name for name in listing(real.directory) if not name.endswith(".onnx"))
    expected = {profile.sub(r"\1.txt", name) for name in names}
    assert set(listing(ours.of(run, real))) == expected


@pytest.mark.parametrize(("run", "real"), ALL)
def test_topology_parameters_and_rows_are_equal_byte_for_byte(ours: Ours, run: str, real: Real) -> None:
    found = listing(ours.of(run, real))
    for name, path in listing(real.directory).items():
        if path.suffix == ".json" or "_io_tensors/" in name:
            text = found[name].read_bytes().replace(str(ours.root(run)).encode(), b"/data/run")
            assert text == in_this_torch(path.read_bytes()), name


@pytest.mark.parametrize(("run", "real"), TENSORS)
def test_tensor_headers_are_equal_byte_for_byte(ours: Ours, run: str, real: Real) -> None:
    found = listing(ours.of(run, real), "*tensor*.bin")
    for name, path in listing(real.directory, "*tensor*.bin").items():
        (theirs, _), (made, _) = parts(path), parts(found[name])
        assert list(made) == list(theirs), name
        for key, value in theirs.items():
            assert made[key] == value or key in STATISTICS, (name, key)


@pytest.mark.parametrize(("run", "real"), TENSORS)
def test_payloads_and_statistics_are_equal_within_the_roundings_so_far(
    ours: Ours, run: str, real: Real, record_property: Callable[[str, object], None]
) -> None:
    """Both sides round after every leaf, so leaf n is at most n roundings away in norm; integers agree."""
    equal: Counter[bool] = Counter()
    for home in executions(real.directory):
        leaves = [ids(Path(name).parent) for name in listing(with_all_leaves(real, home), "op_param.json")]
        for name, path in listing(home, "*.bin").items():
            made = ours.of(run, real) / path.relative_to(real.directory)
            (header, theirs), (other, mine) = parts(path), parts(made)
            equal[header == other and theirs == mine] += 1
            place = ids(Path(name))
            count = sum(leaf[: len(place)] <= place for leaf in leaves)
            assert close(header, theirs, other, mine, count), (home.name, name)
    record_property("bit_equal", f"{equal[True]}/{equal.total()}")
    assert equal[True] or not equal


def with_all_leaves(real: Real, home: Path) -> Path:
    """The same execution in a dump that has the parameters of every leaf."""
    dump = "A/atb" if real.path.startswith("D_") else real.path
    return next((PROBE / dump).glob(f"*/tensors/*/{home.name}"))


def close(
    header: Mapping[str, str], theirs: bytes, other: Mapping[str, str], mine: bytes, count: int
) -> bool:
    """Whether a tensor, or its statistics, differ by no more than `count` roundings of its dtype, in norm."""
    if header == other and theirs == mine:
        return True
    if header["dtype"] not in ROUNDOFF:
        return False
    allowed = count * ROUNDOFF[header["dtype"]]
    if theirs:
        x, y = (
            torch.frombuffer(bytearray(b), dtype=FLOATS[header["dtype"]]).double() for b in (theirs, mine)
        )
        finite = torch.isfinite(x)
        same = torch.equal(x[~finite], y[~finite])
        return same and bool((x - y)[finite].norm() <= allowed * x[finite].norm())
    scale = float(header["l2norm"])  # no single value, and no mean of them, can move by more than the norm
    return all(abs(float(header[k]) - float(other[k])) <= allowed * scale + 1e-6 for k in STATISTICS)


E4 = [p for p in ALL if str(p.id).startswith("D_e4")]


@pytest.mark.parametrize(("run", "real"), E4)
def test_statistic_rows_are_equal_but_for_their_order(ours: Ours, run: str, real: Real) -> None:
    """The real probe writes rows on several threads; statistics are compared more closely in `D_stats`."""
    found = listing(ours.of(run, real), "statistic.csv")
    for name, path in listing(real.directory, "statistic.csv").items():
        made = found[name].read_text().replace(str(ours.root(run)), "/data/run")
        real_rows = in_this_torch(path.read_bytes()).decode()
        for theirs, mine in zip(by_tensor(real_rows), by_tensor(made), strict=True):
            assert mine[:10] == theirs[:10]
            assert mine[14] == theirs[14]
            for x, y in zip(theirs[10:14], mine[10:14]):
                assert x == y or abs(float(x) - float(y)) <= 2.0**-5 * float(theirs[13]), (theirs, mine)


def by_tensor(text: str) -> list[list[str]]:
    header, *rows = text.splitlines()
    assert header.startswith("Device and PID,Execution Count,")
    return sorted((row.split(",") for row in rows), key=lambda cells: cells[:7])


def test_tiling_data_have_the_real_length(ours: Ours) -> None:
    real = LLAMA[0]
    found = listing(ours.of("llama", real), "kernel_tilingdata.bin")
    lengths = {n: p.stat().st_size for n, p in listing(real.directory, "kernel_tilingdata.bin").items()}
    assert {name: path.stat().st_size for name, path in found.items()} == lengths


def test_profiles_have_the_real_lines_but_for_the_times(ours: Ours) -> None:
    (real,) = (r for r in LLAMA if r.path.endswith("cpu_profiling_raw"))
    found = listing(ours.of("llama", real))
    for name, path in listing(real.directory).items():
        assert without_times(found[name].read_text()) == without_times(path.read_text()), name


def without_times(text: str) -> str:
    return re.sub(r":\d+", ":0", text)
