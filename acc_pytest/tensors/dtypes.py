"""The only table of dtype and layout codes: ATB numbers, CSV names, torch, numpy and safetensors names.

ATB numbers are those of `aclDataType` and `aclFormat`, which the probe writes into `.bin` headers; the
attributes of GE graphs use them too. GE records have numbers of their own (`ge_codes`).
torch and numpy are reached by name and only inside functions, so that references and plans can be
handled without importing either.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..base.vocabulary import PRECISIONS
from ..errors import CannotDecode

if TYPE_CHECKING:
    import torch

Kind = Literal["float", "int", "uint", "bool", "complex", "raw"]


CONSTANTS = 8
"""Values up to which a tensor is a mask or a constant, and fits every type."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """Rounding of a float type: its unit roundoff (half the spacing at 1) and its smallest normal number."""

    name: str
    roundoff: float
    smallest_normal: float

    @property
    def spacing(self) -> float:
        """Distance between neighbours below the smallest normal number."""
        return self.smallest_normal * 2 * self.roundoff

    @property
    def largest(self) -> float:
        """The largest finite number, as IEEE 754 has it for this precision and exponent."""
        return (2 - 2 * self.roundoff) * (2 / self.smallest_normal)


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    `name` is torch's name where torch has the type. `bits` is the true width of an element (4 for
    int4), 0 where elements have no fixed width. `kind` is `raw` where the bytes cannot be turned
    into numbers here. `format` says how its numbers round (those of its parts for complex types), `None` for
    exact and raw types.
    `needs` is the first torch release that has the type, where that is newer than our minimum.
    """

    name: str
    kind: Kind
    bits: int
    atb_code: int | None = None
    atb_name: str = ""
    torch_name: str | None = None
    format: FloatFormat | None = None
    needs: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def roundoff(self) -> float | None:
        """The unit roundoff u = 2^-p with p significand bits, the hidden bit included; `None` if exact."""
        return None if self.format is None else self.format.roundoff

    @property
    def is_exact(self) -> bool:
        """Whether elements are integers or truth values, compared for equality."""
        return self.kind in ("int", "uint", "bool")

    @property
    def is_coded(self) -> bool:
        """Whether it is no type of elements but a computation with codes of 8 bits (`PRECISIONS`)."""
        return self.format is _QUANTISED

    @property
    def itemsize(self) -> int | None:
        """Bytes per element, or `None` where an element is no whole number of bytes."""
        return self.bits // 8 if self.bits and self.bits % 8 == 0 else None

    def torch_dtype(self, of: object = "") -> torch.dtype:
        """This type in torch. Raises `CannotDecode`, naming the tensor `of`, where torch has no such type."""
        import torch

        start = f"{of}: dtype" if of else "dtype"
        if self.torch_name is None:
            raise CannotDecode(
                f"{start} {self.name} has no decoder: its bytes cannot be turned into numbers here; "
                "cast the tensor to a dtype of torch before dumping"
            )
        dtype = getattr(torch, self.torch_name, None)
        if not isinstance(dtype, torch.dtype):
            raise CannotDecode(
                f"{start} {self.name} needs torch {self.needs or '2.1'} or newer; this is {torch.__version__}"
            )
        return dtype

    def __str__(self) -> str:
        return self.name


def _float(
    name: str, bits: int, p: int, smallest: int, code: int | None, atb: str, needs: str, *aliases: str
) -> DType:
    """A float type of `p` significand bits whose smallest normal number is 2^`smallest`.

    Sources: IEEE 754-2019 table 3.5; OCP OFP8 1.0; OCP MX 1.0 for e8m0.
    """
    rounding = FloatFormat(name, 2.0**-p, 2.0**smallest)
    return DType(name, "float", bits, code, atb, name, rounding, needs, aliases)


def _int(name: str, bits: int, code: int, needs: str, *aliases: str) -> DType:
    kind: Kind = "uint" if name.startswith("u") else "int"
    return DType(name, kind, bits, code, name, name, None, needs, aliases)


def _complex(name: str, bits: int, p: int, smallest: int, code: int, *aliases: str) -> DType:
    rounding = FloatFormat(name, 2.0**-p, 2.0**smallest)
    return DType(name, "complex", bits, code, name, name, rounding, "", aliases)


def _raw(name: str, bits: int, code: int | None, *aliases: str) -> DType:
    return DType(name, "raw", bits, code, name, None, None, "", aliases)


