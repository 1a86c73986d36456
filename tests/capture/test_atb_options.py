"""The options of `acc dump`: every documented form is taken, nonsense gets one sentence."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from acc_pytest.capture.atb import LaunchOptions, read_options
from acc_pytest.capture.atb.options import BY_KEYWORD, OPTIONS, TYPES, remarks
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
