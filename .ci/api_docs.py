"""Makes docs/api.md of a FileDescriptorSet with comments: every public service, and all that it
takes and gives.

`buf lint` sees to it that there are comments. `Absent: …` and `Empty: …` in them say what a field
then means, and `Errors: …` comes last.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from google.protobuf import descriptor_pb2 as pb

INNER = {"CacheService", "RunnerService"}  # between our own processes
FIRST = {"InferenceService", "ModelService"}  # then what fewer readers come for
TOP = """\
# The API

What can be called over gRPC. `make docs` makes this page from the comments in
[protos/](../protos/pagewire/v1), and a server tells the same by reflection. Its HTTP API is
OpenAI's; `/openapi.json` describes that.
"""
# Field numbers of a descriptor, of which a SourceCodeInfo path is made. A service's methods and an
# enum's values have the number of a message's fields.
MESSAGE, ENUM, SERVICE, MEMBER, ONEOF = 4, 5, 6, 2, 8
ABSENT = re.compile(r" ?\b(?:Absent|Empty): ((?:[^.]|\.(?=\S))+)\.")


class Docs:
    """All that the .proto files declare, by full name, and the comments on it."""

    def __init__(self, files: pb.FileDescriptorSet) -> None:
        self.services: dict[str, pb.ServiceDescriptorProto] = {}
        self.types: dict[str, pb.DescriptorProto | pb.EnumDescriptorProto] = {}
        self.comments: dict[str, str] = {}
        for file in files.file:
            at = {
                tuple(spot.path): spot.leading_comments for spot in file.source_code_info.location
            }
            for number, declared in (
                (MESSAGE, file.message_type),
                (ENUM, file.enum_type),
                (SERVICE, file.service),
            ):
                for idx, one in enumerate(declared):
                    name = f".{file.package}.{one.name}"
                    kept = self.services if number == SERVICE else self.types
                    kept[name] = one
                    self.comments[name] = at.get((number, idx), "")
                    for member_number, member_idx, member in _members(one):
                        path = (number, idx, member_number, member_idx)
                        self.comments[f"{name}.{member}"] = at.get(path, "")

    def page(self) -> Iterator[str]:
        """Its lines: services, then messages and enums in the order in which they are met."""
        yield TOP
        met: list[str] = []
        public = [one for one in self.services.items() if one[1].name not in INNER]
        for name, service in sorted(public, key=lambda one: one[1].name not in FIRST):
            yield f"## {service.name}\n"
            yield from self._text(name)
            for method in service.method:
                met += [method.input_type, method.output_type]
                yield f"### {service.name}.{method.name}\n"
                answer = "stream " * method.server_streaming + _linked(method.output_type)
                yield f"{_linked(method.input_type)} → {answer}\n"
                yield from self._text(f"{name}.{method.name}")
        yield "## Messages\n"
        done: set[str] = set()
        while met:
            name = met.pop(0)
            if name in done or name not in self.types:
                continue
            done.add(name)
            declared = self.types[name]
            yield f"### {declared.name}\n"
            yield from self._text(name)
            if isinstance(declared, pb.EnumDescriptorProto):
                yield from self._values(name, declared)
            else:
                met[:0] = [field.type_name for field in declared.field]
                yield from self._fields(name, declared)

    def _text(self, name: str) -> Iterator[str]:
        """A comment, and its errors as a list, one code a line."""
        text, _, errors = self.comments[name].partition("Errors: ")
        yield f"{_prose(text)}\n"
        if errors:
            yield "Errors:\n"
            for error in re.split(r";\s", errors.strip().rstrip(".")):
                yield f"- {_prose(error)}"
            yield ""

    def _fields(self, name: str, message: pb.DescriptorProto) -> Iterator[str]:
        if not message.field:
            return
        yield "| field | type | meaning | when absent |"
        yield "|---|---|---|---|"
        for field in message.field:
            kind = _linked(field.type_name) if field.type_name else _scalar(field)
            kind = "repeated " * (field.label == field.LABEL_REPEATED) + kind
            if field.HasField("oneof_index") and not field.proto3_optional:
                kind += f" (one of `{message.oneof_decl[field.oneof_index].name}`)"
            comment = _prose(self.comments[f"{name}.{field.name}"]).replace("|", "\\|")
            absent = ABSENT.search(comment)
            meaning = ABSENT.sub("", comment, count=1)
            yield f"| `{field.name}` | {kind} | {meaning} | {absent[1] if absent else ''} |"
        yield ""
        for oneof in message.oneof_decl:
            if comment := self.comments[f"{name}.{oneof.name}"]:
                yield f"`{oneof.name}`: {_prose(comment)}\n"

    def _values(self, name: str, enum: pb.EnumDescriptorProto) -> Iterator[str]:
        for value in enum.value:
            yield f"- {_prose(self.comments[f'{name}.{value.name}'])}"
        yield ""


def _members(one: pb.DescriptorProto) -> Iterator[tuple[int, int, str]]:
    """Number, index and name of what is declared in a message, an enum or a service."""
    members = {"DescriptorProto": "field", "EnumDescriptorProto": "value"}
    kind = members.get(type(one).__name__, "method")
    for number, declared in ((MEMBER, kind), (ONEOF, "oneof_decl")):
        for idx, member in enumerate(getattr(one, declared, ())):
            yield number, idx, member.name


def _prose(comment: str) -> str:
    return " ".join(comment.split()).replace("<", "&lt;")


def _linked(type_name: str) -> str:
    name = type_name.rsplit(".", 1)[1]
    if type_name.startswith(".google."):
        return f"`{type_name[1:]}`"
    return f"[{name}](#{name.lower()})"


def _scalar(field: pb.FieldDescriptorProto) -> str:
    return pb.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


if __name__ == "__main__":
    files = pb.FileDescriptorSet.FromString(sys.stdin.buffer.read())
    sys.stdout.write("\n".join(Docs(files).page()).rstrip("\n") + "\n")