DTYPES: tuple[DType, ...] = (
    _float("float32", 32, 24, -126, 0, "float", "", "f32", "fp32"),
    _float("float16", 16, 11, -14, 1, "float16", "", "f16", "fp16", "half"),
    _float("bfloat16", 16, 8, -126, 27, "bf16", ""),
    _float("float64", 64, 53, -1022, 11, "double", "", "f64", "fp64"),
    _float("float8_e5m2", 8, 3, -14, 35, "float8_e5m2", "", "f8_e5m2"),
    _float("float8_e4m3fn", 8, 4, -6, 36, "float8_e4m3fn", "", "f8_e4m3"),
    _float("float8_e8m0fnu", 8, 1, -127, 37, "float8_e8m0", "2.7", "f8_e8m0"),
    _float("float8_e5m2fnuz", 8, 3, -15, None, "", "2.2", "f8_e5m2fnuz"),
    _float("float8_e4m3fnuz", 8, 4, -7, None, "", "2.2", "f8_e4m3fnuz"),
    _int("int8", 8, 2, "", "i8"),
    _int("int16", 16, 6, "", "i16", "short"),
    _int("int32", 32, 3, "", "i32", "int"),
    _int("int64", 64, 9, "", "i64", "long"),
    _int("uint8", 8, 4, "", "u8"),
    _int("uint16", 16, 7, "2.3", "u16"),
    _int("uint32", 32, 8, "2.3", "u32"),
    _int("uint64", 64, 10, "2.3", "u64"),
    DType("bool", "bool", 8, 12, "bool", "bool"),
    _complex("complex32", 32, 11, -14, 33, "chalf"),
    _complex("complex64", 64, 24, -126, 16, "c64", "cfloat"),
    _complex("complex128", 128, 53, -1022, 17, "c128", "cdouble"),
    _raw("undefined", 0, -1),
    _raw("string", 0, 13),
    _raw("int4", 4, 29),
    _raw("uint1", 1, 30),
    _raw("hifloat8", 8, 34),
    _raw("float6_e3m2", 6, 38, "f6_e3m2"),
    _raw("float6_e2m3", 6, 39, "f6_e2m3"),
    _raw("float4_e2m1", 4, 40, "f4", "float4_e2m1fn", "float4_e2m1fn_x2"),
    _raw("float4_e1m2", 4, 41),
    _raw("int2", 2, None),
    _raw("uint2", 2, None),
    _raw("hifloat4", 4, None),
    _raw("dual", 40, None),
)

LAYOUTS: dict[int, str] = {
    -1: "undefined",
    0: "nchw",
    1: "nhwc",
    2: "nd",
    3: "nc1hwc0",
    4: "fractal_z",
    12: "nc1hwc0_c04",
    16: "hwcn",
    27: "ndhwc",
    29: "fractal_nz",
    30: "ncdhw",
    32: "ndc1hwc0",
    33: "fractal_z_3d",
    35: "nc",
    47: "ncl",
    50: "fractal_nz_c0_16",
    51: "fractal_nz_c0_32",
}

_BY_CODE = {dtype.atb_code: dtype for dtype in DTYPES if dtype.atb_code is not None}
_QUANTISED = FloatFormat("8 bit blocks", 2.0**-7, 2.0**-126)
"""The rounding of int8, and of blocks of ggml, whose operators round activations to 8 bits: a step is
amax/127, the rms of its rounding amax/440, which is 0.8 % or 2^-7 of a row whose amax is 3.5 times its rms.
Weights of fewer bits are compared with the same weights de-quantised."""

_BY_NAME = {name: dtype for dtype in DTYPES for name in (dtype.name, dtype.atb_name, *dtype.aliases) if name}
_BY_NAME |= {
    name: DType(name, "float", 0, format=_QUANTISED)
    for name in PRECISIONS.values()
    if name.startswith("quantised.")
}
_LAYOUT_CODES = {name: code for code, name in LAYOUTS.items()}
# The library of 2024 printed these into its CSV files for nhwc and nc1hwc0.
_LAYOUT_CODES |= {"nchc": 1, "nc1hc0": 3}


_LONGEST = 80
"""Characters of the name of a type that nobody knows, which stands in errors and reports."""


def by_atb_code(code: int) -> DType:
    """The type an ATB header means by `code`; an unknown code gives a raw type named after it."""
    return _BY_CODE.get(code) or DType(f"undefined({code})", "raw", 0, code)


def stated_dtype(stated: str) -> torch.dtype | None:
    """The dtype in which users say that mine was computed (`PRECISIONS`); `None` where they do not, or say
    that it was in codes."""
    return by_name(stated).torch_dtype() if stated and not by_name(stated).is_coded else None


@functools.lru_cache(maxsize=1024)  # asked ten times for each pair
def by_name(name: str) -> DType:
    """The type called `name` in torch (`torch.` allowed), ATB CSV files or safetensors, in any case.

    A name nobody knows gives a raw type of that name, whose decoding then fails with a reason.
    """
    plain = name.strip().lower().removeprefix("torch.")
    return _BY_NAME.get(plain) or DType(plain[:_LONGEST] or "undefined", "raw", 0)


@functools.cache
def by_torch(dtype: torch.dtype) -> DType:
    """The type of a torch tensor."""
    return by_name(str(dtype))


def by_numpy(dtype: Any) -> DType:
    """The type of a `numpy.dtype`, whatever its byte order.

    Two bytes of `void` are bfloat16: that is all that a `.npy` file keeps of `ml_dtypes.bfloat16`.
    """
    if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None and dtype.subdtype is None:
        return by_name("bfloat16")
    element_type = _BY_NAME.get(dtype.name)
    if element_type is not None and dtype.kind not in "SUO":
        return element_type
    return DType(f"numpy {dtype.str}", "raw", 8 * dtype.itemsize)


def narrower_types(values: torch.Tensor) -> list[str]:
    """The types of 16 bits that all values in float32 fit; none of a mask or a constant."""
    narrow = {"bfloat16": values.bfloat16(), "float16": values.half()}
    names = [name for name, rounded in narrow.items() if bool((rounded.float() == values).all())]
    return names if names and len(values.unique()) > CONSTANTS else []


def layout_name(code: int) -> str:
    """The name of an ATB format code; `undefined(<code>)` for one that is not in the table."""
    return LAYOUTS.get(code, f"undefined({code})")


def layout_code(name: str) -> int:
    """The ATB format code of a layout name, -1 for a name that is not in the table."""
    return _LAYOUT_CODES.get(name.strip().lower(), -1)
