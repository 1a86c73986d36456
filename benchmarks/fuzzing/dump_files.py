"""Formats of files in dumps: topologies, manifests, graphs, names. Each is read by planning a comparison."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from acc_pytest.comparison import compare_pair
from acc_pytest.judging.judges import Judge
from acc_pytest.mapping.pair import Plan, explain
from acc_pytest.reference.recomputers import recomputer_of
from acc_pytest.session.planning import make_plan
from acc_pytest.settings import Settings
from acc_pytest.topology.ge_graph import read_graph
from acc_pytest.topology.onnx_export import export
from acc_pytest.topology.onnx_export.shapes import read_operation_csv

from . import dumps, field_mutations, hostile, json_mutations, text_mutations, tiny
from .byte_mutations import Contents
from .byte_mutations import mutated as bytes_mutated
from .case import Format, Seed
from .pickle_mutations import pickled
from .zip_mutations import zipped

_SAMPLE = 3
COMPARED = 1
"""Pairs of each kind (of the file, any, of what the run was fed) that are compared as well."""
_OP_MAPPING = {
    "CommonLayer_outtensor0": "LlamaDecoderLayer_output_0",
    "LinearOperation": ["Linear", "LinearNoQuant"],
    "Decoder_layer": "LlamaDecoderLayer",
    "LinearOperation_2_0_0": "root.model.layers.0.self_attn.q_proj",
    "RmsNormOperation": "LlamaRMSNorm",
}


def formats() -> list[Format]:
    """All of them. A plan takes ten times what reading one file does."""
    return [replace(one, sample=_SAMPLE) for one in _formats()]


def _formats() -> list[Format]:
    dumped = zipped(pickled)
    return [
        Format("atb-model", _shelved(_models), json_mutations.mutated, _planned),
        Format("atb-layer", _shelved(_layers), json_mutations.mutated, _planned),
        Format("atb-onnx", _shelved(_reports), json_mutations.mutated, _exported),
        Format("atb-onnx-csv", _shelved(_operation_csvs), text_mutations.mutated, _exported_beside),
        Format("atb-tensor", _shelved(_atb_tensors), text_mutations.mutated, _planned),
        Format("atb-op-param", _shelved(_op_params), json_mutations.mutated, _computed_again),
        Format("statistics-dump", _shelved(_statistics), text_mutations.mutated, _planned),
        Format("atb-names", _shelved(_atb_names), _name, _planned, renames=True),
        Format("torch-tree", _shelved(_torch("model_tree.json")), json_mutations.mutated, _planned),
        Format("torch-manifest", _shelved(_torch("manifest.json")), json_mutations.mutated, _planned),
        Format("torch-weights", _shelved(_torch("weights.json")), json_mutations.mutated, _planned),
        Format("torch-tensor", _shelved(_torch("*.pth")), dumped, _planned),
        Format("torch-names", _shelved(_torch_names), _name, _planned, renames=True),
        Format("manual", _shelved(_metadata), json_mutations.mutated, _planned_alone),
        Format("op-mapping", _shelved(_op_mappings), json_mutations.mutated, _planned_with_map),
        Format("ge-graph", _shelved(_graphs), text_mutations.mutated, _planned_with_graph),
        Format("ge-mapping", _shelved(_long_names), text_mutations.mutated, _planned),
        Format("ge-tensor", _shelved(_ge_records), field_mutations.ge_record, _planned),
        Format("ge-names", _shelved(_ge_names), _name, _planned, renames=True),
        Format("fx-tensor", _shelved(_fx_arrays), field_mutations.numpy, _planned),
        Format("fx-names", _shelved(_fx_names), _name, _planned, renames=True),
    ]


def _shelved(seeds: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Seeds that share their dumps with those of other formats."""
    return lambda directory: seeds(directory.parent)


