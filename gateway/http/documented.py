"""What /openapi.json says of answers beside the usual one."""

from __future__ import annotations

from typing import Any, TypeAlias

from gateway.http.errors import ErrorAnswer

Responses: TypeAlias = dict[int | str, dict[str, Any]]

# It stands for every status that is no 2xx, and keeps FastAPI from promising a shape of its own.
REFUSED: Responses = {"default": {"model": ErrorAnswer, "description": "What is wrong."}}
# The same beside an answer that is no JSON.
TEXT_OR_REFUSED: Responses = {
    "default": {
        "description": "What is wrong.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}},
    }
}
EVENT = {
    "type": "object",
    "description": "With stream: an event for each chunk, then one whose data is [DONE].",
    "properties": {
        "data": {"type": "string", "description": "The chunk, as JSON."},
        "event": {"type": "string", "description": "`error` where data is an error and the end."},
    },
    "required": ["data"],
}
STREAMED: Responses = REFUSED | {
    200: {
        "description": "The answer.",
        "content": {"text/event-stream": {"schema": EVENT}},
    }
}
