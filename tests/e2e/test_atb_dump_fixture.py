"""`acc_atb_dump`: the launcher from a test; every way to go wrong fails that test with one clear text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .atb_program import program
from .conftest import QUICKER

PATIENCE = 60.0
"""Seconds until a test gives up waiting for a process."""


@pytest.fixture(autouse=True)
def here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory of its own, without anything of Ascend in the environment."""
    pytester.makeini("[pytest]")
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ATB_HOME_PATH", "ACC_ATB_BACKEND"):
        monkeypatch.delenv(name, raising=False)


def run(pytester: pytest.Pytester, code: str, call: str, *words: str) -> pytest.RunResult:
    """Run a test that makes this call; `COMMAND` in it runs a program of this code."""
    command = program(pytester.path, code)
    pytester.makepyfile(
        test_own=f"""
        COMMAND = {command!r}

        def test_dump(acc_atb_dump, tmp_path):
            {call}
        """
    )
    return pytester.runpytest_inprocess(*QUICKER, *words)


def test_it_returns_the_opened_dump_below_the_tests_own_directory(pytester: pytest.Pytester) -> None:
    call = """
            dump = acc_atb_dump(exec=COMMAND, backend="cpu", type=["tensor", "model"])
            assert dump.kind == "atb"
            assert [step.label for step in dump.steps] == [0]
            assert dump.root.is_relative_to(tmp_path)
            (node,) = [node for node in dump.steps[0].tree.walk() if node.path]
            slots = dump.tensors(dump.steps[0], dump.ranks[0], node)
            assert [str(slot) for slot in slots] == ["input[0]", "output[0]"]
            assert [ref.header().shape for ref in slots.values()] == [(4,), (4,)]
    """
    run(pytester, "dump()", call).assert_outcomes(passed=1)


@pytest.mark.usefixtures("python_with_torch")
def test_outputs_are_bit_identical_with_and_without_a_dump(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        model="""
        import sys
        import torch
        from acc_pytest.lab.atb import LanguageModel, ModelSpec, Runtime
        from acc_pytest.lab.atb.probe import probe_from_environment
        from acc_pytest.lab.demo.golden import seeded

        class Silent:
            layer = model = executed = profiled = lambda *_: None

        spec = ModelSpec(layers=1)
        with torch.no_grad():
            probes = [probe_from_environment(rank=0)] if sys.argv[2] == "probe" else [Silent()]
            model = LanguageModel(spec, dict(seeded(spec, 1).named_parameters()), Runtime(probes))
            logits = [model.step(ids) for ids in ([1, 2, 3], [4], [5])]
        torch.save(logits, sys.argv[1])
        """
    )
    pytester.makepyfile(
        test_own=f"""
        import subprocess
        import torch

        def test_same(acc_atb_dump, tmp_path):
            command = [{sys.executable!r}, "model.py"]
            subprocess.run([*command, tmp_path / "without.pt", "silent"], check=True)
            types = ["tensor", "model", "layer", "op", "kernel", "cpu_profiling"]
            dumping = [*command, tmp_path / "with.pt", "probe"]
            acc_atb_dump(dumping, backend="cpu", type=types, er="all", time=2)
            files = (tmp_path / name for name in ("without.pt", "with.pt"))
            without, dumped = (torch.load(path, weights_only=True) for path in files)
            assert len(without) == len(dumped) == 3
            assert all(torch.equal(one, other) for one, other in zip(without, dumped))
        """
    )
    pytester.runpytest_inprocess(*QUICKER).assert_outcomes(passed=1)


def test_a_text_is_split_as_by_exec_of_the_command(pytester: pytest.Pytester) -> None:
    call = """
            import shlex
            acc_atb_dump(shlex.join(COMMAND) + " 'two words'", backend="cpu")
    """
    code = "dump(); assert sys.argv[1:] == ['two words'], sys.argv"
    run(pytester, code, call).assert_outcomes(passed=1)


def test_options_have_the_names_of_the_flags_short_and_long(pytester: pytest.Pytester) -> None:
    code = """
    names = (
        "ATB_DUMP_TYPE ATB_SAVE_TENSOR ATB_SAVE_TENSOR_IDS ATB_SAVE_TENSOR_RANGE ATB_SAVE_CHILD "
        "ATB_SAVE_TENSOR_TIME ATB_SAVE_TENSOR_RUNNER ATB_SAVE_TILING ATB_SAVE_TENSOR_PART ATB_DEVICE_ID "
        "PYTHONHASHSEED ATB_SAVE_SYMLINK ATB_AIT_LOG_LEVEL ACC_ATB_BACKEND"
    )
    print("seen:", " ".join(os.environ[name] for name in names.split()))
    dump()
    """
    short = """
            acc_atb_dump(
                COMMAND, type=["tensor", "model"], sd=True, ids="2, 3_1", er=(0, 1), child=False, time=1,
                opname="Linear", tiling=True, stp=1, device=0, seed=7, symlink=True, l="error", backend="cpu",
            )
    """
    long = """
            acc_atb_dump(
                COMMAND, type=["tensor", "model"], only_save_desc=True, save_operation_ids="2,3_1",
                execute_range="0,1", save_operation_child="no", save_time="1", operation_name=["linear"],
                save_tiling=True, save_tensor_part=1, device_id="0", seed="7", enable_symlink=True,
                log_level="error", backend="cpu",
            )
    """
    for call in (short, long):
        result = run(pytester, code, call, "-s")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["*seen: tensor|model 2 2,3_1 0,1 0 1 linear 1 1 0 7 1 3 cpu"])


