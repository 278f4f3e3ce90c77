"""The pictures of the pages on concepts: ``python -m docs_site.pictures`` writes them.

A picture takes its colours from variables. A separate picture follows the system's choice of light
or dark. Within a page of the site it follows that of the page (``hooks.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "concepts" / "pictures"

_LIGHT: Final = (
    "--ink:#1d2733;--soft:#8795a3;--plain:#d7e3ea;--good:#7cc7b5;--open:#f4c95d;--bad:#e39a94"
)
_DARK: Final = (
    "--ink:#e6edf3;--soft:#8593a3;--plain:#3f5263;--good:#1f7a68;--open:#8f6a10;--bad:#8c4640"
)
STYLE: Final = (
    f"<style>svg{{{_LIGHT}}}\n@media (prefers-color-scheme: dark){{svg{{{_DARK}}}}}</style>"
)
_WIDTH: Final = 720
_BOX: Final = 46
"""The width of a record."""


class Drawing:
    """An SVG that grows by shapes. Coordinates are pixels from the upper left."""

    def __init__(self, height: int) -> None:
        """Begin an empty picture of this height."""
        self._height = height
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
    ) -> None:
        """Write a line. ``at``: the part of it that is at x, start, middle or end."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{at}" font-size="{size}"'
            f' font-weight="{weight}" fill="var(--ink)">{escape(words)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, fill: str = "plain") -> None:
        """Draw a rectangle."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"'
            f' fill="var(--{fill})" stroke="var(--soft)"/>'
        )

    def ghost(self, x: float, y: float, width: float, height: float) -> None:
        """Draw the outline of a removed part."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"'
            ' fill="none" stroke="var(--soft)" stroke-dasharray="4 4"/>'
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
            f'<circle cx="{x:g}" cy="{y:g}" r="{radius}" fill="{fill}" stroke="var(--soft)"/>'
        )

    def rendered(self) -> str:
        """Return the text of the file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {self._height}"'
            ' font-family="system-ui, sans-serif">'
        )
        return "\n".join([head, STYLE, *self._parts, "</svg>\n"])


def levels() -> str:
    """Draw a partition as a line, and what each isolation level sees of it."""
    picture = Drawing(356)
    left, top = 176, 86
    records = [
        ("0", "plain"), ("A", "bad"), ("2", "plain"), ("A", "bad"), ("B", "good"),
        ("C", "open"), ("6", "plain"), ("C", "open"), ("8", "plain"), ("9", "plain"),
    ]  # fmt: skip
    for number, (name, fill) in enumerate(records):
        x = left + number * _BOX
        picture.box(x + 2, top, _BOX - 4, 34, fill)
        picture.text(x + _BOX / 2, top + 22, name, at="middle")
    picture.text(0, top + 22, "one partition", weight=600)
    for place, name, meaning in (
        (0, "log start", ""), (5, "LSO", "C is open"), (8, "HW", "replicated"), (10, "LEO", "end"),
    ):  # fmt: skip
        x = left + place * _BOX
        picture.line(x, top - 26, x, top + 176, dashed=True)
        side = "start" if place == 0 else "end" if place == len(records) else "middle"
        picture.text(x, top - 52, name, at=side, weight=600)
        picture.text(x, top - 34, meaning, at=side, size=13)
    seen = {
        "read_uncommitted": range(10),
        "read_replicated": range(8),
        "read_committed": (0, 2, 4),
        "read_atomic": (0, 2),
    }
    for row, (level, visible) in enumerate(seen.items()):
        y = top + 66 + row * 30
        picture.text(0, y + 5, level, size=15)
        for number in range(len(records)):
            picture.dot(left + (number + 0.5) * _BOX, y, filled=number in visible)
    for number, (fill, words) in enumerate(
        (
            ("plain", "no transaction"),
            ("good", "B: committed"),
            ("open", "C: open"),
            ("bad", "A: aborted"),
        )
    ):
        picture.box(number * 180, 292, 22, 18, fill)
        picture.text(number * 180 + 30, 306, words, size=14)
    note = "B has a second part in another partition, which is not visible there yet:"
    picture.text(0, 344, f"{note} read_atomic waits.", size=14)
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
        picture.box(0, y, 132, 34, "good" if 0 < number < 5 else "plain")
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
                fill = "good" if offset < mark else "open"
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
