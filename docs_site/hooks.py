"""Extensions of mkdocs for this site.

* A link to a file of the repository outside ``docs/`` leads to a page ``repository/…`` that shows
  the file: the site is complete without a network, and a link to a missing file fails the build.
* Pictures become part of their page, so that they follow its switch of light and dark. The colours
  and the icon are those of the console.
* A mention of a decision, such as "decision 14", leads to it, and a decision to the list of all.
* A search ranks the API and the formats below the pages for users, and decisions last. A search for
  a level finds the page about levels.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

from docs_site.colours import ICON, TABLE

ROOT: Final = Path(__file__).resolve().parents[1]
ABOUT: Final = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the repository that are in the navigation, linked or not."""

_BOOSTS: Final = {
    **dict.fromkeys(("api/", "format.md", "protocol.md"), 0.1),
    **dict.fromkeys(("decisions/", "repository/", "rules.md"), 0.0005),
    "concepts/isolation-levels.md": 4,
}
"""The weights of pages in a search, with 1 for all others. A title weighs 1000 times as much as a
text, and no title has the name of a level."""
_FENCE: Final = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
_DECISION: Final = re.compile(r"(?<!\[)\bdecision (\d+)\b(?!\])")
_PICTURE: Final = re.compile(r'<img alt="([^"]*)" src="[^"]*?pictures/([\w-]+\.svg)" ?/?>')
_INTERNAL_TITLE: Final = re.compile(r' title="spark_stream\.[^"]*"')
_LANGUAGES: Final = {".yml": "yaml", ".conf": "properties", ".service": "ini"}
_STYLE: Final = re.compile(r"<style>.*?</style>\n", re.DOTALL)
_NOT_RUN: Final = re.compile(r'^(```\w+) title="Not run by the tests: [^"]*"', re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each file or folder outside ``docs/`` that a page links to."""
    waiting = list(ABOUT)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        waiting += _outside(path.read_text(encoding="utf-8"), _place(path))
    made: set[str] = set()
    while waiting:
        name = waiting.pop()
        path = ROOT / name
        if name in made or not path.exists():  # a broken link is reported when it is resolved
            continue
        made.add(name)
        text = shown(path)
        if name.endswith(".md"):
            waiting += _outside(text, name)
        files.append(File.generated(config, page_of(name), content=text))
    for path in (TABLE, ICON):
        files.append(File.generated(config, f"assets/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at pages of the site, and remove titles of code that are for the tests."""
    markdown = _NOT_RUN.sub(r"\1", markdown)
    source = page.file.src_uri
    for start, boost in _BOOSTS.items():
        if source.startswith(start):
            page.meta["search"] = {"boost": boost}
    if re.match(r"decisions/\d", source):  # the navigation has only their list
        markdown += "\n\n[All decisions](README.md)\n"
    name = source.removeprefix("repository/") if _is_of_repository(source) else f"docs/{source}"

    def to_page(place: str) -> str:
        return posixpath.relpath(page_of(place), posixpath.dirname(source) or ".")

    return _with_links(markdown, name, to_page)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Put the pictures into the page itself."""
    return _PICTURE.sub(lambda found: _inlined(found[2], found[1]), html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Remove the internal modules in titles of types, and name the search for screen readers."""
    return _INTERNAL_TITLE.sub("", _with_named_search(output))


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """Name the search on the page of a missing address."""
    return _with_named_search(output) if template_name == "404.html" else output


def _with_named_search(output: str) -> str:
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"').replace(
        'id="__search"', 'id="__search" aria-label="Search"'
    )


def _is_of_repository(source: str) -> bool:
    return source.startswith("repository/")


def _place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def page_of(name: str) -> str:
    """Return the page of the site that shows a file of the repository."""
    if name.startswith("docs/"):
        page = name.removeprefix("docs/")
        return f"{page}/README.md" if (ROOT / name).is_dir() else page
    return f"repository/{name}" if name.endswith(".md") else f"repository/{name}.md"


def resolve(name: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), target))


def targets(markdown: str) -> Iterator[str]:
    for part in _FENCE.split(markdown)[::2]:
        yield from (each[0] for each in _LINK.finditer(part) if "://" not in each[0])


def _outside(markdown: str, name: str) -> list[str]:
    """Return the files outside ``docs/`` to which a page links."""
    found = [resolve(name, each) for each in targets(markdown) if not each.startswith("mailto:")]
    return [each for each in found if not each.startswith("docs/")]


def _with_links(markdown: str, name: str, to_page: Callable[[str], str]) -> str:
    def replace(found: re.Match[str]) -> str:
        target = found[0]
        if "://" in target or target.startswith("mailto:"):
            return target
        return to_page(resolve(name, target))

    def lead(found: re.Match[str]) -> str:
        record = next((ROOT / "docs" / "decisions").glob(f"{int(found[1]):04}-*.md"), None)
        return f"[{found[0]}]({to_page(_place(record))})" if record else found[0]

    parts = _FENCE.split(markdown)
    parts[::2] = [_DECISION.sub(lead, _LINK.sub(replace, part)) for part in parts[::2]]
    return "".join(parts)


def shown(path: Path) -> str:
    """Return a file, or all files of a folder, as a page."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return "\n\n".join(_cells(path))
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    parts = [f"# {_place(path)}"]
    for each in files:
        language = _LANGUAGES.get(each.suffix, each.suffix.removeprefix("."))
        heading = f"\n## `{each.name}`\n" if path.is_dir() else ""
        parts.append(f"{heading}\n````{language}\n{each.read_text(encoding='utf-8')}````")
    return "\n".join(parts)


def _cells(path: Path) -> Iterator[str]:
    """Yield the texts and the code of a notebook."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def _inlined(name: str, alt: str) -> str:
    drawn = (ROOT / "docs" / "concepts" / "pictures" / name).read_text(encoding="utf-8")
    drawn = _STYLE.sub("", drawn, count=1)  # a page has the colours
    label = f'<svg role="img" aria-label="{alt}" '
    return f'<span class="picture">{drawn.replace("<svg ", label, 1).strip()}</span>'
