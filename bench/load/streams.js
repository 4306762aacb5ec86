// One virtual user is one client: it asks, reads the stream to its end, and asks again. What it saw goes to SUMMARY as JSON.
import exec from 'k6/execution';
import { sleep } from 'k6';
import { Counter, Trend } from 'k6/metrics';
import { Client, Stream } from 'k6/net/grpc';

const { ADDRESS, SUMMARY, QUESTION } = __ENV;
const [STREAMS, ANSWER_TOKENS] = [Number(__ENV.STREAMS), Number(__ENV.ANSWER_TOKENS)];
const [ANSWER_S, WARM_UP_S, MEASURED_S] = [Number(__ENV.ANSWER_S), Number(__ENV.WARM_UP_S), Number(__ENV.MEASURED_S)];

export const options = {
  scenarios: {
    streams: {
      executor: 'constant-vus',
      vus: STREAMS,
      duration: `${WARM_UP_S + MEASURED_S}s`,
      gracefulStop: `${ANSWER_S + 5}s`, // those under way may end
    },
  },
  summaryTrendStats: ['med', 'p(90)', 'p(99)', 'max'],
};

const client = new Client();
client.load(['../../protos'], 'pagewire/v1/inference.proto');

const added = new Trend('added_ms'); // from the manager's sent_at_us to the end of the millisecond of receipt
const tokens = new Counter('tokens');
const deltas = new Counter('deltas');
const asked = new Counter('asked');
const answers = new Counter('answers');
const failures = new Counter('failures');

export function setup() {
  return { measured_from_ms: Date.now() + WARM_UP_S * 1000 };
}

export default function ({ measured_from_ms }) {
  const vu = exec.vu.idInTest;
  const nth = exec.vu.iterationInScenario;
  if (nth === 0) {
    client.connect(ADDRESS, { plaintext: true });
    sleep((ANSWER_S * (vu - 1)) / STREAMS); // as many begin in any second
  }
  let received = 0;
  let finished = false;
  const fail = (why) => {
    if (Date.now() > measured_from_ms + (MEASURED_S + ANSWER_S + 4) * 1000) return; // k6 cuts it: neither answered nor failed
    failures.add(1);
    console.error(`stream ${vu}, answer ${nth}: ${why}`);
  };
  const stream = new Stream(client, 'pagewire.v1.InferenceService/Generate');
  stream.on('data', ({ delta, finished: end }) => {
    if (delta) {
      const now_ms = Date.now();
      received += delta.tokenIds.length;
      if (now_ms >= measured_from_ms && now_ms < measured_from_ms + MEASURED_S * 1000) {
        tokens.add(delta.tokenIds.length);
        deltas.add(1);
        if (delta.sentAtUs !== undefined) added.add(now_ms + 1 - Number(delta.sentAtUs) / 1000);
      }
    } else if (end) {
      finished = true;
    }
  });
  stream.on('error', ({ code, message }) => fail(`status ${code}: ${message}`));
  stream.on('end', () => {
    if (finished && received === ANSWER_TOKENS) answers.add(1);
    else fail(`it ended after ${received} of ${ANSWER_TOKENS} tokens`);
  });
  asked.add(1);
  stream.write({
    text: `Client ${vu} asks for the ${nth}th time. ${QUESTION}`,
    sampling: { temperature: 0 },
    stop: { maxTokens: ANSWER_TOKENS, ignoreEos: true },
  });
  stream.end();
}

export function handleSummary({ metrics, setup_data }) {
  const count = (name) => (metrics[name] ? metrics[name].values.count : 0);
  const values = metrics.added_ms ? metrics.added_ms.values : {};
  const seen = {
    measured_from_ms: setup_data.measured_from_ms,
    tokens: count('tokens'),
    deltas: count('deltas'),
    asked: count('asked'),
    answers: count('answers'),
    failures: count('failures'),
    added_ms: { p50: values.med, p90: values['p(90)'], p99: values['p(99)'], max: values.max },
  };
  return { [SUMMARY]: JSON.stringify(seen) };
}
