"""What a fault hit and how long it took to recover is read from logs as the services write them."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from servicekit.logs import configure_logs
from tests.chaos.faults import ANY, KILL, MANAGER, RESET, RUNNER, STREAM, Fault
from tests.chaos.heard import Heard
from tests.chaos.log_events import LogReader, event_of
from tests.chaos.recovery import Strike, attached_s, measure, measure_health


def line(second: float, event: str, **fields: object) -> str:
    pairs = "".join(f" {key}={value}" for key, value in fields.items())
    at = f"2026-11-30T20:00:{second:09.6f}Z"
    return f'timestamp={at} level=info service=x event="{event}"{pairs}\n'


def health(second: float, serving: str) -> str:
    return line(second, "health changed", serving=serving)


START_S = event_of("x", line(0, "start")).at_s


def test_a_line_as_structlog_writes_it_is_read_back(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logs("cachesvc", "info")
    structlog.get_logger().warning("runner lost", reason='said "no"', plans_in_flight=2)
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()
    event = event_of("cachesvc", capfd.readouterr().err)
    assert event is not None
    assert (event.event, event.level) == ("runner lost", "warning")
    assert event.fields["reason"] == 'said "no"'
    assert event.number("plans_in_flight") == 2
    assert event.number("prefill_tokens") is None


def test_events_come_as_their_lines_end(tmp_path: Path) -> None:
    logs = LogReader(tmp_path)
    path = tmp_path / "cachesvc.log"
    whole = line(1, "runner lost") + line(2, "runner attached")
    path.write_text(whole[:-20])
    logs.read()
    assert [each.event for each in logs.events["cachesvc"]] == ["runner lost"]
    path.write_text(whole + "Traceback (most recent call last):\n")
    logs.read()
    assert [each.event for each in logs.events["cachesvc"]] == ["runner lost", "runner attached"]
    assert logs.strays == ["cachesvc: Traceback (most recent call last):"]


def logs_of(run_dir: Path, **texts: str) -> LogReader:
    for process, text in texts.items():
        (run_dir / f"{process}.log").write_text(text)
    logs = LogReader(run_dir)
    logs.read()
    return logs


def fault_of(service: str, kind: str, target: str) -> Fault:
    return Fault(0, service, kind, target, ANY, 0.0, 0.0, (), 0.0, in_recovery=False)


def test_a_killed_runner_is_measured_by_phases(tmp_path: Path) -> None:
    logs = logs_of(
        tmp_path,
        cachesvc=line(0, "runner attached")
        + line(1.25, "runner lost", plans_in_flight=2, prefill_tokens=30)
        + line(5.5, "runner attached"),
        runnersvc=line(5, "listening"),
        gateway_0=health(1.3, "false") + health(5.6, "true"),
        gateway_1=health(1.5, "false") + health(6.5, "true"),
    )
    heard = Heard(1)
    heard.choices[0].arrivals_s = [START_S + 0.5, START_S + 5.75]
    strike = Strike(fault_of(RUNNER, KILL, "runnersvc"), START_S + 1, [heard], START_S + 2)
    strike.attached_s = attached_s(logs, strike)
    assert strike.attached_s is not None
    assert heard.went_on_after(strike.attached_s)
    strike.over_s = START_S + 6
    measure(logs, strike)
    measure_health(logs, strike)
    expected = {
        "health_off": 0.5,
        "health_on": 1.0,
        "detection": 0.25,
        "start": 3.0,
        "attach": 0.5,
        "first_token": 0.25,
        "every_token": 0.25,
    }
    assert strike.phases == pytest.approx(expected, abs=1e-4)
    assert (strike.plans_in_flight, strike.prefill_tokens) == (2, 30)


def test_a_killed_manager_that_found_its_journal_void_is_told(tmp_path: Path) -> None:
    logs = logs_of(
        tmp_path,
        cachesvc=line(1.5, "journal void", reason="torn")
        + line(2, "runner attached", standing="started_over"),
        runnersvc=line(1, "manager lost", plans_in_flight=1, prefill_tokens=0),
    )
    strike = Strike(fault_of(MANAGER, KILL, "cachesvc"), START_S + 0.5, [], START_S + 1)
    strike.over_s = START_S + 3
    measure(logs, strike)
    assert (strike.standing, strike.void_because) == ("started_over", "torn")
    assert strike.plans_in_flight == 1


def test_a_line_of_another_time_tells_nothing_of_this_fault(tmp_path: Path) -> None:
    lost = line(0.5, "runner lost", plans_in_flight=2)
    logs = logs_of(tmp_path, cachesvc=lost + line(9, "runner lost", plans_in_flight=1))
    strike = Strike(fault_of(STREAM, RESET, "execute"), START_S + 1, [])
    assert attached_s(logs, strike) is None
    strike.attached_s, strike.over_s = START_S + 2, START_S + 3
    measure(logs, strike)
    assert strike.plans_in_flight is None
    assert "detection" not in strike.phases
