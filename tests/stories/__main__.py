"""``python -m tests.stories [NAME ...]``: write the outcomes of all stories, or of these, again."""

import sys

from tests.stories.script import STORIES, with_outcomes

for name in sys.argv[1:] or sorted(path.stem for path in STORIES.glob("*.txt")):
    path = STORIES / f"{name}.txt"
    path.write_text(with_outcomes(path.read_text()))
