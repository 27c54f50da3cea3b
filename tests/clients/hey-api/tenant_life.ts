// A tenant's life through the client that @hey-api/openapi-ts generates.
import assert from "node:assert/strict";

import { client } from "./client/client.gen.js";
import {
  deleteTenant,
  getReadiness,
  getTenant,
  getTenantEnvironment,
  listTenants,
  putLayout,
  putTenant,
  restartDaemon,
} from "./client/sdk.gen.js";
import type { LayoutStep, TenantSpec } from "./client/types.gen.js";

function setting(name: string): string {
  const value = process.env[name];
  assert(value, `${name} is not set`);
  return value;
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

client.setConfig({ baseUrl: setting("HOST_A_URL"), auth: () => setting("HOST_A_TOKEN") });

const path = { name: "web" };
const body: TenantSpec = { daemon: "gpu0", uid: 0, device_memory_limit: "4G", max_clients: 2, active_thread_percentage: 25 };

const made = await putTenant({ path, body, headers: { "If-None-Match": "*" } });
assert.equal(made.response?.status, 201, JSON.stringify(made.error));
const tag = made.response.headers.get("etag");
assert(tag);
const tried = await putTenant({ path, body: { ...body, max_clients: 3 }, query: { dry_run: true } });
assert.equal(tried.data?.spec.max_clients, 3, JSON.stringify(tried.error));
const changed = await putTenant({ path, body: { ...body, max_clients: 3 }, headers: { "If-Match": tag } });
assert.equal(changed.response?.status, 200, JSON.stringify(changed.error));
const stale = await putTenant({ path, body, headers: { "If-Match": tag } });
assert.equal(stale.error?.type, "urn:mps-manager:problem:precondition-failed");

await eventually("every daemon is ready", async () => ((await getReadiness()).data?.ready ? true : undefined));
const read = await getTenant({ path, query: { fresh: true } });
// Bytes in answers, whatever the request wrote; by GPU where the limits differ.
const limit: number | Record<string, number> | undefined = read.data?.spec.device_memory_limit;
assert.equal(limit, 4 * 2 ** 30, JSON.stringify(read.error));
const each = await putTenant({ path, body: { ...body, device_memory_limit: { "0": "1G" } }, query: { dry_run: true } });
assert.deepEqual(Object.values(each.data?.spec.device_memory_limit ?? {}), [2 ** 30], JSON.stringify(each.error));
const known = read.response?.headers.get("etag") ?? "";
await eventually("what was read is still so", async () => {
  const again = await getTenant({ path, headers: { "If-None-Match": known } });
  return again.response?.status === 304 || again.response?.status === 200 ? true : undefined;
});
const list = await listTenants({ query: { daemon: "gpu0" } });
assert(list.data?.items.some(({ name }) => name === "web"));
const environment = await getTenantEnvironment({ path });
assert(environment.data && typeof environment.data !== "string", JSON.stringify(environment.error));
assert(environment.data.variables["CUDA_MPS_PIPE_DIRECTORY"]);

const steps: LayoutStep[] = [{ add: { gpu: 0, partition: "web", chunks: 7 } }, { remove: { partition: "web" } }];
const layout = await putLayout({ path: { name: "prod" }, body: { layout: { steps } } });
assert.equal(layout.response?.status, 201, JSON.stringify(layout.error));

const header = { "Idempotency-Key": "restart-once" };
const first = await restartDaemon({ path: { name: "gpu1" }, query: { grace_s: 0 }, headers: header });
const second = await restartDaemon({ path: { name: "gpu1" }, query: { grace_s: 0 }, headers: header });
assert(first.data, JSON.stringify(first.error));
assert.equal(second.data?.id, first.data.id);

const gone = await deleteTenant({ path });
assert.equal(gone.response?.status, 204, JSON.stringify(gone.error));
assert((await getTenant({ path })).error?.type.endsWith(":not-found"));
console.log("hey-api: a tenant's life: passed");
