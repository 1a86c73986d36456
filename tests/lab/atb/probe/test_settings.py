"""What the probe of the msit eras reads from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.lab.atb.probe import EVERY, ProbeSettings


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
