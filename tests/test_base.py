"""What a file may name: overloads of aten that compute, and nothing else, whatever the name is."""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import acc_pytest
from acc_pytest import cli
from acc_pytest.base import imports
from acc_pytest.base.named_operators import draws, is_random, operator_named, operator_of, overloads
from acc_pytest.base.older_torch import rms_norm, rounded_once, tree_leaves
from acc_pytest.base.reason import LANGUAGE, Reason, arguments, clauses, contains, joined, rendered, sentence
from acc_pytest.base.texts import NotJson, parsed
from acc_pytest.capture.manual import dump_data
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.errors import AccError, OperatorError, calling
from acc_pytest.reference.aten import function_results
from acc_pytest.reference.golden_model.traced import call_function

X = torch.linspace(-1, 1, 6).reshape(2, 3)
NAMES = sorted(
    {*dir(torch.ops.aten), *dir(torch.Tensor), *dir(object), *dir(type), *dir(builtins), "", "zzz"}
)


def test_of_every_name_only_overloads_that_compute_may_be_called() -> None:
    """Held against the text of the schema, where `!` stands for what is written to."""
    wrong = []
    for name in NAMES:
        try:
            found = overloads(name)
        except OperatorError:
            continue
        for one in found:
            schema, random = str(one._schema), torch.Tag.nondeterministic_seeded in one.tags
            gives = schema.rpartition("->")[2]
            computes = "Tensor" in gives or gives.strip() in ("bool", "Scalar")
            words = "Storage" in schema or "Generator" in schema or "!" in schema
            if not isinstance(one, torch._ops.OpOverload) or words or not computes:
                wrong.append(schema)
            if random and "dropout" not in schema:
                wrong.append(schema)
    assert wrong == []
    assert len([name for name in ("add", "matmul", "softmax", "where", "layer_norm") if overloads(name)]) == 5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("save", "is no operator of aten"),
        ("manual_seed", "is no operator of aten"),
        ("backward", "is no operator of aten"),
        ("__class__", "is no operator of aten"),
        ("__getattribute__", "is no operator of aten"),
        ("from_file", "does more than compute"),
        ("set_", "writes to its arguments"),
        ("add_", "writes to its arguments"),
        ("bernoulli", "may give other values each time"),
        ("uniform", "may give other values each time"),
        ("resize", "may give other values each time"),
        ("new_empty", "may give other values each time"),
        ("as_strided", "may give other values each time"),
        ("_embedding_bag", "is not a public aten operator"),
        ("special_laguerre_polynomial_l", "takes as many steps as it is told"),
    ],
)
def test_why_an_operator_may_not_be_called(name: str, said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        overloads(name)


@pytest.mark.parametrize(
    "target",
    [
        "prims.mul.default",
        "os.system",
        "torch.load",
        "aten",
        "aten.mm",
        "aten..",
        "aten.add.__class__",
        "aten.add.out",
    ],
)
def test_a_target_is_a_whole_name_of_an_overload(target: str) -> None:
    with pytest.raises(OperatorError, match=r"is not an aten operator|writes to"):
        operator_named(target)
    assert operator_named("aten.add.Tensor") is torch.ops.aten.add.Tensor


@pytest.mark.filterwarnings("ignore")
def test_no_name_of_a_trace_is_an_attribute() -> None:
    """Every name there is, with arguments as texts, tensors and numbers: it computes, or it is refused."""
    spaces = (
        "aten",
        "torch",
        "torch.Tensor",
        "torch.nn.functional",
        "torch.ops",
        "builtins",
        "os",
        "acc_pytest",
    )
    for name in NAMES:
        for space in spaces:
            for args in ([], ["add"], [X], ["zzz", X], [X, ["__class__", "__init__", "__globals__"]]):
                try:
                    with calling("it"):
                        made = call_function(f"{space}.{name}", list(args), {})
                except OperatorError:
                    continue
                assert _is_computed(made), (space, name, made)
    assert not hasattr(torch.ops.aten, "zzz")


def _is_computed(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_computed, value))
    return isinstance(value, (torch.Tensor, bool, int, float, complex, str)) or value in (
        None,
        NotImplemented,
    )


