"""The bundle of a failing single-operator check: the case alone, and what should have been written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import NoPayload
from ...metrics.catalogue import TENSOR_METRICS
from ...opcheck.case import Case
from ...opcheck.golden import Golden
from ...opcheck.precision import in_precision
from ...opcheck.stand_alone import CSV, export_case, folder_of
from ...reporting.markdown import code
from ...reporting.row import Row
from ...tensors import atb_bin
from ...tensors.kept_file import file_size
from ...vocabulary import STANDARDS
from .folder import inside, write_text, write_texts
from .of_pair import Bundle
from .texts import case_test, settings_files


def write_case(home: Path, case: Case, rows: Sequence[Row], budget: int) -> Bundle:
    """Write the bundle of `case`, whose failed `rows` say by which standard and bounds, into `home`.

    Raises `AccError` for a case that does not stand alone, or is larger than `budget` bytes.
    """
    if any("judged is what the device computed" in row.note for row in rows):
        raise NoPayload("what the device computed is not kept; run without acc_opcheck_backend")
    if any("of the other device" in check.reason for row in rows for check in row.checks):
        raise NoPayload("it is judged by the dump of a second device, which a bundle does not hold")
    refs = [ref for ref in (*case.inputs, *case.outputs, *case.written) if ref is not None]
    size = sum(file_size(ref.path) for ref in refs)
    if size > budget:
        raise NoPayload(f"its tensors have {size / 2**20:.0f} MiB, more than is left for bundles")
    export_case(in_precision(case), home)
    golden = Golden(case)
    folder = folder_of(case.name, case.ids)
    for result in golden.expected():
        kind, _, index = result.slot.rstrip("]").partition("[")
        name = f"{'outtensor' if kind == 'output' else 'intensor'}{index}.bin"
        atb_bin.write(inside(home, "golden", name), result.golden)
    test = f"test_{home.name.replace('-', '_')}.py"
    standard = str(rows[0].case["standard"])
    write_text(home / test, case_test(test, standard, _set_bounds(rows)))
    write_texts(home, settings_files(""))
    copy = code(f"cp golden/* {folder}/after/")
    return Bundle(
        [
            (test, f"fails as the check does, and passes after {copy}"),
            (CSV, "the case as a row of an operation CSV; ATB's own test runner runs it too"),
            (folder, "parameters, inputs (`before`) and outputs (`after`) of the dump"),
            ("golden", "what the operator should have written"),
        ]
    )


def case_facts(rows: Sequence[Row]) -> list[str]:
    """Facts of a check for a README, one Markdown line each."""
    case = rows[0].case
    return [
        f"- operator: {code(str(case['op_name']))}, ids {code(str(case['op_id'])) or 'none'}",
        f"- parameters: {code(str(case['op_param']), 1000)}",
        f"- standard: {code(str(case['standard']))}",
        f"- in the run it came from: {code(rows[0].test_id, 400)}",
    ]


def _set_bounds(rows: Sequence[Row]) -> dict[str, float | None]:
    """The bounds beside those of the standard, as arguments of the marker `acc_threshold`."""
    bounds: dict[str, float | None] = {}
    for row in rows:
        factor = row.case.get("factor")
        if isinstance(factor, float):
            bounds["factor"] = factor
        for check in row.checks:
            of_standard = check.reason.partition(": ")[0] in STANDARDS
            if not of_standard and check.metric in TENSOR_METRICS:
                bounds[check.metric] = check.allowed
    return bounds
