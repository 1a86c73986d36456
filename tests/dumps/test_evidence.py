"""evidence: what the first operations of a step say of its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.dumps.base import Slot
from acc_pytest.dumps.token_policy import MAX_IDS, TokenEvidence, gather
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.topology.tree import Node, Tree

Tensors = dict[str, dict[Slot, torch.Tensor]]


def model() -> Tree:
    root = Node("m", "Model", "")
    embed = root.add(Node("embed", "Embedding", "embed"))
    embed.add(Node("gather", "Gather", "embed/gather"))
    root.add(Node("layer", "Layer", "layer"))
    root.add(Node("head", "Head", "head"))
    return Tree(root, "m")


def evidence(tmp_path: Path, tensors: Tensors, tree: Tree | None = None) -> TokenEvidence:
    refs: dict[str, dict[Slot, TensorRef]] = {}
    for path, slots in tensors.items():
        for slot, tensor in slots.items():
            file = tmp_path / f"{path.replace('/', '.')}.{slot}.bin"
            atb_bin.write(file, tensor)
            refs.setdefault(path, {})[slot] = TensorRef(str(file))
    return gather(tree or model(), lambda node: refs.get(node.path, {}))


IDS, FLOATS = Slot("input", (1,)), Slot("input", (0,))
OUT = Slot("output")


@pytest.mark.parametrize("path", ["embed", "embed/gather"])
def test_the_integer_input_of_the_embedding_or_inside_it(tmp_path: Path, path: str) -> None:
    found = evidence(tmp_path, {path: {FLOATS: torch.zeros(2, 2), IDS: torch.tensor([[3, 1], [4, 1]])}})
    assert found == TokenEvidence((3, 1, 4, 1), 4)


def test_integers_of_later_operations_are_no_token_ids(tmp_path: Path) -> None:
    assert evidence(tmp_path, {"layer": {IDS: torch.tensor([7])}}) == TokenEvidence()


def test_among_keyword_arguments_only_one_named_as_ids_is_taken_for_them(tmp_path: Path) -> None:
    positions, mask = Slot("input", ("cache_position",)), Slot("input", ("attention_mask",))
    given = {mask: torch.ones(3).long(), positions: torch.arange(3)}
    assert evidence(tmp_path, {"embed": given}) == TokenEvidence()
    named = given | {Slot("input", ("input_ids",)): torch.tensor([[8, 9, 7]])}
    assert evidence(tmp_path, {"embed": named}) == TokenEvidence((8, 9, 7), 3)


def test_too_many_ids_are_counted_not_read(tmp_path: Path) -> None:
    found = evidence(tmp_path, {"embed": {IDS: torch.zeros(MAX_IDS + 1, dtype=torch.int32)}})
    assert found == TokenEvidence(None, MAX_IDS + 1)


def test_without_ids_the_rows_of_the_first_output_count(tmp_path: Path) -> None:
    assert evidence(tmp_path, {"layer": {OUT: torch.zeros(2, 3, 8)}}).length == 6


def test_the_last_operation_keeps_one_row_and_says_nothing(tmp_path: Path) -> None:
    assert evidence(tmp_path, {"head": {OUT: torch.zeros(1, 8)}}) == TokenEvidence()


def test_a_wrapper_around_everything_is_looked_through(tmp_path: Path) -> None:
    inner = model()
    root = Node("root", "Causal", "")
    root.add(inner.root)
    inner.root.path = "model"
    found = evidence(tmp_path, {"layer": {OUT: torch.zeros(5, 8)}}, Tree(root, "root"))
    assert found.length == 5


def test_broken_files_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "cut.bin").write_bytes(b"$Version=1.0\n")
    refs = {IDS: TensorRef(str(tmp_path / "cut.bin")), OUT: TensorRef(str(tmp_path / "missing.bin"))}
    assert gather(model(), lambda node: refs) == TokenEvidence()


def test_an_alias_that_leads_nowhere_still_has_a_length(tmp_path: Path) -> None:
    atb_bin.write_description(tmp_path / "a.bin", torch.int64, (4,), extra={"data": "9_intensor0.bin"})
    ref = TensorRef(str(tmp_path / "a.bin"), root=str(tmp_path))
    assert gather(model(), lambda node: {IDS: ref}) == TokenEvidence(None, 4)


@pytest.mark.parametrize(
    ("ids", "constant"), [((1, 1, 1), True), ((1, 2), False), ((1,), False), (None, False)]
)
def test_a_constant_prompt_is_one_that_repeats_a_token(ids: tuple[int, ...] | None, constant: bool) -> None:
    assert TokenEvidence(ids).constant is constant