def test_a_call_of_msprobe_writes_no_file(tmp_path: Path) -> None:
    """TorchScript has an operator `aten::save`, which torch finds by its name as well."""
    for name in ("save", "from_file", "load"):
        with pytest.raises(OperatorError):
            function_results("Torch", name, [X, str(tmp_path / "x")], {}, [tuple(X.shape)])
        with pytest.raises(OperatorError):
            function_results("Torch", name, [str(tmp_path / "x"), True, 6], {}, [tuple(X.shape)])
    assert not list(tmp_path.iterdir())


def test_what_draws_is_told_by_what_it_is_given() -> None:
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default
    dropout = torch.ops.aten.native_dropout.default
    lstm = torch.ops.aten.lstm.input
    assert not draws(attention, [X, X, X], {})
    assert draws(attention, [X, X, X, 0.1], {})
    assert draws(dropout, [X, 0.5, True], {})
    assert not draws(dropout, [X, 0.5], {"train": False})
    assert not draws(lstm, [X, [X], [X], True, 1, 0.0, True], {})
    assert draws(lstm, [X, [X], [X], True, 1, 0.3, True], {})
    assert not draws(torch.ops.aten.add.Tensor, [X, X], {})
    random = [
        name for name in ("rand_like", "normal_", "bernoulli_", "empty", "lstm", "add") if is_random(name)
    ]
    assert random == ["rand_like", "normal_", "bernoulli_", "empty"]


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        ("add", ("add", False)),
        ("add_", ("add", True)),
        ("__iadd__", ("add", True)),
        ("__add__", ("add", False)),
        ("__invert__", ("bitwise_not", False)),
        ("__ior__", ("bitwise_or", True)),
        ("__index__", ("__index__", False)),
        ("T", ("numpy_T", False)),
    ],
)
def test_a_function_stands_for_an_operator(function: str, operator: tuple[str, bool]) -> None:
    assert operator_of(function) == operator


# JSON of a file: one error with one reason, whatever it is that makes it none.


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting property name enclosed in double quotes"),
        ("", "Expecting value"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        ("[" * 100_000, "its brackets are nested too deeply"),
        ('{"a": ' * 100_000, "its brackets are nested too deeply"),
        ("9" * 5000, f"a whole number of 5000 digits, {'9' * 20}..."),
        ("[-" + "1" * 401 + "]", f"a whole number of 401 digits, -{'1' * 19}..."),
    ],
)
def test_what_is_no_json_has_one_reason(content: str | bytes, reason: str) -> None:
    with pytest.raises(NotJson) as caught:
        parsed(content)
    assert caught.value.reason == reason


def test_the_line_is_named_where_python_knows_it() -> None:
    with pytest.raises(NotJson, match=r"line 3") as caught:
        parsed('{\n"a": 1,\n"b": ]}')
    assert caught.value.line == 3


@pytest.mark.parametrize("number", [0, -(2**63), 2**64 - 1, 1.5e300, 0.12345678901234567890123])
def test_numbers_of_64_bits_and_floats_of_any_length_are_read(number: float) -> None:
    assert parsed(f'{{"a": {number}, "b": "{"1" * 100}"}}') == {"a": number, "b": "1" * 100}


def test_bytes_may_begin_with_a_mark_and_constants_are_made_by_the_caller() -> None:
    assert parsed(b"\xef\xbb\xbf[NaN]", constant=lambda name: name) == ["NaN"]
    assert parsed('{"a": 1, "a": 2}', pairs=list) == [("a", 1), ("a", 2)]


# older_torch: what stands in for a missing function computes what torch's own does.


PACKAGE = Path(acc_pytest.__file__).parent
NEWER = {
    "torch.nn.functional.rms_norm": "2.4",
    "torch._utils._rebuild_tensor_v3": "2.2",
    "torch.compiler.set_stance": "2.6",
}
"""Names that the package asks for before it uses them, with the release that has them."""
PRIVATE = {
    "base/older_torch.py",
    "capture/torch_hooks/recorder.py",
    "capture/fx_backend/backend.py",
}
"""Modules that import private names of torch. All but the first take only such as every release has."""


@pytest.mark.skipif(not hasattr(F, "rms_norm"), reason="torch 2.4 is the first with rms_norm")
def test_the_norm_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 5, 7, generator=generator, dtype=torch.float64)
    weight = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    theirs = F.rms_norm(x, [5, 7], weight, 1e-3)
    monkeypatch.delattr(F, "rms_norm")
    # a sum of 35 squares, a root and two products, in float64
    torch.testing.assert_close(rms_norm(x, (5, 7), weight, 1e-3), theirs, rtol=40 * 2**-53, atol=0)


