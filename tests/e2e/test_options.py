"""Each --acc-* option does what its help says, has an ini twin, and refuses nonsense with exit code 4."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import acc_pytest.running.opening
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.options import ALL
from acc_pytest.options.reading import TOPICS

from .conftest import QUICKER, Run, read_rows


def test_help_lists_every_option_below_its_topic(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = pytester.runpytest_inprocess(*QUICKER, "--help").stdout.str()
    flags, twins = re.split(r"\[pytest\] (?:configuration|ini)-?\s?options", text)  # of pytest 9, and before
    for topic, options in TOPICS.items():
        _, _, below = flags.partition(f"accuracy: {topic}:\n")
        below, _, _ = below.partition("\n\n")
        assert [line.split()[0].partition("=")[0] for line in below.splitlines() if "--acc" in line[:7]] == [
            option.flag for option in options if not option.setting
        ]
        assert max(map(len, below.splitlines()), default=0) <= 80
    assert {option for options in TOPICS.values() for option in options} == set(ALL)
    assert len(set(re.findall("--acc-[a-z-]+", flags))) == sum(not option.setting for option in ALL)
    assert all(f"{option.dest} (" in twins for option in ALL)


def test_what_an_option_is_for_is_said_in_two_lines_of_help() -> None:
    assert [option.flag for option in ALL if len(option.help) > 105] == []


def test_every_option_has_an_ini_twin(pytester: pytest.Pytester, clean: DemoPaths) -> None:
    pytester.path.joinpath("dumps").symlink_to(clean.golden.parent)
    pytester.path.joinpath("own.py").write_text("def zero(golden, mine):\n    return 0.0, ''\n")
    pytester.path.joinpath("own.toml").write_text("[[threshold]]\nmax_absolute_error = 5\n")
    pytester.path.joinpath("op_mapping_file.json").write_text("{}")
    pytester.makeini(
        """
        [pytest]
        acc_golden = dumps/golden
        acc_mine = dumps/mine
        acc_token_policy = warmup
        acc_level = layer
        acc_op_mapping_file = op_mapping_file.json
        acc_config =
            llama
            own.toml
        acc_metric = own.py:zero
        acc_output = reports
        acc_csv = ini.csv
        acc_min_coverage = 0.1
        acc_explain_mapping = true
        """
    )
    below = pytester.mkdir("below")
    pytester.chdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(below)  # paths of the ini file are seen from the ini file
        result = pytester.runpytest_inprocess(*QUICKER)
    assert result.ret == 0
    rows = read_rows("reports/ini.csv")
    compared = [row for row in rows if row["verdict"] == "pass"]
    assert compared
    assert {row["level"] for row in compared} == {"layer", "input"}
    assert {row["zero"] for row in compared} == {"0.0"}
    assert all("max_absolute_error <= 5" in row["thresholds"] for row in compared)
    result.stdout.fnmatch_lines(["*token policy warmup*", "coverage: *floor 10% reached"])
    result.stdout.fnmatch_lines(["*step 0: * pairs*"])


def test_the_command_line_wins_over_the_ini_file(
    pytester: pytest.Pytester, acc: Run, clean: DemoPaths
) -> None:
    pytester.makeini("[pytest]\nacc_csv = ini.csv\nacc_output = ini\nacc_level = module\n")
    acc(clean, "--acc-level=layer")
    assert not Path("ini").exists()
    assert {row["level"] for row in read_rows()} == {"layer", "input"}


@pytest.mark.parametrize("level", ["layer", "module", "op"])
def test_level_keeps_the_pairs_of_one_level_and_what_the_run_was_fed(
    acc: Run, stepped: DemoPaths, level: str
) -> None:
    acc(stepped, f"--acc-level={level}", "-k", "step1")
    assert {row["level"] for row in read_rows() if row["verdict"] == "pass"} == {level, "input"}


def test_token_policy_decides_the_steps(acc: Run, stepped: DemoPaths) -> None:
    steps = {}
    for policy in ("warmup", "no-warmup"):
        result = acc(stepped, f"--acc-token-policy={policy}", "--co")
        result.stdout.fnmatch_lines([f"acc note: token policy {policy}: *"])
        acc(stepped, f"--acc-token-policy={policy}", "-k", "step0 and WordEmbedding")
        steps[policy] = {Path(row["my_data_path"]).parts[-4] for row in read_rows() if row["my_data_path"]}
    assert steps == {"warmup": {"1"}, "no-warmup": {"0"}}


def test_op_mapping_file_is_taken_as_file_or_directory(acc: Run, clean: DemoPaths) -> None:
    Path("op_mapping_file.json").write_text(json.dumps({"RmsNormOperation": "LlamaRMSNorm"}))
    assert acc(clean, "--acc-op-mapping-file=op_mapping_file.json", "--co", "-q").ret == 0
    assert acc(clean, "--acc-op-mapping-file=.", "--co", "-q").ret == 0


def test_a_metric_of_ones_own_gets_a_column_and_its_message_a_reason(acc: Run, clean: DemoPaths) -> None:
    Path("own.py").write_text(
        "def l1(golden, mine):\n    return (golden - mine).abs().sum(), 'as measured'\n"
    )
    acc(clean, "--acc-metric=own.py:l1", "-k", "RmsNorm and step0")
    rows = [row for row in read_rows() if row["verdict"] == "pass"]
    assert rows
    assert all(float(row["l1"]) >= 0 and "l1: as measured" in row["cmp_fail_reason"] for row in rows)


def test_explain_mapping_prints_the_plan_and_the_tests_still_run(acc: Run, partly: DemoPaths) -> None:
    result = acc(partly, "--acc-explain-mapping", "-k", "RmsNorm and step0")
    result.stdout.fnmatch_lines(["*step 0: * pairs (*", "*0_WordEmbedding/0_GatherOperation*embed*"])
    result.stdout.fnmatch_lines(["unmapped of mine: *"])
    assert result.parseoutcomes()["passed"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--acc-level=lay"], "*--acc-level: invalid choice: 'lay'*"),
        (["--acc-token-policy=x"], "*--acc-token-policy: invalid choice: 'x'*"),
        (["--acc-min-coverage=much"], "*--acc-min-coverage: invalid float value: 'much'*"),
        (["--acc-min-coverage=2"], "ERROR: --acc-min-coverage must be a number from 0 to 1, got 2.0"),
        (["--acc-config=lama"], "ERROR: --acc-config: unknown config 'lama'; did you mean 'llama'*"),
        (["--acc-metric=own.py"], "ERROR: --acc-metric must be FILE.py:FUNCTION*got own.py"),
        (["--acc-metric=none.py:f"], "ERROR: custom metric 'none.py:f': *"),
        (["--acc-op-mapping-file=nowhere"], "ERROR: nowhere*"),
    ],
)
def test_nonsense_is_a_usage_error(acc: Run, clean: DemoPaths, words: list[str], said: str) -> None:
    result = acc(clean, *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--acc-gold=x"],
            "--acc-gold: no such option; did you mean '--acc-golden'? pytest --help lists them",
        ),
        (["--acc-xyzzy", "x"], "--acc-xyzzy: no such option; pytest --help lists them"),
        (["--acc-threads=3"], "--acc-threads is an ini value; write -o acc_threads=VALUE"),
        (
            ["-oacc_gold=x"],
            "acc_gold: no such ini value; did you mean 'acc_golden'? pytest --help lists them",
        ),
        (["-p", "no:xdist", "-n", "2"], "-n needs pytest-xdist; install it: pip install pytest-xdist"),
        (["-p", "no:xdist", "--dist=load"], "--dist needs pytest-xdist; install it: *"),
    ],
)
def test_a_misspelt_name_is_one_sentence_with_the_nearest(
    pytester: pytest.Pytester, words: list[str], said: str
) -> None:
    result = pytester.runpytest_inprocess(*QUICKER, *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [line for line in result.errlines if line][:1]
    result.stderr.fnmatch_lines([f"ERROR: {said}"])


def test_a_misspelt_name_in_the_ini_file_is_one_sentence(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nacc_mien = x\n")
    result = pytester.runpytest_inprocess(*QUICKER)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: acc_mien: no such ini value; did you mean 'acc_mine'? *"])


def test_options_and_ini_values_of_a_conftest_are_known(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--acc-own', default='')\n"
        "    parser.addini('acc_own_too', '')\n"
    )
    pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_inprocess(*QUICKER, "--acc-own=1", "-oacc_own_too=2").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("acc_min_coverage = much", "ERROR: ini value acc_min_coverage must be a number, got 'much'"),
        ("acc_level = lay", "ERROR: --acc-level: unknown value 'lay'; did you mean 'layer'?*"),
    ],
)
def test_nonsense_in_the_ini_file_is_a_usage_error(
    acc: Run, pytester: pytest.Pytester, clean: DemoPaths, line: str, said: str
) -> None:
    pytester.makeini(f"[pytest]\n{line}\n")
    result = acc(clean)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


@pytest.mark.parametrize(("given", "missing"), [("golden", "mine"), ("mine", "golden")])
def test_one_side_alone_is_a_usage_error(
    pytester: pytest.Pytester, clean: DemoPaths, given: str, missing: str
) -> None:
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-{given}={getattr(clean, given)}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --acc-{given} needs --acc-{missing} too: *"])


@pytest.mark.usefixtures("python_with_torch")
@pytest.mark.parametrize("in_words", [1, 2])
def test_dumps_elsewhere_do_not_hide_the_ini_file(
    pytester: pytest.Pytester, clean: DemoPaths, in_words: int
) -> None:
    """pytest reads `--acc-golden PATH` as a test path before it knows the option, and roots there."""
    pytester.makeini("[pytest]\nacc_level = layer\n")
    paths = [("--acc-golden", str(clean.golden)), ("--acc-mine", str(clean.mine))]
    words = ["=".join(pair) for pair in paths] if in_words == 1 else [word for pair in paths for word in pair]
    result = pytester.runpytest_subprocess(*QUICKER, *words, "--co", timeout=120)
    result.stdout.fnmatch_lines([f"rootdir: {pytester.path}", "configfile: tox.ini"])
    result.stdout.fnmatch_lines(["*tests collected in*"])
    assert "self_attn" not in result.stdout.str()
    assert "LinearOperation" not in result.stdout.str().partition("layers.0")[2].partition("model")[0]
    assert not list(clean.golden.parent.rglob(".pytest_cache"))


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_the_mapping_is_explained_also_where_pytest_prints_no_header(
    acc: Run, clean: DemoPaths, quiet: list[str]
) -> None:
    result = acc(clean, "--acc-explain-mapping", "--co", *quiet)
    result.stdout.fnmatch_lines_random(["*= root.lm_head output[[]0[]]  [[]special: both are `lm_head`[]]"])
    assert result.stdout.str().count("golden: torch") == 1


# A mode that is one module has all that modes have: ids, selection, shards, workers, reports.


COUNTING = """
from dataclasses import dataclass
from typing import ClassVar

