// A stage for the tests: a real waitgate with its private Redis, a shop that writes down what reaches it, and a real Chromium.
//
// Each file of tests has a stage of its own, and each test a room of its own on it. Nothing here sleeps for a fixed time: `until` asks
// again and again for what should come true, and gives up with its words after a deadline.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const root = join(dirname(fileURLToPath(import.meta.url)), "..", "..");
const binary = process.env.WAITGATE_BINARY ?? join(root, "target", "debug", "waitgate");
const DEADLINE = 30_000;

function browserProgram() {
  const named = process.env.WAITGATE_CHROMIUM ?? process.env.CHROMIUM;
  const known = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome-stable", "/usr/bin/google-chrome"];
  const program = named ?? known.find(existsSync);
  if (!program) throw new Error("no Chromium was found; name the program in WAITGATE_CHROMIUM");
  return program;
}

/** What no further asking can mend. */
class Hopeless extends Error {}

/** Asks until the answer is truthy, and returns it. */
export async function until(what, ask, deadline = DEADLINE) {
  const end = Date.now() + deadline;
  let last;
  while (Date.now() < end) {
    try {
      last = await ask();
      if (last) return last;
    } catch (error) {
      if (error instanceof Hopeless) throw error;
      last = error;
    }
    await new Promise((done) => setTimeout(done, 40));
  }
  throw new Error(`never came true: ${what} (last answer: ${last})`);
}

/** A port that was free a moment ago. */
function freePort() {
  return new Promise((done, fail) => {
    const server = createServer();
    server.once("error", fail);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => done(port));
    });
  });
}