class Refusing:
    """An aten operator as it was before it knew float16."""

    def __init__(self, func: Any) -> None:
        self.func, self._schema, self.refused = func, func._schema, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(one.dtype == torch.float16 for one in (*args, *kwargs.values())):
            self.refused += 1
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")
        return self.func(*args, **kwargs)


def test_what_refuses_float16_is_computed_in_float32_and_rounded_once() -> None:
    a, b = torch.randn(2, 3).half(), torch.randn(3, 2).half()
    old = Refusing(torch.ops.aten.mm.default)
    found = rounded_once(old, (a, b), {})
    assert old.refused == 1
    assert torch.equal(found, (a.float() @ b.float()).half())
    assert torch.equal(rounded_once(old, (a.float(), b.float()), {}), a.float() @ b.float())


def test_what_is_written_in_place_is_written_there() -> None:
    a, b, out = torch.randn(2, 3).half(), torch.randn(3, 2).half(), torch.empty(2, 2).half()
    rounded_once(Refusing(torch.ops.aten.mm.out), (a, b), {"out": out})
    assert torch.equal(out, (a.float() @ b.float()).half())


def test_other_complaints_stay() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        rounded_once(torch.ops.aten.mm.default, (torch.ones(2, 3), torch.ones(2, 3)), {})


def test_leaves_are_those_of_torch() -> None:
    tree = {"a": [1, (2, None)], "b": {"c": [[], torch.ones(1)]}}
    assert tree_leaves(tree)[:3] == [1, 2, None]
    assert len(tree_leaves(tree)) == 4


def test_this_torch_has_every_name_that_the_package_uses() -> None:
    missing = {name for path in modules() for name in names_of_torch(path) if not exists(name)}
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    assert missing == {name for name, since in NEWER.items() if release < tuple(map(int, since.split(".")))}


def test_private_names_are_imported_where_old_releases_are_known() -> None:
    private = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        for line in re.findall(
            r"^ *(?:from|import) (torch\b.*)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if re.search(r"[. ]_", line)
    }
    assert private == PRIVATE


def modules() -> Iterator[Path]:
    yield from PACKAGE.rglob("*.py")


def names_of_torch(path: Path) -> Iterator[str]:
    """Full names of what a module imports from torch, and of the attributes of torch that it uses."""
    tree, names = ast.parse(path.read_text(encoding="utf-8")), {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and f"{node.module}.".startswith("torch."):
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            names |= {one.asname: one.name for one in node.names if one.asname and one.name[:6] == "torch."}
    yield from names.values()
    for node in ast.walk(tree):
        parts, inner = [], node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in names:
            yield ".".join([names[inner.id], *reversed(parts)])


def exists(name: str) -> bool:
    """Whether this torch has it. Classes of extensions have no names before the extension is loaded."""
    found: Any = torch
    parts = name.split(".")
    for place, part in enumerate(parts[1:], 2):
        if found is torch.classes:
            return True
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:place]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


# What is imported with less than usually comes with it.


VARIABLE = "OPENBLAS_NUM_THREADS"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """The variable while NumPy was imported, for each time that it was."""
    found: list[str | None] = []

    def import_module(name: str) -> None:
        assert name == "numpy"
        found.append(os.environ.get(VARIABLE))

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setattr(imports, "import_module", import_module)
    imports.go_without_blas.cache_clear()
    yield found
    imports.go_without_blas.cache_clear()


def test_numpy_has_no_threads_that_nobody_calls_and_others_learn_nothing_of_it(
    seen: list[str | None],
) -> None:
    imports.go_without_blas()
    imports.import_numpy()
    assert seen == ["1"]
    assert VARIABLE not in os.environ


def test_beside_tests_of_peoples_own_it_is_left_to_them(seen: list[str | None]) -> None:
    imports.import_numpy()
    assert seen == []


