// The waiting page, kept up to date. The server has rendered everything once already; this script only changes what changes.
//
// How it is laid out: words, the face (what a view looks like), news (taking a view in), entering, the feed (where views come from),
// tabs (one of several holds the stream), and life (hidden, shown, frozen, restored).
//
// A view is absolute: nothing depends on having seen the one before. So any of the ways may be slow, doubled or cut without harm.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const page = JSON.parse(byId("page").textContent);
  const texts = JSON.parse(byId("texts").textContent);
  const routes = page.routes;
  const body = document.body;
  const FINAL = ["gone", "closed", "admitted"];
  const REASONS = { turn_lapsed: "lapsed", left: "left", abandoned: "abandoned", session_ended: "ended" };

  let view = page.view; // what is shown
  let best = null; // the lowest number shown for this place: it never grows while the place is the same
  let skew = -Infinity; // the server's clock minus ours; the largest seen is the one least delayed
  let reachable = true;
  let noCookies = navigator.cookieEnabled === false;
  let doubtful = page.cookieless; // the server saw no cookie come back; a place proves it wrong

  // Never early, so that a crowd told "in 5 s" does not come back in one step.
  const jitter = (ms) => ms * (1 + Math.random() * 0.3);
  const backOff = (tries) => jitter(Math.min(60_000, 1_000 * 2 ** Math.min(tries, 6)));
  const serverNow = () => Date.now() + (skew === -Infinity ? 0 : skew);

  // One timer of each name: setting it again replaces it.
  const timers = {};
  const cancel = (name) => {
    clearTimeout(timers[name]);
    delete timers[name];
  };
  const later = (name, act, ms) => {
    cancel(name);
    timers[name] = setTimeout(() => {
      delete timers[name];
      act();
    }, ms);
  };

  // Storage may be forbidden; then nothing is remembered.
  const memory = (store) => ({
    get(key) {
      try {
        return JSON.parse(window[store].getItem(`waitgate ${routes} ${key}`));
      } catch {
        return null;
      }
    },
    set(key, value) {
      try {
        window[store].setItem(`waitgate ${routes} ${key}`, JSON.stringify(value));
        return true;
      } catch {
        return false;
      }
    },
  });
  const tab = memory("sessionStorage");
  const browser = memory("localStorage");

  // ---- Words. The server does the same in src/response/pages/words.rs: the two must agree.

  const plural = new Intl.PluralRules(document.documentElement.lang);
  const number = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, texts.group);
  const say = (key, values = {}) => (texts[key] ?? key).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  const count = (key, n, values = {}) => {
    const form = `${key}.${plural.select(n)}`;
    return say(form in texts ? form : `${key}.other`, { n: number(n), ...values });
  };

  // A length of time in its two largest units; seconds only below ten minutes.
  function span(seconds) {
    const [large, small, size, part] =
      seconds >= 86_400 ? ["days", "hours", 86_400, 3_600] : seconds >= 3_600 ? ["hours", "minutes", 3_600, 60] : ["minutes", "seconds", 60, 1];
    if (seconds < 60) return count("span.seconds", seconds);
    const whole = count(`span.${large}`, Math.floor(seconds / size));
    const rest = part === 1 && seconds >= 600 ? 0 : Math.floor((seconds % size) / part);
    return rest > 0 ? `${whole} ${count(`span.${small}`, rest)}` : whole;
  }

  // A wait is a range, coarser the longer it is: minutes, then fives of minutes, then tens.
  function wait(low, high) {
    if (low === undefined || high === undefined) return say("wait.unknown");
    if (high < 60) return say("wait.soon");
    if (high >= 86_400) return say("wait.long");
    const step = high <= 1_200 ? 1 : high <= 5_400 ? 5 : 10;
    const from = Math.max(1, Math.floor(low / 60 / step) * step);
    const to = Math.ceil(high / 60 / step) * step;
    if (from === to) return count("wait.minutes", to);
    if (high <= 5_400) return count("wait.between", to, { low: number(from) });
    return say("wait.hours", { low: span(from * 60), high: span(to * 60) });
  }

  function clock(seconds) {
    const two = (n) => String(n).padStart(2, "0");
    const days = Math.floor(seconds / 86_400);
    const rest = `${two(Math.floor(seconds / 3_600) % 24)}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
    return days > 0 ? `${count("span.days", days)} ${rest}` : rest;
  }

  // ---- The face: what a view looks like. Mirrors src/response/pages/face.rs.

  const inLine = (view) => view.state === "waiting" || view.state === "nearly";
  const faceName = (view) => (inLine(view) && view.ahead === undefined ? "joining" : view.state);

  function ahead(view) {
    if (view.ahead === undefined || !(inLine(view) || view.state === "paused" || view.state === "all_held")) return ["", ""];
    return [number(view.ahead), view.ahead === 0 ? say("ahead.none") : count("ahead", view.ahead)];
  }

  function set(id, text, part) {
    const element = byId(id);
    if (!element) return; // a page of the operators' own may leave it out
    element.hidden = text === "";
    const target = part ? element.querySelector(part) : element;
    if (target.textContent !== text) target.textContent = text;
  }

  function show(id, shown) {
    const element = byId(id);
    if (element) element.hidden = !shown;
  }

  function figure(shown, label) {
    set("number", shown);
    set("label", label);
    show("figure", label !== "");
    byId("number")?.classList.toggle("long", shown.length > 7);
  }

  function paint() {
    const name = faceName(view);
    const gone = view.state === "gone";
    const told = gone ? (view.reason ?? "abandoned") : name;
    const final = FINAL.includes(view.state);
    document.title = titleOf(name);
    body.dataset.state = view.state;
    set("head", say(`head.${told}`));
    set("next", say(`next.${told}`));
    figure(...ahead(view));
    set("wait", inLine(view) ? wait(view.wait_low_s, view.wait_high_s) : "", "dd");
    set("message", view.message ?? "", ".word");
    show("delayed", view.delayed === true);
    show("cookies", noCookies || doubtful);
    show("keep", !final && view.state !== "turn");
    show("enter", view.state === "turn");
    show("join", gone);
    show("leave", !final && name !== "joining");
    if (final) byId("leave").open = false;
    paintProgress();
    tick();
  }

  function titleOf(name) {
    if (name === "turn") return say("title.turn");
    const state = name === "waiting" ? count("title.waiting", view.ahead) : say(`title.${name}`);
    return `${state} · ${texts.page}`;
  }

  // How far this place has come since it was first seen here: a hint, for the eye only.
  function paintProgress() {
    const moves = view.ahead !== undefined && ahead(view)[1] !== "";
    show("track", moves);
    if (!moves) return;
    const first = Math.max(tab.get("first") ?? 0, view.ahead);
    tab.set("first", first);
    byId("track")?.style.setProperty("--done", first > 0 ? 1 - view.ahead / first : 1);
  }

  // What changes by the clock alone.
  function tick() {
    const now = serverNow();
    body.classList.toggle("stale", !reachable);
    const age = Math.max(0, Math.floor((now - view.updated_at_ms) / 1_000));
    const ago = age < 15 ? say("updated.now") : say("updated.ago", { span: span(age < 60 ? age - (age % 15) : age - (age % 60)) });
    set("updated", FINAL.includes(view.state) ? "" : reachable ? ago : say("updated.lost"), "dd");
    const until = view.state === "turn" && view.turn_until_ms ? Math.floor((view.turn_until_ms - now) / 1_000) : null;
    set("held", until === null ? "" : until > 0 ? span(until) : say("held.over"), "dd");
    tickCountdown(now);
  }

  function tickCountdown(now) {
    const opens = view.state === "countdown" ? view.opens_at_ms : undefined;
    show("opens", opens !== undefined);
    if (opens === undefined) return;
    const left = Math.max(0, Math.ceil((opens - now) / 1_000));
    figure(clock(left), say("opens"));
    const when = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "long", timeStyle: "short" });
    set("opens", when.format(opens), "time");
    if (left === 0 && !timers.opening) later("opening", check, jitter(3_000));
  }

  // Read aloud at milestones only: a number that changes each second must not talk each second.
  let said = { name: faceName(view), ahead: view.ahead };
  function announce() {
    const name = faceName(view);
    const changed = name !== said.name;
    const halved = view.ahead !== undefined && said.ahead !== undefined && view.ahead <= said.ahead / 2 && view.ahead > 0;
    if (!changed && !halved) {
      said.ahead ??= view.ahead;
      return;
    }
    said = { name, ahead: view.ahead };
    const parts = changed ? [byId("head")?.textContent, byId("next")?.textContent] : [];
    if (inLine(view) && view.ahead > 0) parts.push(count("say.ahead", view.ahead));
    byId("live").textContent = parts.join(". ").replace(/([.!?])\. /g, "$1 ");
  }

  // ---- News.

  // A new place in line: what was shown of the old one no longer counts.
  function forget() {
    best = null;
    said.ahead = undefined;
    tab.set("first", null);
  }

  // `own` is an answer to something done here: it counts even when its numbers are older than what is shown.
  function accept(next, { own = false, shared = false } = {}) {
    if (!next || typeof next.state !== "string") return;
    if (!own && next.state === view.state && next.updated_at_ms < view.updated_at_ms) return;
    skew = Math.max(skew, next.updated_at_ms - Date.now());
    if (next.state === "gone") forget();
    if (next.ahead !== undefined) {
      best = Math.min(best ?? next.ahead, next.ahead);
      next = { ...next, ahead: best };
      noCookies = doubtful = false;
    }
    view = next;
    if (!shared) tell({ view });
    paint();
    announce();
    act();
  }

  // What a state asks for. Entering waits for eyes: a hidden tab holds the turn and says so in its title.
  function act() {
    if (FINAL.includes(view.state)) unfollow();
    if (document.hidden) return;
    if (view.state === "admitted") go();
    if (view.state === "turn") enter();
  }

  function reached(yes) {
    reachable = yes;
    tick();
  }

  // ---- Entering.

  const post = (verb) => fetch(`${routes}/${verb}`, { method: "POST", headers: { accept: "application/json" }, signal: limit() });
  const limit = () => AbortSignal.timeout?.(15_000);
  const retryAfter = (answer) => (Number(answer.headers.get("retry-after")) || 0) * 1_000;
  const lostTicket = (answer) => answer.status === 401 || answer.status === 403 || answer.status === 404;
  const jsonOf = (answer) => answer.json().catch(() => ({}));

  let entering = false;
  let refused = 0;
  async function enter() {
    if (entering || document.hidden || view.state !== "turn") return;
    entering = true;
    let pause = 0;
    try {
      const answer = await post("enter");
      const told = await jsonOf(answer);
      if (answer.ok) return admitted();
      if (lostTicket(answer)) return go();
      if (answer.status === 410) accept({ ...told.view, ...goneFor(told.code) }, { own: true });
      else if (answer.status === 409 && told.view) {
        accept(told.view, { own: true });
        later("asking", check, jitter(5_000)); // the stream has told the turn once, and may not tell it again
      } else set("trouble", say("slow"));
      pause = retryAfter(answer);
    } catch {
      set("trouble", say("slow"));
    } finally {
      entering = false;
    }
    if (view.state === "turn") later("enter", enter, Math.max(jitter(pause), backOff(refused++)));
    else set("trouble", "");
  }

  const goneFor = (code) => ({ state: "gone", reason: REASONS[code] ?? "abandoned", updated_at_ms: serverNow(), poll_after_s: 60 });

  function admitted() {
    accept({ state: "admitted", updated_at_ms: serverNow(), poll_after_s: 60 }, { own: true });
  }

  // The same address again, now with the admission: query and fragment stay. Should the waiting page come back each time, the cookie is
  // not kept; a few rounds are enough to know, and then the page says so instead of turning in circles.
  let going = false;
  function go() {
    if (going) return;
    const rounds = (tab.get("rounds") ?? []).filter((at) => Date.now() - at < 180_000);
    const kept = tab.set("rounds", [...rounds, Date.now()]);
    const again = performance.getEntriesByType("navigation")[0]?.type === "reload";
    if (rounds.length >= 3 || (!kept && again)) return missCookies();
    going = true;
    location.reload();
  }

  function missCookies() {
    noCookies = true;
    unfollow();
    paint();
  }

  // ---- The feed: server-sent events, else a WebSocket, else asking again and again.

  const WAYS = [byEvents, bySocket, byAsking];
  let way = 0;
  let better = 60_000; // how long to stay with a lesser way before the best is tried again
  let run = null; // what is open now: {close}
  let failures = 0;

  function unfollow() {
    run?.close?.();
    run = null;
    for (const name of ["first", "quiet", "better", "poll", "again", "orphan"]) cancel(name);
    resign();
  }

  function follow() {
    unfollow();
    if (FINAL.includes(view.state) || noCookies) return;
    if (document.hidden) return later("poll", askSlowly, jitter(25_000));
    lead(start);
  }

  function start() {
    run?.close?.();
    run = {};
    if (way > 0 && !timers.better) later("better", restart, jitter(better));
    WAYS[way](run);
  }

  function restart() {
    way = 0;
    better = Math.min(better * 2, 600_000);
    start();
  }

  // This way does not work: learn where we stand (a stream that ended for good is answered 204), then take the next one.
  async function fail(failed) {
    if (failed !== run) return;
    failed.close?.();
    cancel("first");
    reached(false);
    await check();
    if (failed !== run || FINAL.includes(view.state)) return;
    way = Math.min(way + 1, WAYS.length - 1);
    later("again", start, Math.random() * 1_000);
  }

  // A stream brought a view. If it then stays silent for long, one question tells whether the silence is true.
  function heard(current, words) {
    if (current !== run) return;
    cancel("first");
    let told;
    try {
      told = JSON.parse(words);
    } catch {
      return;
    }
    if (way === 0) better = 60_000;
    reached(true);
    accept(told);
    if (current === run) later("quiet", () => doubt(current), jitter(90_000));
  }

  async function doubt(current) {
    const { state, ahead } = view;
    await check();
    if (current !== run) return;
    if (view.state !== state || view.ahead !== ahead) return fail(current);
    later("quiet", () => doubt(current), jitter(90_000));
  }

  function byEvents(current) {
    if (!("EventSource" in window)) return fail(current);
    const source = new EventSource(`${routes}/events`);
    let errors = 0;
    let bye = false;
    current.close = () => source.close();
    // A proxy may hold the stream back: open, and yet silent. The first view comes at once, or this way is no good.
    later("first", () => fail(current), 7_000);
    source.onmessage = (event) => {
      errors = 0;
      bye = false;
      heard(current, event.data);
    };
    source.addEventListener("bye", () => {
      bye = true;
      cancel("first");
    });
    source.onerror = () => {
      if (current !== run) return;
      if (source.readyState === EventSource.CLOSED || ++errors > 2) return fail(current);
      // The browser comes back by itself. After `bye` that was announced, and is no trouble.
      if (!bye) reached(false);
      later("first", () => fail(current), 20_000);
    };
  }

  function bySocket(current) {
    if (!("WebSocket" in window)) return fail(current);
    const address = new URL(`${routes}/ws`, location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address);
    let opened = false;
    current.close = () => socket.close();
    later("first", () => fail(current), 7_000);
    socket.onmessage = (event) => {
      opened = true;
      heard(current, event.data);
    };
    socket.onclose = (event) => {
      if (current !== run) return;
      if (!opened || (event.code !== 1001 && event.code !== 1012)) return fail(current);
      run = {}; // the gateway is stopping: another one answers in a moment
      later("again", follow, 1_000 + Math.random() * 3_000);
    };
  }

  async function byAsking(current) {
    const down = failures > 0;
    const pause = await check();
    if (current !== run) return;
    // The gateway is back after an outage, so the streams will be: no need to wait out the whole pause, only not all in one moment.
    if (down && failures === 0) later("better", restart, 2_000 + Math.random() * 8_000);
    later("poll", () => current === run && byAsking(current), jitter(pause));
  }

  async function askSlowly() {
    // Another tab holds a stream, and that keeps the place for all of them.
    if (Date.now() - lastBeat > 20_000) await check();
    if (document.hidden && !FINAL.includes(view.state)) later("poll", askSlowly, jitter(25_000));
  }

  // Asks once where we stand; answers with how long to wait before asking again.
  async function check() {
    try {
      const answer = await fetch(`${routes}/status`, { headers: { accept: "application/json" }, cache: "no-store", signal: limit() });
      if (answer.ok) {
        failures = 0;
        reached(true);
        accept(await answer.json());
        return (view.poll_after_s || 5) * 1_000;
      }
      // The ticket is not known here any more; loading the page again brings one.
      if (lostTicket(answer) && !document.hidden && !FINAL.includes(view.state)) go();
      return Math.max(retryAfter(answer), backOff(failures++));
    } catch {
      reached(false);
      return backOff(failures++);
    }
  }

  // ---- Tabs. They share one place by its cookie; the one that holds the lock holds the stream and tells the others.

  let channel = null;
  let lastBeat = 0;
  let resign = () => {};

  function listen() {
    if (!("BroadcastChannel" in window)) return;
    channel?.close();
    channel = new BroadcastChannel(`waitgate ${routes}`);
    channel.onmessage = ({ data }) => {
      lastBeat = Date.now();
      if (data.fresh) forget();
      if (data.view) {
        const wasFinal = FINAL.includes(view.state);
        reachable = true;
        accept(data.view, { shared: true, own: data.fresh });
        if (wasFinal && !FINAL.includes(view.state)) follow();
      }
      // Waiting for the lock: as long as its holder is heard of, all is well.
      if (timers.orphan) later("orphan", start, 35_000);
    };
  }

  function tell(words) {
    try {
      channel?.postMessage(words);
    } catch {
      channel = null; // closed under us: go on alone
    }
  }

  function lead(act) {
    if (!navigator.locks) return act();
    const waiting = new AbortController();
    let release = () => waiting.abort();
    resign = () => release();
    later("orphan", act, 35_000);
    navigator.locks
      .request(`waitgate ${routes}`, { signal: waiting.signal }, () => {
        if (waiting.signal.aborted) return;
        cancel("orphan");
        act();
        return new Promise((done) => (release = done));
      })
      .catch((error) => error.name === "AbortError" || act());
  }

  let seconds = 0;
  setInterval(() => {
    tick();
    if (run?.close && ++seconds % 10 === 0) tell({ beat: true });
  }, 1_000);

  // ---- The buttons. Plain forms without this script; with it, they answer in place. A second click finds the first one still at work.

  function button(verb, then) {
    const form = verb === "leave" ? byId("leave")?.querySelector("form") : byId(verb);
    const press = form?.querySelector("button");
    form?.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (press.getAttribute("aria-disabled") === "true") return;
      press.setAttribute("aria-disabled", "true");
      set("trouble", "");
      try {
        await then();
      } catch {
        set("trouble", say("trouble"));
      } finally {
        press.setAttribute("aria-disabled", "false");
      }
    });
  }

  async function change(verb) {
    const answer = await post(verb);
    if (!answer.ok) throw new Error(verb);
    const told = await answer.json();
    forget();
    browser.set("round", Date.now());
    round = browser.get("round");
    tell({ view: told, fresh: true });
    accept(told, { own: true });
    follow();
    byId("head").focus();
  }

  let round = browser.get("round");
  byId("head").tabIndex = -1;
  button("leave", () => change("leave"));
  button("join", () => change("join"));
  button("enter", enter);
  show("stay", true);
  byId("stay")?.addEventListener("click", () => {
    byId("leave").open = false;
    byId("leave").querySelector("summary").focus();
  });

  // ---- Life: hidden, shown, frozen, restored.

  async function wake() {
    // Another tab left or joined again while this one slept, and it never heard.
    if (browser.get("round") !== round) {
      round = browser.get("round");
      forget();
    }
    act();
    await check();
    follow();
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? follow() : wake()));
  document.addEventListener("resume", () => document.hidden || wake());
  window.addEventListener("online", () => document.hidden || wake());
  window.addEventListener("pagehide", () => {
    unfollow();
    channel?.close();
    channel = null;
  });
  // Back out of the back/forward cache: everything shown is old, and the stream is closed.
  window.addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    entering = going = false;
    listen();
    wake();
  });

  skew = page.now_ms - Date.now();
  best = view.ahead ?? null;
  listen();
  paint();
  act();
  follow();
  document.documentElement.className = "kept"; // all of the above ran: the page need not rescue itself by reloading
})();