import acc_pytest.running.opening
from acc_pytest import options
from acc_pytest.errors import DumpError
from acc_pytest.running.mode import GeneratedTest, Mode
from acc_pytest.reporting.row import Row
from acc_pytest.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class CountingTest(GeneratedTest):
    headline: ClassVar[str] = "counting"

    def rows(self, item):
        if self.number == 3:
            raise DumpError("three is lost")
        return [Row(item.nodeid, "pass", "counted", number=self.number)]

    def lost_row(self, reason):
        return Row(self.node_id, "fail", f"not counted: {reason}", number=self.number)


@dataclass(eq=False)
class CountingMode(Mode):
    doing: ClassVar[str] = "counting"
    root: ClassVar[str] = "count"
    tests = property(lambda self: tuple(CountingTest(self, ("count", "to", str(n)), n) for n in range(4)))

    @classmethod
    def takes(cls, given):
        return True

    @classmethod
    def opened(cls, given):
        return cls(Settings.from_values(options.of(given)), given)

    def header(self):
        return ["acc counting"]


acc_pytest.running.opening.MODES = (CountingMode,)
"""
REPORT = ("--acc-output=out", "--acc-csv=acc.csv")


@pytest.fixture
def counting(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setattr(acc_pytest.running.opening, "MODES", acc_pytest.running.opening.MODES)
    pytester.makeini("[pytest]")
    pytester.makepyfile(counting=COUNTING)
    pytester.makeconftest("import counting")
    return pytester


def verdicts() -> dict[str, str]:
    return {row["test_id"]: row["verdict"] for row in read_rows()}


def test_every_test_has_its_id_and_its_row(counting: pytest.Pytester) -> None:
    result = counting.runpytest_inprocess(*QUICKER, *REPORT)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "acc counting",
            "three is lost",
            "re-run: pytest --acc-output=out count::to::3",
            "first failing: count::to::3: not counted: three is lost",
            "FAILED count::to::3*",
        ]
    )
    assert verdicts() == {f"count::to::{n}": "fail" if n == 3 else "pass" for n in range(4)}


def test_an_id_on_the_command_line_selects(counting: pytest.Pytester) -> None:
    counting.runpytest_inprocess(*QUICKER, *REPORT, "count::to::1").assert_outcomes(passed=1)
    wrong = counting.runpytest_inprocess(*QUICKER, *REPORT, "count::to::9")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines(["*no generated test matches 'count::to::9'; nearest: count::to::*"])


def test_shards_share_it_out(counting: pytest.Pytester) -> None:
    found: list[str] = []
    for shard in ("1/2", "2/2"):
        result = counting.runpytest_inprocess(*QUICKER, *REPORT, f"--acc-shard={shard}")
        result.stdout.fnmatch_lines([f"acc shard: {shard[0]} of 2, 2 of 4 generated tests"])
        found += verdicts()
    assert sorted(found) == [f"count::to::{n}" for n in range(4)]


@pytest.mark.usefixtures("python_with_torch")
def test_workers_run_it(counting: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = counting.runpytest_subprocess(*QUICKER, *REPORT, "-n", "1")
    result.assert_outcomes(passed=3, failed=1)
    assert verdicts() == {f"count::to::{n}": "fail" if n == 3 else "pass" for n in range(4)}
