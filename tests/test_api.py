"""`acc_pytest.compare`, `opcheck` and `open_dump`: what pytest says, without pytest."""

from __future__ import annotations

import doctest
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import acc_pytest
from acc_pytest import api, cli, compare, open_dump
from acc_pytest.errors import AccError, SettingsError

from .e2e.conftest import QUICKER, read_rows
from .opcheck.made import softmax_dump

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def golden() -> Tensors:
    return network()


@pytest.fixture(scope="module")
def faulty() -> Tensors:
    return network(fault=True)


def network(fault: bool = False) -> Tensors:
    """The results of three layers; `fault` makes the last of layer 1 half as large again."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 64, generator=generator)
    tensors = {"model.embed_tokens": x}
    for layer in range(3):
        for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"):
            weight = torch.randn(64, 64, generator=generator) / 8
            y = torch.nn.functional.silu(x @ weight)
            y = y * 1.5 if fault and layer == 1 and name == "mlp.down_proj" else y
            tensors[f"model.layers.{layer}.{name}"] = y
            x = torch.nn.functional.layer_norm(x + y, (64,))
    return {**tensors, "lm_head": x}


def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = Path(__file__).parents[1] / "docs" / "python.md"
    for failed, attempted in (doctest.testmod(api), doctest.testfile(str(document), module_relative=False)):
        assert (failed, attempted > 9) == (0, True)


def test_the_verdicts_are_those_of_pytest(
    golden: Tensors, faulty: Tensors, pytester: pytest.Pytester
) -> None:
    for name, tensors in (("golden", golden), ("mine", faulty)):
        torch.save(tensors, f"{name}.pt")
    words = ("--acc-golden=golden.pt", "--acc-mine=mine.pt", "--acc-csv=r.csv")
    run = pytester.runpytest_inprocess(*QUICKER, *words)
    result = compare("golden.pt", Path("mine.pt"))
    assert (result.exit_status, result.verdict) == (int(run.ret), "fail")
    run.stdout.fnmatch_lines([f"verdict hash: {result.result.verdict_hash}"])
    assert [root.name for root in result.roots] == ["root.model.layers.1.mlp.down_proj"]
    assert "the first that differs in the order of saving" in result.summary
    rows = read_rows("r.csv")
    frame = result.to_frame()
    assert list(frame.columns) == list(rows[0])
    assert sorted(frame["test_id"]) == sorted(row["test_id"] for row in rows)
    assert isinstance(frame, pd.DataFrame)


@pytest.mark.parametrize(
    "given",
    [
        lambda tensors, home: tensors,
        lambda tensors, home: {name: tensor.numpy() for name, tensor in tensors.items()},
        lambda tensors, home: {"run": [tensors]},
        lambda tensors, home: list(tensors.values()),
        lambda tensors, home: open_dump(saved(tensors, home)),
        lambda tensors, home: [saved(tensors, home)],
    ],
    ids=["dict", "arrays", "nested", "list", "open", "paths"],
)
def test_each_side_may_be(
    given: Callable[[Tensors, Path], Any], golden: Tensors, faulty: Tensors, tmp_path: Path
) -> None:
    assert compare(given(golden, tmp_path), given(golden, tmp_path)).verdict == "pass"
    result = compare(given(golden, tmp_path), given(faulty, tmp_path))
    assert (result.verdict, len(result.roots)) == ("fail", 1)


def saved(tensors: Tensors, home: Path) -> str:
    path = home / f"{len(list(home.iterdir()))}.pt"
    torch.save(tensors, path)
    return str(path)


def test_modules_are_compared_by_their_weights() -> None:
    golden, mine = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    mine.load_state_dict(golden.state_dict())
    assert compare(golden, mine).verdict == "pass"
    with torch.no_grad():
        mine.bias.add_(1)
    assert compare(golden, mine).headline.startswith("The models differ: weight bias differs")


def test_bounds_are_settings(golden: Tensors, faulty: Tensors) -> None:
    names = ("cosine_similarity", "relative_euclidean_distance", "bulk_error", "typical_row_error", "bias")
    slack: dict[str, Any] = dict.fromkeys((*names, "worst_row_error", "worst_channel_error"))
    assert compare(golden, faulty, **slack, max_absolute_error=100).verdict == "pass"
    assert compare(golden, faulty, min_coverage=0.9, inherited="fail").verdict == "fail"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"levl": "op"}, "compare(): unknown setting 'levl'; did you mean 'level'?"),
        ({"map": "x"}, "did you mean 'op_mapping_file'?"),
        ({"shard": "1/2"}, "compare(): unknown setting 'shard'"),
        ({"level": "row"}, "--acc-level: unknown value 'row'"),
        ({"cosine_similarity": "x"}, "compare(): its bounds: cosine_similarity must be a finite number"),
    ],
)
def test_a_wrong_setting_is_one_sentence(golden: Tensors, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        compare(golden, golden, **settings)
    assert sentence in str(caught.value)


def test_a_side_without_tensors_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match=r"golden must be the path of a dump, .* got a dict that holds"):
        compare({"x": "no tensor"}, {})
    with pytest.raises(AccError, match="no such file"):
        compare("absent", {"x": torch.ones(2)})


def test_a_notebook_shows_verdict_roots_and_the_error_along_the_network(
    golden: Tensors, faulty: Tensors, tmp_path: Path
) -> None:
    result = compare(golden, faulty)
    shown = result._repr_html_()
    assert shown.count("<circle") == len(golden)
    assert shown.count('stroke-width="2"') == 1
    assert "model.layers.1.mlp.down_proj" in shown
    assert repr(result) == result.summary
    assert result.headline in shown
    page = result.to_html(tmp_path / "page.html")
    assert Path(page).read_text(encoding="utf-8").count("model.layers.1.mlp.down_proj") > 1


def test_without_matplotlib_a_plot_is_one_sentence(golden: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(AccError, match=r"plot\(\) needs matplotlib; install it"):
        compare(golden, golden).plot()


def test_a_plot_has_errors_bounds_and_roots(golden: Tensors, faulty: Tensors) -> None:
    drawn: dict[str, Any] = {}

    class Axes:
        def scatter(self, *values: Any) -> None:
            drawn["points"] = values

        def plot(self, bounds: Any, *_: Any, **options: Any) -> None:
            drawn["bounds"] = bounds

        def set(self, **options: Any) -> None:
            drawn.update(options)

    axes = Axes()
    result = compare(golden, faulty)
    assert result.plot(axes) is axes
    _, errors, sizes, colors = drawn["points"]
    assert (len(errors), max(sizes), colors[0]) == (len(golden), 60, "tab:green")
    assert (drawn["title"], drawn["yscale"]) == (result.headline, "symlog")


@pytest.mark.parametrize("wrong", [False, True])
def test_operators_are_checked(tmp_path: Path, wrong: bool) -> None:
    made = softmax_dump(tmp_path, wrong=wrong)
    for check in (api.opcheck, acc_pytest.opcheck):
        result = check(made.csv)
        assert result.verdict == ("fail" if wrong else "pass")
    assert list(result.to_frame()["op_name"]) == ["SoftmaxOperation", "LinearOperation", "TransposeOperation"]
    assert result.roots == ()
    assert len(api.opcheck(made.csv, opname="linear").rows) == 1
    with pytest.raises(SettingsError, match="unknown setting 'idz'"):
        api.opcheck(made.csv, idz="1")


def test_an_open_dump_is_a_mapping_of_lazy_tensors(golden: Tensors, tmp_path: Path) -> None:
    dump = open_dump(saved(golden, tmp_path))
    assert (dump.kind, dump.steps, dump.ranks, len(dump)) == ("tensors", (0,), (0,), len(golden))
    tensor = dump["model.layers.0.mlp.down_proj"]
    assert tensor.name in dump
    assert np.array_equal(np.asarray(tensor), golden["model.layers.0.mlp.down_proj"].numpy())
    assert torch.equal(tensor.torch(), golden["model.layers.0.mlp.down_proj"])
    assert repr(tensor) == "root.model.layers.0.mlp.down_proj output[0]: float32 [12, 64]"
    assert repr(dump).splitlines()[-1] == "  ... and 4 more"
    weights = open_dump(saved(dict(torch.nn.Linear(2, 2).state_dict()), tmp_path))
    assert repr(weights["weight"]) == "root.weight: float32 [2, 2]"
    with pytest.raises(KeyError, match="did you mean"):
        dump["model.layers.0.mlp.down_porj"]
    with pytest.raises(AccError, match="there is no step 3; the dump has 0"):
        dump.tensors(step=3)


def test_the_command_prints_the_summary_without_pytest(
    golden: Tensors, faulty: Tensors, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = saved(golden, tmp_path), saved(faulty, tmp_path)
    assert cli.main(["compare", sides[0], sides[0]]) == 0
    assert (
        cli.main(["compare", *sides, "-o", str(tmp_path / "reports"), "--html", str(tmp_path / "p.html")])
        == 1
    )
    printed = capsys.readouterr().out
    assert "root cause: root.model.layers.1.mlp.down_proj" in printed
    assert "test session starts" not in printed
    assert len(list((tmp_path / "reports").iterdir())) == 1
    assert (tmp_path / "p.html").exists()
    for words in ([], [*sides, sides[0]], [sides[0], "-gp", sides[1]]):
        with pytest.raises(SystemExit, match="4"):
            cli.main(["compare", *words])
    assert "give two dumps" in capsys.readouterr().err
