// How news comes: by events, else by a WebSocket, else by asking.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ahead, inShop, openStage, text, until } from "./stage.mjs";

let stage;
before(async () => {
  stage = await openStage({ stream: {}, socket: {}, held: {}, asking: {}, outage: {} });
});
after(() => stage?.close());

/** A visitor before a paused room with two ahead, and what their page opens. */
async function watched(name, prepare) {
  const room = stage.room(name);
  await room.set({ paused: true });
  await room.crowd(2);
  const visitor = await stage.visitor();
  const tab = await visitor.open();
  const used = { events: 0, sockets: 0, status: 0 };
  tab.on("request", (request) => {
    if (request.url().endsWith("/events")) used.events += 1;
    if (request.url().endsWith("/status")) used.status += 1;
  });
  tab.on("websocket", () => (used.sockets += 1));
  await prepare(tab);
  await tab.goto(`${stage.base}/${name}`);
  await ahead(tab, 2);
  return { room, visitor, tab, used };
}

const hears = (tab, message) => until(`the page shows "${message}"`, async () => (await text(tab, "#message .word")) === message);

test("events are enough", async () => {
  const { room, visitor, tab, used } = await watched("stream", async () => {});
  await room.set({ message: "by events" });
  await hears(tab, "by events");
  assert.deepEqual(used, { events: 1, sockets: 0, status: 0 });
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("where events do not get through, a WebSocket does", async () => {
  const { room, visitor, tab, used } = await watched("socket", (tab) => tab.route("**/events", (route) => route.abort()));
  await until("the socket is open", () => used.sockets === 1);
  await room.set({ message: "by socket" });
  await hears(tab, "by socket");
  await room.set({ paused: false, rate: "50/s" });
  await inShop(tab);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("events that a proxy holds back count as none", async () => {
  const { room, visitor, tab, used } = await watched("held", async (tab) => {
    await tab.clock.install();
    await tab.route("**/events", () => {}); // neither answered nor refused
  });
  await until("the socket is open", async () => {
    await tab.clock.fastForward(8_000);
    return used.sockets >= 1;
  });
  await room.set({ message: "by socket after all" });
  await hears(tab, "by socket after all");
  await visitor.close();
});

test("where nothing stays open, the page asks again and again, not too often", async () => {
  const { room, visitor, tab, used } = await watched("asking", async (tab) => {
    await tab.route("**/events", (route) => route.fulfill({ status: 502 }));
    await tab.routeWebSocket("**/ws", (socket) => socket.close());
  });
  await room.set({ message: "by asking" });
  await hears(tab, "by asking");
  assert.ok(used.status >= 2 && used.status <= 6, `asked ${used.status} times`);
  await room.set({ paused: false, rate: "50/s" });
  await inShop(tab);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("without a connection the page says so, keeps what it knows, and recovers by itself", async () => {
  const { room, visitor, tab } = await watched("outage", async () => {});
  await tab.route("**/events", (route) => route.abort());
  await tab.routeWebSocket("**/ws", (socket) => socket.close());
  await tab.route("**/status", (route) => route.abort());
  await tab.reload();
  await until("the page says so", async () => (await text(tab, "#updated dd")) === "No connection. Trying again; your place is kept.");
  assert.equal(await text(tab, "#number"), "2");
  await tab.unrouteAll();
  await room.set({ message: "back again" });
  await hears(tab, "back again");
  assert.equal(await text(tab, "#updated dd"), "just now");
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});
