"""``python -m tests.stories [NAME ...]``: writes the answers of all stories, or of these, anew."""

import sys

from tests.stories.script import STORIES, told_anew

for name in sys.argv[1:] or sorted(path.stem for path in STORIES.glob("*.txt")):
    path = STORIES / f"{name}.txt"
    path.write_text(told_anew(path.read_text()))
