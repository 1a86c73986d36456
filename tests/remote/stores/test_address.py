"""Addresses: what is one, what is shown of one, and which path stands for it."""

from __future__ import annotations

import pytest

from acc_pytest.errors import SettingsError, with_addresses
from acc_pytest.tensors.address import address_of, is_address, local_path, without_secrets
from tests.each_case import check_each


@pytest.mark.parametrize("text", ["s3://b/x", "hdfs://host:9000/x", "S3://b/x", "a+b://c"])
def test_an_address_has_a_protocol(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize("text", ["", "/a/b", "s3:/b/x", "x", "file:///a/b", "://a", "3s://a"])
def test_anything_else_is_a_path(text: str) -> None:
    assert not is_address(text)


def test_a_file_address_is_a_path() -> None:
    assert local_path("file:///a/b") == "/a/b"
    assert local_path("a://b"[4:]) == "b"


def test_the_path_of_a_mirror_is_told_as_the_address() -> None:
    def check(text: str) -> None:
        address = address_of(text)
        path = f"/home/x/.cache/acc_mirror/0123456789ab/{address.below}/a.pth"
        assert with_addresses(f"{path}: is cut") == f"{text}/a.pth: is cut"

    check_each(((text, text) for text in ("s3://b/x/y", "hdfs:///x/y", "sftp://me@host/x")), check)
    joined = "/c/acc_mirror/0123456789ab/_/dump/a.pth"
    assert with_addresses(joined) == joined


def test_secrets_are_neither_taken_nor_shown() -> None:
    cases = {
        "s3://key:secret@bucket/x": "s3://***@bucket/x",
        "ftp://:secret@host/x": "ftp://***@host/x",
        "https://host/x?token=secret": "https://host/x?***",
        "https://host/x#secret": "https://host/x?***",
        "ftp://a:se:cr@et@host/x": "ftp://***@host/x",
    }

    def check(case: tuple[str, str]) -> None:
        text, shown = case
        assert without_secrets(text) == shown
        with pytest.raises(SettingsError) as caught:
            address_of(text)
        assert str(caught.value).startswith(f"{shown}: an address must have no password and no query")
        assert "secret" not in str(caught.value).lower().replace("fsspec_s3_secret", "")

    check_each(((text, (text, shown)) for text, shown in cases.items()), check)
    assert without_secrets("hdfs://me@host/x") == "hdfs://me@host/x"
    assert without_secrets("/a:b@c/d?e") == "/a:b@c/d?e"


@pytest.mark.parametrize("text", ["s3://", "s3://b/../x", "s3://b//x", "filecache::s3://b/x"])
def test_what_is_no_whole_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"must be (PROTOCOL|one address)"):
        address_of(text)
