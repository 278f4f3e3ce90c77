"""The pictures of the pages on concepts: ``python -m docs_site.pictures`` writes them.

A picture takes its colours from variables. A separate picture follows the system's choice of light
or dark, and has its own ground. Within a page of the site it follows the page (``hooks.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Final

from docs_site.colours import colours

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "concepts" / "pictures"

_USED: Final = (
    *("sheet", "sunk", "edge", "strong-edge", "ink", "quiet"),
    *("record", "committed", "open", "aborted"),
)
_MARGIN: Final = 16
_WIDTH: Final = 720
_BOX: Final = 46
"""The width of a record."""


def style() -> str:
    """Return the colours of a separate picture."""
    table = colours()
    light, dark = (";".join(f"--{name}:{table[name][n]}" for name in _USED) for n in (0, 1))
    return f"<style>svg{{{light}}}\n@media (prefers-color-scheme: dark){{svg{{{dark}}}}}</style>"


class Drawing:
    """An SVG that grows by shapes. Coordinates are pixels from the upper left."""

    def __init__(self, height: int, width: int = _WIDTH) -> None:
        """Begin an empty picture."""
        self._height = height
        self._width = width
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        at: str = "start",
        size: int = 15,
        weight: int = 400,
        ink: str = "ink",
    ) -> None:
        """Write a line. ``at``: the part of it that is at x, start, middle or end."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{at}" font-size="{size}"'
            f' font-weight="{weight}" fill="var(--{ink})">{escape(words)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, fill: str = "record") -> None:
        """Draw a rectangle."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"'
            f' fill="var(--{fill})" stroke="var(--strong-edge)"/>'
        )

    def ghost(self, x: float, y: float, width: float, height: float) -> None:
        """Draw the outline of a removed part."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"'
            ' fill="none" stroke="var(--strong-edge)" stroke-dasharray="4 4"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> None:
        """Draw a line."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="var(--ink)"'
            f' stroke-width="1.5"{dash}/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a horizontal or vertical arrow."""
        self.line(x1, y1, x2, y2)
        dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        tips = (f"{x2 - 8 * dx + s * 4 * dy:g},{y2 - 8 * dy + s * 4 * dx:g}" for s in (1, -1))
        self._parts.append(f'<polygon points="{x2:g},{y2:g} {" ".join(tips)}" fill="var(--ink)"/>')

    def dot(self, x: float, y: float, *, filled: bool) -> None:
        """Draw a dot: filled, or an outline."""
        fill = "var(--ink)" if filled else "none"
        radius = 7 if filled else 3
        self._parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{radius}" fill="{fill}"'
            ' stroke="var(--strong-edge)"/>'
        )

    def rendered(self) -> str:
        """Return the text of the file."""
        width, height = self._width + 2 * _MARGIN, self._height + 2 * _MARGIN
        head = (
            '<svg xmlns="http://www.w3.org/2000/svg"'
            f' viewBox="-{_MARGIN} -{_MARGIN} {width} {height}"'
            f' width="{width}" height="{height}" font-family="system-ui, sans-serif">'
        )
        ground = (
            f'<rect x="{0.5 - _MARGIN}" y="{0.5 - _MARGIN}" width="{width - 1}"'
            f' height="{height - 1}" rx="8" fill="var(--sheet)" stroke="var(--edge)"/>'
        )
        return "\n".join([head, style(), ground, *self._parts, "</svg>\n"])


def levels() -> str:
    """Draw a partition as a line, and the records that each isolation level returns."""
    picture = Drawing(384, 10 * _BOX)
    top = 46
    records = [
        ("0", "record"), ("A", "aborted"), ("2", "record"), ("A", "aborted"), ("B", "committed"),
        ("C", "open"), ("6", "record"), ("C", "open"), ("8", "record"), ("9", "record"),
    ]  # fmt: skip
    for number, (name, fill) in enumerate(records):
        picture.box(number * _BOX + 2, top, _BOX - 4, 34, fill)
        picture.text((number + 0.5) * _BOX, top + 22, name, at="middle")
    for place, name, meaning in (
        (0, "log start", ""), (5, "LSO", "C is open"), (8, "HW", "replicated"),
        (10, "log end", ""),
    ):  # fmt: skip
        x = place * _BOX
        picture.line(x, top - 8, x, top + 42, dashed=True)
        side = "start" if place == 0 else "end" if place == len(records) else "middle"
        picture.text(x, top - 30, name, at=side, weight=600)
        picture.text(x, top - 14, meaning, at=side, size=13, ink="quiet")
    seen: Mapping[str, tuple[str, int, Iterable[int]]] = {
        "read_uncommitted": ("up to the log end", 10, range(10)),
        "read_replicated": ("up to the high watermark (HW)", 8, range(8)),
        "read_committed": ("up to the last stable offset (LSO)", 5, (0, 2, 4)),
        "read_atomic": ("whole transactions only", 4, (0, 2)),
    }
    for row, (level, (reach, bound, visible)) in enumerate(seen.items()):
        y = top + 68 + row * 52
        picture.text(2, y, level, weight=600)
        picture.text(10 * _BOX - 2, y, reach, at="end", size=13, ink="quiet")
        picture.box(2, y + 8, bound * _BOX - 4, 22, "sunk")
        for number in range(bound):
            picture.dot((number + 0.5) * _BOX, y + 19, filled=number in visible)
    for x, fill, words in (
        (2, "record", "no transaction"),
        (138, "committed", "B committed"),
        (267, "open", "C open"),
        (362, "aborted", "A aborted"),
    ):
        picture.box(x, top + 270, 20, 16, fill)
        picture.text(x + 27, top + 283, words, size=13)
    for line, words in enumerate(
        (
            "The other part of B, in another partition, is not visible yet:",
            "read_atomic waits for it, and returns both parts together.",
        )
    ):
        picture.text(2, top + 314 + line * 20, words, size=14)
    return picture.rendered()


