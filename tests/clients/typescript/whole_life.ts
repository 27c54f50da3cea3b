/**
 * The whole life of a tenant and of a layout, through the types that openapi-typescript generates and openapi-fetch.
 *
 * Called by tests/clients/run.sh, which starts two simulated hosts. It fails when an answer is not the one that is meant, and when
 * an operation of the document was not called; that every call and every field is one of the document is tsc's to say.
 */

import assert from "node:assert/strict";
import { spawn, execFileSync, type ChildProcess } from "node:child_process";
import { mkdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import createClient, { type Client, type Middleware } from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];

function setting(name: string): string {
  const value = process.env[name];
  assert(value, `${name} is not set`);
  return value;
}

const document: { paths: Record<string, Record<string, { operationId: string }>> } = JSON.parse(
  readFileSync(setting("DOCUMENT"), "utf8"),
);
const operations = new Map<string, string>();
for (const [path, item] of Object.entries(document.paths)) {
  for (const [method, operation] of Object.entries(item)) {
    operations.set(`${method.toUpperCase()} ${path}`, operation.operationId);
  }
}
const called = new Set<string>();
const count: Middleware = {
  onRequest({ request, schemaPath }) {
    const operation = operations.get(`${request.method} ${schemaPath}`);
    assert(operation, `${request.method} ${schemaPath} is not in the document`);
    called.add(operation);
  },
};

interface Host {
  api: Client<paths>;
  runtimeDir: string;
}

function host(name: string): Host {
  const api = createClient<paths>({
    baseUrl: setting(`HOST_${name}_URL`),
    headers: { Authorization: `Bearer ${setting(`HOST_${name}_TOKEN`)}` },
  });
  api.use(count);
  return { api, runtimeDir: setting(`HOST_${name}_RUNTIME_DIR`) };
}

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** The body of an answer that must have this status. */
async function meant<T>(status: number, asked: Promise<Answer<T>>): Promise<NonNullable<T>> {
  const { data, error, response } = await asked;
  assert.equal(response.status, status, `${response.url}: ${JSON.stringify(error ?? data)}`);
  assert(data !== undefined && data !== null, `${response.url}: no body`);
  return data;
}

/** The problem of an answer that must have this status. */
async function refused(status: number, asked: Promise<{ error?: Schemas["Problem"]; response: Response }>) {
  const { error, response } = await asked;
  assert.equal(response.status, status, response.url);
  assert(error, `${response.url}: no problem`);
  return error;
}

async function empty(asked: Promise<{ error?: unknown; response: Response }>): Promise<void> {
  const { error, response } = await asked;
  assert.equal(response.status, 204, `${response.url}: ${JSON.stringify(error)}`);
}

