// The destination's side of the gateway: prove this run, and hand on its events only if everything holds.
//
// 1. Who sent it: the App's bot user, by numeric id; the event is repository_dispatch.
// 2. What was sent: a closed envelope within a compiled subscription of this repository and workflow.
// 3. The receiver admits this run: an OIDC token bound to the workflow's hash, exactly one run a dispatch.
// 4. The payload is the one that was sent: its digest is the receiver's.
//
// Whatever does not hold fails the step; only a dispatch that another run has ends green, with admitted=false. Nothing of
// the payload is ever printed: a value could be a workflow command.
// Node's built-ins alone. What a job sees: https://docs.github.com/en/actions/reference/workflows-and-actions/variables

import { createHash, randomUUID } from "node:crypto";
import { appendFileSync, readFileSync, statSync } from "node:fs";
import { isAbsolute, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const PROJECTION = "resource-url-types-filters/v2";
const PREDICATES = "gh-aw/event-predicates/v1";
const GITHUB_ACTIONS_BOT = 41898282; // https://api.github.com/users/github-actions%5Bbot%5D: any job's token acts as it
const MAX_DOCUMENT_BYTES = 65_536;
const MAX_PAYLOAD_BYTES = 65_536;
const MAX_EVENT_BYTES = 16_384;
const MAX_EVENTS = 20;
const MAX_URL_BYTES = 2048;
const MAX_FILTER_CHARACTERS = 1024;
const ATTEMPTS = 6;
const CALL_MS = 20_000;
const MAX_WAIT_S = 30;
const MAX_ANSWER_BYTES = 65_536;
const MAX_DEPTH = 64;
const NODE_MAJOR = 20;
const NEEDED = ["EVENT_PATH", "REPOSITORY", "WORKFLOW_REF", "RUN_ID", "OUTPUT"].map((name) => `GITHUB_${name}`);

const SHA256 = /^sha256:[0-9a-f]{64}$/;
const UUID7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
const ORIGIN_AND_REST = /^(https:\/\/[a-z0-9.:-]+)(\/(?:[A-Za-z0-9._~!$&'()*+,;=:@/?#-]|%[0-9A-F]{2})+)$/;

/** A check that does not hold. The message says what to fix and quotes nothing that was sent. */
class Refused extends Error {}

/** Another run has the dispatch. */
class Taken extends Error {}

function check(holds, message) {
  if (!holds) throw new Refused(message);
}

// -- small things ------------------------------------------------------------------------------------------------------

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const bytes = (text) => Buffer.byteLength(text, "utf8");

/** RFC 8785: JavaScript's own JSON with sorted keys (https://www.rfc-editor.org/rfc/rfc8785). */
function canonical(value, depth = 1) {
  check(depth <= MAX_DEPTH, `a document is nested more than ${MAX_DEPTH} levels deep, which no gateway sends or compiles`);
  const inner = (one) => canonical(one, depth + 1);
  if (Array.isArray(value)) return `[${value.map(inner).join(",")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const members = Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${inner(value[key])}`);
  return `{${members.join(",")}}`;
}

const digest = (value) => `sha256:${sha256(canonical(value))}`;

function closed(value, keys, place) {
  check(isObject(value), `${place} is no object`);
  const found = Object.keys(value);
  check(
    found.length === keys.length && keys.every((key) => Object.hasOwn(value, key)),
    `${place} does not have exactly the members ${keys.join(", ")}: the envelope is closed and carries no raw body`,
  );
}

function readJson(path, most, what) {
  let data;
  try {
    const status = statSync(path);
    if (!status.isFile()) throw new Error("no plain file"); // a pipe or a device may have no end
    if (status.size <= most) data = readFileSync(path);
  } catch {
    throw new Refused(`${what} cannot be read; check out the repository before this step, and name its path`);
  }
  check(data !== undefined && data.length <= most, `${what} is larger than ${most} bytes`);
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(data));
  } catch {
    throw new Refused(`${what} is not JSON`);
  }
}

/** An input as the runner passes it: INPUT_ and the name in upper case. */
function input(name) {
  const value = (process.env[`INPUT_${name.toUpperCase()}`] ?? "").trim();
  check(value, `the input ${name} is missing`);
  return value;
}

/** Add outputs to the runner's file, all in one write. */
function output(values) {
  const mark = `end-${randomUUID()}`; // unguessable, so that no value can end it
  const lines = Object.entries(values).map(([name, value]) => `${name}<<${mark}\n${value}\n${mark}\n`);
  try {
    appendFileSync(process.env.GITHUB_OUTPUT, lines.join(""));
  } catch (error) {
    throw new Refused(
      `the outputs cannot be written (${error.code}): is the runner's disk full, or GITHUB_OUTPUT no file of the runner? ` +
        "Then run this job again: a run that was admitted stays so",
    );
  }
}

const escaped = (text) => text.replaceAll("%", "%25").replaceAll("\r", "%0D").replaceAll("\n", "%0A");

// -- 1. who sent it ----------------------------------------------------------------------------------------------------

function checkSender(event, senderId) {
  check(/^[1-9][0-9]{0,15}$/.test(senderId), "the input sender-id is no numeric user id");
  const wanted = Number(senderId);
  check(
    wanted !== GITHUB_ACTIONS_BOT,
    "the input sender-id is github-actions[bot]: any job could pass as it; give the user id of the gateway App's bot",
  );
  check(
    process.env.GITHUB_EVENT_NAME === "repository_dispatch",
    "this run was not started by repository_dispatch; let the workflow have no other trigger, or skip this job for them",
  );
  check(isObject(event) && isObject(event.sender), "the event names no sender");
  check(
    event.sender.id === wanted,
    "the sender is not the gateway App's bot user. Either somebody else dispatched this, or sender-id is wrong: it is the " +
      "user id of APP-SLUG[bot] (gh api '/users/APP-SLUG[bot]' --jq .id), not the App's id",
  );
}

// -- 2. what was sent --------------------------------------------------------------------------------------------------

function loadSubscription(path) {
  const file = isAbsolute(path) ? path : join(process.env.GITHUB_WORKSPACE ?? ".", path);
  const document = readJson(file, MAX_DOCUMENT_BYTES, `the subscription ${path}`);
  check(isObject(document), `the subscription ${path} is no object`);
  const { digest: stated, ...rest } = document;
  check(
    document.version === 2 && document.projection === PROJECTION && document.predicates === PREDICATES,
    `the subscription ${path} is of a version that this action does not know`,
  );
  check(stated === digest(rest), `the subscription ${path} does not match its digest; never edit it, compile it again`);
  check(isObject(document.triggers) && isObject(document.grants) && isObject(document.filters), `${path} is incomplete`);
  check(SHA256.test(document.workflow_hash), `the subscription ${path} has no workflow hash`);
  check(
    document.repository === process.env.GITHUB_REPOSITORY,
    `the subscription ${path} is compiled for another repository`,
  );
  const id = process.env.GITHUB_REPOSITORY_ID;
  check(
    document.repository_id === undefined || !id || String(document.repository_id) === id,
    `the subscription ${path} is compiled for another repository id`,
  );
  check(
    process.env.GITHUB_WORKFLOW_REF.startsWith(`${document.repository}/${document.workflow}@refs/`),
    `the subscription ${path} is compiled for another workflow file than the one that runs`,
  );
  return document;
}

/** The collections that an event must carry, each with the texts it may have: the grant, and the filters that were set. */
function scopeOf(trigger, document) {
  const scope = new Map();
  const allow = (collection, values) => {
    const texts = new Set((values ?? []).map(String));
    const before = scope.get(collection);
    scope.set(collection, before === undefined ? texts : new Set([...before].filter((text) => texts.has(text))));
  };
  for (const collection of Object.values(trigger.resources ?? {})) allow(collection, document.grants[collection]);
  for (const collection of Object.keys(trigger.filters ?? {})) {
    if (Object.hasOwn(document.filters, collection)) allow(collection, document.filters[collection]);
  }
  return scope;
}

function checkUrl(url, origins, place) {
  check(typeof url === "string" && bytes(url) <= MAX_URL_BYTES, `${place}.url is no bounded text`);
  const parts = ORIGIN_AND_REST.exec(url);
  check(parts, `${place}.url is not a canonical https URL`);
  const path = parts[2].split(/[?#]/, 1)[0];
  check(
    path !== "/" && path.replace(/\/$/, "").split("/").slice(1).every((part) => !["", ".", ".."].includes(part)),
    `${place}.url has an empty segment or one of dots`,
  );
  check(origins.includes(parts[1]), `${place}.url has an origin that is not reviewed for its trigger`);
}

function checkEvent(event, document, place) {
  closed(event, ["id", "url", "types", "filters"], place);
  check(Array.isArray(event.types) && event.types.length === 1, `${place}.types does not hold exactly one trigger`);
  const name = event.types[0];
  check(
    typeof name === "string" && Object.hasOwn(document.triggers, name),
    `${place}.types names no trigger of the subscription`,
  );
  const trigger = document.triggers[name];
  checkUrl(event.url, trigger.resourceOrigins ?? [], place);
  check(event.id === `uri:${sha256(event.url)}`, `${place}.id is not the identity of its url`);
  check(isObject(event.filters), `${place}.filters is no object`);
  const scope = scopeOf(trigger, document);
  for (const collection of Object.keys(event.filters)) {
    check(scope.has(collection), `${place}.filters has scope evidence that the subscription does not (widened)`);
  }
  for (const [collection, allowed] of scope) {
    check(Object.hasOwn(event.filters, collection), `${place}.filters lacks the scope evidence ${collection}`);
    const values = event.filters[collection];
    check(
      Array.isArray(values) && values.length === 1 && typeof values[0] === "string" && values[0] !== "" &&
        [...values[0]].length <= MAX_FILTER_CHARACTERS,
      `${place}.filters.${collection} does not hold exactly one text`,
    );
    check(allowed.has(values[0]), `${place}.filters.${collection} is not granted`);
  }
  check(bytes(canonical(event)) <= MAX_EVENT_BYTES, `${place} is too large`);
  return name;
}

/** Check what does not depend on the subscription, and return the gateway member. */
function checkPayload(payload) {
  closed(payload, ["gateway"], "client_payload");
  check(bytes(canonical(payload)) < MAX_PAYLOAD_BYTES, "client_payload is too large");
  const gateway = payload.gateway;
  closed(gateway, ["version", "projection", "subscription", "dispatch", "events"], "client_payload.gateway");
  check(gateway.version === 2 && gateway.projection === PROJECTION, "the envelope is of another version or projection");
  check(typeof gateway.subscription === "string" && SHA256.test(gateway.subscription), "gateway.subscription is no digest");
  check(typeof gateway.dispatch === "string" && UUID7.test(gateway.dispatch), "gateway.dispatch is no dispatch id");
  const count = Array.isArray(gateway.events) ? gateway.events.length : 0;
  check(count >= 1 && count <= MAX_EVENTS, `gateway.events does not hold 1 to ${MAX_EVENTS} events`);
  return gateway;
}

function checkEvents(gateway, document) {
  const names = gateway.events.map((event, n) => checkEvent(event, document, `gateway.events[${n}]`));
  check(new Set(names).size === 1, "gateway.events are of more than one trigger");
  const distinct = new Set(gateway.events.map((event) => canonical(event)));
  check(distinct.size === names.length, "gateway.events holds an event twice");
}

// -- 3. the receiver ---------------------------------------------------------------------------------------------------

function endpoint(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    throw new Refused("the input receiver is no URL");
  }
  const loopback = ["localhost", "127.0.0.1", "[::1]"].includes(url.hostname);
  check(
    (url.protocol === "https:" || (url.protocol === "http:" && loopback)) && !url.username && !url.password,
    "the input receiver must be an https URL without credentials",
  );
  const path = url.pathname.replace(/\/+$/, "");
  return `${url.origin}${path.endsWith("/admission") ? path : `${path}/admission`}`;
}

/** One HTTP call. Where there was no whole answer the status is 0, and `why` is the error's code, such as ECONNREFUSED. */
async function call(url, options) {
  try {
    const response = await fetch(url, { ...options, redirect: "manual", signal: AbortSignal.timeout(CALL_MS) });
    return { status: response.status, headers: response.headers, text: await bounded(response) };
  } catch (error) {
    const blocked = error?.cause?.message === "bad port"; // https://fetch.spec.whatwg.org/#port-blocking
    const code = error?.cause?.code ?? (blocked ? "BLOCKED_PORT" : error?.name);
    return { status: 0, headers: new Headers(), text: "", why: /^[A-Za-z0-9_]{1,64}$/.test(code) ? code : "error" };
  }
}

/** The text of an answer; one that is too long is no answer of a gateway, and reads as empty. */
async function bounded(response) {
  const chunks = [];
  let size = 0;
  for await (const chunk of response.body ?? []) {
    size += chunk.length;
    if (size > MAX_ANSWER_BYTES) return ""; // leaving the loop ends the transfer
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

const reasonOf = (body) => (typeof body.reason === "string" && /^[a-z0-9-]{1,64}$/.test(body.reason) ? body.reason : "");

function parsed(answer) {
  try {
    const body = JSON.parse(answer.text);
    return isObject(body) ? body : {};
  } catch {
    return {};
  }
}

/** Repeat while there is no answer, or one that asks to come again. */
async function insist(ask, what) {
  for (let attempt = 1; ; attempt += 1) {
    const answer = await ask();
    const passing = answer.status === 0 || answer.status === 429 || answer.status >= 500;
    if (!passing) return answer;
    check(attempt < ATTEMPTS, `${what} is not available (${why(answer)}). Then run this job again: the dispatch is still open`);
    const stated = Number(answer.headers.get("retry-after") ?? "");
    const pause = Math.min(Number.isFinite(stated) && stated > 0 ? stated : 2 ** attempt, MAX_WAIT_S);
    process.stdout.write(`${what}: ${why(answer)}. Asking again in ${pause} s (${attempt + 1} of ${ATTEMPTS})\n`);
    await sleep(1000 * pause);
  }
}

/** Why there was no usable answer, and what to do. */
function why(answer) {
  if (answer.status === 0) {
    return `no answer, ${answer.why}: compare the address, its DNS and its certificate; no HTTP proxy is used`;
  }
  const reason = reasonOf(parsed(answer));
  return `HTTP ${answer.status}${reason ? `, ${told(reason)}` : ": look at the gateway's log and at what stands before it"}`;
}

/** https://docs.github.com/en/actions/reference/security/oidc#methods-for-requesting-the-oidc-token */
async function identityToken(audience) {
  const { ACTIONS_ID_TOKEN_REQUEST_URL: url, ACTIONS_ID_TOKEN_REQUEST_TOKEN: bearer } = process.env;
  check(url && bearer, "this job may ask for no identity token; give it `permissions: id-token: write`");
  const asked = `${url}${url.includes("?") ? "&" : "?"}audience=${encodeURIComponent(audience)}`;
  const headers = { Authorization: `Bearer ${bearer}`, Accept: "application/json" };
  const answer = await insist(() => call(asked, { headers }), "GitHub's identity token service");
  const token = answer.status === 200 ? parsed(answer).value : undefined;
  check(
    typeof token === "string" && /^[\w-]+\.[\w-]+\.[\w-]+$/.test(token),
    `GitHub gave no identity token (HTTP ${answer.status}); give this job \`permissions: id-token: write\``,
  );
  process.stdout.write(`::add-mask::${token}\n`);
  return token;
}

async function ask(receiver, token, gateway) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const body = JSON.stringify({ dispatch: gateway.dispatch, subscription: gateway.subscription });
  return insist(() => call(receiver, { method: "POST", headers, body }), "the receiver");
}

const lacks = (claim) =>
  `the token has no usable claim ${claim}, which GitHub documents: compare admission.issuer, or update GitHub Enterprise Server`;
const COMPILE = "compile and enroll the merged workflow again, then run this job again";
const FIXES = {
  // not proven
  token: "the receiver does not accept the token: compare admission.jwks_url with this GitHub's issuer",
  issuer: "admission.issuer is not this GitHub's issuer",
  audience: `another workflow hash is enrolled: ${COMPILE}; or the action's audience-prefix is not admission.audience_prefix`,
  freshness: "the clocks of receiver and GitHub differ",
  lifetime: "the token is valid for more than 15 minutes, or ends before it begins: GitHub's are not, compare admission.issuer",
  "claim-jti": lacks("jti"),
  "claim-run-id": lacks("run_id"),
  "claim-workflow-sha": lacks("workflow_sha"),
  "replayed-token": "this run's token was used for another dispatch: run the job again",
  "header-repeated": "something before the receiver adds an Authorization header: take that out",
  // not allowed
  "not-enrolled": "the subscription is not enrolled at this receiver: compare the address, or `gateway enroll` it",
  denied: "the enrollment or its source is in mode deny",
  suspended: "the subscription is suspended: `gateway subscriptions` says why, `gateway enroll` resumes it. After a rollover " +
    "this passes by itself: what waits is sent under the new subscription",
  event: "the run was not started by repository_dispatch",
  repository: "another repository is enrolled, by name or by id: compile and enroll it for this one",
  sender: "the run was started by somebody else than the gateway App's bot (a re-run keeps who started it), or the receiver " +
    "knows another bot: compare github.sender_id with sender-id",
  environment: "the job that is admitted must not use a deployment environment; use one in a later job",
  ref: "the run is not of the default branch",
  workflow: "another workflow file is enrolled; a reusable workflow cannot be admitted",
  "workflow-hash": `the workflow file is not the one that was enrolled: ${COMPILE}`,
  // not to be had
  "unknown-dispatch": "the receiver sent no such dispatch for this subscription, or longer than 7 days ago",
  expired: "the dispatch is older than admission.window_s",
  request: "the receiver is of another version than this action: update the older of the two",
  "body-too-large": "something before the receiver changes the request: let it through as it is",
  "body-framing": "something before the receiver changes the request: let it through as it is",
  "body-too-slow": "the request came too slowly to the receiver: run this job again",
  "content-encoding": "something before the receiver compresses the request: let it through as it is",
  // cannot be told now
  "jwks-unavailable": "the receiver cannot fetch GitHub's keys: compare admission.jwks_url, and let it reach that",
  "contents-unreadable": "the gateway's App may not read contents: grant `contents: read`, or `gateway enroll --attested`",
  "repository-id-unknown": "the enrollment has no repository id: `gateway enroll` the document again",
  "admission-off": "this process of the gateway admits nobody: its role has no App or store",
};

const AWAY = { store: "the gateway's store is away", github: "the gateway cannot ask GitHub" };

const own = (table, name) => (Object.hasOwn(table, name) ? table[name] : undefined);
const told = (reason) => `${reason}: ${own(FIXES, reason) ?? own(AWAY, reason.split("-")[0]) ?? "see the receiver's log"}`;

function judge(answer, gateway, payload) {
  const body = parsed(answer);
  const reason = reasonOf(body);
  if (answer.status === 409 && body.admitted === false && reason === "taken") throw new Taken();
  const moved = answer.status >= 300 && answer.status < 400;
  const hint = moved ? "a redirect is never followed: give the address it leads to" : "is this the gateway's address?";
  check(
    answer.status === 200 && body.admitted === true,
    `the receiver refused this run (HTTP ${answer.status}, ${reason ? told(reason) : hint})`,
  );
  check(String(body.run_id) === process.env.GITHUB_RUN_ID, "the receiver admitted another run than this one");
  check(
    body.envelope_digest === digest(payload),
    "the payload is not the one that was sent: somebody else dispatched it under this id; it was not used",
  );
  check(body.events === gateway.events.length, "the payload does not have as many events as were sent");
}

// -- the step ----------------------------------------------------------------------------------------------------------

async function admit() {
  const major = Number(process.versions.node.split(".")[0]);
  check(major >= NODE_MAJOR, `this is Node ${major}; the action needs Node ${NODE_MAJOR}, as action.yml says: update the runner`);
  for (const name of NEEDED) check(process.env[name], `the environment has no ${name}: run this as a step of a workflow`);
  check(
    process.env.NODE_TLS_REJECT_UNAUTHORIZED !== "0",
    "NODE_TLS_REJECT_UNAUTHORIZED=0 lets anybody pass as the receiver: take it out of the job's environment or the runner's, " +
      "and name an authority of your own in NODE_EXTRA_CA_CERTS",
  );
  output({}); // a file that cannot be opened is told before the dispatch is taken
  const event = readJson(process.env.GITHUB_EVENT_PATH, 1_048_576, "the event");
  checkSender(event, input("sender-id"));
  const receiver = endpoint(input("receiver"));
  const prefix = input("audience-prefix");
  const paths = input("subscription").split("\n").map((path) => path.trim()).filter(Boolean);
  const documents = paths.map(loadSubscription);
  check(
    documents.some((document) => document.event_type === event.action),
    "the event type is not the compiled one of any given subscription",
  );
  const gateway = checkPayload(event.client_payload);
  const document = documents.find((one) => one.digest === gateway.subscription && one.event_type === event.action);
  if (document === undefined) {
    // A rollover: the receiver learns from the refusal that the default branch may have another workflow now. The audience
    // is nobody's, so that this run, which cannot use the events, is never the one that is admitted.
    await ask(receiver, await identityToken(`${prefix}another-subscription`), gateway);
    throw new Refused(
      "the envelope is of another subscription than those given. After a rollover this passes by itself: the receiver looks " +
        "at the default branch now, and sends what waits under the new subscription. Where that is not enrolled yet, enroll " +
        "it, then run this job again. Where only the grants changed, commit the new document too and name both in the input " +
        "subscription",
    );
  }
  checkEvents(gateway, document);
  const token = await identityToken(prefix + document.workflow_hash);
  judge(await ask(receiver, token, gateway), gateway, event.client_payload);
  return gateway.events;
}

const NONE = { events: "[]", admitted: "false" };

function fail(error) {
  const message = error instanceof Refused ? error.message : "an error of this action";
  process.stdout.write(`::error title=Gateway admission::${escaped(message)}\n`);
  if (!(error instanceof Refused)) process.stderr.write(`${error.stack}\n`);
  process.exitCode = 1;
}

try {
  const events = await admit();
  output({ events: JSON.stringify(events), admitted: "true" });
  process.stdout.write(`admitted with ${events.length} event(s)\n`);
} catch (error) {
  if (error instanceof Taken) {
    process.stdout.write("::notice title=Gateway admission::another run has this dispatch; there is nothing to do here\n");
  } else {
    fail(error);
  }
  try {
    output(NONE);
  } catch (unwritten) {
    if (!process.exitCode) fail(unwritten);
  }
}