def _mostly(light: Sequence[Seed], whole: Sequence[Seed]) -> list[Seed]:
    """Both, the light ones so often that they are three of four draws: their plans take half the time."""
    return [*list(light) * -(-3 * len(whole) // len(light)), *whole]


def _models(shelf: Path) -> list[Seed]:
    families = ("llama", "chatglm", "moe")
    whole = [seed for family in families for seed in dumps.seeds(dumps.atb(shelf, family), "model/*/*.json")]
    return _mostly(dumps.seeds(tiny.atb(shelf), "model/*/*.json"), whole)


def _layers(shelf: Path) -> list[Seed]:
    light, whole = (dumps.layers_only(home) for home in (tiny.atb(shelf), dumps.atb(shelf)))
    return _mostly(dumps.seeds(light, "layer/*/*.json"), dumps.seeds(whole, "layer/*/*.json"))


def _reports(shelf: Path) -> list[Seed]:
    return [*dumps.seeds(dumps.operations(shelf), "model/*/*.json", "layer/*/*.json")]


def _operation_csvs(shelf: Path) -> list[Seed]:
    return [*dumps.seeds(dumps.operations(shelf), "operation_tensors_*.csv")]


def _atb_tensors(shelf: Path) -> list[Seed]:
    return _mostly(dumps.seeds(tiny.atb(shelf), "*.bin"), dumps.seeds(dumps.atb(shelf), "*.bin"))


def _op_params(shelf: Path) -> list[Seed]:
    return [*dumps.seeds(dumps.atb(shelf, fault="residual"), "op_param.json")]


def _torch(pattern: str) -> Callable[[Path], list[Seed]]:
    def seeds(shelf: Path) -> list[Seed]:
        light = [*_golden(tiny.atb(shelf), pattern), *dumps.seeds(tiny.torch_pair(shelf), pattern)]
        return _mostly(
            light, [*_golden(dumps.atb(shelf), pattern), *dumps.seeds(dumps.torch_pair(shelf), pattern)]
        )

    return seeds


def _statistics(shelf: Path) -> list[Seed]:
    return [*dumps.seeds(dumps.statistics(shelf), "*.csv")]


def _golden(home: Path, pattern: str) -> list[Seed]:
    return [one for one in dumps.seeds(home, pattern) if one.file.startswith("golden")]


def _metadata(shelf: Path) -> list[Seed]:
    return [*dumps.seeds(dumps.manual(shelf), "metadata.json")]


def _op_mappings(shelf: Path) -> list[Seed]:
    found = []
    for home in (tiny.atb(shelf), dumps.atb(shelf)):
        (home / "op_mapping_file.json").write_text(json.dumps(_OP_MAPPING, indent=2), encoding="utf-8")
        found.append(Seed(home, "op_mapping_file.json"))
    return _mostly(found[:1], found[1:])


def _graphs(shelf: Path) -> list[Seed]:
    releases = ("7.2", "oldest")
    return [
        seed for release in releases for seed in dumps.seeds(dumps.torchair(shelf, release), "dynamo_*.txt")
    ]


def _long_names(shelf: Path) -> list[Seed]:
    return [*dumps.seeds(dumps.torchair(shelf), "mapping.csv")]


def _ge_records(shelf: Path) -> list[Seed]:
    seeds = dumps.seeds(dumps.torchair(shelf), "*.*.*")
    return [seed for seed in seeds if seed.file.startswith("mine") and not seed.file.endswith(".txt")]


def _fx_arrays(shelf: Path) -> list[Seed]:
    return [*dumps.seeds(dumps.torchair(shelf), "*.npy")]


def _atb_names(shelf: Path) -> list[Seed]:
    return _mostly(_names(tiny.atb(shelf), "mine"), _names(dumps.atb(shelf), "mine"))


def _torch_names(shelf: Path) -> list[Seed]:
    return _mostly(_names(tiny.torch_pair(shelf), "mine"), _names(dumps.torch_pair(shelf), "mine"))


def _ge_names(shelf: Path) -> list[Seed]:
    return _names(dumps.torchair(shelf), "mine")


def _fx_names(shelf: Path) -> list[Seed]:
    return _names(dumps.torchair(shelf), "golden")


def _names(home: Path, side: str) -> list[Seed]:
    """Every directory of one side, and some of its files."""
    found = sorted((home / side).rglob("*"))
    files = [path for path in found if path.is_file()]
    chosen = [path for path in found if path.is_dir()][:200] + files[:: max(1, len(files) // 100)]
    return [Seed(home, str(path.relative_to(home))) for path in chosen]


def _name(random: Random, content: bytes, others: Contents) -> bytes:
    """Another name: hostile, of another file, or with its numbers changed."""
    chance = random.random()
    if chance < 0.3:
        return hostile.name(random, content.decode("utf-8", "replace")).encode("utf-8", "surrogatepass")
    if chance < 0.5:
        other = random.choice(others)
        return content[: random.randrange(len(content) + 1)] + other[random.randrange(len(other) + 1) :]
    return (
        text_mutations.mutated(random, content, others)
        if chance < 0.9
        else bytes_mutated(random, content, others)
    )


def _plan(home: Path, **values: Any) -> Plan:
    """The plan of golden against mine, as it would go to a worker."""
    given = {"golden": str(home / "golden"), "mine": str(home / "mine"), **values}
    plan = make_plan(Settings.from_values(given))
    pickle.dumps(plan)
    return plan


def _compared(plan: Plan, wanted: str = "") -> None:
    """The first pairs, those of a file, and some of what the runs were fed."""
    numbered = list(enumerate(plan.pairs))
    of_file = [one for one in numbered if wanted and _of(one[1], wanted)]
    fed = [one for one in numbered if one[1].fed]
    for number, pair in dict([*of_file[:COMPARED], *numbered[:COMPARED], *fed[:COMPARED]]).items():
        compare_pair(pair, Judge, pair.id, number)


def _of(pair: Any, path: str) -> bool:
    return any(ref.path == path for ref in (*pair.golden.refs, *pair.mine.refs))


def _planned(home: Path, file: str) -> None:
    _compared(_plan(home), str(home / file))


def _planned_alone(home: Path, _file: str) -> None:
    _compared(_plan(home, golden=str(home), mine=""))


def _planned_with_map(home: Path, file: str) -> None:
    plan = _plan(home, op_mapping_file=str(home / file))
    list(explain(plan))
    _compared(plan)


def _planned_with_graph(home: Path, file: str) -> None:
    """Planned: a text that cannot be read is a note of the plan, so it is read alone as well."""
    _compared(_plan(home))
    read_graph(home / file)


def _exported(home: Path, file: str) -> None:
    for level in (-1, 1):
        export(home / file, level, output=home / "x.onnx")


def _exported_beside(home: Path, file: str) -> None:
    for report in sorted(home.rglob("model/*/*.json")):
        export(report, output=home / "x.onnx")
    read_operation_csv(home / file)


@functools.cache
def _known_plan(home: Path) -> Plan:
    return _plan(home)


def _computed_again(home: Path, file: str) -> None:
    """The operators whose parameters these are, computed again; neither plan nor pair reads parameters."""
    plan = _known_plan(home)
    again = recomputer_of(plan)
    directory = str((home / file).parent)
    for number, pair in enumerate(plan.pairs):
        if any(ref.path.startswith(directory + "/") for ref in pair.mine.refs):
            again.of_pair(number)
            again.of_operator(number, pair.mine.node)
            again.unlike(number, pair.mine.node)
