"""Functions that a model may call, and calls of them, in the form that chat templates take."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from servicekit.errors import InvalidArgument, Reason


def offered_function(
    name: str, description: str | None, parameters_json: str | None
) -> dict[str, Any]:
    """Errors: InvalidArgument for `parameters_json` that is no JSON object."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    if parameters_json is not None:
        function["parameters"] = _object("tools.parameters_json", parameters_json)
    return {"type": "function", "function": function}


def called_function(call_id: str, name: str, arguments_json: str) -> dict[str, Any]:
    """Errors: InvalidArgument for `arguments_json` that is no JSON object."""
    arguments = _object("messages.tool_calls.arguments_json", arguments_json)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def json_object(text: str) -> dict[str, Any] | None:
    """What `text` is the JSON of, all texts in it Unicode; None: it is no object's."""
    try:
        value = from_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _object(field: str, text: str) -> dict[str, Any]:
    value = json_object(text)
    if value is None:
        raise InvalidArgument(
            Reason.INVALID_FIELD, f"{field} is not the text of a JSON object", field=field
        )
    return value
