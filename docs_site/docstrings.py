"""An extension of griffe that shows the public face's docstrings as pages of the site.

griffe reads the source and runs nothing. So this extension supplies the signatures of the asyncio
client, whose functions are made when they are imported: ``read = on_a_thread(Log.read)``.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

import griffe

_ROLE: Final = re.compile(r":(?:class|meth|func|mod|attr):`~?([^`]+)`")
_PACKAGE: Final = re.compile(r"\bspark_stream(?:\.\w+)*\.(?=[A-Z])")
_LINKED: Final = re.compile(r"(?:Log|Producer|TransactionalProducer|Consumer)(?:\.\w+)?")
_WRAPPED: Final = re.compile(r"(?:on_a_thread|_opens)\(sync\.([\w.]+)")
_CLIENT: Final = "spark_stream.client.log"
_AIO: Final = ("spark_stream.aio.log", "spark_stream.aio.log.AsyncLog")


class PublicFace(griffe.Extension):
    """Rewrites roles of reStructuredText, and the functions of the asyncio client."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace roles by links or code, and the paths of internal classes by their names."""
        if obj.docstring is not None:
            text = _PACKAGE.sub("", obj.docstring.value)
            obj.docstring.value = _ROLE.sub(lambda found: _shown(found[1]), text)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the code and the remedy of an error to its docstring."""
        if cls.docstring is not None and {"code", "hint"} <= cls.members.keys():
            values = {name: _value(cls.members.get(name)) for name in ("code", "hint", "retriable")}
            again = "A retry may succeed." if values["retriable"] else "A retry does not help."
            cls.docstring.value += f"\n\nCode `{values['code']}`. {again} Remedy: {values['hint']}"

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


def _shown(name: str) -> str:
    return f"[`{name}`][isolog.{name}]" if _LINKED.fullmatch(name) else f"`{name}`"


def _value(attribute: Any) -> Any:
    return None if attribute is None else ast.literal_eval(str(attribute.value))


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
