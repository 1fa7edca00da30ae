"""Links of pages: files of the project become pages of the site, and names of classes become links to theirs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection

from site_pages.navigation import BESIDE
from site_pages.subjects import public_classes, public_functions

_LINK_OR_PICTURE = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_LINK = re.compile(rf"(?<!!){_LINK_OR_PICTURE.pattern}")
_NAMED = re.compile(r"(?<!\[)`(?:mps\.|openmps\.)?(?P<name>[A-Za-z]\w+)`(?!\])")
_CELL = re.compile(r"(?<=\| )(?P<name>MPS\w+)(?= \|)")
_NO_PAGES = ("LICENSE", "tests/public_signatures.txt")
"""Files that pages link to, and the site does not have."""
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")


def rewritten(text: str, page: str, source: str) -> str:
    """A page's text with its links as the site has them; `source` is its file's place in the project."""
    return "\n".join(line if is_code else _line(line, page, source) for line, is_code in _lines(text))


def _lines(text: str) -> list[tuple[str, bool]]:
    """Each line, and whether it is code."""
    found, fence = [], ""
    for line in text.split("\n"):
        opening = _FENCE.match(line)
        if not fence and opening:
            fence = opening[1]
            found.append((line, True))
        elif fence:
            found.append((line, True))
            if opening and opening[1].startswith(fence) and line.strip() == opening[1]:
                fence = ""
        else:
            found.append((line, False))
    return found


def _line(line: str, page: str, source: str) -> str:
    line = _LINK_OR_PICTURE.sub(lambda found: _moved(found, page, source), line)
    if line.startswith(("#", "    ")):
        return line
    line = _NAMED.sub(lambda found: _to_class(found, page), line)
    return _CELL.sub(lambda found: _to_class(found, page), line)


def _to_class(found: re.Match[str], page: str) -> str:
    name = found["name"]
    if name in public_functions() and name != "lint":  # a command, too
        return f"[{found[0]}]({_relative('reference/functions.md', page)}#{name.lower()})"
    place = f"reference/{name}.md"
    if name not in public_classes() or place == page:
        return found[0]
    return f"[{found[0]}]({_relative(place, page)})"


def _moved(found: re.Match[str], page: str, source: str) -> str:
    target, hash_, anchor = found["target"].partition("#")
    if not target or ":" in target:
        return found[0]
    place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if place in BESIDE:
        place = BESIDE[place]
    elif place.startswith("examples/") and place.endswith(".py"):
        place = place.removesuffix(".py") + ".md"
    elif place.startswith("docs/"):
        place = place.removeprefix("docs/")
    elif place in _NO_PAGES:
        return found["text"]
    return f"[{found['text']}]({_relative(place, page)}{hash_}{anchor})"


def _relative(place: str, page: str) -> str:
    return posixpath.relpath(place, posixpath.dirname(page) or ".")


def broken(pages: dict[str, str], others: Collection[str] = ()) -> list[str]:
    """The links of pages, as the site has them, that lead to no page."""
    known = {*pages, *others}
    found = []
    for page, text in pages.items():
        for line, is_code in _lines(text):
            for link in () if is_code else _LINK.finditer(line):
                target = link["target"].partition("#")[0]
                place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
                if ":" not in link["target"] and place not in known:
                    found.append(f"{page}: {link['target']}")
    return found
