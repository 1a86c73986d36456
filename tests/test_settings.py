"""Settings: options win over config files, later files over earlier ones."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import SettingsError
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.judging.tolerance import tolerance
from acc_pytest.settings import DEFAULT_MIN_COVERAGE, Settings, config_names, find_config, read_config


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