def test_two_calls_have_two_dumps(pytester: pytest.Pytester) -> None:
    call = """
            one, two = (acc_atb_dump(COMMAND, backend="cpu") for _ in range(2))
            assert one.root != two.root
            assert [len(dump.steps) for dump in (one, two)] == [1, 1]
    """
    run(pytester, "dump()", call).assert_outcomes(passed=1)


def test_the_backend_may_come_from_the_environment(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACC_ATB_BACKEND", "cpu")
    run(pytester, "dump()", "acc_atb_dump(COMMAND)").assert_outcomes(passed=1)


def test_without_a_probe_the_test_fails_and_names_both_ways_out(pytester: pytest.Pytester) -> None:
    result = run(pytester, "dump()", "acc_atb_dump(COMMAND)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["acc_atb_dump: no ATB probe (*install CANN and ATB*--backend cpu*"])


def test_a_failing_program_fails_the_test_with_its_last_lines(pytester: pytest.Pytester) -> None:
    code = "print('\\n'.join(f'line {n}' for n in range(40)))\nraise SystemExit(5)"
    result = run(pytester, code, "acc_atb_dump(COMMAND, backend='cpu')", "--show-capture=no")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["acc_atb_dump: * ended with exit code 5; its last output:", "line 20", "line 39"]
    )
    result.stdout.no_fnmatch_line("line 19")
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_programs_output_is_the_tests_output(pytester: pytest.Pytester) -> None:
    code = "print('to stdout', flush=True); print('to stderr', file=sys.stderr); raise SystemExit(5)"
    result = run(pytester, code, "acc_atb_dump(COMMAND, backend='cpu')")
    result.stdout.fnmatch_lines(["*Captured stdout call*", "to stdout", "to stderr"])


def test_a_program_that_dumps_nothing_fails_the_test_with_the_reasons(pytester: pytest.Pytester) -> None:
    result = run(pytester, "pass", "acc_atb_dump(COMMAND, backend='cpu', opname='Rope')")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "acc_atb_dump: nothing was dumped below *; likely because:",
            "no operation has a name that starts as -opname rope says",
        ]
    )


def test_a_dump_larger_than_its_budget_fails_the_test_and_names_the_options(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, "dump(1000)", "acc_atb_dump(COMMAND, backend='cpu', max_bytes=8000)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["acc_atb_dump: the dump has * bytes, more than max_bytes=8000; narrow it with ids*"]
    )
    # another number of digits: of a file of the same size and second Python would take the old bytecode
    run(pytester, "dump(1000)", "acc_atb_dump(COMMAND, backend='cpu', max_bytes=10_000)").assert_outcomes(
        passed=1
    )


def test_a_program_that_outgrows_its_budget_is_stopped_at_once(pytester: pytest.Pytester) -> None:
    code = "dump(1000)\ntime.sleep(600)"
    started = time.monotonic()
    result = run(pytester, code, "acc_atb_dump(COMMAND, backend='cpu', max_bytes=100)")
    result.stdout.fnmatch_lines(["acc_atb_dump: the dump has * bytes, more than max_bytes=100; narrow it*"])
    assert time.monotonic() - started < 300


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            "acc_atb_dump(COMMAND, id=2)",
            "id: acc dump has no such option; choose from backend child config *",
        ),
        (
            "acc_atb_dump(COMMAND, output='x')",
            "output: the dump always goes into the directory of the test; leave output out",
        ),
        (
            "acc_atb_dump(COMMAND, er='0,0', execute_range='0,1')",
            "execute_range is given twice, as er and execute_range; give it once",
        ),
        ("acc_atb_dump(COMMAND, er=3)", "-er: '3' has no pairs *"),
        ("acc_atb_dump([])", "exec must be a command, got an empty one"),
        ("acc_atb_dump('a | b')", "--exec: no shell reads this command*"),
    ],
)
def test_wrong_options_fail_the_test_in_one_line(pytester: pytest.Pytester, call: str, said: str) -> None:
    result = run(pytester, "dump()", call)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"acc_atb_dump: {said}"])
    result.stdout.no_fnmatch_line("*Error*")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, pytest.ExitCode.INTERRUPTED), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_a_signal_ends_the_program_and_the_session(
    pytester: pytest.Pytester, number: signal.Signals, code: int
) -> None:
    command = program(pytester.path, "pathlib.Path('ready').write_text(PID); time.sleep(600)")
    pytester.makepyfile(
        f"""
        def test_dump(acc_atb_dump):
            acc_atb_dump({command!r}, backend="cpu")

        def test_next():
            raise AssertionError("must not run")
        """
    )
    words = [sys.executable, "-m", "pytest", *QUICKER]
    session = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    ready, ends = Path("ready"), time.monotonic() + PATIENCE
    while not (ready.exists() and ready.read_text()):
        assert session.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.01)
    session.send_signal(number)
    out, _ = session.communicate(timeout=PATIENCE)
    assert session.returncode == code
    assert "test_next" not in out
    assert ("KeyboardInterrupt" in out) == (number == signal.SIGINT)
    with pytest.raises(ProcessLookupError):
        os.kill(int(ready.read_text()), 0)


@pytest.mark.usefixtures("python_with_torch")
def test_it_works_under_xdist(pytester: pytest.Pytester) -> None:
    command = program(pytester.path, "dump()")
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test_dump(acc_atb_dump, number):
            assert len(acc_atb_dump({command!r}, backend="cpu").steps) == 1
        """
    )
    pytester.runpytest_subprocess("-n", "1", *QUICKER, timeout=120).assert_outcomes(passed=2)
