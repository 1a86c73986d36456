"""Ports whose modules are called as their authors like: a few runs of `benchmarks/ports.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import acc_pytest
from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan
from acc_pytest.reference.known_by_values import KnownByValues
from acc_pytest.reference.recomputation import StoredRecomputer
from acc_pytest.running.direct import Outcome
from tests.slow import slow

pytest.importorskip("transformers", minversion="5.0", reason="its networks are those of transformers 5")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def ports() -> Iterator[ModuleType]:
    """The benchmark, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import ports

        yield ports


@pytest.mark.parametrize(
    ("family", "fault", "layers", "packed", "seed"),
    [
        slow("qwen2", "", (), True, 836390),
        slow("qwen2", "sign", (), True, 836390),
        slow("starcoder2", "theta", (1,), True, 968669),
        slow("mistral", "residual", (0,), False, 694796),
        ("llama", "scale", (1,), False, 5),
    ],
)
def test_a_fault_is_named(
    ports: ModuleType, family: str, fault: str, layers: tuple[int, ...], packed: bool, seed: int
) -> None:
    (kind,) = [kind for kind in ports.KINDS if kind.name == family]
    style = ports.Style(own_names=True, packed=packed, flat=True, dtype=torch.float32)
    drawn = ports.Fault(fault, layers, ports.FAULTS.get(fault, ()))
    outcome, sentence = ports.examine(ports.Run(kind, style, drawn, seed, False), False)
    assert outcome == ("named" if fault else "green"), sentence


def test_attention_and_fused_norms_are_known_by_their_values(ports: ModuleType, tmp_path: Path) -> None:
    """Golden shows what a module computed, and mine follows from the partners of what that read."""
    (kind,) = [kind for kind in ports.KINDS if kind.name == "llama"]
    golden = ports.golden_of(kind, 5)
    ids = torch.arange(3, 3 + ports.TOKENS)
    style = ports.Style(own_names=True, flat=True, fused_norm=True, dtype=torch.bfloat16)
    mine = ports.Port(ports.Family(golden, golden.config), style, ports.Fault())
    with torch.no_grad():
        with register_hook(golden, DumpConfig(str(tmp_path / "golden"))):
            golden(ids[None], use_cache=False)
        with register_hook(mine, DumpConfig(str(tmp_path / "mine"))):
            mine(ids, torch.arange(len(ids)))
    made = plan(*(open_dump(str(tmp_path / side)) for side in ("golden", "mine")))
    known = KnownByValues(StoredRecomputer({}), made, 1 << 20)
    for name, sources in {"att.core": {"q_proj", "k_proj", "v_proj"}, "ln_b": {"o_proj"}}.items():
        places = [(pair.mine.node, pair.mine.slot) for pair in made.pairs]
        numbers = [n for n, (node, slot) in enumerate(places) if node.endswith(name) and slot == "output[0]"]
        assert len(numbers) == ports.LAYERS
        for number in numbers:
            recomputed = known.of_pair(number)
            assert recomputed.outcome == "right"
            read = [made.pairs[int(source)].golden.node for source in recomputed.sources.split()]
            assert sources <= {node.rpartition(".")[2] for node in read}


def compared(
    home: Path,
    golden: Any,
    forward: Callable[[Any], object],
    mine: Any,
    mine_forward: Callable[[Any], object],
) -> Outcome:
    with torch.no_grad():
        for side, model, run in (("golden", golden, forward), ("mine", mine, mine_forward)):
            with register_hook(model, DumpConfig(str(home / side))):
                run(model)
    return acc_pytest.compare(str(home / "golden"), str(home / "mine"))


@pytest.mark.parametrize("fault", [slow(""), "heads"])
def test_sequences_without_padding_meet_a_padded_batch(ports: ModuleType, tmp_path: Path, fault: str) -> None:
    """Positions that have no name say where sequences begin."""
    from porting.styles import padded

    (kind,) = [kind for kind in ports.KINDS if kind.name == "llama"]
    golden = ports.golden_of(kind, 5)
    feed = padded([torch.arange(3, 3 + ports.TOKENS)[None], torch.arange(40, 49)[None]], token=0)
    style = ports.Style(own_names=True, flat=True, dtype=torch.bfloat16)
    drawn = ports.Fault(fault, (1,), ports.FAULTS.get(fault, ()))
    mine = ports.Port(ports.Family(golden, golden.config), style, drawn)
    result = compared(tmp_path, golden, feed.network, mine, feed.port)
    assert result.verdict == ("fail" if fault else "pass")
    if fault:
        assert ports.is_named(drawn, result.roots[0].name, result.roots[0].sentence)


@pytest.mark.parametrize(
    ("fault", "packed"), [slow("", True), slow("", False), slow("scales", True), ("o_stale", False)]
)
def test_codes_of_weights_are_rounded_under_any_name(
    ports: ModuleType, tmp_path: Path, fault: str, packed: bool
) -> None:
    """What codes round is allowed as far as the scales of mine say, and no more."""
    from porting.styles import quantise

    (kind,) = [kind for kind in ports.KINDS if kind.name == "llama"]
    golden, ids = ports.golden_of(kind, 5), torch.arange(3, 3 + ports.TOKENS)
    style = ports.Style(own_names=True, packed=packed, dtype=torch.bfloat16)
    mine = ports.Port(ports.Family(golden, golden.config), style, ports.Fault(), quantise)
    wrong = mine.get_submodule("net.blk.1.att.wo")
    if fault == "scales":
        wrong.weight_scale.data = wrong.weight_scale.data.roll(1, 0)
    elif fault:
        wrong.weight_scale.data *= 1.05
    result = compared(
        tmp_path,
        golden,
        lambda model: model(ids[None], use_cache=False),
        mine,
        lambda model: model(ids[None], torch.arange(len(ids))),
    )
    assert result.verdict == ("fail" if fault else "pass")
    assert [root.name.removesuffix(".weight") for root in result.roots] == ["root.net.blk.1.att.wo"] * bool(
        fault
    )


@pytest.mark.parametrize("fault", [slow(""), "heads"])
def test_chunks_meet_the_prompt_in_one_piece(ports: ModuleType, tmp_path: Path, fault: str) -> None:
    """No name tells of ids or positions: a chunk goes on where the other dump does."""
    from porting.styles import STEPS, Feed

    (kind,) = [kind for kind in ports.KINDS if kind.name == "llama"]
    golden, ids = ports.golden_of(kind, 5), torch.arange(3, 4 + ports.TOKENS)[None]
    prompt, last, half = ids[:, :-1], ids[:, -1:], ports.TOKENS // 2
    feeds = Feed((prompt, last)), Feed((prompt[:, :half], prompt[:, half:], last))
    drawn = ports.Fault(fault, (1,), ports.FAULTS.get(fault, ()))
    style = ports.Style(own_names=True, flat=True, dtype=torch.bfloat16)
    mine = ports.Port(ports.Family(golden, golden.config), style, drawn)
    with torch.no_grad():
        with register_hook(golden, DumpConfig(str(tmp_path / "golden"), token_range=STEPS)):
            feeds[0].network(golden)
        with register_hook(mine, DumpConfig(str(tmp_path / "mine"), token_range=STEPS)):
            feeds[1].port(mine)
    result = acc_pytest.compare(str(tmp_path / "golden"), str(tmp_path / "mine"))
    assert result.verdict == ("fail" if fault else "pass")
    assert "incomparable" not in result.summary
    if fault:
        assert ports.is_named(drawn, result.roots[0].name, result.roots[0].sentence)
