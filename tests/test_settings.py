"""Settings: options win over config files, later files over earlier ones."""

from __future__ import annotations

import pickle
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies

from acc_pytest import options, settings
from acc_pytest.errors import SettingsError
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.judging.tolerance import tolerance
from acc_pytest.reporting.texts import shell
from acc_pytest.running.distribution import PER_TEST, cost_of, deal
from acc_pytest.settings import (
    DEFAULT_MIN_COVERAGE,
    Settings,
    config_names,
    find_config,
    merge_tables,
    read_config,
)


@pytest.fixture
def toml(tmp_path: Path) -> Callable[..., str]:
    def write(text: str, name: str = "x.toml") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_nothing_given_means_the_defaults_and_the_default_config() -> None:
    found = Settings.from_values({"golden": None, "config": None})
    assert (found.token_policy, found.level, found.output) == ("auto", "all", ".")
    assert found.min_coverage == DEFAULT_MIN_COVERAGE
    assert found.rules == read_config(find_config("default")).rules


def test_rules_stand_in_the_order_of_the_files_and_name_them(toml: Callable[..., str]) -> None:
    first = toml("[[threshold]]\nmax_absolute_error = 1\n[[threshold]]\nfactor = 2\n", "a.toml")
    second = toml("[[threshold]]\nmatch = { level = 'op' }\nmax_absolute_error = 2\n", "b.toml")
    found = Settings.from_values({"config": [first, second]})
    shipped = len(read_config(find_config("default")).rules)
    assert [rule.source for rule in found.rules[shipped:]] == [
        "a.toml [[threshold]] 1",
        "a.toml [[threshold]] 2",
        "b.toml [[threshold]] 1",
    ]


def test_later_files_win_and_options_win_over_files(toml: Callable[..., str]) -> None:
    first = toml("[steps]\npolicy = 'warmup'\n[coverage]\nmin = 0.5\n", "a.toml")
    second = toml("[coverage]\nmin = 1\n", "b.toml")
    found = Settings.from_values({"config": [first, second]})
    assert (found.token_policy, found.min_coverage) == ("warmup", 1.0)
    found = Settings.from_values({"config": [first, second], "token_policy": "raw", "min_coverage": 0})
    assert (found.token_policy, found.min_coverage) == ("raw", 0)


def test_mapping_tables_are_merged_key_by_key(toml: Callable[..., str]) -> None:
    first = toml("[mapping.ops]\nA = ['x']\nB = ['y']\n[mapping]\nmode = 1\n", "a.toml")
    second = toml("[mapping.ops]\nB = ['z']\n", "b.toml")
    found = Settings.from_values({"config": [first, second]}).mapping
    assert found["ops"] == {"A": ["x"], "B": ["z"]}
    assert found["mode"] == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"token_policy": "wramup"}, r"--acc-token-policy: unknown value 'wramup'; did you mean 'warmup'\?"),
        ({"level": "ops"}, r"--acc-level: unknown value 'ops'; did you mean 'op'\?"),
        ({"min_coverage": 1.5}, r"--acc-min-coverage must be a number from 0 to 1, got 1\.5"),
        (
            {"rank": "first"},
            "--acc-rank must be a whole number >= 0, as the 3 in worldsize8_global_rank3, got first",
        ),
        ({"rank": -1}, "--acc-rank must be a whole number >= 0, as the 3 in worldsize8_global_rank3, got -1"),
        (
            {"metrics": ["snr.py"]},
            r"--acc-metric must be FILE\.py:FUNCTION, as in my_metrics\.py:snr, got snr\.py",
        ),
        ({"goldn": "x"}, r"unknown setting 'goldn'; did you mean 'golden'\?"),
    ],
)
def test_a_mistake_in_an_option_is_told(values: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        Settings.from_values(values)


def test_a_custom_metric_may_be_bounded_by_its_functions_name(toml: Callable[..., str]) -> None:
    config = toml("[[threshold]]\nsnr = { min = 40 }\n")
    found = Settings.from_values({"config": [config], "metrics": ["lib/my.py:snr"]})
    assert found.custom_metrics == ("snr",)
    assert found.rules[-1].bounds[0].metric == "snr"
    with pytest.raises(SettingsError, match="unknown key 'snr'"):
        Settings.from_values({"config": [config]})


def test_settings_cross_process_boundaries() -> None:
    found = Settings.from_values({"config": config_names(), "metrics": ["a.py:f"]})
    assert pickle.loads(pickle.dumps(found)) == found


def test_settings_import_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from acc_pytest.settings import Settings; Settings.from_values({'config': ['llama']});"
        "sys.exit(' '.join({'torch', 'numpy', 'pandas'} & set(sys.modules)) or 0)"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_softmax_of_noisy_router_logits_stays_within_the_factor_of_deepseek_moe() -> None:
    (rule,) = [r for r in Settings.from_values({"config": ["deepseek-moe"]}).rules if r.factor]
    assert rule.match.holds(JudgeContext(golden_op_type="MoEGate"), ("float16",))
    generator = torch.Generator().manual_seed(2)
    logits = 2.8 * torch.randn(512, 64, generator=generator, dtype=torch.float64)
    t = tolerance("float16", "float16", 0, 64).value
    noise = t * 2.8 * torch.randn(512, 64, generator=generator, dtype=torch.float64)
    golden, mine = logits.softmax(-1), (logits + noise).softmax(-1)
    error = ((mine - golden).norm() / golden.norm()).item()
    assert rule.factor is not None
    assert t < error < rule.factor * t


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2", "١/٢", "1/9999999", "/"])
def test_a_wrong_shard_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match=rf"--acc-shard .*, got {re.escape(text)}$"):
        Settings.from_values({"shard": text})


