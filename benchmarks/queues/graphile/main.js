// graphile-worker with the settings of its page on performance: main.js URL JOBS SAMPLES.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { setTimeout as pause } from "node:timers/promises";

const [url, jobs, samples] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));
const utils = await makeWorkerUtils({ connectionString: url, logger });
await utils.migrate();

let called = 0, awaited = 0, reached;
const noop = () => { if (++called === awaited) reached(performance.now()); };
const calls = (count) => new Promise((resolve) => { awaited = called + count; reached = resolve; });
const enqueue = () => utils.withPgClient((client) =>
  client.query("SELECT count(*) FROM graphile_worker.add_jobs(array_fill(('noop', '{}', null, null, null, null, null, null)::graphile_worker.job_spec, ARRAY[$1::int]))", [jobs]));

await enqueue();
let end = calls(jobs), began = performance.now();
const preset = { worker: { connectionString: url, concurrentJobs: 24, maxPoolSize: 25, localQueue: { size: 500 },
  completeJobBatchDelay: 0, failJobBatchDelay: 0 } };
const runner = await run({ preset, logger, taskList: { noop } });
const rate = (1000 * jobs) / ((await end) - began);

await pause(1000);
end = calls(jobs);
await enqueue();
began = performance.now();
const running_rate = (1000 * jobs) / ((await end) - began);

await pause(1000);
const took = [];
for (let i = 0; i < samples; i++) {
  end = calls(1);
  began = performance.now();
  await utils.addJob("noop");
  took.push((await end) - began);
  await pause(10);
}
took.sort((a, b) => a - b);
await runner.stop();
await utils.release();
console.log(JSON.stringify({ rate, running_rate, p50_ms: took[samples >> 1], p99_ms: took[Math.floor(samples * 0.99)] }));
