"""Of one bad operator one test is red: the others are expected failures that name it, however pytest runs."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from acc_pytest import DumpConfig, register_hook
from acc_pytest.diagnosis.repro import view
from acc_pytest.lab.atb import FAULTS
from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault
from acc_pytest.tensors.atb_bin import write
from acc_pytest.tensors.ref import TensorRef
from tests.opcheck.made import MadeDump, softmax_dump
from tests.reporting.html.made import read_page
from tests.slow import slow

from .conftest import QUICKER, Run, read_rows, small_demo
from .hf_models import ARCHITECTURES, HuggingFace, scratch

pytestmark = pytest.mark.usefixtures("replayed")

OPERATOR = "ElewiseOperation_2_1"
"""The first residual add of the first layer, which the fault is in."""


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """Two layers; the first residual add of the first layer leaves the residual out."""
    spec = DemoSpec(layers=2, decode_steps=0, fault=Fault("residual", 0, "1_ElewiseOperation"))
    paths = small_demo(tmp_path_factory.mktemp("early"), spec)
    assert paths.faulty[0] == OPERATOR
    return paths


@pytest.fixture(scope="module")
def lonely(early: DemoPaths, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., DemoPaths]:
    """Copies of `early` in which a file is changed."""

    def copy(operator: str, change: Callable[[torch.Tensor], torch.Tensor]) -> DemoPaths:
        root = tmp_path_factory.mktemp("copy") / "d"
        shutil.copytree(Path(early.golden).parent, root)
        for file in (root / "mine").rglob(f"{operator}/after/outtensor0.bin"):
            write(file, change(TensorRef(str(file)).open().clone()))
        return DemoPaths(root / "golden", root / "mine", early.faulty)

    return copy


def roots(result: pytest.RunResult) -> list[str]:
    """The names in the lines of root causes."""
    found = [line.removeprefix("root cause: ") for line in result.outlines if line.startswith("root cause: ")]
    return [line.split()[0] for line in found]


def failed(result: pytest.RunResult) -> list[str]:
    return [line.split()[1].rpartition("::")[2] for line in result.outlines if line.startswith("FAILED ")]


def test_the_faulty_operator_is_the_only_red_test_and_the_others_name_it(acc: Run, early: DemoPaths) -> None:
    result = acc(early, "-rx", "-q")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 1
    assert roots(result) == [OPERATOR]
    rows = read_rows()
    assert [row["my_name"] for row in rows if row["verdict"] == "fail"] == [OPERATOR]
    below = [row for row in rows if row["verdict"] == "inherited"]
    assert len(below) == outcomes["xfailed"] > 40
    assert {row["root"] for row in below} == {OPERATOR}
    numbers = {row["data_id"] for row in rows if row["verdict"] in ("fail", "inherited")}
    assert all(set(row["inherits_from"].split(";")) <= numbers for row in below)
    assert result.stdout.str().count(f"inherited from {OPERATOR} at step 0") == len(below)
    [line] = [line for line in result.outlines if line.startswith("root cause: ")]
    assert f"{len(below)} pairs inherit from it" in line
    assert "the operator is wrong on its own inputs" in line


def test_a_pair_that_runs_alone_fails_for_nobody_else_does(acc: Run, early: DemoPaths) -> None:
    result = acc(early, "-q", "-k", "LmHead")
    assert failed(result) == ["LmHead_5"]
    assert result.ret == 1


def test_without_the_root_the_next_that_runs_is_one(acc: Run, early: DemoPaths) -> None:
    name = f"msit_dump::step0::layers.0::{OPERATOR}"
    result = acc(early, "-q", f"--deselect={name}")
    assert failed(result) == ["RmsNormOperation_2_2_0_0"]
    # The operator that does not run is computed again, and named.
    assert roots(result) == [OPERATOR]


def test_a_skipped_root_excuses_nobody(acc: Run, early: DemoPaths, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        f"""
        import pytest

        def pytest_itemcollected(item):
            if item.name == "{OPERATOR}":
                item.add_marker(pytest.mark.skip)
        """
    )
    result = acc(early, "-q")
    assert failed(result) == ["RmsNormOperation_2_2_0_0"]
    assert result.parseoutcomes()["skipped"] == 1


@pytest.mark.parametrize(
    ("outcome", "counted"), [slow("fail", "failed"), ("warn", "passed"), slow("xfail", "xfailed")]
)
def test_what_becomes_of_inherited_failures_is_an_option(
    acc: Run, early: DemoPaths, outcome: str, counted: str
) -> None:
    result = acc(early, "-q", "--tb=no", f"-oacc_inherited={outcome}")
    verdicts = [row["verdict"] for row in read_rows()]
    expected = {"failed": verdicts.count("fail"), "passed": verdicts.count("pass")}
    expected[counted] = expected.get(counted, 0) + verdicts.count("inherited")
    outcomes = result.parseoutcomes()
    warned = outcomes.pop("warnings", 0)
    assert outcomes == {name: count for name, count in expected.items() if count}
    assert (warned >= verdicts.count("inherited")) == (outcome == "warn")
    assert result.ret == 1


def test_a_wrong_outcome_is_refused(acc: Run, early: DemoPaths) -> None:
    result = acc(early, "-oacc_inherited=ignore")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_two_mistakes_in_different_layers_are_two_roots(acc: Run, lonely: Callable[..., DemoPaths]) -> None:
    paths = lonely("3_Prefill_layer/2_MlpGateUpWeightPack/3_ElewiseOperation", lambda x: x * 40)
    result = acc(paths, "-q")
    assert roots(result) == [OPERATOR, "ElewiseOperation_3_2_3"]
    assert failed(result) == [OPERATOR, "ElewiseOperation_3_2_3"]
    second = next(row for row in read_rows() if row["my_name"] == "ElewiseOperation_3_2_3")
    assert (second["cause"], second["local"]) == ("root", "wrong")
    assert second["inherits_from"]


def test_a_root_whose_pair_was_not_compared_is_found_by_computing_it_again(
    acc: Run, early: DemoPaths, lonely: Callable[..., DemoPaths]
) -> None:
    paths = lonely("no such operator", lambda x: x)
    for file in Path(paths.golden).rglob("root.model.layers.0.post_attention_layernorm/input*"):
        file.unlink()
    result = acc(paths, "-q")
    assert roots(result) == [OPERATOR]
    absent = "golden.model.layers.0.post_attention_layernorm"  # its manifest names the files
    assert failed(result) == ["RmsNormOperation_2_2_0_0", absent]
    assert "(first seen at RmsNormOperation_2_2_0_0)" in result.stdout.str()


def test_torch_against_torch_follows_what_was_handed_on(
    acc: Run, pytester: pytest.Pytester, early: DemoPaths
) -> None:
    other = pytester.path / "other"
    shutil.copytree(early.golden, other)
    for layer in other.rglob("root.model.layers.0/output_0.pth"):
        product = torch.load(layer.parents[1] / "root.model.layers.0.mlp/output.pth", weights_only=True)
        torch.save(torch.load(layer, weights_only=True) + 0.5 * product, layer)
    for name in ("mlp.down_proj", "mlp"):
        for path in other.rglob(f"root.model.layers.0.{name}/output.pth"):
            torch.save(torch.load(path, weights_only=True) * 1.5, path)
    result = acc(SimpleNamespace(golden=early.golden, mine=other), "-q")
    assert roots(result) == ["root.model.layers.0.mlp.down_proj"]
    assert result.parseoutcomes()["failed"] == 1
    assert "execution order" not in result.stdout.str()


def test_a_clean_run_has_no_cause(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean, "-q")
    assert result.ret == 0
    assert "root cause" not in result.stdout.str()
    assert {(row["cause"], row["root"]) for row in read_rows()} == {("", "")}


def test_the_failure_text_says_why_it_is_a_root(acc: Run, early: DemoPaths) -> None:
    result = acc(early, "-q")
    result.stdout.fnmatch_lines(["cause: its inputs agree, and the operator is wrong on its own *"])


def test_people_s_own_tests_of_pairs_are_never_excused(
    acc: Run, early: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_own="def test_it(acc_pair):\n    acc_pair.compare()\n")
    result = acc(early, "test_own.py", "-q", "--tb=no")
    assert result.parseoutcomes()["failed"] > 40
    assert "xfailed" not in result.parseoutcomes()


@pytest.mark.slow
def test_shards_come_to_what_the_whole_run_comes_to(acc: Run, early: DemoPaths) -> None:
    def rows() -> dict[str, tuple[str, str, str]]:
        return {row["test_id"]: (row["verdict"], row["root"], row["inherits_from"]) for row in read_rows()}

    acc(early, "-q", "--tb=no")
    whole = rows()
    shared: dict[str, tuple[str, str, str]] = {}
    for shard in ("1/2", "2/2"):
        acc(early, "-q", "--tb=no", f"--acc-shard={shard}")
        shared |= rows()
    assert shared == whole


def test_the_property_of_an_expected_failure_names_its_root(
    acc: Run, early: DemoPaths, pytester: pytest.Pytester
) -> None:
    acc(early, "-q", "--junitxml=j.xml")
    text = (pytester.path / "j.xml").read_text()
    assert f'<property name="root" value="{OPERATOR}"' in text
    assert '<property name="cause" value="inherited"' in text
    assert 'type="pytest.xfail"' in text


def test_one_fault_over_three_steps_is_one_root_in_every_report(
    acc: Run,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    spec = DemoSpec(layers=2, decode_steps=2, fault=Fault("residual", 1))
    paths = small_demo(tmp_path_factory.mktemp("steps"), spec)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    result = acc(paths, "-q", "--acc-summary=s.md", "--acc-html=p.html", "--acc-repro=bundles")
    assert result.parseoutcomes()["failed"] == 3
    [line] = [one for one in result.outlines if one.startswith("root cause: ")]
    assert "step 0 layers.1 (again at steps 1, 2): 13 pairs inherit" in line
    assert len([one for one in result.outlines if one.startswith("::error ")]) == 1
    assert "**1 root cause**, from which 13 other" in (pytester.path / "s.md").read_text(encoding="utf-8")
    assert len([one for one in (pytester.path / "bundles").iterdir() if one.is_dir()]) == 1
    page = (pytester.path / "p.html").read_text(encoding="utf-8")
    [card] = read_page(page)[0]["diagnosis"]["roots"]
    assert (card["steps"], len(card["places"])) == (3, 3)


NORM = """
import torch


