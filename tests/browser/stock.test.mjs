// Sold out is said the moment it is true, and taken back when stock returns.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ahead, inShop, inState, openStage, text, until } from "./stage.mjs";

let stage;
before(async () => {
  stage = await openStage({ sale: { stock: 5 }, late: { stock: 5 } });
});
after(() => stage?.close());

test("sold out while waiting, and stock back while waiting", async () => {
  const room = stage.room("sale");
  await room.set({ paused: true });
  await room.crowd(1);
  const visitor = await stage.visitor();
  const tab = await visitor.open("/sale?colour=red");
  await ahead(tab, 1);
  await room.set({ stock: 0 });
  await inState(tab, "sold_out");
  assert.equal(await text(tab, "h1"), "Sold out");
  assert.equal(await tab.title(), "Sold out · Waiting room");
  assert.match(await text(tab, "#live"), /^Sold out/, "it is said aloud");
  await tab.reload();
  await inState(tab, "sold_out");
  assert.equal((await room.now()).waiting, 2, "whoever waits keeps the place");

  await room.set({ stock: 5 });
  await inState(tab, "paused");
  await ahead(tab, 1);
  await room.set({ paused: false, rate: "50/s" });
  await inShop(tab);
  assert.equal(tab.url(), `${stage.base}/sale?colour=red`);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("a newcomer is told so on one short page, in their language, and can try again", async () => {
  const room = stage.room("late");
  await room.set({ paused: true, stock: 0 });
  const visitor = await stage.visitor({ locale: "vi-VN" });
  const tab = await visitor.open();
  const answer = await until("the gateway has heard", async () => {
    const answer = await tab.goto(`${stage.base}/late?x=1`);
    return answer.status() === 409 ? answer : null;
  });
  assert.equal(answer.headers()["cache-control"], "no-store");
  assert.equal(await tab.locator("html").getAttribute("lang"), "vi");
  assert.equal(await text(tab, "h1"), "Đã bán hết");
  await room.set({ stock: 5 });
  await until("trying again leads into the line", async () => {
    const again = tab.locator("a.button");
    if (await again.count()) await Promise.all([tab.waitForLoadState(), again.click()]);
    return (await tab.locator("body").getAttribute("data-state")) === "paused";
  });
  assert.equal(tab.url(), `${stage.base}/late?x=1`);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});