async function eventually<T>(what: string, ask: () => Promise<T | undefined>): Promise<T> {
  const deadline = Date.now() + 60_000;
  for (;;) {
    const answer = await ask();
    if (answer !== undefined) return answer;
    assert(Date.now() < deadline, `never happened: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

function ended({ api }: Host, id: string): Promise<Schemas["Operation"]> {
  return eventually("the operation ends", async () => {
    const operation = await meant(200, api.GET("/api/v1/operations/{id}", { params: { path: { id } } }));
    return operation.state === "pending" || operation.state === "running" ? undefined : operation;
  });
}

/** Waits for an accepted operation, which must succeed. */
async function done(host: Host, accepted: Promise<Answer<Schemas["Operation"]>>): Promise<void> {
  const { id } = await meant(202, accepted);
  const operation = await ended(host, id);
  assert.equal(operation.state, "succeeded", JSON.stringify(operation));
}

function ready({ api }: Host): Promise<boolean> {
  return eventually("every daemon is ready", async () => {
    const { data } = await api.GET("/readyz");
    return data?.ready ? true : undefined;
  });
}

async function probesAndHost(a: Host): Promise<void> {
  const { api } = a;
  assert.equal((await meant(200, api.GET("/healthz"))).status, "ok");
  await ready(a);
  const one = { params: { path: { name: "gpu0" } } };
  assert((await meant(200, api.GET("/readyz/daemons/{name}", one))).ready);
  const view = await meant(200, api.GET("/api/v1/host"));
  assert(view.simulated && view.gpus === 2);
  const gpus = await meant(200, api.GET("/api/v1/gpus"));
  const path = { gpu: "0" };
  assert.equal((await meant(200, api.GET("/api/v1/gpus/{gpu}", { params: { path } }))).uuid, gpus.items[0]?.uuid);
  const vitals = await meant(200, api.GET("/api/v1/gpus/{gpu}/history", { params: { path, query: { span: "6h" } } }));
  assert.equal(vitals.step_s, 60);
  const replace = api.POST("/api/v1/gpus/{gpu}/replace", { params: { path }, body: { with: "1" } });
  assert((await refused(409, replace)).type.endsWith(":conflict"));
  const confirm = api.POST("/api/v1/host/confirm", { body: { machine_id: "0".repeat(32) } });
  assert.equal((await refused(422, confirm)).errors?.[0]?.pointer, "/machine_id");
}

async function lifeOfATenant(a: Host): Promise<void> {
  const { api } = a;
  const path = { name: "web" };
  const tenant = "/api/v1/tenants/{name}";
  const body: Schemas["TenantSpec"] = {
    daemon: "gpu0",
    uid: process.getuid?.() ?? 0,
    device_memory_limit: "4G",
    max_clients: 2,
    active_thread_percentage: 25,
  };
  const made = await api.PUT(tenant, { params: { path, header: { "If-None-Match": "*" } }, body });
  assert.equal(made.response.status, 201, JSON.stringify(made.error));
  const tag = made.response.headers.get("etag");
  assert(tag);
  const more = { ...body, max_clients: 3 };
  const tried = await meant(200, api.PUT(tenant, { params: { path, query: { dry_run: true } }, body: more }));
  assert.equal(tried.spec.max_clients, 3);
  const held = { params: { path, header: { "If-Match": tag } }, body: more };
  await meant(200, api.PUT(tenant, held));
  assert.equal((await refused(412, api.PUT(tenant, held))).type, "urn:mps-manager:problem:precondition-failed");
  await ready(a);
  const now = await meant(200, api.GET(tenant, { params: { path, query: { fresh: true } } }));
  assert.equal(now.spec.device_memory_limit, 4 * 2 ** 30);
  const use = await meant(200, api.GET("/api/v1/tenants/{name}/history", { params: { path } }));
  assert.equal(use.span, "1h");
  const each = { ...body, device_memory_limit: { "0": "1G" } };
  const limited = await meant(200, api.PUT(tenant, { params: { path, query: { dry_run: true } }, body: each }));
  assert.deepEqual(Object.values(limited.spec.device_memory_limit ?? {}), [2 ** 30]);
  const merge = { "Content-Type": "application/merge-patch+json" };
  const patch = { params: { path, query: { wait_s: 30 } }, headers: merge, body: { labels: { team: "ml" } } };
  assert.deepEqual((await meant(200, api.PATCH(tenant, patch))).spec.labels, { team: "ml" });
  const list = await meant(200, api.GET("/api/v1/tenants", { params: { query: { daemon: "gpu0", labels: "team=ml" } } }));
  assert(list.items.some(({ name }) => name === "web"));
  const environment = await meant(200, api.GET("/api/v1/tenants/{name}/environment", { params: { path } }));
  assert(typeof environment !== "string" && environment.variables["CUDA_MPS_PIPE_DIRECTORY"]);
  assert((await meant(202, api.POST("/api/v1/tenants/{name}/verify", { params: { path } }))).running_since);
  const last = await eventually("a CUDA client has looked", async () => {
    const { verification } = (await meant(200, api.GET(tenant, { params: { path } }))).status;
    return verification?.running_since ? undefined : (verification?.last ?? undefined);
  });
  assert.equal(last.outcome, "verified", JSON.stringify(last));

  const holder = spawn("sleep", ["600"], { stdio: "ignore" });
  const binary = setting("MPS_MANAGER_BINARY");
  const client = [binary, "sim", "client", "--spin", "600", "--alloc", "512"];
  let worker: ChildProcess | undefined;
  try {
    assert(holder.pid);
    const leases = "/api/v1/tenants/{name}/leases";
    const lease = await meant(201, api.POST(leases, { params: { path }, body: { kind: "recorded", pid: holder.pid } }));
    assert(lease.holder.startsWith(`${holder.pid}-`));
    worker = spawn(binary, ["run", "--runtime-dir", a.runtimeDir, "--tenant", "web", "--", ...client], {
      stdio: "ignore",
    });
    const gone = new Promise((resolve) => worker?.once("exit", resolve));
    const query = { tenant: "web", fresh: true };
    const connected = await eventually("it connects", async () => {
      const clients = await meant(200, api.GET("/api/v1/clients", { params: { query } }));
      return clients.items[0];
    });
    const id = { id: connected.id };
    assert.equal((await meant(200, api.GET("/api/v1/clients/{id}", { params: { path: id } }))).pid, worker.pid);
    const own = await meant(200, api.GET("/api/v1/tenants/{name}/clients", { params: { path } }));
    assert.deepEqual(own.items.map(({ id }) => id), [connected.id]);
    const held = await meant(200, api.GET(leases, { params: { path } }));
    assert.deepEqual(
      held.items.map(({ pid, kind, is_client }) => [pid, kind, is_client]).sort(),
      [[holder.pid, "recorded", false], [worker.pid, "own", true]].sort(),
    );
    await empty(api.DELETE("/api/v1/tenants/{name}/leases/{id}", { params: { path: { ...path, id: lease.holder } } }));
    // A drain waits for it, and can be called off.
    const drain = await meant(
      202,
      api.POST("/api/v1/daemons/{name}/drain", { params: { path: { name: "gpu0" }, query: { timeout_s: 600 } } }),
    );
    await eventually("it can be called off", async () => {
      const at = { params: { path: { id: drain.id } } };
      return (await meant(200, api.GET("/api/v1/operations/{id}", at))).cancellable || undefined;
    });
    const stop = api.POST("/api/v1/operations/{id}/cancel", { params: { path: { id: drain.id } } });
    await meant(202, stop);
    assert.equal((await ended(a, drain.id)).state, "cancelled");
    const header = { "Idempotency-Key": "end-it-now" };
    await done(a, api.POST("/api/v1/clients/{id}/terminate", { params: { path: id, header } }));
    await gone;
  } finally {
    holder.kill("SIGKILL");
    worker?.kill("SIGKILL");
  }
  // Its processes have to be seen to be gone.
  await eventually("it has no processes any more", async () => {
    const { response } = await api.DELETE(tenant, { params: { path } });
    return response.status === 204 || undefined;
  });
  assert((await refused(404, api.GET(tenant, { params: { path } }))).type.endsWith(":not-found"));
}

async function lifeOfADaemon(a: Host): Promise<void> {
  const { api } = a;
  const at = { params: { path: { name: "gpu1" } } };
  const body: Schemas["DaemonSpec"] = { gpus: ["1"], mode: "static" };
  const put = await api.PUT("/api/v1/daemons/{name}", { ...at, body });
  assert(put.response.ok && put.data?.spec.mode === "static", JSON.stringify(put.error));
  await ready(a);
  const merge = { "Content-Type": "application/merge-patch+json" };
  const patch = { params: { ...at.params, query: { wait_s: 30 } }, headers: merge, body: { drift_policy: "report" } } as const;
  assert.equal((await meant(200, api.PATCH("/api/v1/daemons/{name}", patch))).spec.mode, "static");
  const first = await meant(200, api.GET("/api/v1/daemons", { params: { query: { limit: 1 } } }));
  assert.equal(first.items.length, 1);
  assert.equal((await meant(200, api.GET("/api/v1/daemons/{name}", at))).status?.phase, "ready");
  assert.equal((await meant(200, api.POST("/api/v1/daemons/{name}/cordon", at))).spec.schedulable, false);
  assert.equal((await meant(200, api.POST("/api/v1/daemons/{name}/uncordon", at))).spec.schedulable, true);
  const quick = { params: { ...at.params, query: { grace_s: 0 } } };
  await done(a, api.POST("/api/v1/daemons/{name}/stop", quick));
  await done(a, api.POST("/api/v1/daemons/{name}/start", at));
  await done(a, api.POST("/api/v1/daemons/{name}/restart", quick));
  await ready(a);
  const some = await meant(200, api.GET("/api/v1/operations", { params: { query: { limit: 2 } } }));
  assert(some.next_cursor);
}

async function partitions({ api }: Host): Promise<Record<string, string | null | undefined>> {
  const at = { params: { path: { name: "gpu1" } } };
  const list = await meant(200, api.GET("/api/v1/daemons/{name}/partitions", at));
  return Object.fromEntries(list.items.map(({ partition, id }) => [partition, id]));
}

async function lifeOfALayout(a: Host, b: Host): Promise<void> {
  const { api } = a;
  const add = (partition: string, chunks: number): Schemas["LayoutStep"] => ({ add: { gpu: 1, partition, chunks } });
  const steps = [add("web", 7), add("gap", 2), add("batch", 5), { remove: { partition: "gap" } }];
  const at = { params: { path: { name: "prod" } } };
  const body: Schemas["LayoutRequest"] = { layout: { steps }, note: "through the TypeScript client" };
  assert.equal((await meant(201, api.PUT("/api/v1/layouts/{name}", { ...at, body }))).newest.version, 1);
  const all = await meant(200, api.GET("/api/v1/layouts"));
  assert.deepEqual(all.items.map(({ newest }) => newest.name), ["prod"]);
  assert.equal((await meant(200, api.GET("/api/v1/layouts/{name}", at))).newest.layout.steps.length, 4);
  assert.equal((await meant(200, api.GET("/api/v1/layouts/{name}/versions", at))).items.length, 1);
  const one = { params: { path: { name: "prod", version: 1 } } };
  assert.equal((await meant(200, api.GET("/api/v1/layouts/{name}/versions/{version}", one))).note, body.note);
  const target = { ...at, body: { daemon: "gpu1" } };
  const plan = await meant(200, api.POST("/api/v1/layouts/{name}/plan", target));
  assert(typeof plan !== "string" && plan.steps.length === 4);
  await done(a, api.POST("/api/v1/layouts/{name}/apply", target));
  assert((await meant(200, api.POST("/api/v1/layouts/{name}/assert", target))).matches);
  const made = await partitions(a);
  const web = { params: { path: { name: "gpu1", partition: "web" } } };
  const got = await meant(200, api.GET("/api/v1/daemons/{name}/partitions/{partition}", web));
  assert.equal(got.id, made["web"]);

  // The same on another host, with the same IDs.
  const document = await meant(
    200,
    api.GET("/api/v1/layouts/{name}/export", {
      params: { path: { name: "prod" }, query: { daemon: "gpu1" } },
      headers: { Accept: "application/json" },
    }),
  );
  assert(document.checksum?.startsWith("sha256:"));
  await lifeOfADaemon(b);
  await meant(200, b.api.POST("/api/v1/layouts/import", { body: document }));
  const replay = await meant(202, b.api.POST("/api/v1/replays", { body: { daemon: "gpu1", document } }));
  assert.equal((await ended(b, replay.operation.id)).state, "succeeded");
  const path = { id: replay.replay };
  const record = await meant(200, b.api.GET("/api/v1/replays/{id}", { params: { path } }));
  assert.equal(record.verdict, "same", JSON.stringify(record));
  assert.equal((await meant(200, b.api.GET("/api/v1/replays"))).items[0]?.id, replay.replay);
  assert.deepEqual(await partitions(b), made);

  const gpu1 = { params: { path: { name: "gpu1" }, query: { grace_s: 0 } } };
  await done(b, b.api.DELETE("/api/v1/daemons/{name}", gpu1));
  await empty(b.api.DELETE("/api/v1/layouts/{name}", at));
}

/** On the second GPU, which no daemon of the manager's has any more. */
async function daemonOfSomebodyElse({ api, runtimeDir }: Host): Promise<void> {
  const home = join(dirname(runtimeDir), "foreign-ts");
  const env = {
    PATH: setting("PATH"),
    MPS_SIM_WORLD: join(runtimeDir, "sim"),
    CUDA_VISIBLE_DEVICES: "1",
    CUDA_MPS_PIPE_DIRECTORY: join(home, "pipe"),
    CUDA_MPS_LOG_DIRECTORY: join(home, "log"),
  };
  mkdirSync(env.CUDA_MPS_PIPE_DIRECTORY, { recursive: true });
  mkdirSync(env.CUDA_MPS_LOG_DIRECTORY, { recursive: true });
  const control = join(runtimeDir, "sim", "bin", "nvidia-cuda-mps-control");
  execFileSync(control, ["-d"], { env, stdio: "ignore" });
  try {
    const list = await meant(200, api.GET("/api/v1/foreign-daemons"));
    const foreign = list.items[0];
    assert(foreign);
    const path = { id: foreign.id };
    assert.equal((await meant(200, api.GET("/api/v1/foreign-daemons/{id}", { params: { path } }))).pid, foreign.pid);
    const at = { params: { path: { name: "theirs" } } };
    const body: Schemas["AdoptDaemonRequest"] = { process: foreign.id, management: "observed" };
    const adopted = await meant(201, api.POST("/api/v1/daemons/{name}/adopt", { ...at, body }));
    assert.equal(adopted.spec.management, "observed");
    await empty(api.POST("/api/v1/daemons/{name}/release", at));
  } finally {
    execFileSync(control, [], { env, input: "quit\n", stdio: ["pipe", "ignore", "ignore"] });
  }
}

async function maintenance(b: Host): Promise<void> {
  const body: Schemas["MaintenanceRequest"] = { timeout_s: 60, on_timeout: "terminate" };
  await done(b, b.api.POST("/api/v1/host/maintenance", { body }));
  assert.equal((await meant(200, b.api.GET("/api/v1/host/maintenance"))).state, "active");
  await done(b, b.api.DELETE("/api/v1/host/maintenance"));
  await ready(b);
}

/** What a host has, given back to it: nothing changes. */
async function hostAsAFile({ api }: Host): Promise<void> {
  const file = await meant(200, api.GET("/api/v1/host/spec"));
  assert(file.daemons?.["gpu0"]);
  const same = await meant(200, api.PUT("/api/v1/host/spec", { body: file, params: { query: { dry_run: true } } }));
  assert("changes" in same);
  assert.deepEqual(same.changes, []);
  const lost = await meant(200, api.POST("/api/v1/foreign-daemons/adopt-lost", { params: { query: { dry_run: true } } }));
  assert.deepEqual(lost.daemons, []);
}

/** A control daemon is killed, which is an incident that recovers and is acknowledged. */
async function incident(host: Host): Promise<void> {
  const { api } = host;
  const daemon = { params: { path: { name: "gpu0" } } };
  const pid = (await meant(200, api.GET("/api/v1/daemons/{name}", daemon))).status?.pid;
  assert(pid);
  process.kill(pid, "SIGKILL");
  const query = { kind: "daemon_died", state: "recovered" } as const;
  const found = await eventually("it recovers", async () => {
    return (await meant(200, api.GET("/api/v1/incidents", { params: { query } }))).items[0];
  });
  const path = { id: found.id };
  assert.equal((await meant(200, api.GET("/api/v1/incidents/{id}", { params: { path } }))).daemon, "gpu0");
  const note = { params: { path }, body: { note: "killed by hand" } };
  const acknowledged = await meant(200, api.POST("/api/v1/incidents/{id}/acknowledge", note));
  assert.equal(acknowledged.acknowledged?.note, "killed by hand");
  await ready(host);
}

/** Tokens and sessions: made, used, and over at once. */
async function whoMayCall({ api }: Host): Promise<void> {
  assert.equal((await meant(200, api.GET("/api/v1/whoami"))).grant, "admin");
  const body = { name: "ci", grant: "viewer", expires_in_s: 3600 };
  const made = await meant(201, api.POST("/api/v1/tokens", { body }));
  assert(made.secret);
  const headers = { Authorization: `Bearer ${made.secret}` };
  assert.equal((await meant(200, api.GET("/api/v1/whoami", { headers }))).grant, "viewer");
  const forbidden = api.DELETE("/api/v1/tenants/{name}", { params: { path: { name: "demo" } }, headers });
  assert.equal((await refused(403, forbidden)).type, "urn:mps-manager:problem:forbidden");
  const path = { id: made.token.id };
  assert((await meant(200, api.GET("/api/v1/tokens"))).items.some(({ id }) => id === made.token.id));
  assert.equal((await meant(200, api.GET("/api/v1/tokens/{id}", { params: { path } }))).name, "ci");

  // A browser keeps the cookie and says which page a request is for; here both are passed on by hand, and no token beside them.
  const opened = await api.POST("/api/v1/session", { body: { token: made.secret }, headers: { Authorization: null } });
  assert.equal(opened.response.status, 201);
  const cookie = opened.response.headers.get("set-cookie")?.split(";")[0];
  assert(cookie);
  const page = new URL(opened.response.url).origin;
  const browser = { headers: { Authorization: null, Cookie: cookie, Origin: page } };
  assert.equal((await meant(200, api.GET("/api/v1/session", browser))).grant, "viewer");
  assert.equal((await meant(200, api.GET("/api/v1/sessions"))).items.length, 1);
  await empty(api.DELETE("/api/v1/session", browser));
  await empty(api.DELETE("/api/v1/sessions", { params: { query: { token: made.token.id } } }));
  assert((await meant(201, api.POST("/api/v1/login-urls"))).url.startsWith("http://"));
  await empty(api.DELETE("/api/v1/tokens/{id}", { params: { path } }));
  await refused(401, api.GET("/api/v1/whoami", { headers }));
}

/** The journal, in pages and as a stream, the audit and the metrics. */
async function whatHappened({ api }: Host): Promise<void> {
  const query = { type: "daemon.", limit: 5 };
  const event = (await meant(200, api.GET("/api/v1/events", { params: { query } }))).items[0];
  assert(event);
  const path = { id: event.id };
  assert.equal((await meant(200, api.GET("/api/v1/events/{id}", { params: { path } }))).type, event.type);
  const name = { params: { path: { name: "gpu0" } } };
  assert((await meant(200, api.GET("/api/v1/daemons/{name}/logs", name))).lines.length > 0);
  const rows = await meant(200, api.GET("/api/v1/audit", { params: { query: { limit: 5 } } }));
  assert((await meant(200, api.GET("/api/v1/audit/head"))).id >= (rows.items[0]?.id ?? Infinity));
  const metrics = await meant(200, api.GET("/metrics", { parseAs: "text" }));
  assert(metrics.split("\n").includes('mps_manager_daemon_up{daemon="gpu0"} 1.0'));
  const follow = { params: { query: { after: 0 } }, parseAs: "stream" as const };
  const stream = await meant(200, api.GET("/api/v1/events/stream", follow));
  let text = "";
  for await (const chunk of stream.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    if (text.includes("\ndata:")) break;
  }
}

const [a, b] = [host("A"), host("B")];
await probesAndHost(a);
await lifeOfATenant(a);
await lifeOfADaemon(a);
await lifeOfALayout(a, b);
await whoMayCall(a);
await hostAsAFile(a);
await incident(a);
await whatHappened(a);
await daemonOfSomebodyElse(b);
await maintenance(b);
const missing = [...operations.values()].filter((operation) => !called.has(operation));
console.log(`typescript: ${called.size} of ${operations.size} operations called`);
assert.deepEqual(missing, [], "never called");
