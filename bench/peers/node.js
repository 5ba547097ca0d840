// A durable receiver as a competent user writes it: http, @octokit/webhooks-methods, ioredis with autopipelining, one script.
// argv: PORT SOCKET SECRET
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { verify } from "@octokit/webhooks-methods";
import Redis from "ioredis";

const [port, socket, secret] = process.argv.slice(2);
const redis = new Redis({ path: socket, enableAutoPipelining: true });
redis.defineCommand("admit", { numberOfKeys: 2, lua: readFileSync(new URL("admit.lua", import.meta.url), "utf8") });

createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks).toString("utf8");
  let status = 202;
  try {
    if (!(await verify(secret, body, request.headers["x-hub-signature-256"] ?? "sha256="))) status = 401;
    else {
      const event = JSON.parse(body);
      if (event.action === "opened" && event.repository?.full_name && event.issue?.html_url) {
        const entry = JSON.stringify({ url: event.issue.html_url, type: "issues.opened", repository: event.repository.full_name });
        await redis.admit(`seen:${request.headers["x-github-delivery"]}`, "queue", entry);
      }
    }
  } catch {
    status = 503;
  }
  response.writeHead(status, { "content-length": 0 });
  response.end();
}).listen(Number(port), "127.0.0.1", 1024);
process.on("SIGTERM", () => process.exit(0));
