"""The pair on disk: bytes repeat, the format is the probe's, mine is golden up to rounding."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import DumpError, SettingsError
from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault, make_demo
from acc_pytest.tensors.ref import TensorRef

SMALL = {"layers": 1, "decode_steps": 1, "prompt_length": 5, "warmup": False}
Make = Callable[..., DemoPaths]

LAST_LAYER = {
    "llama": ("root.model.layers.1/output_0.pth", "3_Prefill_layer/after/outtensor0.bin"),
    "llama-separate": ("root.model.layers.1/output_0.pth", "3_Prefill_layer/after/outtensor0.bin"),
    "moe": ("root.model.layers.1/output_0.pth", "3_Moe_layer/after/outtensor0.bin"),
    "bloom": ("root.transformer.h.1/output_0.pth", "3_Bloom7bCommonLayer/after/outtensor0.bin"),
    "chatglm": (
        "root.transformer.encoder.layers.1/output_0.pth",
        "2_CommonLayer/after/outtensor0.bin",
    ),
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Demos of this module, each spec made once."""

    @functools.cache
    def made(spec: DemoSpec) -> DemoPaths:
        return make_demo(tmp_path_factory.mktemp("demo"), spec)

    return lambda **options: made(DemoSpec(**{**SMALL, **options}))


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def read(path: Path) -> torch.Tensor:
    return TensorRef(str(path)).open()


def relative_error(golden: torch.Tensor, mine: torch.Tensor) -> float:
    golden, mine = golden.double().flatten(), mine.double().flatten()
    return float((golden - mine).norm() / golden.norm())


def one(root: Path, pattern: str) -> Path:
    (found,) = root.glob(pattern)
    return found


def test_same_spec_gives_same_bytes(tmp_path: Path) -> None:
    spec = DemoSpec(layers=1, decode_steps=1, warmup=False)
    make_demo(tmp_path / "a", spec)
    make_demo(tmp_path / "b", spec)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_another_seed_gives_other_values_in_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        make_demo(tmp_path / name, DemoSpec("bloom", layers=1, decode_steps=0, seed=seed))
    first, second = files(tmp_path / "a"), files(tmp_path / "b")
    assert first.keys() == second.keys()
    assert first != second


def test_a_demo_leaves_the_callers_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    make_demo(tmp_path, DemoSpec("chatglm", layers=1, decode_steps=0))
    assert torch.equal(torch.rand(3), wanted)


def test_a_second_demo_replaces_the_first(tmp_path: Path) -> None:
    make_demo(tmp_path, DemoSpec("chatglm", layers=1, decode_steps=0, era="ait_dump"))
    paths = make_demo(tmp_path, DemoSpec("chatglm", layers=1, decode_steps=0))
    assert [p.name for p in paths.mine.iterdir()] == ["msit_dump_20250101_000000"]


def test_a_foreign_directory_is_not_touched(tmp_path: Path) -> None:
    keep = tmp_path / "mine" / "thesis.txt"
    keep.parent.mkdir()
    keep.write_text("years of work")
    with pytest.raises(DumpError, match=r"thesis\.txt"):
        make_demo(tmp_path, DemoSpec())
    assert keep.read_text() == "years of work"


@pytest.mark.parametrize("family", LAST_LAYER)
def test_mine_differs_from_golden_by_rounding_only(make: Make, family: str) -> None:
    paths = make(family=family, layers=2, decode_steps=0, kv_heads=4 if family == "bloom" else 2)
    golden, mine = LAST_LAYER[family]
    error = relative_error(
        read(one(paths.golden, f"*/torch_tensors/*/0/{golden}")),
        read(one(paths.mine, f"*/tensors/*/0/{mine}")),
    )
    # 2 layers of about 8 roundings each, unit roundoff 2^-11
    assert 0 < error < 16 * 2**-11