/** The shop behind the gateway: answers everything with a page, and remembers what it was asked. */
async function openShop() {
  const seen = [];
  const server = createServer(({ method, url, headers }, response) => {
    seen.push({ method, url, headers });
    response.writeHead(200, { "content-type": "text/html; charset=utf-8" });
    response.end(`<!doctype html><html lang="en"><title>The shop</title><h1>The shop</h1><p><a href="#part">part</a>`);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return { seen, server, origin: `http://127.0.0.1:${server.address().port}` };
}

/** Rooms by name: each guards `/NAME` and starts from these settings, laid over a quiet default. */
export async function openStage(rooms) {
  for (let left = 5; ; left--) {
    try {
      return await buildStage(rooms);
    } catch (error) {
      // A port that was free a moment ago may be somebody's by now.
      if (left === 1 || !error.message.includes("cannot be listened on")) throw error;
    }
  }
}

async function buildStage(rooms) {
  const folder = await mkdtemp(join(tmpdir(), "waitgate-browser-"));
  const shop = await openShop();
  const [port, opsPort] = [await freePort(), await freePort()];
  const quiet = { rate: '"1/min"', on_store_loss: '"hold"' };
  const lines = [
    `server.listen = "127.0.0.1:${port}"`,
    `server.fallback = "${shop.origin}"`,
    `ops.listen = "127.0.0.1:${opsPort}"`,
    `store.data_dir = "${join(folder, "data")}"`,
    "cookies.secure = false",
    "limits = { address = { rate = 1000, burst = 5000 }, visitor = { rate = 1000, burst = 5000 } }",
  ];
  for (const [name, settings] of Object.entries(rooms)) {
    lines.push(`[rooms.${name}]`, `paths = ["/${name}"]`, `upstream = "${shop.origin}"`);
    for (const [key, value] of Object.entries({ ...quiet, ...settings })) lines.push(`${key} = ${value}`);
  }
  const file = join(folder, "waitgate.toml");
  await writeFile(file, `${lines.join("\n")}\n`);

  const gateway = spawn(binary, ["serve", "--config", file], { stdio: ["ignore", "pipe", "pipe"] });
  let log = "";
  gateway.stdout.on("data", (text) => (log += text));
  gateway.stderr.on("data", (text) => (log += text));
  let ended = null;
  const end = new Promise((done) => {
    gateway.once("exit", (code) => done((ended = code ?? "a signal")));
    gateway.once("error", (error) => done((ended = error.message)));
  });
  // A run that is broken off leaves no gateway behind; asked to end, it ends its Redis, too.
  const abandon = () => gateway.kill("SIGTERM");
  const broken = () => process.exit(1);
  process.once("exit", abandon);
  process.once("SIGTERM", broken);
  process.once("SIGINT", broken);

  const base = `http://127.0.0.1:${port}`;
  const ops = `http://127.0.0.1:${opsPort}`;
  let browser = null;
  const close = async () => {
    await browser?.close();
    gateway.kill("SIGTERM");
    const late = setTimeout(() => gateway.kill("SIGKILL"), 10_000);
    await end;
    clearTimeout(late);
    process.off("exit", abandon);
    process.off("SIGTERM", broken);
    process.off("SIGINT", broken);
    shop.server.closeAllConnections?.();
    shop.server.close();
    await rm(folder, { recursive: true, force: true });
  };
  try {
    await until("the gateway is ready", async () => {
      if (ended !== null) throw new Hopeless(`waitgate ended with ${ended}:\n${log}`);
      return (await fetch(`${ops}/readyz`)).ok;
    });
    browser = await openBrowser();
  } catch (error) {
    await close();
    throw error;
  }
  return {
    base,
    browser,
    close,
    room: (name) => room(base, ops, name),
    visitor: (options) => visitor(browser, base, options),
    /** What reached the shop below this path. */
    bought: (path) => shop.seen.filter(({ url }) => url.startsWith(path)),
  };
}

function openBrowser() {
  const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
  return chromium.launch({
    executablePath: browserProgram(),
    headless: true,
    args: [...flags, "--disable-component-update", "--disable-sync"],
    ignoreDefaultArgs: ["--disable-back-forward-cache"],
  });
}

/** A room as its operator, and as a crowd, sees it. */
function room(base, ops, name) {
  const url = `${ops}/v1/rooms/${name}`;
  const routes = `${base}/.waitgate/${name}`;
  return {
    routes,
    async now() {
      return (await fetch(url)).json();
    },
    async set(change) {
      const answer = await fetch(url, { method: "PATCH", headers: { "content-type": "application/json" }, body: JSON.stringify(change) });
      if (!answer.ok) throw new Error(`PATCH ${name}: ${answer.status} ${await answer.text()}`);
      return answer.json();
    },
    /** Others who wait here, by programs without a browser. Each returned one can leave. */
    async crowd(count) {
      const people = [];
      for (let at = 0; at < count; at += 1) people.push(await person(base, routes, name));
      return people;
    },
  };
}

async function person(base, routes, name) {
  let jar = "";
  // Not `fetch`: it calls itself a script in `Sec-Fetch-Mode`, and a script is not given the page.
  const call = (url, accept, method = "GET") =>
    new Promise((done, fail) => {
      const asked = request(url, { method, headers: { accept, cookie: jar } }, async (answer) => {
        const told = answer.headers["set-cookie"] ?? [];
        if (told.length > 0) jar = told.map((line) => line.split(";")[0]).join("; ");
        let body = "";
        for await (const piece of answer) body += piece;
        done(body);
      });
      asked.once("error", fail).end();
    });
  const status = async () => JSON.parse(await call(`${routes}/status`, "application/json"));
  await call(`${base}/${name}`, "text/html");
  await until("a person of the crowd has a place", async () => (await status()).ahead !== undefined);
  return { status, leave: () => call(`${routes}/leave`, "application/json", "POST") };
}

/** Somebody with a browser of their own. What went wrong in it is kept in `wrong`. */
async function visitor(browser, base, options = {}) {
  const context = await browser.newContext({ locale: "en-GB", ...options });
  const wrong = [];
  await context.addInitScript(() => {
    // Headless tabs are never hidden; a test hides one by this and by the event that goes with it.
    let hidden = false;
    Object.defineProperty(Document.prototype, "hidden", { get: () => hidden });
    Object.defineProperty(Document.prototype, "visibilityState", { get: () => (hidden ? "hidden" : "visible") });
    window.pretendHidden = (now) => {
      hidden = now;
      document.dispatchEvent(new Event("visibilitychange", { bubbles: true }));
    };
  });
  const open = async (path) => {
    const tab = await context.newPage();
    tab.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
    tab.on("console", (message) => /Content Security Policy|TypeError/.test(message.text()) && wrong.push(message.text()));
    tab.on("request", (request) => request.url().startsWith(base) || wrong.push(`asked elsewhere: ${request.url()}`));
    if (path) await tab.goto(base + path);
    return tab;
  };
  return { context, wrong, open, close: () => context.close() };
}

// What a tab shows.
export const state = (tab) => tab.locator("body").getAttribute("data-state");
export const text = async (tab, selector) => ((await tab.locator(selector).textContent()) ?? "").trim();
export const inState = (tab, wanted) => until(`the page shows "${wanted}"`, async () => (await state(tab)) === wanted);
export const ahead = (tab, wanted) => until(`the page shows ${wanted} ahead`, async () => (await text(tab, "#number")) === String(wanted));
export const inShop = (tab) => until("the tab is in the shop", async () => (await tab.title()) === "The shop");
export const hide = (tab) => tab.evaluate(() => window.pretendHidden(true));
export const show = (tab) => tab.evaluate(() => window.pretendHidden(false));
