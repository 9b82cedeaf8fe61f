// Getting in: by itself when somebody looks, once, to the very address that was asked for.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { hide, inShop, inState, openStage, show, text, until } from "./stage.mjs";

let stage;
before(async () => {
  const names = ["target", "back", "plain", "hidden", "follow", "early", "circle", "blocked", "lapse", "opening", "old"];
  const rooms = Object.fromEntries(names.map((name) => [name, {}]));
  rooms.lapse = { turn_ttl: '"20s"' }; // the shortest there is
  stage = await openStage(rooms);
});
after(() => stage?.close());

const OPEN = { paused: false, rate: "50/s" };

/** A tab that waits in a paused room. */
async function waiter(name, path = `/${name}`, options = {}) {
  const room = stage.room(name);
  await room.set({ paused: true });
  const visitor = await stage.visitor(options);
  const tab = await visitor.open(path);
  await inState(tab, "paused");
  await until("the place is given", async () => (await room.now()).waiting === 1);
  return { room, visitor, tab };
}

test("query and fragment are kept, and the shop is asked once", async () => {
  const path = "/target/phone?colour=gr%C3%BCn&a=1|2#buy";
  const { room, visitor, tab } = await waiter("target", path);
  assert.deepEqual(stage.bought("/target"), [], "nothing reaches the shop while waiting");
  await room.set(OPEN);
  await inShop(tab);
  assert.equal(tab.url(), stage.base + path);
  const [asked, ...more] = stage.bought("/target");
  assert.deepEqual(more, []);
  assert.equal(`${asked.method} ${asked.url}`, "GET /target/phone?colour=gr%C3%BCn&a=1|2");
  assert.equal(asked.headers["waitgate-room"], "target");
  assert.ok(asked.headers["waitgate-user"]);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("the back button leads to the page before, and forward to the shop", async () => {
  const room = stage.room("back");
  await room.set({ paused: true });
  const visitor = await stage.visitor();
  const tab = await visitor.open("/elsewhere?before");
  await tab.goto(`${stage.base}/back`);
  await inState(tab, "paused");
  await room.set(OPEN);
  await inShop(tab);
  // Out of the back/forward cache a page comes without a `load`.
  await tab.goBack({ waitUntil: "commit" });
  assert.equal(tab.url(), `${stage.base}/elsewhere?before`);
  await tab.goForward({ waitUntil: "commit" });
  await inShop(tab);
  assert.equal(tab.url(), `${stage.base}/back`);
  assert.equal((await room.now()).sessions, 1);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("a page that was called while it lay in the history enters when it comes back", async () => {
  const room = stage.room("follow");
  await room.set({ paused: true });
  const visitor = await stage.visitor();
  const tab = await visitor.open("/follow?there");
  await inState(tab, "paused");
  await until("the place is given", async () => (await room.now()).waiting === 1);
  const second = await visitor.open("/follow?second");
  await inState(second, "paused");
  await hide(second);
  await tab.goto(`${stage.base}/elsewhere`);
  await room.set(OPEN);
  await until("the turn has come", async () => (await room.now()).called === 1);
  await tab.goBack({ waitUntil: "commit" });
  await inShop(tab);
  assert.equal(tab.url(), `${stage.base}/follow?there`);

  // The other tab waited in the background; it follows when somebody looks at it, and takes no second place.
  await show(second);
  await inShop(second);
  assert.equal(second.url(), `${stage.base}/follow?second`);
  const { sessions, called, joined_total } = await room.now();
  assert.deepEqual({ sessions, called, joined_total }, { sessions: 1, called: 0, joined_total: 1 });
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("without JavaScript the page gets in by its own refresh", async () => {
  const room = stage.room("plain");
  await room.set({ paused: true });
  await room.crowd(3);
  await room.set({ paused: false }); // slow: one of the crowd is called, the others wait
  const visitor = await stage.visitor({ javaScriptEnabled: false });
  const tab = await visitor.open("/plain?no=script");
  assert.match(await text(tab, "#keep noscript"), /^This page reloads by itself every \d+ seconds\.$/);
  await until("the place is given at the first refresh", async () => /^\d$/.test(await text(tab, "#number")));
  await room.set(OPEN);
  await inShop(tab);
  assert.equal(tab.url(), `${stage.base}/plain?no=script`);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("in a browser too old for the script, the page gets in as without one", async () => {
  const room = stage.room("old");
  await room.set({ paused: true });
  const visitor = await stage.visitor();
  await visitor.context.addInitScript(() => delete Intl.PluralRules);
  const tab = await visitor.open();
  await tab.clock.install();
  await tab.goto(`${stage.base}/old?browser`);
  await room.set(OPEN);
  await until("the page has rescued itself", async () => {
    await tab.clock.fastForward(30_000);
    return (await tab.title()) === "The shop";
  });
  assert.equal(tab.url(), `${stage.base}/old?browser`);
  await visitor.close();
});

test("a hidden tab holds its turn, says so in its title, and enters when it is shown", async () => {
  const { room, visitor, tab } = await waiter("hidden");
  await tab.clock.install();
  await hide(tab);
  await room.set(OPEN);
  await until("the turn has come", async () => (await room.now()).called === 1);
  await until("a slow poll has brought the news", async () => {
    await tab.clock.fastForward(40_000);
    return (await tab.title()) === "Your turn!";
  });
  assert.deepEqual(stage.bought("/hidden"), [], "nobody looks, so nobody enters");
  assert.equal((await room.now()).called, 1, "and the turn is held");
  await show(tab);
  await inShop(tab);
  assert.equal((await room.now()).sessions, 1);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("a turn that nobody takes lapses; the page says so and offers the end of the line", async () => {
  const { room, visitor, tab } = await waiter("lapse");
  await hide(tab);
  await room.set(OPEN);
  await until("the turn has come", async () => (await room.now()).called_total === 1);
  await room.set({ paused: true });
  await until("the turn has lapsed", async () => (await room.now()).called === 0);
  await show(tab);
  await inState(tab, "gone");
  assert.equal(await text(tab, "h1"), "Your turn has passed");
  await tab.locator("#join button").click();
  await inState(tab, "paused");
  await room.set(OPEN);
  await inShop(tab);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("told to enter too early, the page goes on waiting and gets in later", async () => {
  const { room, visitor, tab } = await waiter("early");
  const view = await tab.evaluate(async (url) => (await fetch(url)).json(), `${room.routes}/status`);
  let asked = 0;
  await tab.route("**/enter", async (route) => {
    asked += 1;
    if (asked > 1) return route.continue();
    return route.fulfill({ status: 409, json: { code: "not_called", view: { ...view, message: "not yet" } } });
  });
  await room.set(OPEN);
  await inShop(tab);
  assert.ok(asked >= 2, `asked ${asked} times`);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("where the admission is not kept, the page says that cookies are needed and does not turn in circles", async () => {
  const { room, visitor, tab } = await waiter("circle");
  let loads = 0;
  tab.on("request", (request) => request.isNavigationRequest() && (loads += 1));
  const now = Date.now();
  const turn = { state: "turn", updated_at_ms: now + 60_000, turn_until_ms: now + 120_000, poll_after_s: 3 };
  await tab.route("**/events", (route) => route.fulfill({ contentType: "text/event-stream", body: `data: ${JSON.stringify(turn)}\n\n` }));
  await tab.route("**/status", (route) => route.fulfill({ json: turn }));
  await tab.route("**/enter", (route) => route.fulfill({ json: { state: "admitted" } }));
  await tab.reload();
  await until("the page says what is wrong", () => tab.locator("#cookies").isVisible());
  const sofar = loads;
  assert.ok(sofar <= 5, `loaded ${sofar} times`);
  await room.set({ message: "some time passes" });
  await until("a second passes on the page", () => tab.evaluate(() => new Promise((done) => setTimeout(() => done(true), 1_500))));
  assert.equal(loads, sofar);
  await visitor.close();
});

test("where cookies are blocked, the page says so at once", async () => {
  const room = stage.room("blocked");
  await room.set({ paused: true });
  const visitor = await stage.visitor();
  await visitor.context.addInitScript(() => Object.defineProperty(navigator, "cookieEnabled", { get: () => false }));
  const tab = await visitor.open("/blocked");
  await until("the page says what is wrong", () => tab.locator("#cookies").isVisible());
  assert.equal((await room.now()).joined_total, 0, "no ghost in the line");
  await visitor.close();
});

test("before the opening time the page counts down, and opens by itself", async () => {
  const room = stage.room("opening");
  await room.set({ rate: "50/s", opens_at: new Date(Date.now() + 6_000).toISOString() });
  const visitor = await stage.visitor();
  const tab = await visitor.open("/opening");
  await inState(tab, "countdown");
  assert.match(await text(tab, "#number"), /^00:00:0\d$/);
  assert.equal(await tab.title(), "Not open yet · Waiting room");
  assert.equal(await tab.locator("#opens time").isVisible(), true);
  assert.deepEqual(stage.bought("/opening"), []);
  await inShop(tab);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});
