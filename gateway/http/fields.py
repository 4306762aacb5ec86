"""Kinds of fields of requests, and what every request model refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Item = TypeVar("Item")
# A list that is wrong throughout costs its first error alone.
Listed = Annotated[list[Item], Field(fail_fast=True)]
Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
ABOVE_ZERO = 1e-37  # for the document: what the wire between the services tells from zero


class Asked(BaseModel):
    """A body, or a part of one: of the right types, with no field that we do not know."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_one_unknown(cls, fields: Any) -> Any:
        """The first is the one that is told of; each of the others would cost an error as well."""
        if not isinstance(fields, dict) or len(fields) <= len(cls.model_fields):
            return fields
        unknown = next(name for name in fields if name not in cls.model_fields)
        return {name: fields[name] for name in (*cls.model_fields, unknown) if name in fields}


@dataclass(frozen=True, slots=True)
class Only:
    """Marks a field of OpenAI's of which `served` are the only values so far. Others are refused by
    name with `why`: take the mark away when they are served.
    """

    served: tuple[Any, ...]
    why: str

    def __get_pydantic_core_schema__(
        self, source: Any, schema_of: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, schema_of(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, schema_of: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"enum": list(self.served), "description": f"Not supported yet: {self.why}"}

    def _check(self, value: Any) -> Any:
        if value not in self.served:
            raise PydanticCustomError("not_served", "{why}", {"why": self.why})
        return value


def one_of(words: str) -> WrapValidator:
    """Marks a union, whose refusal is then one sentence instead of one for each member."""

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise PydanticCustomError(
                "one_of", "Input should be {words}", {"words": words}
            ) from None

    return WrapValidator(check)


def either(*choices: dict[str, Any]) -> dict[str, Any]:
    """For the document alone: of fields that are bound up with each other. What is null in a choice
    may be left out of it.
    """

    def required(fields: dict[str, Any]) -> list[str]:
        return [name for name, schema in fields.items() if schema != {"type": "null"}]

    return {"anyOf": [{"properties": each, "required": required(each)} for each in choices]}


def within(least: float, most: float) -> dict[str, Any]:
    """For the document alone: the rule's owner enforces it."""
    return {"minimum": least, "maximum": most}
