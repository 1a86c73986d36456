"""Names that are not UTF-8 between the processes of pytest-xdist.

xdist sends the arguments, the working directory and `sys.path` as text, and execnet refuses text that UTF-8
cannot say, such as a directory named in GBK bytes. Where a run has such a name, both ends let it pass; any
other run is left alone.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

import pytest


class AnyName:
    """Prepares both ends of each gateway."""

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """Before anything is sent. Raises `pytest.UsageError` for an execnet that is built differently."""
        try:
            _surrogates_pass()
            gateway.remote_exec(f"{inspect.getsource(_surrogates_pass)}\n_surrogates_pass()").waitclose()
        except AttributeError:
            raise pytest.UsageError(
                "this execnet cannot send paths that are not UTF-8 to xdist's workers; run without -n"
            ) from None


def let_any_name_pass(config: pytest.Config) -> None:
    """Register what prepares the gateways, where a name of this run needs it."""
    places = (os.getcwd(), config.rootpath, config.option.basetemp)
    sent = "\n".join(map(str, (*config.invocation_params.args, *places, *sys.argv, *sys.path)))
    is_sendable = sent.isascii() or not any("\ud800" <= character <= "\udfff" for character in sent)
    if not hasattr(config, "workerinput") and not is_sendable:
        config.pluginmanager.register(AnyName(), "acc_any_name")


def _surrogates_pass() -> None:
    """Let execnet of this process write and read surrogates. (Workers get the source of this function.)"""

    from execnet import gateway_base

    def write(self: Any, text: str) -> None:
        self._write_byte_sequence(text.encode("utf-8", "surrogatepass"))

    def load(self: Any) -> None:
        self.stack.append(self._read_byte_string().decode("utf-8", "surrogatepass"))

    writer, reader, codes = gateway_base._Serializer, gateway_base.Unserializer, gateway_base.opcode
    _ = writer._write_unicode_string, writer._write_byte_sequence, reader._read_byte_string
    writer._write_unicode_string = write  # type: ignore[assignment, method-assign]
    reader.num2func.update({codes.PY3STRING: load, codes.UNICODE: load})
