// Does with a client of the TypeScript SDK what clients_test.go checks, and prints it as JSON.
// Usage: node client.mjs v1|newest legacy|modern URL FILE, with MESH_MCP_TOOLS the folder of the packages.
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout } from "node:timers/promises";

const require = createRequire(process.env.MESH_MCP_TOOLS + "/package.json");
const [sdk, era, url, file] = process.argv.slice(2);
const { Client } = require(sdk === "v1" ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StreamableHTTPClientTransport } = require(sdk === "v1" ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client");

const mode = era === "modern" ? { pin: "2026-07-28" } : "legacy";
const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
// v1 takes the schema of the result between the call and its options.
const call = (params, options) => (sdk === "v1" ? client.callTool(params, undefined, options) : client.callTool(params, options));

const { tools } = await client.listTools();
const { content } = await call({ name: "test_simple_text" });
const large = await call({ name: "large" }); // the SDK checks its structured content against the tool's schema
const { contents } = await client.readResource({ uri: large.content.find((one) => one.type === "resource_link").uri });
const progress = [];
await call({ name: "test_tool_with_progress" }, { onprogress: (p) => progress.push(p.message) });
const abort = new AbortController();
let cancelled = false;
try {
  await call({ name: "wait", arguments: { path: file } }, { signal: abort.signal, onprogress: () => abort.abort() });
} catch {
  cancelled = abort.signal.aborted;
}
while (!existsSync(file)) await setTimeout(20); // the tool makes it when it is cancelled
console.log(JSON.stringify({ tools: tools.map((t) => t.name), text: content[0].text, progress, cancelled, rows: large.structuredContent.result.length, whole: contents[0].text.length }));
await client.close();