def test_a_number_that_somebody_has_set_holds(
    seen: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    imports.go_without_blas()
    imports.import_numpy()
    assert seen == []
    assert os.environ[VARIABLE] == "3"


def test_the_variable_goes_where_the_import_fails(
    monkeypatch: pytest.MonkeyPatch, seen: list[str | None]
) -> None:
    def import_module(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(imports, "import_module", import_module)
    imports.go_without_blas()
    with pytest.raises(ImportError):
        imports.import_numpy()
    assert VARIABLE not in os.environ


# installed: numpy 2 beside a torch that is too old for it is said in one sentence, at every door.


SENTENCE = (
    "torch 2.1.0 does not work with numpy 2.2.6 (torch 2.3 is the first that works with numpy 2); "
    "install an older numpy: pip install 'numpy<2'"
)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What is installed, as far as the check can tell: an old torch, which takes no array of a new numpy."""
    found = {"torch": "2.1.0", "numpy": "2.2.6"}
    monkeypatch.setattr(imports, "installed_version", lambda name: found[name])
    monkeypatch.setattr(torch.Tensor, "numpy", _no_numpy)
    imports.check_numpy.cache_clear()
    yield found
    imports.check_numpy.cache_clear()


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def _no_numpy(tensor: torch.Tensor) -> None:
    raise RuntimeError("Numpy is not available")


@pytest.mark.usefixtures("versions")
def test_the_command_says_so_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo"]) == 4
    assert unwrapped(capsys.readouterr().err) == f"acc: error: {SENTENCE}"
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("versions")
def test_a_run_of_pytest_says_so_before_it_looks_at_the_dumps(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--acc-golden=nowhere", "--acc-mine=nowhere", "--acc-output=out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert SENTENCE in unwrapped(result.stderr.str())
    assert not (pytester.path / "out").exists()


@pytest.mark.usefixtures("versions")
def test_a_run_without_our_options_is_not_asked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


@pytest.mark.usefixtures("versions")
def test_what_dumps_says_so_before_the_model_runs(tmp_path: Path) -> None:
    with pytest.raises(AccError, match="pip install 'numpy<2'"):
        register_hook(torch.nn.Linear(2, 2), DumpConfig(tmp_path / "dump"))
    with pytest.raises(AccError, match="pip install 'numpy<2'"):
        dump_data(0, 0, torch.ones(2), tmp_path / "mine.pth", tmp_path / "manual")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("torch_version", "numpy"), [("2.1.0", "1.26.4"), ("2.3.0+cpu", "2.0.0"), ("", "2.0.0")]
)
def test_pairs_that_fit_are_told_by_their_versions(
    versions: dict[str, str], torch_version: str, numpy: str
) -> None:
    versions.update(torch=torch_version, numpy=numpy)
    imports.check_numpy()


def test_an_old_torch_that_was_built_for_it_is_believed(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(imports, "installed_version", lambda name: versions[name])
    imports.check_numpy()


# Sentences: what a program asks of one, and what people read.


def test_a_text_of_an_earlier_file_is_asked_like_a_reason() -> None:
    """Rows of before there were templates have the words alone."""
    code = "{}, the worst of {} replicas"
    reason = Reason(code, "rank 1", 4)
    assert arguments(reason, code) == ("rank 1", 4)
    assert arguments(str.__str__(reason), code) == ("rank 1", "4")
    assert arguments(Reason("{}", reason), code) is None
    assert arguments("rank 1", code) is None
    wrapped = Reason("default: {}", reason)
    assert contains(wrapped, code)
    assert contains(str.__str__(wrapped), code)
    assert not contains(Reason("{} replicas", 4), code)


def test_clauses_are_those_of_the_template() -> None:
    first, second = Reason("{} is {}; so far", "a; b", 3), Reason("also {}", "c")
    sentence = joined("; ", [joined("; ", [first, "then"]), second])
    assert clauses(sentence) == [first, "then", second]
    assert clauses(str.__str__(second)) == ["also c"]
    assert clauses("one; two") == ["one", "two"]


def test_a_text_is_rendered_in_the_language_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = Reason("{} of {} choices differ", 3, 8)
    both = joined(", ", [reason, Reason("step {}", 2)])
    assert rendered(both) == "3 of 8 choices differ, step 2"
    monkeypatch.setenv(LANGUAGE, "zh")
    assert rendered(both) == "8 个选择中有 3 个不同，第 2 步"
    assert rendered("model.layers.0") == "model.layers.0"
    assert sentence("{:.0f} of {} elements are {}, {}", 2.0, 9, "different from golden", "none may be") == (
        "9 个元素中有 2 个与标杆不同，一个都不允许"
    )
    monkeypatch.setenv(LANGUAGE, "fr")
    assert rendered(both) == both
