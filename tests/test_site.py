"""The site of the documentation is whole: every page can be found, every link leads somewhere, every name is there."""

from __future__ import annotations

import pydoc
import re
from functools import cache

import pytest
import tree_sitter_swift
from site_pages import links, navigation, pictures, reference, selector_index
from site_pages.subjects import packages, public_classes, public_functions
from tree_sitter import Language, Parser

import openmps

HELP = 60
"""Lines that `help(openmps)` may print: a screen."""


@cache
def pages() -> dict[str, str]:
    """Every page as the site has it, without its pictures."""
    found = navigation.written() | navigation.generated()
    sources = {place: name for name, place in navigation.BESIDE.items()}
    return {page: links.rewritten(text, page, sources.get(page, f"docs/{page}")) for page, text in found.items()}


def test_every_page_is_in_the_navigation() -> None:
    of_classes = {f"reference/{name}.md" for name in public_classes()}
    assert sorted(navigation.listed()) == sorted({*pages()} - of_classes)


def test_a_search_shows_guides_before_classes_and_these_before_programs() -> None:
    found = {page: navigation.rank(page) for page in pages()}
    guides = ("padding.md", "training.md", "index.md", "readme.md")
    assert {found[page] for page in guides} == {1.0}
    for start in navigation._RANKS:
        assert any(page.startswith(start) and found[page] < 1 for page in found), start
    assert found["examples/autoencoder.md"] < found["reference/MPSCNNConvolutionTranspose.md"] < found["padding.md"]


def test_every_link_leads_to_a_page() -> None:
    assert links.broken(pages()) == []
    assert links.broken({"a.md": "[x](b.md), [y](a.md#z)\n```\n[w](c.md)\n```"}) == ["a.md: b.md"]


def test_every_public_class_and_function_has_its_page() -> None:
    index = pages()["reference/index.md"]
    for name, kind in public_classes().items():
        page = pages()[f"reference/{name}.md"]
        assert page.startswith(f"# {name}\n")
        assert reference.markdown(kind.__doc__ or "").split("\n")[0].strip() in reference.of_class(kind), name
        assert f"]({name}.md)" in index, name
    assert [name for name in public_functions() if f"## {name}\n" not in pages()["reference/functions.md"]] == []
    for package, (_, names) in packages().items():
        assert names, package
        assert [name for name in names if f"## {name}\n" not in pages()[f"reference/{package}.md"]] == []


def test_every_name_is_of_a_documented_kind() -> None:
    others = {name for name in openmps.__all__ if name not in public_classes() and name not in public_functions()}
    assert others == {"MPSRectNoClip"}


def test_every_selector_is_in_the_index_and_has_its_name() -> None:
    assert selector_index.absent() == []
    page = pages()["selectors.md"]
    found = selector_index.declared().values()
    assert len([each for each in found if each.is_there]) > 250
    for each in found:
        assert [
            member.selector
            for member in each.members
            if each.is_there and f"| `{member.selector.lstrip('@=')}` |" not in page
        ] == []
    missing = [
        name
        for name in public_classes()
        if name.startswith("MPS") and f"| [{name}]" not in pages()["reference/index.md"]
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("owner", "selector", "call"),
    [
        ("MPSCNNKernel", "-encodeToCommandBuffer:sourceImage:", "encode(command_buffer, source_image)"),
        ("MPSNNPaddingMethod", "=MPSNNPaddingMethodSizeSame", "MPSNNPaddingMethod.SIZE_SAME"),
        ("MPSCNNConvolution", "-initWithDevice:weights:", "MPSCNNConvolution(device, weights)"),
        ("MPSState", "-bufferSizeAtIndex:", "buffer_size_at_index(index)"),
        ("MPSCNNKernel", "@destinationFeatureChannelOffset", "destination_feature_channel_offset"),
    ],
)
def test_the_rule_of_names(owner: str, selector: str, call: str) -> None:
    assert call in {member.call for member in selector_index.declared()[owner].members if member.selector == selector}


def test_every_picture_is_drawn_by_the_code_before_it() -> None:
    for page, text in navigation.written().items():
        for found in pictures.MARK.finditer(text):
            assert f'"{found["name"]}"' in text[: found.start()], f"{page}: {found['name']}"


def test_swift_on_the_pages_is_swift() -> None:
    parser = Parser(Language(tree_sitter_swift.language()))
    texts = navigation.written().values()
    blocks = [found for text in texts for found in re.findall(r"```swift\n(.*?)```", text, re.DOTALL)]
    assert len(blocks) > 4
    assert [block for block in blocks if parser.parse(block.encode()).root_node.has_error] == []


def test_help_is_a_screen_of_names_that_are_there() -> None:
    text = pydoc.plain(pydoc.render_doc(openmps))
    assert len(text.splitlines()) <= HELP
    names = set(re.findall(r"\b(?:MPS|MTL)\w+", openmps.__doc__ or ""))
    assert len(names) > 40
    assert [name for name in names if not hasattr(openmps, name)] == []
