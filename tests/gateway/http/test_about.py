"""Models, life, readiness, metrics, and the document of all routes."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.http.surface import BODIES, CHAT, CREATED_S, Surface, error_of

MODEL = {
    "id": "tiny",
    "object": "model",
    "created": CREATED_S,
    "owned_by": "pagewire",
    "max_model_len": 64,
}


async def test_the_one_model_is_listed_and_found_by_its_name(surface: Surface) -> None:
    assert (await surface.http.get("/v1/models")).json() == {"object": "list", "data": [MODEL]}
    assert (await surface.http.get("/v1/models/tiny")).json() == MODEL
    other = await surface.http.get("/v1/models/org/other")
    assert (other.status_code, error_of(other)["code"]) == (404, "model_not_found")


async def test_alive_is_not_ready(surface: Surface) -> None:
    async def statuses() -> tuple[int, int]:
        alive, ready = [await surface.http.get(path) for path in ("/health", "/ready")]
        return alive.status_code, ready.status_code

    assert await statuses() == (200, 200)
    assert (await surface.http.head("/health")).status_code == 200
    assert (await surface.http.head("/ready")).status_code == 200
    await surface.becomes(serving=False)
    assert await statuses() == (200, 503)
    assert error_of(await surface.http.get("/ready"))["code"] == "chain_not_attached"
    await surface.becomes(serving=True)
    assert await statuses() == (200, 200)


async def numbers(surface: Surface) -> dict[tuple[str, ...], float]:
    text = (await surface.http.get("/metrics")).text
    return {
        (sample.name.removeprefix("pagewire_gateway_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_tell_requests_tokens_and_times(surface: Surface) -> None:
    call = surface.ask(CHAT)
    submit = await surface.submitted()
    assert (await numbers(surface))["live_answers",] == 1
    surface.say(submit, [5, 6, 7], cached_tokens=2)
    await call
    await surface.post(CHAT, temperature=-1)
    after = await numbers(surface)
    assert after["requests_total", "OK", CHAT] == 1
    assert after["requests_total", "INVALID_ARGUMENT", CHAT] == 1
    assert after["prompt_tokens_total",] == len(submit.prompt_ids)
    assert after["cached_tokens_total",] == 2
    assert after["completion_tokens_total",] == 3
    assert after["first_token_seconds_count",] == 1
    assert after["next_token_seconds_count",] == 2
    assert after["live_answers",] == 0
    assert after["serving",] == 1
    assert after["pagewire_tasks",] >= 1


async def test_the_document_has_every_route_and_promises_our_own_errors(surface: Surface) -> None:
    document = (await surface.http.get("/openapi.json")).json()
    gets = ["/v1/models", "/v1/models/{model}", "/health", "/ready", "/metrics"]
    assert list(document["paths"]) == [*BODIES, *gets]
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert len({operation["operationId"] for operation in operations}) == 9
    refusal = {"$ref": "#/components/schemas/ErrorAnswer"}
    for operation in operations:
        assert set(operation["responses"]) == {"200", "default"}
        content = operation["responses"]["default"]["content"]
        assert content["application/json"]["schema"] == refusal
    names = set(refs(document))
    assert names <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def refs(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for child in node.values() for ref in refs(child)]
    return [ref for child in node for ref in refs(child)] if isinstance(node, list) else []


async def test_the_document_says_which_model_there_is_wherever_one_is_asked_for(
    surface: Surface,
) -> None:
    """It said so of two bodies alone: whoever drew requests from it never found the model."""
    document = (await surface.http.get("/openapi.json")).json()
    (path,) = document["paths"]["/v1/models/{model}"]["get"]["parameters"]
    assert path["schema"]["enum"] == ["tiny"]
    for name in ("ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"):
        told = document["components"]["schemas"][name]["properties"]["model"]["enum"]
        assert [each for each in told if each is not None] == ["tiny"]


async def test_the_document_lets_a_prompt_be_tokenized_without_messages(surface: Surface) -> None:
    """It required both, one of them null. Schemathesis left one out, as everybody does, and was
    answered.
    """
    schemas = (await surface.http.get("/openapi.json")).json()["components"]["schemas"]
    required = [each["required"] for each in schemas["TokenizeRequest"]["anyOf"]]
    assert required == [["prompt"], ["messages"]]


async def test_the_document_says_what_is_not_supported_yet(surface: Surface) -> None:
    schemas = (await surface.http.get("/openapi.json")).json()["components"]["schemas"]
    assert schemas["ChatRequest"]["additionalProperties"] is False
    assert schemas["CompletionRequest"]["properties"]["best_of"]["enum"] == [None, 1]
    assert schemas["CompletionRequest"]["properties"]["prompt_logprobs"]["enum"] == [None]
