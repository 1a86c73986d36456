"""A mixture of experts in bfloat16 whose router decides by a rounding: green, however pytest runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest import DumpConfig, register_hook
from acc_pytest.base.threads import one_thread
from acc_pytest.comparison.tie_reach import TiedChoices
from acc_pytest.comparison.tokens import Sequences, token_rows
from acc_pytest.dumps import open_dump
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.mapping.choices import ChoicesAbove
from acc_pytest.mapping.planner import plan
from tests.mapping.test_choices import dumped, network
from tests.newer import experts_are_one_module
from tests.published_networks import published
from tests.slow import slow

from .conftest import QUICKER, TWO_WORKERS, Run, read_rows

pytestmark = pytest.mark.usefixtures("replayed")

SEED, TOKENS = 4, 33
"""A network and a prompt for which three routers decide by a rounding."""


def dumped_mixture(network: Any, path: Path, **config: Any) -> None:
    """A prefill and a decode step of a fixed prompt and token."""
    generator = torch.Generator().manual_seed(SEED)
    prompt = torch.randint(2, 120, (1, TOKENS), generator=generator)
    token = torch.randint(2, 120, (1, 1), generator=generator)
    with one_thread(), torch.no_grad(), register_hook(network, DumpConfig(path, range(2), **config)):
        made = network(input_ids=prompt, use_cache=True)
        network(input_ids=token, past_key_values=made.past_key_values, use_cache=True)


def low(network: Any) -> Any:
    for parameter in network.parameters():
        parameter.data = parameter.data.bfloat16()
    return network


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    if not experts_are_one_module():
        pytest.skip("experts are modules of their own before transformers 5")
    path = tmp_path_factory.mktemp("golden")
    dumped_mixture(published("mixtral", dtype="bfloat16", seed=SEED), path)
    return path


@pytest.fixture(scope="module")
def tied(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    path = tmp_path_factory.mktemp("mine")
    dumped_mixture(low(published("mixtral", dtype="bfloat16", seed=SEED)), path)
    return DemoPaths(golden, path, ())


def hashes(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("verdict hash: ")]


def test_what_follows_a_tie_is_not_red_and_the_summary_counts_it(acc: Run, tied: DemoPaths) -> None:
    result = acc(tied, "--junitxml=j.xml")
    assert result.ret == pytest.ExitCode.OK
    rows = read_rows()
    noted = [row for row in rows if "tokens come after a tie and are not judged" in row["notes"]]
    assert {row["verdict"] for row in noted} == {"pass"}
    result.stdout.fnmatch_lines([f"ties: {len(noted)} partly*not judged: *"])
    assert "come after a tie and are not judged" in Path("j.xml").read_text()


@pytest.mark.slow
def test_workers_and_stored_rows_say_the_same(acc: Run, tied: DemoPaths, pytester: pytest.Pytester) -> None:
    serial = acc(tied, "--acc-rows=r.jsonl")
    workers = acc(tied, *TWO_WORKERS, subprocess=True)
    stored = pytester.runpytest_inprocess(*QUICKER, "--acc-from-rows=r.jsonl")
    assert hashes(serial) == hashes(workers) == hashes(stored) != []
    (line,) = [line for line in serial.outlines if line.startswith("ties: ")]
    assert line in workers.outlines
    assert line in stored.outlines


@pytest.mark.slow
def test_a_pair_alone_comes_after_the_tie_as_well(acc: Run, tied: DemoPaths) -> None:
    acc(tied)
    note = re.compile("([0-9]+) of 33 tokens come after a tie")
    whole = {row["test_id"]: row["notes"] for row in read_rows() if note.search(row["notes"])}
    last = sorted(whole)[-1]
    result = acc(tied, last)
    assert result.parseoutcomes() == {"passed": 1}
    (row,) = [row for row in read_rows() if row["test_id"] == last]
    assert row["notes"] == whole[last]


def test_keys_of_a_cache_are_of_all_tokens_until_their_step(tied: DemoPaths) -> None:
    """So a tie in the prompt moves a few of them, and not the whole of what a decode step reads."""
    made = plan(open_dump(str(tied.golden)), open_dump(str(tied.mine)))
    choices = TiedChoices(made, ChoicesAbove(made))
    keys = [pair for pair in made.pairs if pair.mine.slot == "output[past_key_values][key]"]
    assert {pair.step for pair in keys} == {0, 1}
    for pair in keys:
        (sequences,) = choices.until(pair)
        assert sequences == Sequences(1, TOKENS + int(pair.step))
        rows = token_rows(pair.golden.refs[0].header().shape, sequences)
        assert rows is not None
        assert len(set(rows.tokens.tolist())) == sequences.tokens


def test_a_fault_below_a_tie_is_the_first_root(acc: Run, golden: Path, tmp_path: Path) -> None:
    network = low(published("mixtral", dtype="bfloat16", seed=SEED))
    network.model.layers[1].mlp.experts.register_forward_hook(lambda _module, _given, made: made * 1.3)
    dumped_mixture(network, tmp_path / "mine")
    result = acc(DemoPaths(golden, tmp_path / "mine", ()))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    first = next(line for line in result.outlines if line.startswith("root cause: "))
    assert first.startswith("root cause: root.model.layers.1.mlp.experts ")


@pytest.mark.slow
def test_statistics_do_not_judge_what_a_tie_may_have_changed(acc: Run, tmp_path: Path) -> None:
    """Choices, and the calls of experts below them, are skipped with the reason; a fault is still red."""
    if not experts_are_one_module():
        pytest.skip("experts are modules of their own before transformers 5")
    for name, factor in (("golden", 1.0), ("mine", 1.0), ("faulty", 1.3)):
        network = published("mixtral", dtype="bfloat16", seed=SEED)
        network.config._experts_implementation = "eager"
        if name != "golden":
            low(network)
            network.model.layers[1].mlp.experts.register_forward_hook(
                lambda _module, _given, made, factor=factor: made * factor
            )
        dumped_mixture(network, tmp_path / name, dump_statistics_mode=1)
    right = acc(DemoPaths(tmp_path / "golden", tmp_path / "mine", ()))
    assert right.ret == pytest.ExitCode.OK
    reason = "statistics do not tell whether root.model.layers.0.mlp.gate.topk is a choice among equals"
    skipped = {row["test_id"].rpartition("::")[2] for row in read_rows() if reason in str(row)}
    assert {"mlp.gate.topk[1]", "mlp.gate[2]"} <= skipped
    assert all(name.startswith(("mlp.gate", "mlp.experts")) for name in skipped)
    wrong = acc(DemoPaths(tmp_path / "golden", tmp_path / "faulty", ()))
    wrong.stdout.fnmatch_lines(["root cause: root.model.layers.1.mlp.experts *"])


# Experts that the code of a network chooses, two of whose logits are equal but for a rounding: in dumps that
# hold what was chosen, and in those that do not.


MANY = 200


def near() -> Any:
    """The router tells its second and third expert apart by what bfloat16 does not hold."""
    made: Any = network().bfloat16().float()
    weight = made.layers[1].gate.weight.data
    weight[2] = weight[1] * (1 + 2**-12)
    return made


@pytest.mark.parametrize(("choices", "name"), [slow(False, "gate[chosen]"), (True, "topk[1]")])
def test_another_expert_is_a_tie_and_a_fault_beside_it_is_named(
    acc: Run, tmp_path: Path, choices: bool, name: str
) -> None:
    """Also where what was chosen is only in the dump of one side."""
    dumped(near(), tmp_path / "golden", MANY, choices=choices)
    dumped(near().bfloat16(), tmp_path / "mine", MANY, dtype=torch.bfloat16, choices=choices)
    right = acc(DemoPaths(tmp_path / "golden", tmp_path / "mine", ()))
    assert right.ret == pytest.ExitCode.OK
    (choice,) = [row for row in read_rows() if row["test_id"].endswith(name)]
    assert choice["verdict"] == "tie"
    spoiled = near()
    spoiled.layers[1].experts[3].register_forward_hook(lambda _module, _given, result: result * 1.5)
    dumped(spoiled.bfloat16(), tmp_path / "spoiled", MANY, dtype=torch.bfloat16, choices=True)
    wrong = acc(DemoPaths(tmp_path / "golden", tmp_path / "spoiled", ()))
    assert wrong.ret == pytest.ExitCode.TESTS_FAILED
    wrong.stdout.fnmatch_lines(["root cause: root.layers.1.experts.3 *"])
