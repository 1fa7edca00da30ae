"""What mkdocs asks while it builds the site: the pages and pictures that are written by code, and links."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files
from site_pages import links, navigation, pictures

SOURCES = {place: name for name, place in navigation.BESIDE.items()}


def on_config(config: Any) -> Any:
    """The navigation."""
    config.nav = navigation.navigation()
    return config


def on_files(files: Files, config: Any) -> Files:
    """The pages that are no files of docs/, and the pictures."""
    for place, text in navigation.generated().items():
        files.append(File.generated(config, place, content=text))
    for page, text in navigation.written().items():
        if pictures.names(text):
            for name, content in pictures.drawn(navigation.DOCS / page).items():
                files.append(File.generated(config, pictures.place(page, name), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Pictures and links of a page, and how far in front a search shows it."""
    place = page.file.src_uri
    page.meta.setdefault("search", {"boost": navigation.rank(place)})
    source = SOURCES.get(place, f"docs/{place}")
    return pictures.shown(links.rewritten(markdown, place, source), place)
