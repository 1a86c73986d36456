"""A left-padded batch: what nobody reads is not judged, and everything else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest.base.threads import one_thread
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.comparison.tokens import Padding, Sequences
from acc_pytest.diagnosis.recomputation import LOOKING
from acc_pytest.diagnosis.recompute_torch import TorchRecomputer
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.summary import Tally, summary_lines
from acc_pytest.reporting.view import Diagnosis

LENGTH, HIDDEN = 12, 5
"""Tokens of each of two sequences, and how many of the first are padding."""
MLP = "root.model.layers.1.mlp"


def network(kind: str, attention: str, dtype: torch.dtype = torch.float32) -> Any:
    """Three layers whose weights bfloat16 holds."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    config._attn_implementation = attention
    made = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_((parameter * (3 if parameter.dim() > 1 else 1)).bfloat16())
    return made.to(dtype)


def mask_of_batch() -> torch.Tensor:
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[0, :HIDDEN] = 0
    return mask


@one_thread()
@torch.no_grad()
def dumped(network: Any, path: Path, mask: torch.Tensor) -> str:
    """A prefill and a decode step. Positions are those of the right mask."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 500, (2, LENGTH + 1), generator=generator) * torch.cat(
        [mask_of_batch(), torch.ones(2, 1, dtype=torch.int64)], 1
    )
    places = (mask_of_batch().cumsum(-1) - 1).clamp_min(0)
    with register_hook(network, DumpConfig(path, range(2))):
        made = network(input_ids=ids[:, :-1], attention_mask=mask, position_ids=places, use_cache=True)
        network(
            input_ids=ids[:, -1:],
            attention_mask=torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], 1),
            position_ids=places[:, -1:] + 1,
            past_key_values=made.past_key_values,
            use_cache=True,
        )
    return str(path)


Compared = tuple[list[Row], Diagnosis, Plan]


def compared(
    path: Path,
    kind: str = "Llama",
    dtype: torch.dtype = torch.bfloat16,
    fault: Callable[[torch.Tensor], torch.Tensor] | None = None,
    mask: torch.Tensor | None = None,
) -> Compared:
    """Golden in float32, which attends eagerly, against a port that calls one kernel."""
    golden, mine = network(kind, "eager"), network(kind, "sdpa", dtype)
    if fault is not None:
        mine.model.layers[1].mlp.register_forward_hook(lambda _, __, made: fault(made))
    right = mask_of_batch()
    dump = open_dump(dumped(golden, path / "golden", right))
    other = dumped(mine, path / "mine", right if mask is None else mask)
    found = plan(dump, open_dump(other, golden=dump))
    return *run(found), found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["Llama", "Mixtral"])
def test_rows_of_padding_are_not_judged(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    rows, diagnosis, found = compared(tmp_path, kind, dtype)
    assert {row.verdict for row in rows} <= {"pass", "tie"}
    assert diagnosis.roots == ()
    padded = [row for row in rows if "tokens_of_padding" in row.context]
    first = next(row for row in padded if "o_proj" in row.mine.name)
    assert first.notes == (f"{HIDDEN} of {2 * LENGTH} tokens are padding and not judged",)
    assert {row.context["tokens_of_padding"] for row in padded} == {HIDDEN}
    tally = Tally()
    for row in rows:
        tally.add(row)
    line = f"padding: {len(padded)} judged without tokens that the mask hides, which nobody reads"
    assert line in summary_lines(tally, found, 0.5)


@pytest.mark.parametrize(
    "fault",
    [
        lambda made: made * 1.5,
        lambda made: torch.cat([made[:, :7], made[:, 7:8] * 1.5, made[:, 8:]], 1),
    ],
    ids=["all tokens", "token 7 of each sequence"],
)
@pytest.mark.parametrize("kind", ["Llama", "Mixtral"])
def test_a_fault_at_a_real_token_is_the_root(
    tmp_path: Path, kind: str, fault: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    rows, diagnosis, _ = compared(tmp_path, kind, fault=fault)
    first = next(row for row in rows if row.verdict == "fail")
    assert MLP in first.mine.name
    assert MLP in diagnosis.roots[0].name


def test_nan_in_a_row_of_padding_is_the_root_of_what_it_spoils(tmp_path: Path) -> None:
    nan = torch.full((), torch.nan)
    rows, diagnosis, _ = compared(
        tmp_path,
        fault=lambda made: torch.cat([made[:, :1] * nan, made[:, 1:]], 1) if made.shape[1] > 1 else made,
    )
    assert MLP in next(row for row in rows if row.verdict == "fail").mine.name
    assert MLP in diagnosis.roots[0].name


def test_a_mask_that_differs_excuses_nothing(tmp_path: Path) -> None:
    mask = mask_of_batch()
    mask[0, HIDDEN] = 0
    rows, diagnosis, _ = compared(tmp_path, mask=mask)
    assert not any("tokens_of_padding" in row.context for row in rows if row.step == 0)
    assert any(row.verdict == "fail" and "the mask differs" in row.sentence for row in rows)
    assert "the mask differs" in diagnosis.roots[0].sentence


def test_replay_does_not_judge_queries_that_see_nothing(tmp_path: Path) -> None:
    """The module of golden attends eagerly, mine does not."""
    _, _, found = compared(tmp_path, fault=lambda made: made * 1.5)
    computer = TorchRecomputer(open_dump(found.mine_root), found.pairs, network("Llama", "eager"), LOOKING)
    wrong = [
        pair.mine.node
        for number, pair in enumerate(found.pairs)
        if not pair.fed and computer.of_pair(number).outcome == "wrong"
    ]
    assert set(wrong) == {MLP}


class Fed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(8, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.embed_tokens(input_ids)
        return made


HIDES = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
SEEN = HIDES[:, None, None].bool() & torch.ones(4, 4, dtype=torch.bool).tril()
"""`[2, 1, 4, 4]`, where true means that a token is seen."""


@pytest.mark.parametrize(
    ("mask", "hidden"),
    [
        (HIDES, [0, 1]),
        (SEEN, [0, 1]),
        (torch.zeros(SEEN.shape).masked_fill(~SEEN, torch.finfo(torch.float32).min), [0, 1]),
        (~SEEN, []),
        (1 - HIDES, []),
        (torch.ones(4, 4, dtype=torch.bool).tril(-1).expand(2, 1, 4, 4), []),
        (HIDES.float(), []),
    ],
    ids=["tokens", "truth values", "added", "true hides", "a whole sequence", "none sees itself", "floats"],
)
def test_only_a_mask_of_tokens_hides_them(tmp_path: Path, mask: torch.Tensor, hidden: list[int]) -> None:
    for side in ("golden", "mine"):
        torch.manual_seed(0)
        network = Fed()
        with register_hook(network, DumpConfig(tmp_path / side, range(1))):
            network(input_ids=torch.arange(8).reshape(2, 4), attention_mask=mask)
    dump = open_dump(str(tmp_path / "golden"))
    found = plan(dump, open_dump(str(tmp_path / "mine"), golden=dump))
    assert [pair.fed for pair in found.pairs if pair.fed == "mask"] == ["mask"]
    tokens = Padding(found.pairs).of("", 0, Sequences(2, 4))
    assert tokens.nonzero().flatten().tolist() == hidden
