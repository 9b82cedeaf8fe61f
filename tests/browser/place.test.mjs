// A place in line: shared by tabs, kept over reloads and sleep, given up only by its owner's word.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ahead, hide, inState, openStage, show, state, text, until } from "./stage.mjs";

let stage;
before(async () => {
  stage = await openStage({ share: {}, reload: {}, sleep: {}, leave: {}, cache: {}, worse: {} });
});
after(() => stage?.close());

// CASE 37: a browser opens six connections to a host over HTTP/1.1; a stream for each of six tabs left none for anything else.
test("seven tabs share one place and one stream, and the site goes on loading", async () => {
  const room = stage.room("share");
  await room.set({ paused: true });
  await room.crowd(2);
  const visitor = await stage.visitor();
  const streams = [];
  visitor.context.on("request", (request) => request.url().endsWith("/events") && streams.push(request));
  const tabs = [];
  for (let page = 1; page <= 7; page += 1) {
    const tab = await visitor.open(page === 1 ? "/share" : `/share/other?page=${page}`);
    await ahead(tab, 2);
    tabs.push(tab);
  }
  await room.set({ message: "Hello, all of you" });
  for (const tab of tabs) await until("the message is there", async () => (await text(tab, "#message .word")) === "Hello, all of you");
  assert.equal((await room.now()).waiting, 3, "two of the crowd, and one visitor");
  assert.equal(streams.length, 1, "the other tabs are told by the first");
  const status = await tabs[6].evaluate(() => fetch("/.waitgate/share/status").then((answer) => answer.status));
  assert.equal(status, 200, "a connection is left for it");
  await tabs.shift().close();
  await room.set({ message: "And now you alone" });
  for (const tab of tabs) await until("another tab takes over", async () => (await text(tab, "#message .word")) === "And now you alone");
  assert.equal(streams.length, 2);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("a reload keeps the place", async () => {
  const room = stage.room("reload");
  await room.set({ paused: true });
  await room.crowd(3);
  const visitor = await stage.visitor();
  const tab = await visitor.open("/reload?a=1");
  await ahead(tab, 3);
  await room.crowd(2);
  for (let round = 0; round < 3; round += 1) {
    await tab.reload();
    await ahead(tab, 3);
  }
  assert.equal((await room.now()).waiting, 6);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("a phone that slept wakes up at its own place, at once", async () => {
  const room = stage.room("sleep");
  await room.set({ paused: true });
  const crowd = await room.crowd(3);
  const visitor = await stage.visitor();
  const tab = await visitor.open("/sleep");
  await ahead(tab, 3);
  const closed = until("the stream is closed", async () => (await room.now()) && streamEnded);
  let streamEnded = false;
  tab.on("requestfailed", (request) => request.url().endsWith("/events") && (streamEnded = true));
  tab.on("requestfinished", (request) => request.url().endsWith("/events") && (streamEnded = true));
  await hide(tab);
  await closed;
  await visitor.context.setOffline(true);
  await crowd[0].leave();
  await room.crowd(1);
  await visitor.context.setOffline(false);
  assert.equal(await text(tab, "#number"), "3", "asleep, it cannot know");
  await show(tab);
  await ahead(tab, 2);
  assert.equal((await room.now()).waiting, 4, "nobody joined twice");
  await room.set({ message: "Good morning" });
  await until("the stream is open again", async () => (await text(tab, "#message .word")) === "Good morning");
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("the number shown never grows while the place is the same", async () => {
  const room = stage.room("worse");
  await room.set({ paused: true });
  await room.crowd(2);
  const visitor = await stage.visitor();
  const tab = await visitor.open("/worse");
  await ahead(tab, 2);
  await tab.route("**/events", () => {}); // the stream that opens again afterwards stays silent
  await tab.route("**/status", async (route) => {
    const answer = await route.fetch();
    const view = await answer.json();
    await route.fulfill({ response: answer, json: { ...view, ahead: 40, message: "by the status" } });
  });
  await hide(tab);
  await show(tab);
  await until("the answer has arrived", async () => (await text(tab, "#message .word")) === "by the status");
  assert.equal(await text(tab, "#number"), "2");
  await visitor.close();
});

test("leaving asks first, then gives the place up; joining again starts at the end", async () => {
  const room = stage.room("leave");
  await room.set({ paused: true });
  await room.crowd(1);
  const visitor = await stage.visitor();
  const [tab, other] = [await visitor.open("/leave"), await visitor.open("/leave")];
  await ahead(tab, 1);
  await ahead(other, 1);
  await room.crowd(3);
  await tab.locator("#leave summary").click();
  await tab.locator("#stay").click();
  assert.equal(await tab.locator("#leave form").isVisible(), false, "staying is one press away");
  assert.equal((await room.now()).waiting, 5);
  await tab.locator("#leave summary").click();
  await tab.locator("#leave form button").first().click();
  await inState(tab, "gone");
  await inState(other, "gone");
  assert.equal(await text(tab, "h1"), "You have left the line");
  assert.equal(await tab.title(), "No longer in line · Waiting room");
  await until("the line is shorter", async () => (await room.now()).waiting === 4);

  // To look away and back is no wish to join.
  await hide(tab);
  await show(tab);
  await other.bringToFront();
  assert.equal(await state(tab), "gone");
  assert.equal((await room.now()).waiting, 4);

  const joins = [];
  tab.on("request", (request) => request.url().endsWith("/join") && joins.push(request));
  await tab.locator("#join button").dblclick();
  await ahead(tab, 4);
  await ahead(other, 4);
  assert.equal(joins.length, 1, "a double click joins once");
  assert.equal((await room.now()).waiting, 5);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("out of the back/forward cache the page asks again and holds one stream", async () => {
  const room = stage.room("cache");
  await room.set({ paused: true });
  const crowd = await room.crowd(2);
  const visitor = await stage.visitor();
  const tab = await visitor.open("/cache");
  await ahead(tab, 2);
  await tab.goto(`${stage.base}/elsewhere`);
  await crowd[0].leave();
  await tab.goBack();
  await ahead(tab, 1);
  // Where the browser did not keep the page, the event it would have sent.
  const streams = [];
  tab.on("request", (request) => request.url().endsWith("/events") && streams.push("opened"));
  tab.on("requestfailed", (request) => request.url().endsWith("/events") && streams.push("closed"));
  tab.on("requestfinished", (request) => request.url().endsWith("/events") && streams.push("closed"));
  await tab.evaluate(() => {
    dispatchEvent(new PageTransitionEvent("pagehide", { persisted: true }));
    dispatchEvent(new PageTransitionEvent("pageshow", { persisted: true }));
  });
  await crowd[1].leave();
  await ahead(tab, 0);
  const open = streams.filter((word) => word === "opened").length - streams.filter((word) => word === "closed").length;
  assert.ok(open <= 1, `streams: ${streams}`);
  assert.equal((await room.now()).waiting, 1);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});
