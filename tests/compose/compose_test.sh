#!/usr/bin/env bash
# Brings compose.yaml up on a real Docker engine and holds it to its promises, as a stranger with grpcurl would: one answer,
# a killed runner and a killed manager that come back, another answer after each, a clean stop. Needs docker with compose, grpcurl and python3.
# `make compose-test` calls it; PAGEWIRE_PUBLISH=127.0.0.1:PORT and PAGEWIRE_PUBLISH_HTTP=... move the published ports.
set -euo pipefail
cd "$(dirname "$0")/../.."
export COMPOSE_PROJECT_NAME=pagewire-compose-test # its volumes and images are not those of `make up`
export PAGEWIRE_PUBLISH=${PAGEWIRE_PUBLISH:-127.0.0.1:50051}
export PAGEWIRE_PUBLISH_HTTP=${PAGEWIRE_PUBLISH_HTTP:-127.0.0.1:8000}

say() { printf '== %4ss  %s\n' "$SECONDS" "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

finish() {
  local rc=$?
  trap - EXIT
  if [ $rc -ne 0 ]; then
    docker compose ps -a || true
    docker compose logs --tail 40 || true
  fi
  docker compose down -v --rmi local --timeout 20 >/dev/null 2>&1 || true
  exit $rc
}

runner_container() { docker compose ps -aq runnersvc; }
runner_state() { docker inspect -f "{{$1}}" "$(runner_container)"; }

# A counter of cachesvc, asked where its socket is.
stat_of() {
  docker compose exec -T cachesvc python -c '
import sys, grpc
from pagewire.v1 import cache_pb2, cache_pb2_grpc
with grpc.insecure_channel("unix:/run/pagewire/cache.sock") as channel:
    stats = cache_pb2_grpc.CacheServiceStub(channel).GetStats(cache_pb2.GetStatsRequest(), timeout=5)
print(getattr(stats, sys.argv[1]))' "$1"
}

ask_for_paris() {
  local events answer
  events=$(grpcurl -plaintext -max-time 120 -d '{
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "sampling": {"temperature": 0}, "stop": {"max_tokens": 32}}' \
    "$PAGEWIRE_PUBLISH" pagewire.v1.InferenceService/Chat) || fail "Chat: $events"
  answer=$(python3 -c '
import json, sys
text, rest = "", sys.stdin.read()
while rest := rest.lstrip():
    event, end = json.JSONDecoder().raw_decode(rest)
    text, rest = text + event.get("delta", {}).get("text", ""), rest[end:]
print(text)' <<<"$events")
  say "answer: $answer"
  [[ $answer == *Paris* ]] || fail "the answer does not say Paris; the events were: $events"
}

ask_over_http() {
  python3 -c '
import json, sys, urllib.request
body = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
request = urllib.request.Request(
    f"http://{sys.argv[1]}/v1/chat/completions",
    json.dumps(body | {"temperature": 0}).encode(),
    {"Content-Type": "application/json"},
)
with urllib.request.urlopen(request, timeout=120) as response:
    print(json.load(response)["choices"][0]["message"]["content"])' "$PAGEWIRE_PUBLISH_HTTP"
}

# until SECONDS COMMAND ...: asks again every half second.
until_true() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.5
  done
}

came_back() { [ "$(runner_state .RestartCount)" -gt "$restarts" ] && [ "$(runner_state .State.Health.Status)" = healthy ]; }
another_manager() { [ "$(stat_of attached)" = True ] && [ "$(stat_of manager_id)" != "$manager" ]; }
reattached() { [ "$(stat_of attached)" = True ] && [ "$(stat_of boot_id)" != "$boot" ]; }
gateway_serves() { grpcurl -plaintext -max-time 5 "$PAGEWIRE_PUBLISH" grpc.health.v1.Health/Check 2>&1 | grep -q '"SERVING"'; }

docker info >/dev/null || fail "no Docker engine answers"
trap finish EXIT
docker compose down -v >/dev/null 2>&1 || fail "docker compose does not read compose.yaml: $(docker compose config -q 2>&1)"
docker compose --profile gpu config >/dev/null || fail "the gpu profile does not parse"

say "building the images"
docker compose build
for service in cachesvc gateway; do
  docker compose run --rm --no-deps --entrypoint python $service -c \
    'import importlib.util, sys; sys.exit(bool(importlib.util.find_spec("torch")))' || fail "the image of $service holds torch"
done

say "docker compose up --wait"
docker compose up --wait || fail "docker compose up --wait ended with $?"
docker compose ps -a
for service in gateway cachesvc runnersvc; do
  [ "$(docker compose exec -T $service id -u)" != 0 ] || fail "$service runs as root"
done

say "services on $PAGEWIRE_PUBLISH:"
services=$(grpcurl -plaintext -max-time 10 "$PAGEWIRE_PUBLISH" list)
echo "$services"
grep -qx pagewire.v1.InferenceService <<<"$services" || fail "reflection does not list InferenceService"
ask_for_paris
answer=$(ask_over_http) || fail "no answer over HTTP"
say "over HTTP: $answer"
[[ $answer == *Paris* ]] || fail "the answer over HTTP does not say Paris"

# `docker kill` counts as a stop that somebody wanted, and no restart policy acts on it. A crash is what the runner's process
# meets when SIGKILL comes from inside (-1: everything but the init process); the container ends with it.
boot=$(stat_of boot_id)
restarts=$(runner_state .RestartCount)
say "killing the runner, boot_id $boot"
docker compose exec -T runnersvc sh -c 'kill -9 -1' || true # the shell may go down with its container
until_true 120 came_back || fail "the runner's container did not come back healthy"
until_true 60 reattached || fail "cachesvc did not attach to the new runner"
until_true 60 gateway_serves || fail "the gateway does not serve again"
say "it came back, boot_id $(stat_of boot_id), restarts $(runner_state .RestartCount)"
ask_for_paris

manager=$(stat_of manager_id)
say "killing the manager, manager_id $manager"
docker compose exec -T cachesvc sh -c 'kill -9 -1' || true
until_true 60 another_manager || fail "no other manager attached"
until_true 60 gateway_serves || fail "the gateway does not serve again"
adopted=$(stat_of adopted_pages_total)
say "another one came, and took over $adopted pages"
[ "$adopted" -gt 0 ] || fail "it took over no page"
ask_for_paris

say "docker compose stop"
docker compose stop
for service in gateway cachesvc runnersvc; do
  code=$(docker inspect -f '{{.State.ExitCode}}' "$(docker compose ps -aq $service)")
  [ "$code" = 0 ] || fail "$service ended with $code on SIGTERM"
done
docker compose down -v --rmi local || fail "docker compose down -v ended with $?"
[ -z "$(docker ps -aq --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME")" ] || fail "containers are left"
[ -z "$(docker volume ls -q --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME")" ] || fail "volumes are left"
say "passed"
