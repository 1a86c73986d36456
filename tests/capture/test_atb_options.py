"""The options of `acc dump`: every documented form is taken, nonsense gets one sentence."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from acc_pytest.capture.atb import LaunchOptions, read_options
from acc_pytest.capture.atb.options import BY_KEYWORD, OPTIONS, TYPES, remarks, split_command
from acc_pytest.capture.atb.probe import PROTOCOL, environment, msprobe_config
from acc_pytest.errors import SettingsError

from .command_line import options

PROBE = Path(__file__).parents[2] / ".." / "shared" / "conformance" / "probe"


def test_the_defaults_are_the_old_tools() -> None:
    assert options() == LaunchOptions(
        command=("true",),
        types=("tensor", "model"),
        only_description=False,
        ids="",
        ranges="0,0",
        child=True,
        time=3,
        names="",
        tiling=False,
        part=2,
        output=Path(),
        devices="",
        seed=None,
        symlink=False,
        config=None,
        log_level="info",
    )


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (
            "--type model layer op kernel tensor cpu_profiling",
            "types",
            "model layer op kernel tensor cpu_profiling",
        ),
        ("--type tensor tensor", "types", "tensor"),
        ("--type onnx layer", "types", "onnx layer model op"),
        ("--type op onnx", "types", "op onnx model"),
        ("--type stats tensor", "types", "stats tensor"),
        ("-sd", "only_description", True),
        ("--only-save-desc", "only_description", True),
        ("-ids 2,3_1", "ids", "2,3_1"),
        ("-ids 2, 3_1", "ids", "2,3_1"),
        ("-ids 2 , 3_1 8", "ids", "2,3_1,8"),
        ("-ids=8_0_1,9", "ids", "8_0_1,9"),
        ("--save-operation-ids 0", "ids", "0"),
        ("-er 0,0", "ranges", "0,0"),
        ("-er 0,1, 5,7", "ranges", "0,1,5,7"),
        ("-er all", "ranges", "all"),
        ("--execute-range 3,3", "ranges", "3,3"),
        ("-child False", "child", False),
        ("-child n", "child", False),
        ("-child YES", "child", True),
        ("--save-operation-child 0", "child", False),
        ("-time 0", "time", 0),
        ("--save-time 2", "time", 2),
        ("-opname LinearOperation,Rope", "names", "linearoperation,rope"),
        ("-opname Linear, Rope", "names", "linear,rope"),
        ("-opname Linear，Rope", "names", "linear,rope"),
        ("--operation-name self", "names", "self"),
        ("-tiling", "tiling", True),
        ("--save-tiling", "tiling", True),
        ("-stp 0", "part", 0),
        ("--save-tensor-part 1", "part", 1),
        ("-o some/where", "output", Path("some/where")),
        ("--output x", "output", Path("x")),
        ("-device 7", "devices", "7"),
        ("--device-id 12", "devices", "12"),
        ("-device 0,1", "devices", "0,1"),
        ("-seed", "seed", 2024),
        ("-seed 7", "seed", 7),
        ("-symlink", "symlink", True),
        ("--enable-symlink", "symlink", True),
        ("-l debug", "log_level", "debug"),
        ("--log-level critical", "log_level", "critical"),
        ("--probe-lib p.so", "probe_lib", Path("p.so")),
        ("--backend cpu", "backend", "cpu"),
        ("--era msprobe", "era", "msprobe"),
    ],
)
def test_a_documented_form_is_taken(words: str, field: str, value: object) -> None:
    expected = tuple(str(value).split()) if field == "types" else value
    assert getattr(options(*words.split()), field) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--type tensors",
            "--type: must be one of model layer op kernel.*, got 'tensors'",
        ),
        ("--type stats", "--type stats: statistics are those of tensors; add tensor"),
        ("-ids a", "-ids: 'a': an id is numbers joined by _, and commas separate ids, as in 2,3_1"),
        ("-ids 2__1", "-ids: '2__1'"),
        ("-ids 3_", "-ids: '3_'"),
        ("-er 3", "-er: '3' has no pairs of first and last execution .* for execution 3 alone write 3,3"),
        ("-er 0,1,4", "for execution 4 alone write 4,4"),
        ("-er 0-3", "-er: '0-3': give first and last execution"),
        ("-er 5,3", "-er: the first execution must not be after the last, got 5,3; write 3,5"),
        ("-er ٣,٣", "give first and last execution"),
        ("-child maybe", "-child: must be True or False, got 'maybe'"),
        ("-time 4", "-time: must be a whole number from 0 to 3, got '4'"),
        ("-stp 3", "-stp: must be a whole number from 0 to 2, got '3'"),
        ("-device -1", "-device: a device must be a whole number >= 0, got '-1'"),
        ("-device npu:0", "-device: a device must be a whole number >= 0, got 'npu:0'"),
        ("-seed x", "-seed: must be a whole number, got 'x'"),
        (
            "-seed 4294967296",
            r"-seed: must be from 0 to 4294967295 \(the range of PYTHONHASHSEED\), got 4294967296",
        ),
        ("-seed -1", r"-seed: must be from 0 to 4294967295 \(the range of PYTHONHASHSEED\), got -1"),
        ("-l verbose", "-l: must be one of debug info warning error fatal critical, got 'verbose'"),
        ("--backend gpu", "--backend: must be one of auto npu cpu, got 'gpu'"),
        ("--era 2024", "--era: must be one of msit msprobe, got '2024'"),
        ("--backend cpu --probe-lib p.so", "--probe-lib: the backend cpu preloads no probe"),
        ("-config nowhere.json", "-config: nowhere.json: No such file"),
    ],
)
def test_nonsense_is_one_sentence_that_names_the_option(words: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as raised:
        options(*words.split())
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(not PROBE.is_dir(), reason="conformance data (../shared/conformance) is not here")
def test_every_command_line_that_made_the_real_dumps_is_taken(tmp_path: Path) -> None:
    lines = re.findall(r"`msit llm dump (.*)`$", (PROBE / "README.md").read_text(), re.MULTILINE)
    assert len(lines) == 15
    real = PROBE / "D_misc" / "e3_dump_config.json"
    config = Path(shutil.copy(real, tmp_path))
    config.chmod(0o600)
    for line in lines:
        words = shlex.split(line.replace(f"/data/run/D_misc/{real.name}", str(config)))
        command = words.index("--exec")
        given = options(*words[:command], *words[command + 2 :], command=words[command + 1])
        assert given.command[0] == "...driver"
        assert given.output.is_relative_to("/data/run")
        assert len(given.explicit) == len([word for word in words if word.startswith("-")]) - 1


def test_every_option_has_a_keyword_and_no_two_share_one() -> None:
    keywords = [keyword for option in OPTIONS for keyword in option.keywords]
    assert len(keywords) == len(set(keywords)) == len(BY_KEYWORD)
    assert {"type", "ids", "er", "child", "time", "opname", "tiling", "stp", "device", "sd"} <= set(keywords)
    assert all(keyword.isidentifier() for keyword in keywords)


def test_every_flag_and_kind_of_file_is_in_the_document() -> None:
    document = (Path(__file__).parents[2] / "docs" / "dump-atb.md").read_text()
    flags = [flag for option in OPTIONS for flag in option.flags]
    assert [flag for flag in flags if f"`{flag}`" not in document] == []
    assert [name for name in TYPES if f"`{name}`" not in document] == []


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("types", ["model", "tensor"], ("model", "tensor")),
        ("types", "tensor", ("tensor",)),
        ("ids", [2, "3_1"], "2,3_1"),
        ("ids", 2, "2"),
        ("ranges", (0, 3), "0,3"),
        ("child", False, False),
        ("time", 1, 1),
        ("devices", 0, "0"),
        ("names", ["Linear", "rope"], "linear,rope"),
        ("only_description", True, True),
        ("seed", None, None),
    ],
)
def test_values_from_python_mean_the_same(field: str, value: object, read: object) -> None:
    assert getattr(read_options(("true",), {field: value}), field) == read


@pytest.mark.parametrize(("field", "value"), [("types", []), ("only_description", "yes"), ("output", "")])
def test_wrong_values_from_python(field: str, value: object) -> None:
    with pytest.raises(SettingsError):
        read_options(("true",), {field: value})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-child False", "-child False: without -ids the probe writes every operation"),
        ("--type model -er 0,1 -sd", "-sd -er: chooses among tensors, and --type has no tensor"),
        ("--type tensor stats -sd", "-sd: statistics are written all the same"),
        ("-time 0", "-time 0: outputs saved before"),
    ],
)
def test_what_will_surprise_is_said(words: str, said: str) -> None:
    (remark,) = remarks(options(*words.split()), "msit")
    assert remark.startswith(said)


@pytest.mark.parametrize(
    "words", ["", "-child False -ids 2", "--type tensor stats", "-time 0 -stp 0", "-er 1,1"]
)
def test_nothing_is_said_where_nothing_surprises(words: str) -> None:
    assert remarks(options(*words.split()), "msit") == []


def test_child_without_ids_has_a_meaning_for_msprobe() -> None:
    assert remarks(options("-child", "False"), "msprobe") == []


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text('{"dump_enable": "true", "er": "0,0", "ids": "", "child": "true", "device": ""}')
    path.chmod(0o640)
    return path


def test_a_config_file_replaces_other_options_and_says_so(config: Path) -> None:
    given = options("-config", str(config), "-ids", "2", "-er", "0,1", "-child", "False")
    assert given.config == config
    (remark,) = remarks(given, "msit")
    assert remark == "-ids -er -child: the probe takes these from the file of -config instead"


def test_the_config_file_of_msprobe_replaces_more(config: Path) -> None:
    given = options("-config", str(config), "-opname", "rope", "--type", "tensor", "stats")
    assert remarks(given, "msit") == []
    (remark,) = remarks(given, "msprobe")
    assert remark == "--type -opname: the probe takes these from the file of -config instead"


def test_a_config_file_that_others_may_write_is_refused_as_the_probe_would(config: Path) -> None:
    config.chmod(0o660)
    with pytest.raises(
        SettingsError, match="other users may write this file, so the probe refuses it; run: chmod go-w"
    ):
        options("-config", str(config))


def test_a_config_file_that_is_a_link_is_refused_as_the_probe_would(config: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(config)
    with pytest.raises(SettingsError, match="must be a regular file"):
        options("-config", str(tmp_path / "link.json"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_config_file_of_another_user_is_refused_as_the_probe_would(config: Path) -> None:
    os.chown(config, 12345, -1)
    with pytest.raises(SettingsError, match="belongs to another user"):
        options("-config", str(config))


@pytest.mark.parametrize(
    ("content", "said"), [("", "0 bytes"), ("{", "cannot be read as JSON"), ("[]", "must hold a JSON object")]
)
def test_a_broken_config_file(config: Path, content: str, said: str) -> None:
    config.write_text(content)
    with pytest.raises(SettingsError, match=said):
        options("-config", str(config))


# The environment of the child, against the table of the old tool's protocol, for both eras.


OUTPUT = Path("/data/out")
PROBE_PATH = Path("/cann/tools/ait_backend/dump/libatb_probe_abi1.so")
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
    "LD_PRELOAD": str(PROBE_PATH),
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
    probe: Path | None = PROBE_PATH,
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
    assert told["LD_PRELOAD"] == f"{PROBE_PATH}:/a.so:/b.so"


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
        "LD_PRELOAD": str(PROBE_PATH),
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


# --exec: quotes hold words together; what only a shell understands is explained.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bash run.sh patches/models/modeling_xxx.py", ("bash", "run.sh", "patches/models/modeling_xxx.py")),
        ("  python   run.py ", ("python", "run.py")),
        (
            "python run.py 'two words' \"three more words\"",
            ("python", "run.py", "two words", "three more words"),
        ),
        (r"python run.py two\ words", ("python", "run.py", "two words")),
        ("python -c 'print(1 > 0 | 2)'", ("python", "-c", "print(1 > 0 | 2)")),
        (r"echo \$HOME \| \"", ("echo", "$HOME", "|", '"')),
        ("echo '$HOME'", ("echo", "$HOME")),
        # valid in the old tool, which split at spaces
        ("python run.py --devices=[0,1] ~/x:y", ("python", "run.py", "--devices=[0,1]", "~/x:y")),
        (r"find . -exec ls {} \; 'a;b'", ("find", ".", "-exec", "ls", "{}", ";", "a;b")),
    ],
)
def test_a_command_becomes_words(text: str, words: tuple[str, ...]) -> None:
    assert split_command(text) == words


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("python run.py | tee log", "|"),
        ("python run.py > log", ">"),
        ("python run.py 2>&1", ">"),
        ("python run.py < in", "<"),
        ("cd x && python run.py", "&"),
        ("python run.py &", "&"),
        ("bash run.sh; ls", ";"),
        ("cd x;python run.py", ";"),
        ("python run.py $MODEL", "$"),
        ('python run.py "$MODEL"', "$"),
        ("python `which run.py`", "`"),
    ],
)
def test_what_only_a_shell_understands_is_refused_with_the_way_out(text: str, sign: str) -> None:
    with pytest.raises(SettingsError, match="no shell reads this command") as raised:
        split_command(text)
    assert repr(sign) in str(raised.value)
    assert 'put the line into a script and run that (--exec "bash run.sh")' in str(raised.value)


def test_an_unclosed_quote_is_named() -> None:
    with pytest.raises(SettingsError, match="no closing quotation; close the quote"):
        split_command("python don't.py")


@pytest.mark.parametrize("text", ["", "   "])
def test_no_command(text: str) -> None:
    with pytest.raises(SettingsError, match="no command"):
        split_command(text)
