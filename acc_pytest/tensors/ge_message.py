"""Header of a GE record, as data: types, layouts, shapes and sizes of all tensors of one operator."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..errors import CannotDecode
from .dtypes import LAYOUTS, DType, by_name

# Numbers and names of types and layouts in GE records: what they mean in the table of `dtypes`.
#
# Not to be confused with the numbers in attributes of GE graphs, which are those of ATB.


# Code, name (`DT_FLOAT` in statistics files) and type of the elements in a GE record.
_GE_TYPES: tuple[tuple[int, str, str], ...] = (
    (0, "UNDEFINED", "undefined"),
    (1, "FLOAT", "float32"),
    (2, "FLOAT16", "float16"),
    (3, "INT8", "int8"),
    (4, "UINT8", "uint8"),
    (5, "INT16", "int16"),
    (6, "UINT16", "uint16"),
    (7, "INT32", "int32"),
    (8, "INT64", "int64"),
    (9, "UINT32", "uint32"),
    (10, "UINT64", "uint64"),
    (11, "BOOL", "bool"),
    (12, "DOUBLE", "float64"),
    (13, "STRING", "string"),
    (14, "DUAL_SUB_INT8", "int8"),
    (15, "DUAL_SUB_UINT8", "uint8"),
    (16, "COMPLEX64", "complex64"),
    (17, "COMPLEX128", "complex128"),
    (18, "QINT8", "int8"),
    (19, "QINT16", "int16"),
    (20, "QINT32", "int32"),
    (21, "QUINT8", "uint8"),
    (22, "QUINT16", "uint16"),
    (23, "RESOURCE", "int64"),
    (24, "STRING_REF", "string_ref"),
    (25, "DUAL", "dual"),
    (26, "VARIANT", "variant"),
    (27, "BF16", "bfloat16"),
    (28, "INT4", "int4"),
    (29, "UINT1", "uint1"),
    (30, "INT2", "int2"),
    (31, "UINT2", "uint2"),
    (32, "COMPLEX32", "complex32"),
    (33, "HIFLOAT8", "hifloat8"),
    (34, "FLOAT8_E5M2", "float8_e5m2"),
    (35, "FLOAT8_E4M3FN", "float8_e4m3fn"),
    (36, "FLOAT8_E8M0", "float8_e8m0fnu"),
    (37, "FLOAT6_E3M2", "float6_e3m2"),
    (38, "FLOAT6_E2M3", "float6_e2m3"),
    (39, "FLOAT4_E2M1", "float4_e2m1"),
    (40, "FLOAT4_E1M2", "float4_e1m2"),
    (41, "HIFLOAT4", "hifloat4"),
    (42, "HIFLOAT4_SCALE", "hifloat4_scale"),
)

_MORE_GE_LAYOUTS: dict[int, str] = {
    5: "nc1c0hwpad",
    6: "nhwc1c0",
    7: "fsr_nchw",
    8: "fractal_deconv",
    9: "c1hwnc0",
    10: "fractal_deconv_transpose",
    11: "fractal_deconv_sp_stride_trans",
    13: "fractal_z_c04",
    14: "chwn",
    15: "fractal_deconv_sp_stride8_trans",
    17: "nc1khkwhwc0",
    18: "bn_weight",
    19: "filter_hwck",
    20: "hashtable_lookup_lookups",
    21: "hashtable_lookup_keys",
    22: "hashtable_lookup_value",
    23: "hashtable_lookup_output",
    24: "hashtable_lookup_hits",
    25: "c1hwncoc0",
    26: "md",
    28: "fractal_zz",
    31: "dhwcn",
    34: "cn",
    36: "dhwnc",
    37: "fractal_z_3d_transpose",
    38: "fractal_zn_lstm",
    39: "fractal_z_g",
    40: "reserved",
    41: "all",
    42: "null",
    43: "nd_rnn_bias",
    44: "fractal_zn_rnn",
    45: "yuv",
    46: "yuv_a",
    48: "fractal_z_wino",
    49: "c1hwc0",
    52: "fractal_nz_c0_2",
    53: "fractal_nz_c0_4",
    54: "fractal_nz_c0_8",
    255: "max",
}

_GE_LAYOUTS = LAYOUTS | _MORE_GE_LAYOUTS
_GE_LAYOUT_CODES = {name: code for code, name in _GE_LAYOUTS.items()}
_GE_BY_CODE = {code: by_name(ours) for code, _, ours in _GE_TYPES}
_GE_BY_NAME = {name: _GE_BY_CODE[code] for code, name, _ in _GE_TYPES}
# The first of several codes of one type is the plain one: INT8 before QINT8.
_GE_CODES = {ours: code for code, _, ours in reversed(_GE_TYPES)}


def by_ge_code(code: int) -> DType:
    """The type a GE record means by `code`; an unknown code gives a raw type named after it."""
    return _GE_BY_CODE.get(code) or DType(f"undefined({code})", "raw", 0)


def by_ge_name(name: str) -> DType:
    """The type that GE calls `name`, with or without its `DT_`; a raw type for a name nobody knows."""
    plain = name.strip().upper().removeprefix("DT_")
    return _GE_BY_NAME.get(plain) or DType(plain.lower() or "undefined", "raw", 0)


def ge_code(dtype: DType) -> int:
    """The code of a type in GE records. Raises `CannotDecode` for a type GE has not."""
    if dtype.name not in _GE_CODES:
        raise CannotDecode(f"dtype {dtype} has no code in GE records; cast the tensor before writing")
    return _GE_CODES[dtype.name]


def ge_layout_name(code: int) -> str:
    """The name of a layout in GE records; `undefined(<code>)` for one that is not in the table.

    Writers on the host leave the number of groups and C0 in the higher bits, which are none of the code.
    """
    plain = code & 0xFF if code > 0xFF else code
    return _GE_LAYOUTS.get(plain, f"undefined({plain})")


def ge_layout_code(name: str) -> int:
    """The code of a layout in GE records, in any case; -1 for a name that is not in the table."""
    return _GE_LAYOUT_CODES.get(name.strip().lower(), -1)


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OriginalOp:
    """The operator of the graph, as it was before fusion, that computes an output of a fused one.

    `output_index` is `None` where the compiler did not know it.
    """

    name: str
    output_index: int | None = 0
    layout: str = "nd"


@dataclass(frozen=True, slots=True)
class GeTensor:
    """One input or output in a record, as its header describes it.

    `shape` is that of the bytes, in the layout of the device; `original_shape` the logical one, `None` where
    the record has none. `nbytes` is what the record declares, padding included. `sub_format` counts the
    groups of a convolution's weights. `place` is where in the file its bytes begin, `None` for a tensor
    whose values are not there.
    """

    dtype: DType
    layout: str
    shape: Shape
    original_shape: Shape | None
    nbytes: int
    address: int = 0
    sub_format: int = 0
    address_offset: int = 0
    original_op: OriginalOp | None = None
    place: int | None = None

    @property
    def address_null(self) -> bool:
        """Whether the device gave no memory to the tensor, so that there was nothing to copy."""
        return self.address == 0


@dataclass(frozen=True)
class GeRecord:
    """One record: an operator that ran once. `dump_time` is in microseconds since 1970.

    `buffers` and `spaces` are the lengths of what lies after the outputs: no tensors. `start` and `end` are
    where in the file the declared values begin and end, `size` is what the file has: less when it is cut.
    """

    op_name: str
    dump_time: int
    inputs: tuple[GeTensor, ...]
    outputs: tuple[GeTensor, ...]
    buffers: tuple[int, ...] = ()
    spaces: tuple[int, ...] = ()
    start: int = 0
    end: int = 0
    size: int = 0

    @functools.cached_property
    def tensors(self) -> dict[str, GeTensor]:
        """All tensors by member (`inputs/0`, `outputs/1`), inputs first."""
        sides = (("inputs", self.inputs), ("outputs", self.outputs))
        return {f"{kind}/{index}": tensor for kind, side in sides for index, tensor in enumerate(side)}