def test_a_shard_is_two_numbers() -> None:
    assert Settings.from_values({"shard": "02/10"}).shard == (2, 10)


# Config files: found by name or path, checked, their mistakes told with file and key.


SHIPPED = [
    "baichuan",
    "bloom-7b",
    "chatglm2-6b",
    "deepseek-moe",
    "default",
    "glm",
    "llama",
    "mixtral",
    "qwen",
    "w8a8",
]


def test_all_families_are_shipped_and_say_what_they_are_for() -> None:
    assert config_names() == SHIPPED
    assert all(read_config(find_config(name)).description for name in SHIPPED)


def test_a_config_in_the_wheel_wins_over_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "golden_configs"
    wheel.mkdir()
    (wheel / "llama.toml").write_text("")
    monkeypatch.setattr(settings, "_CONFIG_DIRECTORIES", (wheel, *settings._CONFIG_DIRECTORIES))
    assert find_config("llama") == wheel / "llama.toml"
    assert find_config("qwen").parent != wheel


def test_an_unknown_config_name_is_told_the_nearest_and_all() -> None:
    with pytest.raises(
        SettingsError, match=r"--acc-config: unknown config 'lama'; did you mean 'llama'\?.*qwen"
    ):
        find_config("lama")


def test_a_missing_config_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"nothere\.toml: no such file; give a TOML file or one of: baichuan"
    ):
        find_config(str(tmp_path / "nothere.toml"))


