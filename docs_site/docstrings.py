"""An extension of griffe that shows the public face's docstrings as pages of the site.

griffe reads the source and runs nothing. So this extension supplies the signatures of the asyncio
client, whose functions are made when they are imported: ``read = on_a_thread(Log.read)``.
"""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

_ROLE: Final = re.compile(r":(?:class|meth|func|mod|attr):`~?([^`]+)`")
_PACKAGE: Final = re.compile(r"\bspark_stream(?:\.\w+)*\.(?=[A-Z])")
_WRAPPED: Final = re.compile(r"(?:on_a_thread|_opens)\(sync\.([\w.]+)")
_CLIENT: Final = "spark_stream.client.log"
_AIO: Final = ("spark_stream.aio.log", "spark_stream.aio.log.AsyncLog")


class PublicFace(griffe.Extension):
    """Rewrites roles of reStructuredText, and the functions of the asyncio client."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace roles by code, and the paths of internal classes by their names."""
        if obj.docstring is not None:
            text = _ROLE.sub(lambda found: f"`{found[1]}`", obj.docstring.value)
            obj.docstring.value = _PACKAGE.sub("", text)

    def on_package(self, *, pkg: griffe.Module, loader: Any, **_: Any) -> None:
        """Give the asyncio client the functions that it wraps."""
        if pkg.path != "spark_stream":
            return
        for name in _AIO:
            holder = pkg.modules_collection[name]
            for key, member in list(holder.members.items()):
                is_value = isinstance(member, griffe.Attribute)
                found = _WRAPPED.match(str(member.value)) if is_value else None
                if found is not None:
                    wrapped = pkg.modules_collection[f"{_CLIENT}.{found[1]}"]
                    holder.set_member(key, _coroutine(key, wrapped, holder))


def _coroutine(name: str, wrapped: Any, holder: Any) -> griffe.Function:
    """Return the function that a reader sees: its summary, and where the rest is described."""
    summary = wrapped.docstring.value.partition("\n")[0]
    face = "isolog." + wrapped.path.removeprefix(f"{_CLIENT}.")
    text = f"{summary}\n\nArguments, result and errors are those of `{face}`."
    docstring = griffe.Docstring(text)
    docstring.parent = shown = griffe.Function(
        name,
        parameters=wrapped.parameters,
        returns=wrapped.returns if holder.is_class else "Opener[AsyncLog]",
        docstring=docstring,
        parent=holder,
    )
    shown.labels.add("async")
    return shown
