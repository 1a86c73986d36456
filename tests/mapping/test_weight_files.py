"""Weights in files count as if dumps held them: of any name, packed, transposed, in shards, tied, coded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import Dump, open_dump, weight_files
from acc_pytest.dumps.weight_files import checkpoint_home
from acc_pytest.errors import AccError
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.tensors.address import Cache

H = 32
State = dict[str, torch.Tensor]


def drawn() -> State:
    """Two layers of a query, a key with a bias, and an output; an embedding."""
    torch.manual_seed(0)
    shapes = {"q.weight": (H, H), "k.weight": (H, H), "k.bias": (H,), "o.weight": (H, 2 * H)}
    layers = {f"layers.{n}.{name}": torch.randn(shape) for n in (0, 1) for name, shape in shapes.items()}
    return {"embed.weight": torch.randn(48, H), **layers}


def of_both(home: Path, golden: State, mine: State | str) -> tuple[Plan, dict[str, str]]:
    """The plan of two dumps with these weights beside them, and the verdicts of weights by golden's name."""
    home.mkdir(exist_ok=True)
    x = np.arange(8.0, dtype=np.float32)
    dumps: list[Dump] = []
    for side, state in (("golden", golden), ("mine", mine)):
        np.savez(home / f"{side}.npz", **{"layers.0.q": x, "layers.1.q": x})  # type: ignore[arg-type]
        path = state if isinstance(state, str) else str(home / f"{side}.pth")
        if not isinstance(state, str):
            torch.save(state, path)
        dumps.append(open_dump(str(home / f"{side}.npz"), golden=dumps[0] if dumps else None))
        dumps[-1].checkpoint = checkpoint_home(path, Cache(str(home / "cache")))
    made = plan(*dumps)
    rows, _ = run(made)
    verdicts = {row.golden.name.removeprefix("root."): row.verdict for row in rows if row.layer == "weights"}
    return made, verdicts


def note_of(made: Plan) -> str:
    (note,) = [note for note in made.notes if note.startswith("weights: ")] or [""]
    return note


def transposed(state: State) -> State:
    return {name: (w.T.contiguous() if w.dim() == 2 else w) for name, w in state.items()}


def packed(state: State) -> State:
    """Under other names; query and key are one weight."""
    mine = {"tok.w": state["embed.weight"]}
    for n in (0, 1):
        q, k, o = (state[f"layers.{n}.{name}.weight"] for name in "qko")
        mine |= {f"blocks.{n}.qk.weight": torch.cat([q, k]), f"blocks.{n}.out.weight": o}
        mine[f"blocks.{n}.qk.bias"] = torch.cat([torch.randn(H), state[f"layers.{n}.k.bias"]])
    return mine