def life() -> str:
    """Draw the states of a record, and which level shows it from when on."""
    picture = Drawing(330)
    steps = [
        ("sent", "a batch, stamped", "nobody"),
        ("appended", "in the leader's log", "read_uncommitted"),
        ("replicated", "on all in-sync replicas", "read_replicated"),
        ("committed", "its transaction is decided", "read_committed"),
        ("whole", "so are all its other parts", "read_atomic"),
        ("removed", "retention ends it", "nobody"),
    ]
    for number, (state, meaning, level) in enumerate(steps):
        y = 34 + number * 50
        picture.box(0, y, 132, 34, "committed" if 0 < number < 5 else "record")
        picture.text(66, y + 22, state, at="middle", weight=600)
        picture.text(152, y + 22, meaning)
        picture.text(410, y + 22, level, weight=600 if level != "nobody" else 400)
        if number:
            picture.arrow(66, y - 16, 66, y)
    moves = {
        1: "LEO moves",
        2: "HW moves",
        3: "LSO moves",
        4: "the cut moves",
        5: "log start moves",
    }
    for number, words in moves.items():
        picture.text(590, 34 + number * 50 + 22, words)
    for x, words in ((0, "state"), (152, "meaning"), (410, "seen from here on"), (590, "offset")):
        picture.text(x, 16, words, size=13)
    return picture.rendered()


def failover() -> str:
    """Draw a partition on three brokers before, during and after the death of its leader."""
    picture = Drawing(520)
    scenes: list[tuple[str, list[tuple[str, int, int, str]], int]] = [
        (
            "1. Broker 1 leads. The high watermark is what all have.",
            [("broker 1", 8, 0, "leader"), ("broker 2", 7, 0, ""), ("broker 3", 6, 0, "")],
            6,
        ),
        (
            "2. Broker 1 dies. Broker 2 is in sync: it leads, and broker 3 fetches what it lacks.",
            [("broker 1", 0, 8, "dead"), ("broker 2", 7, 0, "leader"), ("broker 3", 7, 0, "")],
            7,
        ),
        (
            "3. Broker 1 comes back. Its record 7 is cut off; it fetches the new one.",
            [("broker 1", 8, 0, ""), ("broker 2", 8, 0, "leader"), ("broker 3", 8, 0, "")],
            8,
        ),
    ]
    left = 120
    for number, (words, brokers, mark) in enumerate(scenes):
        top = number * 176
        picture.text(0, top + 18, words, weight=600)
        for row, (name, held, gone, role) in enumerate(brokers):
            y = top + 34 + row * 40
            picture.text(0, y + 20, name)
            for offset in range(held + gone):
                x = left + offset * _BOX
                if offset >= held:
                    picture.ghost(x + 2, y, _BOX - 4, 30)
                    continue
                is_new = number == 2 and offset == 7
                fill = "committed" if offset < mark else "open"
                picture.box(x + 2, y, _BOX - 4, 30, fill)
                picture.text(x + _BOX / 2, y + 20, "7'" if is_new else str(offset), at="middle")
            picture.text(left + 8 * _BOX + 52, y + 20, role, weight=600)
        x = left + mark * _BOX
        picture.line(x, top + 28, x, top + 146, dashed=True)
        picture.text(x + 6, top + 160, "HW", size=13, weight=600)
    return picture.rendered()


PICTURES: Final[Mapping[str, Callable[[], str]]] = {
    "levels.svg": levels,
    "life.svg": life,
    "failover.svg": failover,
}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
