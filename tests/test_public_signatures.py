"""What scripts can call changes on purpose only: tests/public_signatures.txt is what the package offers."""

from __future__ import annotations

import re
from difflib import unified_diff

from helpers import tool

signatures = tool("public_signatures")


def test_the_public_signatures_are_those_of_the_file() -> None:
    before, now = signatures.FILE.read_text().splitlines(), signatures.lines()
    changed = [line for line in unified_diff(before, now, "before", "now", lineterm="", n=0) if line[:2] != "@@"]
    remedy = "if this is meant, run: python tools/public_signatures.py"
    assert changed == [], "\n".join([*changed, remedy])


def test_the_signatures_depend_on_no_module_and_no_address() -> None:
    assert [
        line for line in signatures.lines() if re.search(r"openmps\.|\b0x|<locals>|<lambda>|ForwardRef", line)
    ] == []


def test_every_public_name_has_a_line() -> None:
    named = {re.split(r"[ .(]", line)[0] for line in signatures.lines()}
    assert set(signatures.openmps.__all__) - named == set()