def shard(state: State) -> State:
    """The second half of the rows of queries and keys, the first of the columns of outputs."""
    rows = {name: w[len(w) // 2 :] for name, w in state.items() if ".o." not in name and "layers" in name}
    return state | rows | {name: w[:, :H].contiguous() for name, w in state.items() if ".o." in name}


def renamed(state: State) -> State:
    return {name.replace("layers", "blocks").replace(".o.", ".out."): w for name, w in state.items()}


@pytest.mark.parametrize(
    "change",
    [
        dict,
        transposed,
        packed,
        lambda state: transposed(packed(state)),
        shard,
        lambda state: renamed(shard(state)),
        lambda state: {name: w.bfloat16() for name, w in packed(state).items()},
    ],
)
def test_every_weight_is_compared(tmp_path: Path, change: Callable[[State], State]) -> None:
    state = drawn()
    for golden, mine in ((state, change(state)), (change(state), state)):
        made, verdicts = of_both(tmp_path, golden, mine)
        assert set(verdicts.values()) == {"pass"}
        assert "not compared" not in note_of(made)


def test_a_wrong_weight_fails_where_mine_is_transposed(tmp_path: Path) -> None:
    state = drawn()
    mine = transposed(packed(state))
    mine["blocks.1.qk.weight"][:, :H] = torch.randn(H, H)
    _, verdicts = of_both(tmp_path, state, mine)
    assert [name for name, verdict in verdicts.items() if verdict != "pass"] == ["layers.1.q.weight"]


def test_rows_in_another_order_are_told_of_equal_names(tmp_path: Path) -> None:
    state = drawn()
    mine = state | {"layers.1.q.weight": state["layers.1.q.weight"].roll(16, 0)}
    made, verdicts = of_both(tmp_path, state, mine)
    assert [name for name, verdict in verdicts.items() if verdict != "pass"] == ["layers.1.q.weight"]
    assert "another order of rows in root.layers.1.q.weight: rows 0-15 lie at 16-31" in note_of(made)


def test_what_mine_lacks_is_named(tmp_path: Path) -> None:
    state = drawn()
    mine = {name: w for name, w in state.items() if name not in ("layers.0.k.bias", "layers.1.o.weight")}
    note = note_of(of_both(tmp_path, state, mine)[0])
    assert "no weight of mine holds root.layers.0.k.bias: its module has no bias; " in note
    assert "; 2 of golden and 0 of mine are not compared; " in note
    assert note.endswith("; no weight of mine holds root.layers.1.o.weight")


def test_a_bias_of_zeros_is_not_lost(tmp_path: Path) -> None:
    state = drawn() | {"layers.0.k.bias": torch.zeros(H)}
    mine = {name: w for name, w in state.items() if name != "layers.0.k.bias"}
    assert "its module has no bias" not in note_of(of_both(tmp_path, state, mine)[0])


@pytest.mark.parametrize("turn", [False, True])
def test_a_head_may_be_tied_on_one_side(tmp_path: Path, turn: bool) -> None:
    state = drawn()
    sides = [state | {"head.weight": state["embed.weight"].clone()}, state][:: -1 if turn else 1]
    made, verdicts = of_both(tmp_path, *sides)
    assert sum(pair.policy == "weights" for pair in made.pairs) == 10
    assert set(verdicts.values()) == {"pass"}
    assert not note_of(made)


def test_codes_count_with_their_scale(tmp_path: Path) -> None:
    state = drawn()
    mine = dict(state)
    for name in ("layers.0.q.weight", "layers.1.q.weight"):
        scale = state[name].abs().amax(1) / 448
        mine |= {name: (state[name] / scale[:, None]).to(torch.float8_e4m3fn), f"{name}_scale": scale}
    made, verdicts = of_both(tmp_path, state, mine)
    assert set(verdicts.values()) == {"pass"}
    assert "2 of mine are float8_e4m3fn scaled by weight_scale" in note_of(made)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_gguf_is_dequantised(tmp_path: Path, kind: str) -> None:
    gguf: Any = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "mine.gguf", "llama")
    stored = getattr(gguf.GGMLQuantizationType, kind)
    state = drawn()
    for name, w in state.items():
        name = name.replace("layers", "blk").replace(".q.", ".attn_q.").replace("embed", "token_embd")
        values = w.numpy() if w.dim() == 1 else gguf.quants.quantize(w.numpy(), stored)
        writer.add_tensor(name, values, raw_dtype=stored if w.dim() == 2 else None)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    made, verdicts = of_both(tmp_path, state, str(tmp_path / "mine.gguf"))
    assert len(verdicts) == len(state)
    assert set(verdicts.values()) == {"pass"}
    assert (f"scaled by {kind}" in note_of(made)) == (kind != "F16")


def test_a_directory_is_its_safetensors_then_its_bins(tmp_path: Path) -> None:
    state = drawn()
    halves = [
        {name: w for name, w in state.items() if ("layers.0" in name) == half} for half in (True, False)
    ]
    for number, half in enumerate(halves):
        torch.save(half, tmp_path / f"pytorch_model-{number}.bin")
    torch.save({"lr": torch.ones(2)}, tmp_path / "training_args.bin")
    cache = Cache(str(tmp_path / "cache"))

    def names() -> set[str]:
        home = checkpoint_home(str(tmp_path), cache)
        return {*json.loads((Path(home) / "weights.json").read_text())["weights"]}

    assert names() == {f"root.{name}" for name in state}
    save_file(halves[0], tmp_path / "model.safetensors")
    save_file(state, tmp_path / "consolidated.safetensors")
    assert names() == {f"root.{name}" for name in halves[0]}


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = str(tmp_path / "w.safetensors"), Cache(str(tmp_path / "cache"))
    save_file(drawn(), path)
    home = checkpoint_home(path, cache)
    with monkeypatch.context() as patch:
        patch.setattr(weight_files, "described", lambda *_: pytest.fail("the file is read again"))
        assert checkpoint_home(path, cache) == home
    save_file({"a": torch.ones(2)}, path)
    assert checkpoint_home(path, cache) != home


def test_what_is_wrong_with_a_path_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(torch.ones(2), tmp_path / "one.pth")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "w.gguf").write_bytes(b"GGUF")
    (tmp_path / "cut.safetensors").write_bytes(b"\1")
    (tmp_path / "twice").mkdir()
    for name in ("a", "b"):
        save_file({"w": torch.ones(2)}, tmp_path / "twice" / f"{name}.safetensors")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    sentences: Mapping[str, str] = {
        "absent": "absent: no such file or directory; correct the path",
        "empty": "empty holds no weights; give a file of .safetensors .bin .pth .pt .gguf",
        "notes.txt": "notes.txt holds no weights; give",
        "one.pth": "one.pth holds no weights; give a file that does",
        "w.gguf": "w.gguf needs gguf; install it: pip install gguf",
        "cut.safetensors": "cut.safetensors: is not a valid safetensors file",
        "twice": f"{tmp_path}/twice/b.safetensors holds root.w again; give one file of {tmp_path}/twice",
    }
    for name, sentence in sentences.items():
        with pytest.raises(AccError) as raised:
            checkpoint_home(str(tmp_path / name), Cache(str(tmp_path / "cache")))
        assert sentence in str(raised.value)
        assert "\n" not in str(raised.value)
