// Streams the answer to a question over gRPC; the messages are read from protos/ at start.
//
//     npm ci && node chat.js QUESTION [TEMPERATURE]
//
// The server is at $PAGEWIRE_ADDRESS, else 127.0.0.1:50051.
import { fileURLToPath } from 'node:url';

import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';
import protobuf from 'protobufjs';

const protos = fileURLToPath(new URL('../../protos', import.meta.url));
const loaded = protoLoader.loadSync('pagewire/v1/inference.proto', {
  includeDirs: [protos],
  keepCase: true, // field names as in the .proto
  defaults: true,
  oneofs: true, // response.event names the member that is set
});
const { InferenceService } = grpc.loadPackageDefinition(loaded).pagewire.v1;

const [question, temperature = '0'] = process.argv.slice(2);
const client = new InferenceService(
  process.env.PAGEWIRE_ADDRESS ?? '127.0.0.1:50051',
  grpc.credentials.createInsecure(),
);
const request = {
  messages: [{ role: 'user', content: question }],
  sampling: { temperature: Number(temperature) },
  stop: { max_tokens: 64 },
};
const answer = client.Chat(request, { deadline: Date.now() + 60_000 });

answer.on('data', (response) => {
  if (response.event === 'delta') {
    process.stdout.write(response.delta.text);
  } else if (response.event === 'finished') {
    const { prompt_tokens, completion_tokens } = response.finished.usage;
    process.stdout.write(`\n[${prompt_tokens} tokens in, ${completion_tokens} out]\n`);
  }
});
answer.on('error', (error) => {
  console.error(`${grpc.status[error.code]} (${reasonOf(error)}): ${error.details}`);
  process.exitCode = 1;
});
answer.on('end', () => client.close());

// What a program branches on: the reason, and the field at fault.
function reasonOf(error) {
  const { root } = protobuf.parse(`
    syntax = "proto3";
    message Any { string type_url = 1; bytes value = 2; }
    message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
    message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }`);
  const [encoded] = error.metadata.get('grpc-status-details-bin');
  if (encoded === undefined) return 'no reason given';
  const { details } = root.lookupType('Status').decode(encoded);
  const found = details.find(({ typeUrl }) => typeUrl.endsWith('/google.rpc.ErrorInfo'));
  if (found === undefined) return 'no reason given';
  const { reason, metadata } = root.lookupType('ErrorInfo').decode(found.value);
  return `${reason} ${metadata.field ?? ''}`.trim();
}
