"""`python -m tests.e2e.serve_fake MODEL RUNNER SETTINGS`: `pagewire serve` on a runner without a
model, whose arguments are RUNNER, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from gateway.serve_command import supervise
from gateway.serve_config import ServeConfig
from gateway.supervisor import Supervisor
from servicekit.config import read_settings
from servicekit.errors import FatalError
from servicekit.logs import configure_logs

if __name__ == "__main__":
    model, runner, *settings = sys.argv[1:]
    config = read_settings(ServeConfig, settings, prog="serve_fake", description=__doc__ or "")
    configure_logs("pagewire", config.log_level)
    supervisor = Supervisor(Path(model), config, ["runnersvc.fake", *json.loads(runner)])
    try:
        asyncio.run(supervise(supervisor, config))
    except FatalError as error:
        sys.exit(str(error))
