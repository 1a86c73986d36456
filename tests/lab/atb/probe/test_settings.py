"""What the probe of the msit eras reads from its environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acc_pytest.lab.atb.probe import EVERY, E4Settings, ProbeSettings, settings
from acc_pytest.lab.atb.probe.e3 import DynamicSettings, parse
from acc_pytest.lab.atb.probe.settings import NONE, WatchedConfig, is_e4_config, trusted


def read(**environ: str) -> ProbeSettings:
    return ProbeSettings.from_environment(environ)


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = read()
    assert settings == ProbeSettings()
    assert settings.types == {"layer", "model", "tensor"}
    assert settings.places == (("before", "in"), ("after", "out"))
    assert settings.values
    assert not settings.statistics
    assert settings.ranges == ()
    assert settings.root == "./msit_dump"


def test_the_launchers_variables_are_all_read() -> None:
    settings = read(
        ATB_DUMP_TYPE="tensor|model|op",
        ATB_OUTPUT_DIR="/o/",
        ATB_TIMESTAMP="T",
        ATB_SAVE_TENSOR="2",
        ATB_SAVE_TENSOR_STATISTICS="1",
        ATB_SAVE_TENSOR_TIME="2",
        ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER="0",
        ATB_SAVE_TENSOR_PART="1",
        ATB_SAVE_TENSOR_RANGE="all",
        ATB_SAVE_TENSOR_IDS="2,3_1",
        ATB_SAVE_TENSOR_RUNNER="linear,rope",
        ATB_SAVE_CHILD="1",
        ATB_SAVE_TILING="1",
        ATB_SAVE_SYMLINK="1",
        ATB_DEVICE_ID="0,1",
        ATB_DUMP_CONFIG="/c.json",
        ATB_DUMP_SUB_PROC_INFO_SAVE_PATH="/s",
    )
    assert settings == ProbeSettings(
        output="/o/",
        timestamp="T",
        types=frozenset({"tensor", "model", "op"}),
        values=False,
        statistics=True,
        time=2,
        in_before_out_after=False,
        part=1,
        ranges=EVERY,
        ids=("2", "3_1"),
        names=("linear", "rope"),
        child=True,
        devices=("0", "1"),
        tiling=True,
        symlink=True,
        config="/c.json",
        subprocess_info="/s",
    )
    assert settings.root == "/o/msit_dump_T"


def test_the_output_directory_is_a_prefix_without_a_slash() -> None:
    assert read(ATB_OUTPUT_DIR="/a/b").root == "/a/bmsit_dump"


def test_a_link_as_output_directory_is_followed_once(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/real")
    assert read(ATB_OUTPUT_DIR=f"{tmp_path}/link").root == "/realmsit_dump"


def test_types_are_exact_tokens() -> None:
    assert read(ATB_DUMP_TYPE="models|tensor").types == {"models", "tensor"}
    assert read(ATB_DUMP_TYPE="").types == {""}


def test_a_variable_that_is_no_number_counts_as_zero() -> None:
    with pytest.warns(UserWarning, match="ATB_SAVE_TENSOR='yes'"):
        assert not read(ATB_SAVE_TENSOR="yes").values
    with pytest.warns(UserWarning, match="ATB_SAVE_TENSOR_PART='x'"):
        assert read(ATB_SAVE_TENSOR_PART="x").part == 0


def test_ids_and_names_combine_with_or_and_child_alone_filters_nothing() -> None:
    settings = read(ATB_SAVE_TENSOR_IDS="2", ATB_SAVE_TENSOR_RUNNER="rope")
    assert settings.chosen("2", "Layer")
    assert settings.chosen("3_1", "RopeOperation")
    assert not settings.chosen("2_0", "Attention")
    assert read(ATB_SAVE_CHILD="0").chosen("2_0_1", "Attention")


@pytest.mark.parametrize(("time", "directory"), [("0", "before"), ("1", "after"), ("2", "before")])
def test_csv_paths_name_before_unless_only_after_is_saved(time: str, directory: str) -> None:
    only = read(ATB_SAVE_TENSOR_TIME=time, ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER="0")
    assert only.csv_directory == directory
    assert read(ATB_SAVE_TENSOR_TIME=time).csv_directory == "before"


def test_the_probe_of_mid_2024_knows_neither_the_split_nor_later_variables() -> None:
    later = {"ATB_SAVE_TENSOR_STATISTICS": "1", "ATB_SAVE_SYMLINK": "1", "ATB_DUMP_CONFIG": "/c"}
    settings = ProbeSettings.from_environment(later, era="E2")
    assert settings.places == (("after", "in"), ("after", "out"))
    assert not (settings.statistics)
    assert not (settings.symlink)
    assert not (settings.config)
    assert settings.root == "./ait_dump"


# When a config file is read, and when it is trusted.


OFF = DynamicSettings()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text('{"dump_enable":"true"}')
    file.chmod(0o600)
    return file


def test_a_file_of_mine_that_nobody_else_may_write_is_trusted(path: Path) -> None:
    assert trusted(str(path))


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_not_trusted(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert not trusted(str(path))


def test_links_directories_empty_and_missing_files_are_not_trusted(path: Path) -> None:
    link, empty = path.with_name("link"), path.with_name("empty")
    link.symlink_to(path)
    empty.touch(mode=0o600)
    for other in (link, empty, path.parent, path.with_name("missing")):
        assert not trusted(str(other))


def test_a_file_that_is_not_trusted_turns_dumping_off_with_a_warning(path: Path) -> None:
    path.chmod(0o666)
    with pytest.warns(UserWarning, match=r"config.json: is not a config file for the probe"):
        assert WatchedConfig(str(path), parse, OFF).current() == OFF


def test_once_on_the_file_is_read_again_after_five_seconds(path: Path) -> None:
    clock = Clock()
    config = WatchedConfig(str(path), parse, OFF, clock)
    assert config.current().enabled
    path.write_text('{"dump_enable":"false"}')
    clock.now += 4.9
    assert config.current().enabled
    clock.now += 0.1
    assert not config.current().enabled
    path.write_text('{"dump_enable":"true"}')
    clock.now += 5
    assert config.current().enabled


def test_before_it_was_on_the_file_is_read_at_every_16384th_call(path: Path) -> None:
    path.write_text('{"dump_enable":"false"}')
    clock = Clock()
    config = WatchedConfig(str(path), parse, OFF, clock)
    assert not config.current().enabled
    path.write_text('{"dump_enable":"true"}')
    clock.now += 1000
    seen = [config.current().enabled for _ in range(16384)]
    assert seen.index(True) == 16383


def test_the_process_needs_no_right_to_read_for_an_answer(path: Path) -> None:
    path.chmod(0o000)
    assert trusted(str(path)) == os.access(path, os.R_OK)


# The config file of the last msit probes.


def test_all_values_are_texts() -> None:
    text = '{"dump_enable": "true", "er": "1,1", "ids": "2,8", "child": "false", "device": "0,3"}'
    expected = DynamicSettings(
        enabled=True, ranges=((1, 1),), ids=("2", "8"), child=False, devices=("0", "3")
    )
    assert parse(text) == expected
    assert parse('{"er": "all"}').ranges == EVERY


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "no json", '{"dump_enable":true,"er":5,"child":false,"ids":""}']
)
def test_missing_empty_and_wrongly_typed_values_take_their_defaults(text: str) -> None:
    assert parse(text) == DynamicSettings(enabled=False, ranges=((0, 0),), ids=(), child=True, devices=())


def test_without_a_selection_child_decides_between_all_and_the_top() -> None:
    assert DynamicSettings(child=True).chosen("2_0", "Attention", ())
    assert DynamicSettings(child=False).chosen("2", "Layer", ())
    assert not DynamicSettings(child=False).chosen("2_0", "Attention", ())


def test_ids_and_the_names_of_the_environment_combine_with_or() -> None:
    settings = DynamicSettings(ids=("2_0",), child=False)
    assert settings.chosen("2_0", "Attention", ())
    assert not settings.chosen("2_0_1", "Rope", ())
    assert settings.chosen("2_0_1", "Rope", ("rope",))


# The config file of the newest probe.


def test_values_are_typed_and_names_lower_cased() -> None:
    text = (
        '{"task":"all","dump_enable":true,"exec_range":"all","ids":"2,9","op_name":"Rope,Linear",'
        '"save_child":true,"device":"0,1","filter_level":2}'
    )
    assert E4Settings(output="/o").read(text) == E4Settings(
        output="/o",
        task="all",
        enabled=True,
        ranges=EVERY,
        ids=("2", "9"),
        names=("rope", "linear"),
        child=True,
        devices=("0", "1"),
        level=2,
    )


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"dump_enable":"true","task":"x","filter_level":7,"save_child":1,"ids":3}'],
)
def test_missing_unknown_and_wrongly_typed_values_take_their_defaults(text: str) -> None:
    changed = E4Settings(output="/o", task="all", enabled=True, level=2, child=True)
    assert changed.read(text) == E4Settings(output="/o")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"dump_enable":true}', True),
        ('{"task":"tensor"}', True),
        ('{"dump_enable":"true","er":"0,0"}', False),
        ("{}", False),
        ("[1]", False),
        ("no json", False),
    ],
)
def test_the_file_is_told_from_its_predecessors(text: str, expected: bool) -> None:
    assert is_e4_config(text) == expected


TOP, ROPE = ("8_Decoder_layer",), ("8_Decoder_layer", "0_Attention", "1_RopeOperation")


def test_e4_without_a_selection_child_decides_between_all_and_the_top() -> None:
    assert E4Settings().chosen(TOP)
    assert not E4Settings().chosen(ROPE)
    assert E4Settings(child=True).chosen(ROPE)


def test_ids_select_with_or_without_what_lies_below() -> None:
    assert not E4Settings(ids=("8_0",)).chosen(ROPE)
    assert E4Settings(ids=("8_0",), child=True).chosen(ROPE)
    assert E4Settings(ids=("8_0_1",)).chosen(ROPE)


def test_a_name_is_looked_for_in_every_directory_or_in_the_last() -> None:
    assert E4Settings(names=("attention",), child=True).chosen(ROPE)
    assert not E4Settings(names=("attention",)).chosen(ROPE)
    assert E4Settings(names=("rope",)).chosen(ROPE)


def test_the_root_has_one_slash_before_it() -> None:
    assert E4Settings(output="/o/").root == E4Settings(output="/o").root == "/o/atb_dump_data"


# Ranges, ids, names, devices and places: one rule each.


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("0,0", ((0, 0),)),
        ("0,1,5,7", ((0, 1), (5, 7))),
        ("3", NONE),
        ("0,1,9", ((0, 1),)),
        ("all", EVERY),
        ("none", NONE),
        ("", NONE),
    ],
)
def test_ranges_are_pairs_and_an_odd_end_is_ignored(text: str, ranges: settings.Ranges) -> None:
    assert settings.parse_ranges("ATB_SAVE_TENSOR_RANGE", text) == ranges


def test_a_range_holds_both_its_ends() -> None:
    assert [n for n in range(6) if settings.in_ranges(((1, 2), (4, 4)), n)] == [1, 2, 4]
    assert settings.in_ranges(EVERY, 10**9)
    assert not settings.in_ranges(NONE, 0)


def test_text_that_is_no_number_counts_as_zero_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="X='one' is not a whole number"):
        assert settings.integer("X", "one") == 0
    with pytest.warns(UserWarning, match="ER='b'"):
        assert settings.parse_ranges("ER", "b,2") == ((0, 2),)


def test_an_id_selects_itself_and_with_child_what_lies_below() -> None:
    assert settings.id_selected(("2_0",), "2_0", child=False)
    assert not settings.id_selected(("2_0",), "2_0_1", child=False)
    assert settings.id_selected(("2_0",), "2_0_1", child=True)


def test_an_id_is_no_prefix_of_a_longer_number() -> None:
    assert not settings.id_selected(("1_1",), "1_10", child=True)
    assert not settings.id_selected(("2",), "20", child=True)


def test_a_name_is_lower_cased_but_not_what_it_must_start_with() -> None:
    assert settings.name_selected(("linear",), "LinearOperation")
    assert not settings.name_selected(("Linear",), "LinearOperation")
    assert not settings.name_selected(("operation",), "LinearOperation")


def test_devices_are_compared_as_text_and_none_means_all() -> None:
    assert settings.device_selected((), 3)
    assert settings.device_selected(("0", "3"), 3)
    assert not settings.device_selected(("03",), 3)


BOTH = (("before", "in"), ("before", "out"), ("after", "in"), ("after", "out"))


@pytest.mark.parametrize(
    ("time", "splits", "expected"),
    [
        (0, False, BOTH[:2]),
        (1, False, BOTH[2:]),
        (2, False, BOTH),
        (3, False, ()),
        (1, True, (BOTH[0], BOTH[3])),
        (0, True, (BOTH[0], BOTH[3])),
    ],
)
def test_time_says_where_tensors_go(time: int, splits: bool, expected: tuple[settings.Place, ...]) -> None:
    assert settings.places(time, 2, in_before_out_after=splits) == expected


@pytest.mark.parametrize(("part", "sides"), [(0, {"in"}), (1, {"out"}), (2, {"in", "out"}), (7, set())])
def test_part_keeps_inputs_or_outputs(part: int, sides: set[str]) -> None:
    assert {side for _, side in settings.places(2, part, in_before_out_after=False)} == sides
