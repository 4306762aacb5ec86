"""Requests drawn from what /openapi.json says of the HTTP routes, and answers held to it."""

from __future__ import annotations

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.fuzz.http_figures import HttpFigures

TIMEOUT_S = 60.0
# A document cannot say that arguments are the text of a JSON object, and calls 1.0 an integer.
BEYOND_THE_DOCUMENT = [positive_data_acceptance]


def send_documented(address: str, first_seed: int, examples: int, figures: HttpFigures) -> None:
    """To each route so many requests that fit the document, and as many that do not; a route
    without parameters gets one. Errors: Schemathesis' failures, with the shortest request.
    """
    schema = schemathesis.openapi.from_url(f"http://{address}/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()
        takes_something = any(operation.iter_parameters()) or operation.body
        for mode in GenerationMode:
            if mode is GenerationMode.POSITIVE or takes_something:
                _send(operation, mode, address, first_seed, examples, figures)


def _send(
    operation: APIOperation,
    mode: GenerationMode,
    address: str,
    first_seed: int,
    examples: int,
    figures: HttpFigures,
) -> None:
    with requests.Session() as session:

        @seed(first_seed)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def send(case: Case) -> None:
            response = case.call(base_url=f"http://{address}", session=session, timeout=TIMEOUT_S)
            figures.note(operation.label, mode.value, response.status_code)
            case.validate_response(response, excluded_checks=BEYOND_THE_DOCUMENT)

        send()
