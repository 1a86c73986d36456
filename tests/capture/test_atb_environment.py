"""The environment of the child, against the table of the old tool's protocol, for both eras."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acc_pytest.capture.atb.probe import PROTOCOL, environment, msprobe_config
from acc_pytest.errors import SettingsError

from .command_line import options

OUTPUT = Path("/data/out")
PROBE = Path("/cann/tools/ait_backend/dump/libatb_probe_abi1.so")
TIMESTAMP = "20261121_180000"
PID = 4711
CONFIG = Path("/data/config.json")

DEFAULT = {
    "ATB_DUMP_TYPE": "tensor|model",
    "ATB_SAVE_CPU_PROFILING": "0",
    "ATB_SAVE_TENSOR": "1",
    "ATB_SAVE_TENSOR_RANGE": "0,0",
    "ATB_SAVE_CHILD": "1",
    "ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER": "1",
    "ATB_SAVE_TENSOR_TIME": "1",
    "ATB_SAVE_TILING": "0",
    "ATB_SAVE_TENSOR_PART": "2",
    "ATB_OUTPUT_DIR": "/data/out/",
    "ATB_SAVE_SYMLINK": "0",
    "ATB_AIT_LOG_LEVEL": "1",
    "ATB_TIMESTAMP": TIMESTAMP,
    "ATB_CUR_PID": "4711",
    "LD_PRELOAD": str(PROBE),
}
"""What the last msit sets for a command line without options."""
DETERMINISTIC = {
    "LCCL_DETERMINISTIC": "1",
    "HCCL_DETERMINISTIC": "true",
    "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
    "ATB_LLM_LCOC_ENABLE": "0",
}
TABLE = [
    ("", {}),
    ("--type model layer op kernel", {"ATB_DUMP_TYPE": "model|layer|op|kernel"}),
    (
        "--type tensor cpu_profiling",
        {"ATB_DUMP_TYPE": "tensor|cpu_profiling", "ATB_SAVE_CPU_PROFILING": "1"},
    ),
    (
        "--type onnx layer",
        {
            "ATB_DUMP_TYPE": "onnx|layer|model|op",
            "ATB_DUMP_SUB_PROC_INFO_SAVE_PATH": "/data/out/4711",
        },
    ),
    (
        "--type tensor stats model",
        {"ATB_DUMP_TYPE": "tensor|stats|model", "ATB_SAVE_TENSOR_STATISTICS": "1"},
    ),
    ("-sd", {"ATB_SAVE_TENSOR": "2"}),
    ("-ids 2, 3_1", {"ATB_SAVE_TENSOR_IDS": "2,3_1"}),
    ("-er 0,1, 5,5", {"ATB_SAVE_TENSOR_RANGE": "0,1,5,5"}),
    ("-child False -ids 2", {"ATB_SAVE_CHILD": "0", "ATB_SAVE_TENSOR_IDS": "2"}),
    ("-child True", {}),
    ("-time 0", {"ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER": "0", "ATB_SAVE_TENSOR_TIME": "0"}),
    ("-time 1", {"ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER": "0", "ATB_SAVE_TENSOR_TIME": "1"}),
    ("-time 2", {"ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER": "0", "ATB_SAVE_TENSOR_TIME": "2"}),
    ("-time 3", {}),
    ("-opname LinearOperation,Rope", {"ATB_SAVE_TENSOR_RUNNER": "linearoperation,rope"}),
    ("-tiling", {"ATB_SAVE_TILING": "1"}),
    ("-stp 0", {"ATB_SAVE_TENSOR_PART": "0"}),
    ("-stp 1", {"ATB_SAVE_TENSOR_PART": "1"}),
    ("-device 3", {"ATB_DEVICE_ID": "3"}),
    ("-symlink", {"ATB_SAVE_SYMLINK": "1"}),
    ("-seed", DETERMINISTIC | {"PYTHONHASHSEED": "2024"}),
    ("-seed 5", DETERMINISTIC | {"PYTHONHASHSEED": "5"}),
    ("-l debug", {"ATB_AIT_LOG_LEVEL": "0"}),
    ("-l warning", {"ATB_AIT_LOG_LEVEL": "2"}),
    ("-l error", {"ATB_AIT_LOG_LEVEL": "3"}),
    ("-l fatal", {"ATB_AIT_LOG_LEVEL": "4"}),
    ("-l critical", {"ATB_AIT_LOG_LEVEL": "5"}),
]
LEAKS = dict.fromkeys(PROTOCOL, "left over")
OWN = {
    "PATH": "/bin",
    "ATB_HOME_PATH": "/atb/cxx_abi_1",
    "ATB_LOG_LEVEL": "INFO",
    "ATB_SPEED_HOME_PATH": "/mindie",
    "ASCEND_TOOLKIT_HOME": "/cann",
    "HCCL_DETERMINISTIC": "false",
    "PYTHONHASHSEED": "random",
}
"""Variables that are not the protocol's; those of the seed change with -seed only."""


