"""relative_errors: may the errors of its inputs have made those of a pair?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from acc_pytest.diagnosis.relative_errors import JUMP, NO_ERRORS, RelativeErrors
from acc_pytest.judging.verdict import Check
from acc_pytest.reporting.row import Row, RowSide

ROW = Row("pair", "pass", "", golden=RowSide(dtype="float32"))
FAILED = Check("relative_euclidean_distance", 2.0, 1.0, False, "", False)


def errors(*failed: str, dtype: str = "float32", rms: float = 2.0, **metrics: float) -> RelativeErrors:
    named = {
        "distance": "relative_euclidean_distance",
        "row": "worst_row_error",
        "typical": "typical_row_error",
    }
    return RelativeErrors.of(
        replace(
            ROW,
            golden=RowSide(dtype=dtype),
            metrics={named.get(name, name): value for name, value in metrics.items()},
            statistics={"golden_rms": rms},
            checks=tuple(FAILED._replace(metric=named.get(name, name)) for name in failed),
        )
    )


INPUTS = [errors(distance=0.01, row=0.1), errors(distance=0.02, row=0.05), NO_ERRORS]


@pytest.mark.parametrize(
    ("own", "explained"),
    [
        (errors("distance", distance=JUMP * 0.0199), True),
        (errors("distance", distance=JUMP * 0.0201), False),
        (errors("distance", "row", distance=0.02, row=0.39), True),
        (errors("distance", "row", distance=0.02, row=0.41), False),
        (errors("row", distance=0.5, row=0.39), True),
        (errors("cosine_similarity", distance=0.09), False),
        (errors("max_absolute_error", distance=0.01, typical=0.01, max_absolute_error=0.15), True),
        (errors("max_absolute_error", distance=0.01, typical=0.01, max_absolute_error=0.17), False),
        (errors("max_absolute_error", distance=0.01, max_absolute_error=0.17), True),
        (errors("max_absolute_error", distance=0.09, max_absolute_error=0.17), False),
        (errors(distance=0.07), True),
        (errors(distance=0.09), False),
        (errors("distance", "new_nonfinite", distance=0.01), False),
        (errors("distance", distance=0.01, dtype="int64"), False),
        (NO_ERRORS, False),
    ],
)
def test_each_kind_that_is_beyond_its_bound_is_held_against_the_inputs(
    own: RelativeErrors, explained: bool
) -> None:
    """Of a pair that passes it is the distance; what no input has is held against their distance."""
    assert own.explained_by(INPUTS) is explained


def test_inputs_without_errors_explain_none() -> None:
    assert not errors(distance=0.01).explained_by([])
    assert not errors(distance=0.01).explained_by([NO_ERRORS])
    assert errors(distance=0.0).explained_by([errors(distance=0.0)])


def test_where_some_rows_are_other_ones_a_typical_row_tells() -> None:
    assert errors("distance", "row", distance=0.5, row=1.4).explained_by(INPUTS, by_rows=True)
    assert errors("typical", typical=0.07, distance=0.5).explained_by(INPUTS, by_rows=True)
    assert not errors("typical", typical=0.09, distance=0.5).explained_by(INPUTS, by_rows=True)