@pytest.mark.parametrize(("dtype", "roundoff"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_rounding_follows_the_dtype_of_mine(make: Make, dtype: str, roundoff: float) -> None:
    paths = make(dtype=dtype, layers=2)
    golden = read(one(paths.golden, "*/torch_tensors/*/1/root.lm_head/output.pth"))
    mine = read(one(paths.mine, "*/tensors/*/0/11_LmHead/after/outtensor0.bin"))
    assert mine.dtype == getattr(torch, dtype)
    assert relative_error(golden, mine) < 16 * roundoff


@pytest.mark.parametrize("family", ["llama", "bloom", "chatglm"])
def test_one_model_numbers_executions_like_steps(make: Make, family: str) -> None:
    paths = make(family=family, models=1)
    assert sorted(p.name for p in one(paths.mine, "*/tensors/*").iterdir()) == ["0", "1"]


def test_two_models_count_apart_and_warmup_comes_first(make: Make) -> None:
    paths = make(decode_steps=2, warmup=True)
    home = one(paths.mine, "*/tensors/*")
    prefill = {p.name for p in home.iterdir() if (p / "2_Prefill_layer").is_dir()}
    decode = {p.name for p in home.iterdir() if (p / "7_Decoder_layer").is_dir()}
    assert (prefill, decode) == ({"0", "1"}, {"0", "1", "2"})
    ids = [read(home / n / "0_WordEmbedding/before/intensor1.bin").tolist() for n in "01"]
    golden = one(paths.golden, "*/torch_tensors/*/0/root.model.embed_tokens/input_0.pth")
    assert ids == [[1] * 5, read(golden)[0].tolist()]


def test_mine_is_fed_the_ids_that_golden_chose(make: Make) -> None:
    paths = make(decode_steps=2, warmup=True)
    logits = read(one(paths.golden, "*/torch_tensors/*/1/root.lm_head/output.pth"))
    fed = read(one(paths.mine, "*/tensors/*/2/5_WordEmbedding/before/intensor1.bin"))
    assert fed.tolist() == [int(logits[0, -1].argmax())]


@pytest.mark.parametrize(
    ("era", "root", "tensors", "model"),
    [
        ("ait_dump", "ait_dump", "tensors/0_5001", "model/5001"),
        ("ait_dump_ts", "ait_dump_20250101_000000", "tensors/0_5001", "model/5001"),
        ("msit_dump_ts", "msit_dump_20250101_000000", "tensors/0_5001", "model/5001"),
        ("atb_dump_data", "atb_dump_data", "data/0_5001", "info/model/0_5001"),
    ],
)
def test_every_era_has_its_layout(make: Make, era: str, root: str, tensors: str, model: str) -> None:
    paths = make(era=era, decode_steps=0, models=1)
    assert (paths.mine / root / tensors / "0" / "0_WordEmbedding").is_dir()
    assert (paths.mine / root / model / "DecoderModel.json").is_file()


def test_old_probes_show_inputs_after_the_operation(make: Make) -> None:
    paths = make(family="bloom", era="ait_dump_ts", decode_steps=0)
    node = one(paths.mine, "*/tensors/*/0/2_Bloom7bCommonLayer/3_SelfAttentionOperation")
    assert [p.name for p in node.iterdir() if p.is_dir()] == ["after"]
    assert read(node / "after" / "intensor3.bin").abs().sum() > 0  # the cache, already filled


def test_new_probes_show_inputs_before_the_operation(make: Make) -> None:
    paths = make(decode_steps=0)
    node = one(paths.mine, "*/tensors/*/0/2_Prefill_layer/0_Attention/2_ReshapeAndCacheOperation")
    assert read(node / "before" / "intensor2.bin").abs().sum() == 0
    assert read(node / "after" / "outtensor0.bin").abs().sum() > 0


def test_statistics_leave_no_payload_on_either_side_but_the_ids(make: Make) -> None:
    paths = make(statistics=True, decode_steps=0)
    header = TensorRef(str(one(paths.mine, "*/tensors/*/0/3_RmsNormOperation/after/outtensor0.bin"))).header()
    assert header.payload == "statistics"
    assert [f"{p.parent.name}/{p.name}" for p in paths.golden.rglob("*.pth")] == ["root/input_ids.pth"]
    table = one(paths.golden, "*/torch_tensors/*/0/root.model.layers.0/statistics.csv")
    rows = list(csv.DictReader(table.open(newline="")))
    assert [(r["InputOutput"], r["Index"], r["Shape"]) for r in rows] == [
        ("Input", "0", "(1, 5, 32)"),
        ("Output", "0", "(1, 5, 32)"),
        ("Output", "1_0", "(1, 4, 5, 8)"),
        ("Output", "1_1", "(1, 4, 5, 8)"),
    ]


def test_statistics_of_the_newest_probe_are_one_table_of_top_operations(make: Make) -> None:
    paths = make(statistics=True, decode_steps=0, era="atb_dump_data")
    assert not list(paths.mine.rglob("*.bin"))
    rows = list(csv.DictReader(one(paths.mine, "*/data/*/0/statistic.csv").open(newline="")))
    assert {"2_Prefill_layer", "4_LmHead"} <= {f"{r['Op Id']}_{r['Op Name']}" for r in rows}
    mask = [
        r
        for r in rows
        if r["Op Name"] == "Prefill_layer" and (r["Input/Output"], r["Index"]) == ("input", "53")
    ]
    assert mask == []  # -inf is not finite, so the probe drops the row


def test_description_keeps_dtype_and_shape_alone(make: Make) -> None:
    paths = make(description=True, decode_steps=0)
    header = TensorRef(str(one(paths.mine, "*/tensors/*/0/4_LmHead/after/outtensor0.bin"))).header()
    assert (header.payload, header.shape) == ("description", (1, 128))


def test_named_tensors_carry_parameter_names_on_operators_only(make: Make) -> None:
    paths = make(named=True, decode_steps=0, era="atb_dump_data")
    layer = one(paths.mine, "*/data/*/0/2_Prefill_layer")
    assert (layer / "1_ElewiseOperation/before/intensor1_y.bin").is_file()
    assert (layer / "0_Attention/before/intensor0.bin").is_file()


def test_kernels_keep_the_gaps_of_the_real_ones(make: Make) -> None:
    paths = make(kernels=True, decode_steps=0)
    home = one(paths.mine, "*/tensors/*/0/2_Prefill_layer/0_Attention")
    kernel = home / "3_SelfAttentionOperation/0_UnpadFlashAttentionNdKernel/before"
    assert sorted(p.name for p in kernel.iterdir()) == [f"intensor{i}.bin" for i in (0, 1, 2, 4)]


def test_ranks_hold_shards_of_one_result(make: Make) -> None:
    paths = make(ranks=2, decode_steps=0)
    place = "0/2_Prefill_layer/0_Attention/0_QKVLinearSplitPack/after/outtensor0.bin"
    shards = [read(one(paths.mine, f"*/tensors/{r}_{5001 + r}") / place) for r in (0, 1)]
    golden = read(one(paths.golden, "*/torch_tensors/*/0/root.model.layers.0.self_attn.q_proj/output.pth"))
    assert relative_error(golden, torch.cat([s.flatten(1) for s in shards], 1)) < 16 * 2**-11


def test_op_param_says_what_the_topology_says(make: Make) -> None:
    paths = make(decode_steps=0)
    text = one(paths.mine, "*/tensors/*/0/3_RmsNormOperation/op_param.json").read_text()
    node = json.loads(one(paths.mine, "*/layer/*/RmsNormOperation_3.json").read_text())
    assert json.loads(text) == node["param"]
    assert text.endswith("}\n")


def test_the_faulty_operators_are_named(make: Make) -> None:
    paths = make(decode_steps=0, layers=2, fault=Fault("residual", layer=1))
    assert paths.faulty == ("ElewiseOperation_3_3",)


def test_readmes_demo_is_small(tmp_path: Path) -> None:
    make_demo(tmp_path, DemoSpec())
    assert sum(len(content) for content in files(tmp_path).values()) < 3 * 2**20


# A spec that no model can have is refused with a sentence that says what to change.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "gpt"}, "demo: family must be one of llama, bloom,.*, got 'gpt'"),
        (
            {"era": "E3"},
            "demo: era must be one of ait_dump, ait_dump_ts, msit_dump_ts, atb_dump_data, got 'E3'",
        ),
        ({"dtype": "float8"}, "model: dtype must be one of float16, bfloat16, float32, got 'float8'"),
        ({"layers": 0}, "model: layers must be >= 1, got 0"),
        ({"decode_steps": -1}, "demo: decode_steps must be >= 0, got -1"),
        ({"hidden": 30}, "demo: hidden must be an even multiple of heads=4, got 30"),
        ({"kv_heads": 3}, "must be a multiple of kv_heads=3"),
        ({"family": "bloom", "kv_heads": 2}, "bloom packs one key per query head"),
        ({"ranks": 3}, "heads=4 does not split over 3 ranks"),
        ({"description": True, "era": "atb_dump_data"}, "has no descriptions"),
        ({"ranks": 2, "models": 3}, "model: models must be one of 1, 2, got 3"),
        ({"statistics": True, "description": True}, "exclude each other"),
        ({"fault": Fault("replica")}, "demo: fault 'replica' needs ranks >= 2, got 1"),
    ],
)
def test_an_impossible_spec_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
        DemoSpec(**options)


@pytest.mark.parametrize(("family", "models"), [("llama", 2), ("moe", 2), ("bloom", 1), ("chatglm", 1)])
def test_models_and_warmup_default_to_the_familys_habit(family: str, models: int) -> None:
    spec = DemoSpec(family=family).resolved()
    assert (spec.models, spec.warmup) == (models, models == 2)


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 2), (14, 2), (20, 3), (40, 6)])
def test_the_cache_holds_the_whole_run(tokens: int, blocks: int) -> None:
    spec = DemoSpec(prompt_length=tokens, decode_steps=1).model
    assert spec.blocks == blocks
    assert spec.positions >= tokens + 1