def child_environment(
    words: str,
    *,
    era: str = "msit",
    probe: Path | None = PROBE,
    config: Path | None = None,
    inherited: dict[str, str] | None = None,
) -> dict[str, str]:
    """What the child of `acc dump words` sees."""
    return environment(
        options(*words.split()),
        inherited or {},
        era=era,
        output=OUTPUT,
        timestamp=TIMESTAMP,
        pid=PID,
        probe=probe,
        config=config,
    )


@pytest.mark.parametrize(("words", "changed"), TABLE)
def test_options_become_variables_as_in_the_old_tool(words: str, changed: dict[str, str]) -> None:
    assert child_environment(words) == DEFAULT | changed


@pytest.mark.parametrize(("words", "changed"), TABLE)
def test_nothing_inherited_leaks_into_the_protocol(words: str, changed: dict[str, str]) -> None:
    assert child_environment(words, inherited=LEAKS | OWN) == OWN | DEFAULT | changed


def test_the_config_file_is_named() -> None:
    assert child_environment("", config=CONFIG) == DEFAULT | {"ATB_DUMP_CONFIG": str(CONFIG)}


def test_a_library_that_was_preloaded_stays_behind_the_probe() -> None:
    told = child_environment("", inherited={"LD_PRELOAD": "/a.so:/b.so"})
    assert told["LD_PRELOAD"] == f"{PROBE}:/a.so:/b.so"


def test_the_cpu_backend_gets_the_same_variables_and_no_probe() -> None:
    expected = {name: value for name, value in DEFAULT.items() if name != "LD_PRELOAD"}
    assert child_environment("", probe=None) == expected | {"ACC_ATB_BACKEND": "cpu"}
    told = child_environment("", probe=None, inherited={"LD_PRELOAD": "/a.so"})
    assert told["LD_PRELOAD"] == "/a.so"


@pytest.mark.parametrize("words", ["", "-ids 2 -er 0,1 -seed 7"])
def test_msprobe_gets_two_variables_the_log_level_and_the_seed(words: str) -> None:
    told = child_environment(words, era="msprobe", config=CONFIG, inherited=LEAKS | OWN)
    seeded = DETERMINISTIC | {"PYTHONHASHSEED": "7"} if words else {}
    assert told == OWN | seeded | {
        "ATB_OUTPUT_DIR": "/data/out/",
        "ATB_DUMP_CONFIG": str(CONFIG),
        "ATB_AIT_LOG_LEVEL": "1",
        "LD_PRELOAD": str(PROBE),
    }


MSPROBE_DEFAULT = {
    "task": "tensor",
    "dump_enable": True,
    "exec_range": "0,0",
    "ids": "",
    "op_name": "",
    "save_child": True,
    "device": "",
    "filter_level": 1,
}


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("", {}),
        ("--type tensor stats", {"task": "statistics"}),
        ("--type tensor model layer onnx", {}),
        ("-er 0,1, 5,5", {"exec_range": "0,1,5,5"}),
        ("-er all", {"exec_range": "all"}),
        ("-ids 2, 3_1 -child False", {"ids": "2,3_1", "save_child": False}),
        ("-opname Linear,rope", {"op_name": "linear,rope"}),
        ("-device 0,1", {"device": "0,1"}),
        ("-time 3 -stp 2", {}),
    ],
)
def test_options_become_the_typed_config_of_msprobe(words: str, changed: dict[str, object]) -> None:
    assert json.loads(msprobe_config(options(*words.split()))) == MSPROBE_DEFAULT | changed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-sd", "-sd: msprobe's probe cannot do this; use --era msit"),
        ("-tiling", "-tiling: msprobe's probe cannot do this"),
        ("-symlink", "-symlink: msprobe's probe cannot do this"),
        ("-time 1", "-time: msprobe's probe saves inputs before and outputs after"),
        ("-stp 0", "-stp: msprobe's probe saves inputs and outputs"),
        ("--type model", "--type: msprobe's probe always saves tensors"),
        ("--type tensor op", "--type op: msprobe's probe does not write this"),
        ("--type tensor kernel", "--type kernel: msprobe's probe does not write this"),
        ("--type tensor onnx cpu_profiling", "--type cpu_profiling: msprobe's probe does not write this"),
    ],
)
def test_what_msprobe_cannot_do_is_refused_not_ignored(words: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        msprobe_config(options(*words.split()))
