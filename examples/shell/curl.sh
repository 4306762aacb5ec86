#!/bin/sh
# Streams an answer over HTTP: server-sent events in OpenAI's format.
#   curl.sh [TEMPERATURE]
# The server is at $PAGEWIRE_HTTP, else http://127.0.0.1:8000. An error is a body of JSON, and exit code 22.
set -eu
url=${PAGEWIRE_HTTP:-http://127.0.0.1:8000}

curl --silent --show-error --no-buffer --fail-with-body "$url/v1/chat/completions" \
	--header 'Content-Type: application/json' --data '{
  "model": "'"${PAGEWIRE_MODEL:-smollm2-135m-instruct}"'",
  "messages": [{"role": "user", "content": "What is the capital of France?"}],
  "temperature": '"${1:-0}"',
  "max_tokens": 64,
  "stream": true
}'
