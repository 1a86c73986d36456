"""The `--acc-*` options: tables, from which the command line, the ini twins and the help are made.

Every option `--acc-some-name` has an ini value `acc_some_name`. The command line wins over the ini
file, the ini file over the default in `Settings`. Paths on the command line are relative to the
working directory, paths in an ini file to the directory of that file.
"""

from .reading import (
    ALL,
    OPTIONS,
    SHARED,
    add_options,
    check_ini,
    check_words,
    command_line,
    of,
    of_one_test,
    start_over,
    values,
)
from .tables import OPCHECK, Option

__all__ = [
    "ALL",
    "OPCHECK",
    "OPTIONS",
    "SHARED",
    "Option",
    "add_options",
    "check_ini",
    "check_words",
    "command_line",
    "of",
    "of_one_test",
    "start_over",
    "values",
]
