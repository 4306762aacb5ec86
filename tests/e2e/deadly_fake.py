"""`python -m tests.e2e.deadly_fake`: the fake runner, which dies whenever it computes a certain
token.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from runnersvc.executor import AtOnce, ExecutesPlans
from runnersvc.fake import FakeRunnerConfig, load
from runnersvc.serving import serve_model
from servicekit.config import setting
from servicekit.plan import Int32Array, Plan, RunnerDescription
from servicekit.process import run_service

NO_ID = -1


@dataclass(frozen=True)
class DeadlyConfig(FakeRunnerConfig):
    deadly_id: int = setting("token id in a prompt that it dies of", NO_ID)
    dying: str = setting("raise, and the runner says so; or exit", "exit")


class DeadlyModel:
    """`model`, but for the deadly token."""

    def __init__(self, model: ExecutesPlans, config: DeadlyConfig) -> None:
        self._model = model
        self._config = config

    def launch(self, plan: Plan) -> AtOnce:
        if self._config.deadly_id in plan.literal_ids:
            if self._config.dying == "raise":
                raise RuntimeError("a token that cannot be computed")
            os._exit(1)
        return self._model.launch(plan)  # type: ignore[return-value]

    def read_table(self) -> Int32Array:
        return self._model.read_table()


def load_deadly(config: DeadlyConfig) -> tuple[DeadlyModel, RunnerDescription]:
    model, description = load(config)
    return DeadlyModel(model, config), description


async def serve(config: DeadlyConfig) -> None:
    await serve_model(config, partial(load_deadly, config))


if __name__ == "__main__":
    run_service("deadly_fake", "A fake runner that dies of a token.", DeadlyConfig, serve)
