"""register_hook on the architectures of transformers, made from tiny configs with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import Dump, open_dump
from acc_pytest.mapping.planner import plan
from tests.newer import experts_are_one_module, scaled_attention

transformers = pytest.importorskip("transformers")

COMMON = {"vocab_size": 64, "hidden_size": 32, "attn_implementation": "eager"}
LLAMA_LIKE = COMMON | {
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
NO_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BLOOM = COMMON | {"n_layer": 2, "n_head": 4}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", LLAMA_LIKE),
    "bloom": ("Bloom", BLOOM),
    "qwen2": ("Qwen2", LLAMA_LIKE),
    "glm": ("Glm", LLAMA_LIKE | {"head_dim": 8} | NO_TOKENS),
    "mixtral": ("Mixtral", LLAMA_LIKE | {"num_local_experts": 3, "num_experts_per_tok": 2}),
}
PROMPT = torch.tensor([[5, 9, 3, 60, 7]])
STEPS = 4


def made(family: str) -> Any:
    name, options = MODELS[family]
    torch.manual_seed(11)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def generated(model: Any) -> torch.Tensor:
    """The logits of a prefill and three decode steps, greedy, with a cache."""
    with torch.no_grad():
        result = model.generate(
            PROMPT,
            attention_mask=torch.ones_like(PROMPT),
            max_new_tokens=STEPS,
            min_new_tokens=STEPS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
    return torch.stack(result.logits)


@pytest.fixture(scope="module", params=MODELS)
def dumped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A family, its model, the logits of a run without hooks and of one with, and the handle of the dump."""
    model = made(request.param)
    without = generated(model)
    config = DumpConfig(tmp_path_factory.mktemp(request.param), range(STEPS))
    with register_hook(model, config) as handle:
        hooked = generated(model)
    return request.param, model, without, hooked, handle


def by_slot(dump: Dump, step: int, node: str) -> dict[str, Any]:
    at = dump.steps[step]
    found = dump.tensors(at, dump.ranks[0], at.tree.by_path[node])
    return {str(slot): ref.open() for slot, ref in found.items()}


def test_the_models_results_are_the_same_bits(dumped: Any) -> None:
    _, model, without, hooked, _ = dumped
    assert torch.equal(without, hooked)
    assert torch.equal(without, generated(model))


def test_every_step_of_prefill_and_decode_is_there_with_the_logits(dumped: Any) -> None:
    _, _, logits, _, handle = dumped
    dump = open_dump(str(handle.dump_path))
    assert [step.label for step in dump.steps] == list(range(STEPS))
    for step in range(STEPS):
        root = by_slot(dump, step, "root")
        assert torch.equal(root["output[logits]"][:, -1].float(), logits[step])
        length = PROMPT.shape[1] if step == 0 else 1
        assert root["input[input_ids]"].shape == (1, length)
    assert torch.equal(by_slot(dump, 0, "root")["input[input_ids]"], PROMPT)


def test_every_module_that_ran_has_its_inputs_and_its_output(dumped: Any) -> None:
    _, model, _, _, handle = dumped
    dump = open_dump(str(handle.dump_path))
    calls: set[str] = set()
    hooks = [
        module.register_forward_hook(lambda *_, name=f"root.{name}" if name else "root": calls.add(name))
        for name, module in model.named_modules()
    ]
    generated(model)
    for hook in hooks:
        hook.remove()
    assert len(calls) > 15
    for name in calls:
        slots = by_slot(dump, 0, name)
        assert any(slot.startswith("input") for slot in slots), name
        assert any(slot.startswith("output") for slot in slots), name


def test_the_caches_of_each_layer_are_saved_once_after_the_layer_wrote_them(dumped: Any) -> None:
    _, _, _, _, handle = dumped
    dump = open_dump(str(handle.dump_path))
    for step in range(STEPS):
        owners = []
        for node in dump.steps[step].tree.walk():
            keys = [slot for slot in by_slot(dump, step, node.path) if "key]" in slot or "value]" in slot]
            if keys:
                owners.append(node.path)
                cache = by_slot(dump, step, node.path)[keys[0]]
                assert cache.shape[-2] == PROMPT.shape[1] + step
                assert len(keys) == 2
        assert len(owners) == 2
        assert all("attn" in owner or "attention" in owner for owner in owners)


def test_the_tree_is_in_the_order_of_the_run(dumped: Any) -> None:
    family, _, _, _, handle = dumped
    tree = open_dump(str(handle.dump_path)).steps[0].tree
    order = {node.path.rpartition(".")[2]: node.order for node in tree.walk()}
    first, last = {"bloom": ("word_embeddings", "ln_f")}.get(family, ("embed_tokens", "norm"))
    experts = "mlp" if family != "mixtral" or experts_are_one_module() else "block_sparse_moe"
    names = ("input_layernorm", "post_attention_layernorm", experts)
    assert order[first] < order[names[0]] < order[names[1]] < order[names[2]] < order[last] < order["lm_head"]


def test_nothing_failed_and_nothing_was_left_out(dumped: Any) -> None:
    *_, handle = dumped
    assert handle.report.skipped == {}
    assert handle.report.steps == STEPS
    assert open_dump(str(handle.dump_path)).notes == ()


def test_two_dumps_of_one_model_map_onto_each_other_completely(dumped: Any) -> None:
    *_, handle = dumped
    mapped = plan(open_dump(str(handle.dump_path)), open_dump(str(handle.dump_path)))
    assert mapped.golden_total == mapped.golden_mapped > 0
    assert mapped.mine_total == mapped.mine_mapped
    assert mapped.unmapped == ()


@pytest.mark.parametrize(
    ("family", "implementation"),
    [("llama", "eager"), ("llama", "sdpa"), ("bloom", "eager"), ("mixtral", "sdpa")],
)
def test_functions_are_recorded_inside_of_transformers_too(
    tmp_path: Path, family: str, implementation: str
) -> None:
    if implementation == "sdpa":
        scaled_attention()
    name, options = MODELS[family]
    torch.manual_seed(11)
    config = getattr(transformers, f"{name}Config")(**options | {"attn_implementation": implementation})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    without = model(PROMPT).logits
    with register_hook(model, DumpConfig(tmp_path, mode=["api", "module"])) as handle:
        assert torch.equal(model(PROMPT).logits, without)
    types = [node.op_type for node in open_dump(str(handle.dump_path)).steps[0].tree.walk()]
    attention = {"scaled_dot_product_attention", "matmul", "baddbmm"}
    assert sum(kind in attention for kind in types) >= 2
    assert types.count("linear") >= types.count("Linear") >= 5
    if implementation == "eager":
        assert types.count("softmax") == 2
