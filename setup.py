"""The metadata that depends on the public repository: its addresses and the long description.

Everything else is in setup.cfg. The long description is README.md. Outside the repository a
relative link would lead nowhere, so each becomes an address in the repository, at the tag of the
release. Without a public repository the text of the link remains.
"""

import configparser
import re
from pathlib import Path

SOURCE = ""
"""The public repository, such as https://github.com/OWNER/isolog. It has none yet."""

_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)\n*")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def long_description(readme: str, source: str, version: str) -> str:
    """Return the text of README.md with links that work outside the repository."""
    text = _COMMENT.sub("", readme)
    if not source:
        return _LINK.sub(r"\1", _PICTURE.sub("", text))
    text = _PICTURE.sub(rf"![\1]({source}/raw/v{version}/\2)\n\n", text)
    return _LINK.sub(rf"[\1]({source}/blob/v{version}/\2)", text)


def project_urls(source: str, version: str) -> dict[str, str]:
    """Return the addresses for the page of the index."""
    if not source:
        return {}
    return {
        "Source": source,
        "Documentation": f"{source}/blob/v{version}/docs/tutorial.md",
        "Changelog": f"{source}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{source}/issues",
    }


if __name__ == "__main__":
    from setuptools import setup

    here = Path(__file__).parent
    metadata = configparser.ConfigParser()
    metadata.read(here / "setup.cfg", encoding="utf-8")
    version = metadata["metadata"]["version"]
    setup(
        long_description=long_description(
            (here / "README.md").read_text(encoding="utf-8"), SOURCE, version
        ),
        long_description_content_type="text/markdown",
        project_urls=project_urls(SOURCE, version),
    )
