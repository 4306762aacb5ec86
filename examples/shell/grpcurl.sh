#!/bin/sh
# Streams an answer over gRPC without any .proto at hand: grpcurl learns the messages by reflection.
#   grpcurl.sh [TEMPERATURE]
# The server is at $PAGEWIRE_ADDRESS, else 127.0.0.1:50051. An error has its code, its sentence and its ErrorInfo.
set -eu
address=${PAGEWIRE_ADDRESS:-127.0.0.1:50051}

grpcurl -plaintext -max-time 60 -d '{
  "messages": [{"role": "user", "content": "What is the capital of France?"}],
  "sampling": {"temperature": '"${1:-0}"'},
  "stop": {"max_tokens": 64}
}' "$address" pagewire.v1.InferenceService/Chat
