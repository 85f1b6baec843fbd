"use strict";
const LOOK_MILLISECONDS = 4000, PATIENCE_MILLISECONDS = 60000, ZOOM_MILLISECONDS = 200;
const key = location.hash.slice(1);  // a browser sends this part to no server
addEventListener("hashchange", () => location.reload());  // `page` was restarted and has a new key
const cards = new Map();  // of running steps, by name: kept between looks, so that text being typed stays

function put(parent, tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;  // never as HTML: names and errors are untrusted
  if (kind) made.className = kind;
  parent.append(made);
  return made;
}

async function ask(path, given) {
  const options = { headers: { "X-Key": key }, signal: AbortSignal.timeout(PATIENCE_MILLISECONDS) };
  if (given) Object.assign(options, { method: "POST", body: typeof given === "string" ? given : JSON.stringify(given) });
  const response = await fetch(path, options).catch(error => {
    if (error.name !== "TimeoutError") throw error;
    const again = path === "/state" || path.startsWith("/values") ? "; the page tries again" : "";  // it repeats no click
    throw new Error(`the store has not answered for a minute${again}`);
  });
  const document_ = await response.json();
  if (!response.ok) throw new Error(document_.error);
  return document_;
}

function local(moment) {
  return new Date(moment).toLocaleString();
}

function notify(text, kind) {
  const message = document.getElementById("message");
  message.textContent = text;
  message.className = kind;
}

async function request(name, word, form) {
  if (word === "publish" && !form.reportValidity()) return;  // the value of an invalid number is empty
  const at = word === "publish" && form.at && form.at.value !== "" ? Number(form.at.value) : null;
  if (word === "stop" && !confirm(`${name}: save and stop? Steps that need it wait for the next run.`)) return;
  try {
    notify((await ask("/request", { name, word, at, reason: form.reason.value })).reply, "good");
    form.reset();
    await look();
  } catch (error) {
    notify(error.message, "bad");
  }
}

async function fill(log, name) {
  const follows = log.hidden || log.scrollTop + log.clientHeight >= log.scrollHeight - 1;
  try {
    log.textContent = (await ask(`/log?name=${encodeURIComponent(name)}`)).log || "the log is empty";
    log.hidden = false;
    if (follows) log.scrollTop = log.scrollHeight;
  } catch (error) {
    notify(error.message, "bad");
  }
}

function addLog(buttons, parent, name) {
  const open = put(buttons, "button", "log");
  open.type = "button";
  const log = put(parent, "pre");
  log.hidden = true;
  open.addEventListener("click", () => { if (log.hidden) fill(log, name); else log.hidden = true; });
  return log;
}

function cardOf(step) {
  const card = document.createElement("article");
  const header = put(card, "header");
  put(header, "b", step.name);
  card.progress = put(header, "span", "", "figures");
  card.holder = put(card, "div", "", "quiet");
  card.share = put(put(card, "div", undefined, "bar"), "div");
  const form = put(card, "form", undefined, "buttons");
  form.addEventListener("submit", event => event.preventDefault());
  for (const word of step.words) {
    const button = put(form, "button", word);
    button.type = "button";
    button.addEventListener("click", () => request(step.name, word, form));
    if (word === "publish" && step.takes_milestone) {
      const at = put(form, "input");
      Object.assign(at, { name: "at", type: "number", min: "0", step: "1", placeholder: "the next, or step" });
    }
  }
  Object.assign(put(form, "input"), { name: "reason", placeholder: "why, for later readers", maxLength: 1000 });
  card.log = addLog(form, card, step.name);
  return card;
}

function showRunning(steps) {
  const names = new Set(steps.map(step => step.name));
  for (const [name, card] of cards) if (!names.has(name)) { card.remove(); cards.delete(name); }
  for (const step of steps) {
    if (!cards.has(step.name)) cards.set(step.name, cardOf(step));
    const card = cards.get(step.name);
    card.progress.textContent = step.is_queued ? "waits for resources" : step.progress || "started";
    card.holder.textContent = step.holder;
    card.share.style.width = `${100 * (step.share ?? 0)}%`;
    if (!card.log.hidden) fill(card.log, step.name);
    if (!card.isConnected) document.getElementById("running").append(card);
  }
}

function rows(id, found, none, show) {
  const list = document.getElementById(id);
  list.replaceChildren();
  for (const each of found) show(put(list, "div", undefined, "row"), each);
  if (!found.length && none) put(list, "div", none, "quiet");
}

let chosen = null;  // the name of the step whose details are open

function choose(name) {
  chosen = chosen === name ? null : name;
  mark();
  const details = document.getElementById("step");
  details.replaceChildren();
  const step = graph.get(chosen);
  if (!step) return;
  const card = put(details, "article");
  put(put(card, "header"), "b", step.name);
  put(card, "div", `${step.kind}: ${step.verdict}`, "quiet");
  for (const reason of step.reasons) put(card, "div", reason);
  for (const [title, names] of [["reads", step.inputs], ["read by", step.readers]]) {
    if (!names.length) continue;
    const line = put(card, "div", `${title} `);
    for (const other of names) { link(line, other, () => choose(other)); put(line, "span", " "); }
  }
  fill(addLog(put(card, "div", undefined, "buttons"), card, step.name), step.name);
  dispatchEvent(new CustomEvent("step", { detail: step.name }));
}