class Norm(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward({x})


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.head = torch.nn.Linear(8, 64), Norm(64), torch.nn.Linear(64, 8)

    def forward(self, x):
        return self.head(self.norm(self.up(x)))
"""


def test_a_failure_names_the_lines_of_golden_and_of_mine(
    acc: Run, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    """The norm is wrong; rows and the page have the lines too, and a run from rows."""
    paths = []
    for file, x in (("hub/modeling.py", "x"), ("my_engine/norms.py", "1.5 * x + x.relu()")):
        source = pytester.path / file
        source.parent.mkdir()
        source.write_text(NORM.format(x=x))
        model = runpy.run_path(str(source))["Net"]()
        paths.append(tmp_path / source.parent.name)
        with torch.no_grad(), register_hook(model, DumpConfig(paths[-1])):
            model(torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))
    line = "code    golden hub/modeling.py:6, mine my_engine/norms.py:6"
    result = acc(DemoPaths(paths[0], paths[1]), "--acc-rows=rows.jsonl", "--acc-html=p.html")
    assert roots(result) == ["root.norm"]
    assert result.outlines.count(line) == 1
    page = (pytester.path / "p.html").read_text(encoding="utf-8")
    sides = [(detail["golden"], detail["mine"]) for detail in read_page(page)[1]["details"].values()]
    places = {
        golden["name"]: (golden.get("code"), mine.get("code"))
        for golden, mine in sides
        if golden["slot"] == "output[0]"
    }
    assert places["root.norm"] == ("hub/modeling.py:6", "my_engine/norms.py:6")
    assert places["root.up"] == (None, None)
    # The linear layer behind it is torch's: the line is that of its call.
    assert places["root.head"] == ("hub/modeling.py:17 in forward", "my_engine/norms.py:17 in forward")
    again = pytester.runpytest_inprocess(*QUICKER, "--acc-from-rows=rows.jsonl")
    assert again.outlines.count(line) == 1


# `--acc-repro DIR`: each root in a folder whose test fails alone as it failed in the run.


def alone(pytester: pytest.Pytester, bundle: Path) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*QUICKER, "-p", "no:cacheprovider", str(bundle))


def bundles(home: str | Path = "repro") -> list[Path]:
    return sorted(path for path in Path(home).iterdir() if path.is_dir())


def numbers(result: pytest.RunResult) -> set[str]:
    """What the failures begin with: `relative L2 0.856, allowed 0.00709 (121 times)`."""
    found = re.findall(r"([^:\n]+, allowed \S+(?: \(.* times\))?)$", result.stdout.str(), re.MULTILINE)
    return {one.strip() for one in found}


def sentence(bundle: Path) -> str:
    return str(json.loads((bundle / "repro.json").read_text())["sentence"])


@pytest.mark.parametrize("standard", ["default", slow("torch")])
def test_a_root_fails_alone_with_the_numbers_of_the_run_and_passes_when_it_is_mended(
    acc: Run, pytester: pytest.Pytester, faulty: DemoPaths, standard: str
) -> None:
    result = acc(faulty, "--acc-repro=repro", f"--acc-standard={standard}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["report: *repro/README.md"])
    bundle = bundles()[0]
    failed = alone(pytester, bundle)
    failed.assert_outcomes(failed=1)
    assert numbers(failed) & numbers(result)
    shutil.copy(bundle / "golden.pt", bundle / "mine.pt")
    alone(pytester, bundle).assert_outcomes(passed=1)


def test_a_bundle_holds_inputs_and_the_operator_and_settings_around_it_do_not_matter(
    acc: Run, pytester: pytest.Pytester, faulty: DemoPaths
) -> None:
    acc(faulty, "--acc-repro=repro")
    (bundle,) = bundles()
    assert bundle.name == "01_ElewiseOperation_3_3"
    inputs = sorted(file.name for file in (bundle / "inputs").iterdir())
    assert [name.partition(".")[2] for name in inputs] == ["golden.pt", "mine.pt"] * 2
    assert torch.load(bundle / "inputs" / inputs[1], weights_only=True).numel() == 7 * 32
    case = bundle / "operator" / "operation_tensors_0.csv"
    pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={case}").assert_outcomes(failed=1)
    text = (bundle / "README.md").read_text()
    for word in ("# `ElewiseOperation_3_3`", sentence(bundle), "`golden.pt`", "::ElewiseOperation_3_3`"):
        assert word in text
    assert "`pytest 01_ElewiseOperation_3_3` (" in Path("repro/README.md").read_text()
    pytester.makeini("[pytest]\naddopts = --no-such-option\n")
    pytester.makeconftest("raise SystemExit('not mine')")
    alone(pytester, Path("repro")).assert_outcomes(failed=1)  # all bundles there are


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> MadeDump:
    """Three operators, the softmax with a wrong element."""
    return softmax_dump(tmp_path_factory.mktemp("wrong"), wrong=True)


@pytest.mark.parametrize("standard", ["ascend", "open"])
def test_an_operator_fails_alone_and_passes_when_it_is_mended(
    pytester: pytest.Pytester, wrong: MadeDump, standard: str
) -> None:
    pytester.makeini("[pytest]\nacc_repro = found\n")
    words = [f"--acc-opcheck={wrong.csv}", f"--acc-opcheck-standard={standard}", "--acc-output=out"]
    result = pytester.runpytest_inprocess(*QUICKER, *words)
    result.assert_outcomes(passed=2, failed=1)
    (bundle,) = bundles("found")
    assert bundle.name == "01_SoftmaxOperation_5_0"
    failed = alone(pytester, bundle)
    failed.assert_outcomes(failed=1)
    assert numbers(failed) & numbers(result)
    shutil.copy(bundle / "golden/outtensor0.bin", bundle / "5_0_SoftmaxOperation/after/outtensor0.bin")
    alone(pytester, bundle).assert_outcomes(passed=1)


def test_bounds_of_the_test_hold_in_the_bundle_of_an_operator(
    pytester: pytest.Pytester, wrong: MadeDump
) -> None:
    pytester.makeconftest(
        "def pytest_acc_case_thresholds(case):\n"
        "    return {'factor': 1000, 'max_absolute_error': 0.125} if case.ids == '5_0' else None\n"
    )
    words = [f"--acc-opcheck={wrong.csv}", "--acc-repro=found", "--acc-output=out"]
    pytester.runpytest_inprocess(*QUICKER, *words).assert_outcomes(passed=2, failed=1)
    (bundle,) = bundles("found")
    assert sentence(bundle).startswith("max_absolute_error 0.25 is 2.0 times the allowed 0.125")
    failed = alone(pytester, bundle)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["*max absolute error 0.25, allowed 0.125 (2 times)"])


def test_what_an_earlier_run_left_is_replaced_and_what_is_not_ours_is_not_touched(
    pytester: pytest.Pytester, wrong: MadeDump
) -> None:
    def run(*words: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={wrong.csv}", "--acc-csv=r.csv", *words)

    run("--acc-repro=repro")
    pytester.runpytest_inprocess(*QUICKER, "repro")  # leaves a cache behind
    assert run("--acc-repro=repro", "-kTranspose").ret == 0
    assert bundles() in ([], [Path("repro/.pytest_cache")])
    mine = Path("repro/mine.txt")
    mine.write_text("precious")
    result = run("--acc-repro=repro")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--acc-repro repro: holds 'mine.txt', which is not a bundle of acc_pytest*"]
    )
    assert mine.read_text() == "precious"
    Path("notes").mkdir()
    Path("notes/README.md").write_text("precious")
    assert run("--acc-repro=notes").ret == pytest.ExitCode.USAGE_ERROR
    assert Path("notes/README.md").read_text() == "precious"


@pytest.mark.parametrize("kind", ["pair", "operator"])
def test_what_is_too_large_is_said_instead_of_written(
    acc: Run,
    pytester: pytest.Pytester,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(view, "BUDGET", 100)
    if kind == "pair":
        acc(request.getfixturevalue("faulty"), "--acc-repro=repro")
    else:
        words = [f"--acc-opcheck={request.getfixturevalue('wrong').csv}", "--acc-repro=repro"]
        pytester.runpytest_inprocess(*QUICKER, *words)
    (bundle,) = bundles()
    assert sorted(file.name for file in bundle.iterdir()) == ["README.md", "repro.json"]
    assert "more than is left for bundles" in Path("repro/README.md").read_text()


def test_no_more_than_enough_operators_are_bundled(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "MOST", 2)
    dump = MadeDump(tmp_path / "dump")
    for _ in range(4):
        dump.add("TransposeOperation", {"perm": [1, 0]}, [torch.ones(2, 3)], [torch.zeros(3, 2)])
    pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={dump.csv}", "--acc-repro=found")
    assert [bundle.name for bundle in bundles("found")] == [
        "01_TransposeOperation_0",
        "02_TransposeOperation_1",
    ]
    assert "2 more have no bundle" in Path("found/README.md").read_text()


def test_failures_of_own_tests_are_said_to_have_no_bundle(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(acc_compare):\n    acc_compare([1.0, 2.0], [1.0, 3.0])\n")
    result = pytester.runpytest_inprocess(*QUICKER, "--acc-repro=repro")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["no bundle of 1 failures of your own tests: their tensors are in no dump"])
    assert bundles() == []


# Every named fault in mine turns the comparison red, and the first failing operator is the faulty one.


WHERE = {"bias": ("qwen", 1), "replica": ("llama", 2), "all_reduce": ("llama", 2)}
"""The model and the ranks for a fault that Llama on one rank cannot have."""
QUANTISED = {"int8_scale"}
"""Faults of linears in int8."""
SAMPLE = ("residual", "norm_weight", "softmax_scale", "nan_row", "weight")
"""Faults that every architecture can have; each is tried in some, and each architecture has some."""


@pytest.fixture(scope="module")
def hugging_face() -> Iterator[HuggingFace]:
    with scratch() as directory:
        yield HuggingFace(directory)


EVERY_FAULT = [
    *((*WHERE.get(kind, ("llama", 1)), kind) for kind in FAULTS),
    *((name, 1, kind) for name, kind in zip(ARCHITECTURES[1:], SAMPLE)),
]
ELSEWHERE = [
    *((name, 1, kind) for name, kind in zip(ARCHITECTURES[1:], (SAMPLE[-1], *SAMPLE))),
    *(("glm", 1, kind) for kind in ("rope_sign", "rope_base", "stale_kv", "gate_up", "key_value")),
    *(("bloom", 1, kind) for kind in ("mask", "head_mapping", "activation", "bias")),
    ("bloom", 2, "all_reduce"),
    ("mixtral", 2, "stale_kv"),
]
QUICK = EVERY_FAULT[::4]
CASES = [
    pytest.param(*case, dtype, marks=[pytest.mark.slow] if case not in QUICK else [])
    for case, dtype in zip((*EVERY_FAULT, *ELSEWHERE), itertools.cycle(("float16", "bfloat16")))
]
"""A sample: `benchmarks/detection.py` tries each fault in both dtypes and many more places."""


@pytest.mark.parametrize(("name", "ranks", "kind", "dtype"), CASES)
def test_the_first_failing_operator_of_prefill_and_decode_is_the_faulty_one(
    name: str, ranks: int, kind: str, dtype: str, hugging_face: HuggingFace
) -> None:
    golden = hugging_face.golden(name, dtype, steps=1, layers=1)
    family = "llama-int8" if kind in QUANTISED else None
    found = hugging_face.compare(golden, dtype, ranks, Fault(kind), family)
    for step in (0, 1):
        first = found.first(step)
        assert first is not None, f"step {step} is green"
        assert first.mine.name in found.faulty, f"step {step}: {first.mine.name}: {first.sentence}"
    assert {row.verdict for row in found.rows} == {"pass", "fail"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_quantised_is_green_without_a_fault(dtype: str, hugging_face: HuggingFace) -> None:
    golden = hugging_face.golden("llama", dtype, steps=1, layers=1)
    assert not hugging_face.compare(golden, dtype, family="llama-int8").wrong


def test_all_faults_are_tried() -> None:
    assert {kind for _, _, kind in EVERY_FAULT} == set(FAULTS)
    assert len(FAULTS) >= 15


@pytest.mark.parametrize("kind", ["mask", slow("rope_base"), slow("scale")])
def test_a_fault_at_one_decode_step_is_first_seen_there(kind: str, hugging_face: HuggingFace) -> None:
    golden = hugging_face.golden("llama", steps=1, layers=1)
    found = hugging_face.compare(golden, fault=Fault(kind, step=1))
    first = next(row for row in found.rows if row.red)
    assert first.step == 1
    assert first.mine.name in found.faulty


@pytest.mark.parametrize(
    ("name", "ranks", "kind"),
    [slow("llama", 1, "stale_kv"), slow("glm", 2, "rope_sign"), ("bloom", 1, "residual")],
)
def test_the_summary_names_the_faulty_operator(
    name: str, ranks: int, kind: str, hugging_face: HuggingFace, acc: Callable[..., pytest.RunResult]
) -> None:
    golden = hugging_face.golden(name, steps=1, layers=1)
    mine, faulty = hugging_face.run(golden, ranks=ranks, fault=Fault(kind))
    result = acc(SimpleNamespace(golden=golden.path, mine=mine), "-q")
    assert result.ret == 1
    named = [line.split()[2] for line in result.outlines if line.startswith("root cause: ")]
    assert named
    assert named[0] == faulty[0]
    assert set(named) <= set(faulty)
