"""What consumers of JUnit files accept, as rules of our own to check files against.

There is no standard. The strictest reader is the xUnit plugin of Jenkins, which refuses a file that breaks
its schema `junit-10` (github.com/jenkinsci/xunit-plugin, xsd/junit-10.xsd, as of 2026); the tables say what
that schema allows. The junit step of Jenkins, GitLab and the actions that people use on GitHub read less and
let more pass; GitLab drops cases of one class and name but the first.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator

SECONDS = re.compile(r"([\d,]*\.?\d*)")
"""A duration: digits, commas between thousands, one point."""
OUTCOMES = {"skipped", "error", "failure", "rerunFailure", "rerunError", "flakyFailure", "flakyError"}
OUTPUT = {"system-out", "system-err"}

CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testsuite", "properties", "testcase", *OUTPUT},
    "testcase": OUTCOMES | OUTPUT,
    "properties": {"property"},
}
"""The elements that may stand in an element; none in those that are absent."""

REQUIRED = {
    "testsuite": {"name", "tests", "failures", "errors"},
    "testcase": {"name"},
    "property": {"name", "value"},
    **{tag: {"type"} for tag in ("rerunFailure", "rerunError", "flakyFailure", "flakyError")},
}

ALLOWED = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {
        *("name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp"),
        *("hostname", "id", "package", "file", "log", "url"),
    },
    "testcase": {"name", "time", "classname", "group"},
    "property": {"name", "value"},
    **{tag: {"type", "message"} for tag in OUTCOMES},
}
"""The attributes that an element may have."""


def complaints(text: str) -> list[str]:
    """What is wrong with a file, a sentence each; nothing for one that everybody accepts."""
    root = ElementTree.fromstring(text)  # refuses control characters: XML 1.0 has no form for them
    if root.tag not in ("testsuites", "testsuite"):
        return [f"the root is {root.tag}"]
    return [*_of(root), *_of_suites(root)]


def _of(element: ElementTree.Element) -> Iterator[str]:
    tag = element.tag
    for name in sorted(REQUIRED.get(tag, set()) - set(element.attrib)):
        yield f"{tag} has no {name}"
    for name in sorted(set(element.attrib) - ALLOWED.get(tag, set())):
        yield f"{tag} has {name}"
    if "time" in element.attrib and not SECONDS.fullmatch(element.attrib["time"]):
        yield f"{tag} took {element.attrib['time']}"
    for child in element:
        if child.tag in CHILDREN.get(tag, set()):
            yield from _of(child)
        else:
            yield f"{tag} holds {child.tag}"


def _of_suites(root: ElementTree.Element) -> Iterator[str]:
    for suite in root.iter("testsuite"):
        cases = suite.findall("testcase")
        counted = Counter(one.tag for case in cases for one in case)
        found = {"tests": len(cases), "failures": counted["failure"], "skipped": counted["skipped"]}
        for name, count in found.items():
            if suite.get(name) != str(count):
                yield f"{name} is {suite.get(name)}, but there are {count}"
    names = Counter((case.get("classname", ""), case.get("name", "")) for case in root.iter("testcase"))
    for (classname, name), count in names.items():
        if count > 1:
            yield f"{classname} {name} is there {count} times"