def test_merging_leaves_its_arguments_alone() -> None:
    one, two = {"a": {"x": 1}}, {"a": {"y": 2}}
    assert merge_tables([one, two]) == {"a": {"x": 1, "y": 2}}
    assert (one, two) == ({"a": {"x": 1}}, {"a": {"y": 2}})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("thresholds = 1", r"unknown key 'thresholds'; did you mean 'threshold'\?"),
        ("[step]", r"unknown key 'step'; did you mean 'steps'\?"),
        ("[steps]\npolice = 'raw'", r"unknown key in \[steps\] 'police'; did you mean 'policy'\?"),
        ("[steps]\npolicy = 'warm-up'", r"steps.policy: unknown value 'warm-up'; did you mean 'warmup'\?"),
        ("[steps]\npolicy = 3", "steps.policy: unknown value '3'"),
        ("[coverage]\nmin = 25", r"coverage\.min must be a number from 0 to 1, got 25"),
        ("[coverage]\nmin = true", r"coverage\.min must be a number from 0 to 1, got True"),
        ("[coverage]\nmin = nan", r"coverage\.min must be a number from 0 to 1, got nan"),
        ("coverage = 1", r"coverage must be a table \[coverage\], got 1"),
        ("mapping = 1", "mapping must be a table"),
        ("description = 1", "description must be a string, got 1"),
        ("threshold = 1", r"must be written as \[\[threshold\]\] tables"),
        ("[threshold]\nfactor = 2", r"must be written as \[\[threshold\]\] tables"),
        (
            "[[threshold]]\ncosine = 0.9",
            r" \[\[threshold\]\] 1: unknown key 'cosine'; did you mean 'cosine_similarity'",
        ),
        ("[[threshold", "cannot be read as TOML"),
        ("a = " + "[" * 5000, "cannot be read as TOML: its brackets are nested too deeply"),
        ("mapping." + "a." * 500 + "b = 1", "its tables are nested more than 64 deep"),
        ("a = " + "9" * 5000, "cannot be read as TOML"),
        ("[coverage]\nmin = " + "9" * 400, "a whole number has more than 64 bits: 9999"),
        ("description = [[{ a = " + "9" * 20 + " }]]", "a whole number has more than 64 bits"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_file_and_key(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "x.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=rf"x\.toml.*{told}"):
        read_config(tmp_path / "x.toml")


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="cannot be read as TOML"):
        read_config(tmp_path / "x.toml")


# The option table agrees with `Settings`, and makes command lines that mean the same again.


def test_every_option_is_a_setting_and_every_setting_an_option() -> None:
    known = {field.name for field in fields(settings.Settings)} - {"rules", "known", "mapping"}
    assert {option.field for option in options.OPTIONS} == known


@pytest.mark.parametrize("option", [option for option in options.OPTIONS if option.choices])
def test_every_choice_of_the_command_line_is_a_setting(option: options.Option) -> None:
    for choice in option.choices:
        assert getattr(settings.Settings.from_values({option.field: choice}), option.field) == choice


def test_a_command_line_gives_the_same_values_again() -> None:
    given = {
        "golden": ("a dir/g",),
        "mine": ("m", "s3://bucket/host1"),
        "level": "op",
        "rank": "3",
        "config": ("llama", "x y.toml"),
        "metrics": ("m.py:f",),
        "min_coverage": 0.5,
        "explain_mapping": True,
    }
    parser = pytest.Parser(_ispytest=True)
    options.add_options(parser)
    words = shlex.split(shell(options.command_line(given)))
    parsed = parser.parse(words)
    for option in options.OPTIONS:
        value = getattr(parsed, option.dest, None)
        wanted = given.get(option.field)
        assert (tuple(value) if isinstance(value, list) else value) == wanted


def test_paths_are_written_in_one_word_with_their_option() -> None:
    assert options.command_line({"golden": "g", "explain_mapping": False}) == ["--acc-golden=g"]


# Every test belongs to one shard, and no shard waits long for another.


COSTS = strategies.lists(strategies.integers(0, 2**40), max_size=60)


@given(COSTS, strategies.integers(1, 12))
def test_shards_are_disjoint_and_together_everything(costs: list[int], shards: int) -> None:
    owners = deal(costs, shards)
    members = [[place for place, owner in enumerate(owners) if owner == shard] for shard in range(shards)]
    assert sorted(place for shard in members for place in shard) == list(range(len(costs)))


@given(COSTS, strategies.integers(1, 12))
def test_no_shard_has_more_than_the_mean_and_one_test(costs: list[int], shards: int) -> None:
    loads = [0] * shards
    for cost, owner in zip(costs, deal(costs, shards)):
        loads[owner] += cost
    assert max(loads) <= sum(costs) / shards + max(costs, default=0)


def test_the_dearest_go_first() -> None:
    """By hand: 7 and 6 open the shards, 5 joins 6, 4 joins 7; at 11 each, 3 joins the lower, 3 the other."""
    assert deal([3, 7, 4, 5, 6, 3], 2) == [0, 0, 0, 1, 1, 1]


def test_thousands_of_equal_tests_are_dealt_out_evenly() -> None:
    owners = deal([1] * 30_001, 4)
    assert sorted(owners.count(shard) for shard in range(4)) == [7500, 7500, 7500, 7501]


def test_the_same_costs_are_dealt_out_alike() -> None:
    costs = [random.Random(7).randrange(2**30) for _ in range(1000)]
    assert deal(costs, 5) == deal(list(costs), 5)


def test_a_file_counts_once_and_a_missing_one_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"12")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    test: Any = SimpleNamespace(compares=True, files=lambda: [a, b, a, str(tmp_path / "gone"), "nul\0"])
    assert cost_of(test) == PER_TEST + 7