function link(parent, text, act) {
  const made = put(parent, "button", text, "link");
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

const graph = new Map();  // of steps, by name

function mark() {
  const near = graph.get(chosen);
  for (const [name, step] of graph) {
    step.chip.className = `step ${step.verdict}`;
    step.chip.title = `${name}: ${step.verdict}`;
    step.chip.setAttribute("aria-pressed", String(name === chosen));
    if (near && (near.inputs.includes(name) || near.readers.includes(name))) step.chip.classList.add("near");
  }
}

function showGraph(state) {
  const names = state.steps.map(step => step.name);
  const running = new Map(state.running.map(step => [step.name, step.is_queued ? "queued" : "running"]));
  if (names.join() !== [...graph.keys()].join()) {
    const place = document.getElementById("graph"), lanes = new Map();
    place.replaceChildren();
    graph.clear();
    for (const step of state.steps) {
      const lane = step.name.includes("/") ? step.name.slice(step.name.indexOf("/") + 1) : step.name;
      if (!lanes.has(lane)) {
        const row = put(place, "div", undefined, "lane");
        put(row, "span", lane);
        lanes.set(lane, put(row, "div"));
      }
      const chip = put(lanes.get(lane), "button", step.kind);
      chip.type = "button";
      chip.addEventListener("click", () => choose(step.name));
      graph.set(step.name, { chip, readers: [] });
    }
    for (const step of state.steps) for (const name of step.inputs) if (graph.has(name)) graph.get(name).readers.push(step.name);
    const more = state.num_steps - state.steps.length;
    if (more > 0) put(place, "div", `and ${more} more: \`ls\` lists them`, "quiet");
  }
  for (const step of state.steps) Object.assign(graph.get(step.name), step, { verdict: running.get(step.name) ?? step.verdict });
  mark();
}

async function openView(name) {
  try {
    const opened = await ask("/open", name);
    window.open(opened.path, "_blank", "noopener");
  } catch (error) {
    notify(error.message, "bad");
  }
}

function showContent(found) {
  for (const figure of document.querySelectorAll("figure[data-live]")) {
    figure.dispatchEvent(new CustomEvent("values", { detail: found.figures }));
  }
  const alarms = document.getElementById("alarms");
  alarms.replaceChildren();
  if (found.alarms.length) put(alarms, "h2", "Alarms");
  for (const alarm of found.alarms) {
    const row = put(alarms, "div", undefined, "row");
    put(row, "b", alarm.name);
    put(row, "span", ` ${alarm.text} `, "bad");
    link(row, "show", () => {
      dispatchEvent(new CustomEvent("look-at", { detail: alarm.at }));
      dispatchEvent(new CustomEvent("alarm", { detail: alarm }));
    });
    if (alarm.fix) put(put(row, "div"), "code", alarm.fix);
  }
  const views = document.getElementById("views");
  views.replaceChildren();
  for (const view of found.views) link(views, view.title, () => openView(view.name));
}

let seen = {};  // the ends of the x axis that the user zoomed to
addEventListener("view", event => { seen = event.detail; clearTimeout(timer); timer = setTimeout(lookAgain, ZOOM_MILLISECONDS); });
let timer = 0, known = "";  // the version of the values that are shown
function lookAgain() {
  lookAtContent().catch(error => notify(error.message, "bad"));
}

async function lookAtContent() {
  const asked = seen;
  const ends = "start" in asked ? `&low=${asked.start}&high=${asked.end}` : "";
  const found = await ask(`/values?known=${known}${ends}`);
  if (asked !== seen || found.version === known) return;
  known = found.version;
  showContent(found);
}

function show(state) {
  document.title = `${state.running.length ? `${state.running.length} running – ` : ""}${state.pipeline}`;
  document.getElementById("pipeline").textContent = state.pipeline;
  document.getElementById("prefix").textContent = `${state.prefix}, as of ${local(state.looked)}`;
  const verdicts = document.getElementById("verdicts");
  verdicts.replaceChildren();
  for (const [verdict, count] of Object.entries(state.verdicts)) put(verdicts, "span", `${count} ${verdict}`);
  showRunning(state.running);
  showGraph(state);
  rows("others", state.running_with_other_settings, state.running.length ? "" : "nothing", (row, each) => {
    put(row, "b", each.name);
    put(row, "span", ` with other settings: ${each.holder}`, "quiet");
  });
  rows("waiting", state.waiting, "nothing", (row, each) => {
    put(row, "b", each.name);
    put(row, "span", ` ${each.verdict}`, "bad");
    for (const reason of each.reasons) put(row, "div", reason, "quiet");
  });
  const more = state.num_waiting - state.waiting.length;
  if (more > 0) put(document.getElementById("waiting"), "div", `and ${more} more: \`plan\` lists them`, "quiet");
  rows("requests", state.requests, "nothing", (row, each) => {
    put(row, "span", `${local(each.requested)} `, "quiet");
    put(row, "b", each.name);
    put(row, "span", `: ${each.text}`);
    const reply = each.reply;
    put(row, "div", reply ? reply.text : "no reply yet", reply ? (reply.is_refused ? "bad" : "good") : "quiet");
  });
  for (const damaged of state.damaged) put(document.getElementById("requests"), "div", damaged, "bad");
}

let lost = false;
async function look() {
  try {
    show(await ask("/state"));
    await lookAtContent();
    if (lost) notify("", "");
    lost = false;
  } catch (error) {
    lost = true;
    notify(error instanceof TypeError ? "`page` does not answer: it was closed, or its terminal says why" : error.message, "bad");
  }
}

async function watch() {
  if (!document.hidden) await look();
  setTimeout(watch, LOOK_MILLISECONDS);
}
watch();
