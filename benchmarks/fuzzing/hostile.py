"""Values that files of strangers hold: numbers and names at the edges of what readers expect."""

from __future__ import annotations

from random import Random

LONG_DIGITS = "9" * 5000
"""More than Python turns into a number without being asked to."""
NUMBERS = (
    *("0", "-0", "1", "-1", "2", "3", "7", "-7", "24", "127", "128", "255", "256", "4096", "65535", "65536"),
    *("100000", "1000000", "2147483647", "2147483648", "-2147483648", "4294967295", "4294967296"),
    *("1099511627776", "4611686018427387904", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "18446744073709551615", "18446744073709551616", "1" + "0" * 30),
    *("1" * 24, "1" * 34, "1" * 400, LONG_DIGITS, "-" + LONG_DIGITS),
    *("0.5", "-0.5", "1e-400", "1e308", "1e400", "-1e400", "1.5e3", "00012", "1_000", "0x10", "1e", "."),
)
"""Numbers as text; some are none."""
WORDS = ("NaN", "nan", "inf", "Infinity", "-Infinity", "-inf", "true", "false", "True", "null", "None", "")
"""What stands in place of a number in one format or another."""
NAMES = (
    *("", " ", ".", "..", "/", "../../../../tmp/escaped", "/etc/passwd", "a/b", "a\\b", "~", "-rf"),
    *("a\0b", "\ud800", "a\udc80b", "\x1b[31mred\x1b[0m", "a\nb", "a\rb", "a\tb", "\x7f", "\x85", "\u2028"),
    *("\u202eabc", "\ufeff", "\u00e9", "\u4e2d\u6587", "\U0001f600", "\u0661\u0662", "\u00b2", "\uff15"),
    *("x" * 256, "x" * 300, "x" * 5000, "x" * 100_000, "\u4e2d" * 300, "a." * 2000, "_0" * 2000, "0_" * 300),
    *("'", '"', "`", "%s%n", "{}", "{0}", "${HOME}", "$(id)", "<b>", "a,b", "a;b", "a|b", "a=b", "#", "[0]"),
    *("outtensor" + "9" * 500, "a_outtensor" + LONG_DIGITS, "layers." + "9" * 100, "__class__", "0", "-1"),
)
"""Names and texts. Some can be no names of files, some no UTF-8."""
DEPTHS = (50, 199, 201, 990, 3000, 5000, 20_000)
"""How deep things are nested."""


def number(random: Random, around: str = "") -> str:
    """A number as text; now and then one near `around`, or a word."""
    if around.lstrip("-").isdecimal() and len(around) < 30 and random.random() < 0.3:
        return str(int(around) + random.choice((-1, 1, -2, 10, 100, int(around), -int(around))))
    return random.choice(WORDS if random.random() < 0.1 else NUMBERS)


def name(random: Random, around: str = "") -> str:
    """A name; now and then one near `around`."""
    if not around or random.random() < 0.5:
        return random.choice(NAMES)
    at = random.randrange(len(around))
    changed = (
        around[:at],
        around[at:],
        around[:at] + around[at + 1 :],
        around[:at] + random.choice(NAMES) + around[at:],
        around[:at] + number(random) + around[at + 1 :],
        around + random.choice(NAMES),
        around * 2,
        around.upper(),
    )
    return random.choice(changed)
