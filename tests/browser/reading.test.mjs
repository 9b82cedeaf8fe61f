// What people read, hear and press: languages, accessibility, and the two renderers saying the same.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { ahead, inState, openStage, state, text, until } from "./stage.mjs";

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let stage;
before(async () => {
  stage = await openStage({ viet: {}, access: {}, same: { stock: 5 }, message: {}, weight: {}, keys: {}, aloud: {} });
});
after(() => stage?.close());

/** Whoever waits in a paused room behind a crowd. */
async function waiter(name, crowd, options) {
  const room = stage.room(name);
  await room.set({ paused: true });
  const people = await room.crowd(crowd);
  const visitor = await stage.visitor(options);
  const tab = await visitor.open(`/${name}`);
  await ahead(tab, crowd);
  return { room, people, visitor, tab };
}

test("a Vietnamese browser gets a Vietnamese page", async () => {
  const { visitor, tab } = await waiter("viet", 3, { locale: "vi-VN" });
  assert.equal(await tab.locator("html").getAttribute("lang"), "vi");
  assert.equal(await tab.title(), "Đang tạm dừng · Phòng chờ");
  assert.equal(await text(tab, "h1"), "Hàng chờ đang tạm dừng");
  assert.equal(await text(tab, "#label"), "người đang đứng trước bạn");
  assert.equal(await text(tab, "#updated dd"), "vừa xong");
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("axe finds nothing, light or dark, narrow or wide", async () => {
  const room = stage.room("access");
  await room.set({ paused: true, message: "Thank you for waiting" });
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [320, 1280]) {
      const visitor = await stage.visitor({ colorScheme, viewport: { width, height: 720 } });
      const tab = await visitor.open("/access");
      await until("the message is there", async () => (await text(tab, "#message .word")) !== "");
      await tab.locator("#leave summary").click();
      const found = await tab.evaluate(`${axe}; axe.run().then(({ violations }) => violations.map(({ id, nodes }) => id + ": " + nodes[0].html))`);
      assert.deepEqual(found, [], `${colorScheme}, ${width} wide`);
      const wide = await tab.evaluate(() => document.documentElement.scrollWidth > window.innerWidth);
      assert.equal(wide, false, "nothing sticks out sideways");
      await visitor.close();
    }
  }
});

test("everything can be done with the keyboard, and targets are large", async () => {
  const { visitor, tab } = await waiter("keys", 1);
  await tab.keyboard.press("Tab");
  assert.equal(await tab.evaluate(() => document.activeElement.tagName), "SUMMARY");
  const outline = await tab.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.notEqual(outline, "none", "the focus can be seen");
  await tab.keyboard.press("Enter");
  for (const target of await tab.locator("summary:visible, button:visible").all()) {
    const { width, height } = await target.boundingBox();
    assert.ok(width >= 44 && height >= 44, `${await target.textContent()}: ${width} × ${height}`);
  }
  await tab.keyboard.press("Tab");
  await tab.keyboard.press("Enter");
  await inState(tab, "gone");
  assert.equal(await tab.evaluate(() => document.activeElement.id), "head", "the focus is not lost");
  await tab.keyboard.press("Tab");
  await tab.keyboard.press("Enter");
  await inState(tab, "paused");
  assert.equal(await tab.locator("main").count(), 1);
  assert.equal(await tab.locator("h1").count(), 1);
  assert.doesNotMatch(await tab.locator("meta[name=viewport]").getAttribute("content"), /user-scalable|maximum-scale/);
  await visitor.close();
});

test("only milestones are read aloud", async () => {
  const { people, visitor, tab, room } = await waiter("aloud", 5);
  const live = () => text(tab, "#live");
  await people[0].leave();
  await ahead(tab, 4);
  assert.equal(await live(), "", "one step forward is no news");
  await people[1].leave();
  await people[2].leave();
  await ahead(tab, 2);
  await room.set({ paused: false, rate: "1/min" });
  await until("the change of state is said", async () => /^(You are in line|You are nearly there)/.test(await live()));
  assert.equal(await tab.locator("#live").getAttribute("role"), "status");
  await visitor.close();
});

test("the server and the script say the same", async () => {
  const room = stage.room("same");
  await room.set({ paused: true });
  await room.crowd(2);
  const visitor = await stage.visitor({ locale: "vi-VN" });
  const tab = await visitor.open("/same");
  await ahead(tab, 2);
  const shown = (page) =>
    page.locator("main").evaluate((main) => {
    document.getElementById("live").textContent = ""; // what was read aloud is the script's alone
    return [document.title, main.innerText.replace(/\s+/g, " ").trim()];
  });
  // The same visitor's page as the server renders it, before any script.
  const plain = async () => {
    const html = await (await visitor.context.request.get(`${stage.base}/same`, { headers: { accept: "text/html", "accept-language": "vi" } })).text();
    const quiet = await stage.browser.newContext({ javaScriptEnabled: true });
    const page = await quiet.newPage();
    await page.setContent(html.replace(/<script>[^]*?<\/script>/, ""));
    const words = await shown(page);
    await quiet.close();
    return words;
  };
  const states = [
    ["paused", { paused: true }],
    ["sold_out", { stock: 0 }],
    ["waiting", { stock: 5, paused: false, rate: "1/min" }],
  ];
  for (const [name, change] of states) {
    await room.set(change);
    await inState(tab, name);
    assert.deepEqual(await plain(), await shown(tab), name);
  }
  await visitor.close();
});

test("the operators' message is text", async () => {
  const { room, visitor, tab } = await waiter("message", 1);
  const message = `<b>Soon</b> & "sooner" {{ 1 }} </script><script>alert(1)</script>`;
  await room.set({ message });
  await until("the message is there", async () => (await text(tab, "#message .word")) === message);
  await tab.reload();
  await inState(tab, "paused");
  assert.equal(await text(tab, "#message .word"), message);
  assert.equal(await tab.locator("#message b").count(), 0);
  await room.set({ message: "" });
  await until("the message is gone", async () => !(await tab.locator("#message").isVisible()));
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});

test("one answer under 30 KiB is the whole page, stored by nobody", async () => {
  const room = stage.room("weight");
  await room.set({ paused: true });
  const visitor = await stage.visitor();
  const tab = await visitor.open();
  const asked = [];
  tab.on("request", (request) => asked.push(new URL(request.url()).pathname));
  const answer = await tab.goto(`${stage.base}/weight`);
  await until("the page runs", async () => (await state(tab)) === "paused" && asked.length > 1);
  assert.ok((await answer.body()).length < 30 * 1024);
  assert.equal(answer.status(), 200);
  assert.equal(answer.headers()["cache-control"], "no-store");
  assert.match(answer.headers()["content-security-policy"], /^default-src 'none'; script-src 'sha256-/);
  assert.deepEqual(asked, ["/weight", "/.waitgate/weight/events"]);
  assert.deepEqual(visitor.wrong, []);
  await visitor.close();
});
