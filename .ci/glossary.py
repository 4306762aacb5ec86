"""Fails when one of our own identifiers uses a word that the glossary bans (ARCHITECTURE.md).

Only what we name ourselves counts: modules, classes, functions, arguments, variables and attributes
defined here, and the names in .proto files. What a library calls its things does not. Exempt:
constants `BLOCK_*` in kernels/ (Triton tiles), and a line that ends in `glossary: REASON` as a
comment (a wire-compatible adapter, a name that somebody else's interface dictates).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

BANNED = {"block", "data", "handle", "helper", "info", "misc", "slot", "util"}
BANNED_ALONE = {"size"}  # `page_size` says of what, `size` does not
ROOTS = ("cachesvc", "runnersvc", "gateway", "servicekit", "kernels", "tests", "bench", ".ci")
FOREIGN = re.compile(r"error_?info", re.IGNORECASE)  # google.rpc.ErrorInfo
EXEMPT = re.compile(r"(#|//) glossary: \w")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
PROTO_NAME = re.compile(
    r"\b(?:message|enum|service|rpc|oneof|package)\s+([\w.]+)|\b(\w+)\s*=\s*-?\d+\s*[;\[]"
)


def banned_word(name: str) -> str | None:
    """The banned word in `name`, if any, in singular; `pageSize` and `PAGE_SIZE` are page, size."""
    if name.startswith("__"):
        return None
    words = [word.lower().removesuffix("s") for word in WORD.findall(FOREIGN.sub("", name))]
    if len(words) == 1 and words[0] in BANNED_ALONE:
        return words[0]
    return next((word for word in words if word in BANNED), None)


def python_names(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store(), value=ast.Name(id="self")):
                yield node.lineno, node.attr
            case ast.alias(asname=str(asname)):
                yield node.lineno, asname


def proto_names(source: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.splitlines(), start=1):
        for name, field in PROTO_NAME.findall(line.split("//")[0]):
            yield number, name or field


def violations(path: Path) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    if word := banned_word(path.stem):
        yield f"{path}: the name of this file uses {word!r}"
    names = proto_names(source) if path.suffix == ".proto" else python_names(source)
    for number, name in names:
        tile = path.parts[0] == "kernels" and name.startswith("BLOCK_")
        exempt = tile or EXEMPT.search(lines[number - 1])
        if not exempt and (word := banned_word(name)):
            yield f"{path}:{number}: {name} uses {word!r}"


def main() -> int:
    paths = [path for root in ROOTS for path in sorted(Path(root).rglob("*.py"))]
    paths += sorted(Path("protos").rglob("*.proto"))
    found = [line for path in paths for line in violations(path)]
    for line in found:
        sys.stdout.write(f"{line}; the glossary has another word\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
