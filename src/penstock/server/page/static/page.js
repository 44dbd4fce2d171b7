// The status page, kept current without a reload.
//
//   /api/events ─ history ─▶ charts
//               └ status ──▶ charts, and GET / again ─▶ morph: the parts marked data-live are updated in place
//
// The server renders all that the page says. This script only replaces what changed, so that focus, selection and
// animations survive; it sorts and filters tables, draws charts, and runs queries. Text from the server is never parsed
// as HTML, except for the page itself, which the server has escaped.
"use strict";

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function draw(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// -- numbers, as in quantities.py ------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function countText(count) {
  for (const [limit, factor, unit] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
    if (count >= limit) return `${(count / factor).toFixed(count / factor >= 100 ? 0 : 1)} ${unit}`;
  }
  return whole.format(count);
}

function rateText(rate) {
  return rate > 0 && rate < 9.95 ? `${rate.toFixed(1)}/s` : `${countText(rate)}/s`;
}

function lagText(ms) {
  if (ms < 1) return ms > 0 ? "under 1 ms" : "0 ms";
  if (ms < 999.5) return `${ms.toFixed(0)} ms`;
  const seconds = ms / 1000;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${(seconds / 60).toFixed(0)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(0)} h` : `${(seconds / 86400).toFixed(0)} days`;
}

function sizeText(size) {
  let power = 0;
  for (; size >= 1000 && power < 5; power++) size /= 1024;
  return `${size.toFixed(power === 0 || size >= 99.95 ? 0 : 1)} ${["B", "kB", "MB", "GB", "TB", "PB"][power]}`;
}

function clockText(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

// -- morph -----------------------------------------------------------------------------------------------------------

const keyOf = (node) => (node.nodeType === 1 ? node.id || node.dataset.key || null : null);
const fits = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

// Make `node` equal to `wanted`, and keep what is equal already.
function morph(node, wanted) {
  if (node.nodeType !== 1) {
    if (node.nodeValue !== wanted.nodeValue) node.nodeValue = wanted.nodeValue;
    return;
  }
  if (node.isEqualNode(wanted)) return;
  for (const { name } of [...node.attributes]) if (!wanted.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  if (!node.hasAttribute("data-client")) morphChildren(node, wanted);
}

function morphChildren(node, wanted) {
  const keyed = new Map();
  for (const child of node.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let next = node.firstChild;
  for (const child of [...wanted.childNodes]) {
    const found = keyOf(child) ? keyed.get(keyOf(child)) : next && fits(next, child) ? next : null;
    if (found && fits(found, child)) {
      if (found === next) next = next.nextSibling;
      else node.insertBefore(found, next);
      morph(found, child);
    } else {
      node.insertBefore(document.importNode(child, true), next);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

// -- tables: search, filter, sort --------------------------------------------------------------------------------------

const list = { text: "", state: "", column: null, direction: 1 };
const NUMERIC = new Set(["rows", "rate", "behind"]);

function compareRows(a, b) {
  const left = a.dataset[list.column], right = b.dataset[list.column];
  if (!NUMERIC.has(list.column)) return list.direction * left.localeCompare(right, undefined, { numeric: true });
  if (left === "" || right === "") return (left === "") - (right === ""); // unknown values come last
  return list.direction * (Number(left) - Number(right));
}

// Sort and filter the rows below `body`: in the page, or in a page that has just arrived.
function arrange(body) {
  if (!body) return 0;
  const rows = [...body.children].filter((row) => row.dataset.name !== undefined);
  const errors = new Map([...body.children].filter((row) => row.dataset.of !== undefined).map((row) => [row.dataset.of, row]));
  if (list.column) body.append(...rows.sort(compareRows).flatMap((row) => [row, errors.get(row.dataset.name)].filter(Boolean)));
  let shown = 0;
  for (const row of rows) {
    const { name, upstream, state } = row.dataset;
    const matches = (!list.state || state === list.state) && `${name} ${upstream} ${state}`.toLowerCase().includes(list.text);
    row.hidden = !matches;
    const error = errors.get(name);
    if (error) error.hidden = !matches;
    shown += matches;
  }
  return shown;
}

function pressChips(root) {
  for (const chip of root.querySelectorAll("[data-filter]")) chip.setAttribute("aria-pressed", String(chip.dataset.filter === list.state));
}

function applyList() {
  const shown = arrange(byId("table-rows"));
  pressChips(byId("table-chips"));
  byId("no-match").hidden = shown > 0 || byId("table-rows").children.length === 0;
  drawSparks();
}

function startList() {
  byId("table-tools").hidden = false;
  byId("table-search").addEventListener("input", (event) => {
    list.text = event.target.value.trim().toLowerCase();
    applyList();
  });
  byId("table-chips").addEventListener("click", (event) => {
    const chip = event.target.closest("[data-filter]");
    if (!chip) return;
    list.state = chip.dataset.filter;
    applyList();
  });
  byId("clear-search").addEventListener("click", () => {
    byId("table-search").value = list.text = list.state = "";
    applyList();
    byId("table-search").focus();
  });
  for (const head of document.querySelectorAll("#table-list th[data-sort]")) {
    const button = make("button", { type: "button" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sortBy(head));
  }
}

function sortBy(head) {
  const column = head.dataset.sort;
  const first = NUMERIC.has(column) ? -1 : 1; // the largest numbers first
  list.direction = list.column === column ? -list.direction : first;
  list.column = column;
  for (const other of document.querySelectorAll("#table-list th[data-sort]")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", list.direction > 0 ? "ascending" : "descending");
  applyList();
}

// -- history and charts --------------------------------------------------------------------------------------------------

const HOUR = 3600;
const MOST_LINES = 6;
const history = { at: [], series: {} };
const CHARTS = [
  { title: "Changes per second", metric: "rate", text: rateText, total: true },
  { title: "Commit to readable", metric: "lag_ms", text: lagText },
  { title: "WAL retained upstream", metric: "retained_bytes", text: sizeText },
];

function addPoint({ at, series }) {
  if (history.at.length && at <= history.at[history.at.length - 1]) return;
  history.at.push(at);
  const length = history.at.length;
  for (const [name, metrics] of Object.entries(series)) {
    const known = (history.series[name] ??= {});
    for (const [metric, value] of Object.entries(metrics)) (known[metric] ??= Array(length - 1).fill(null)).push(value);
  }
  for (const metrics of Object.values(history.series)) {
    for (const values of Object.values(metrics)) if (values.length < length) values.push(null);
  }
  const old = history.at.findIndex((time) => time > at - HOUR);
  if (old < 60) return; // not every second
  history.at.splice(0, old);
  for (const metrics of Object.values(history.series)) for (const values of Object.values(metrics)) values.splice(0, old);
}

class Chart {
  constructor({ title, metric, text, total }) {
    Object.assign(this, { title, metric, text, total, cursor: null });
    this.now = make("b");
    this.svg = draw("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.tip = make("div", { class: "tip", "aria-hidden": "true" });
    this.tip.hidden = true;
    this.scale = make("span", { class: "scale", "aria-hidden": "true" });
    this.plot = make("div", { class: "plot", role: "slider", tabindex: "0", "aria-label": `${title}, last hour`, "aria-valuemin": "0", "aria-valuemax": "3600", "aria-valuenow": "3600" }, this.svg, this.scale, this.tip);
    this.begin = make("span");
    this.legend = make("div", { class: "legend" });
    const heading = make("h3", {}, make("span", {}, title), this.now);
    this.node = make("div", { class: "panel chart" }, heading, this.plot, make("div", { class: "axis", "aria-hidden": "true" }, this.begin, make("span", {}, "now")), this.legend);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.moveTo(null));
    this.plot.addEventListener("blur", () => this.moveTo(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  lines() {
    const found = Object.entries(history.series)
      .filter(([name, metrics]) => name.startsWith("source:") && metrics[this.metric]?.some((value) => value !== null))
      .map(([name, metrics]) => ({ name: name.slice("source:".length), values: metrics[this.metric] }));
    return found.slice(0, MOST_LINES);
  }

  update() {
    this.found = this.lines();
    this.node.hidden = this.found.length === 0;
    if (this.node.hidden) return;
    const end = history.at[history.at.length - 1];
    this.span = Math.max(60, Math.min(HOUR, end - history.at[0]));
    this.start = end - this.span;
    this.most = Math.max(...this.found.flatMap(({ values }) => values.map((value) => value ?? 0))) || 1;
    this.scale.textContent = this.text(this.most);
    this.begin.textContent = `${lagText(this.span * 1000)} ago`;
    const latest = this.found.map(({ values }) => values[values.length - 1]).filter((value) => value !== null);
    const shown = this.total ? latest.reduce((sum, value) => sum + value, 0) : Math.max(...latest);
    this.now.textContent = latest.length ? this.text(shown) : "–";
    this.paint();
    this.describe();
    this.legend.hidden = this.found.length < 2;
    this.legend.replaceChildren(...this.found.map(({ name }, place) => make("span", {}, make("span", { class: `key s${place + 1}` }), make("bdi", {}, name))));
  }

  x(at) { return ((at - this.start) / this.span) * 1000; }
  y(value) { return 100 - (value / this.most) * 92; }

  paint() {
    const parts = [draw("path", { class: "grid", d: "M0 100H1000M0 54H1000M0 8H1000" })];
    this.found.forEach(({ values }, place) => {
      const runs = pathRuns(values.map((value, at) => (value === null ? null : [this.x(history.at[at]), this.y(value)])));
      const line = runs.map((run) => `M${run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`).join("");
      const area = runs.map((run) => `M${run[0][0].toFixed(1)} 100L${run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}L${run[run.length - 1][0].toFixed(1)} 100Z`).join("");
      if (this.found.length === 1) parts.push(draw("path", { class: "area s1", d: area }));
      parts.push(draw("path", { class: `line s${place + 1}`, d: line }));
    });
    if (this.cursor !== null) parts.push(draw("path", { class: "cursor", d: `M${this.x(history.at[this.place()]).toFixed(1)} 0V100` }));
    this.svg.replaceChildren(...parts);
  }

  // The cursor is a time, so that it stays where it is while new samples arrive.
  place() {
    let best = history.at.length - 1;
    for (let i = best; i >= 0 && history.at[i] >= this.cursor; i--) best = i;
    return best;
  }

  describe() {
    const at = this.cursor === null ? history.at.length - 1 : this.place();
    const values = this.found.map(({ name, values }) => [name, values[at] === null ? "unknown" : this.text(values[at])]);
    const time = clockText(history.at[at]);
    this.plot.setAttribute("aria-valuenow", String(Math.round(((history.at[at] - this.start) / this.span) * 3600)));
    this.plot.setAttribute("aria-valuetext", `${time}: ${values.map((pair) => pair.join(" ")).join(", ")}`);
    this.tip.hidden = this.cursor === null;
    if (this.cursor === null) return;
    const rows = values.map(([name, value], place) => make("div", {}, make("span", { class: "who" }, make("span", { class: `key s${place + 1}` }), make("bdi", {}, name)), make("b", {}, value)));
    this.tip.replaceChildren(make("div", {}, time), ...rows);
    const room = this.plot.clientWidth, wanted = (this.x(history.at[at]) / 1000) * room;
    this.tip.style.left = `${wanted > room / 2 ? Math.max(0, wanted - this.tip.offsetWidth - 10) : wanted + 10}px`;
  }

  moveTo(time) {
    this.cursor = time;
    if (!this.found?.length) return;
    this.paint();
    this.describe();
  }

  point(event) {
    const box = this.plot.getBoundingClientRect();
    this.moveTo(this.start + ((event.clientX - box.left) / box.width) * this.span);
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageDown: -20, PageUp: 20, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") return this.moveTo(null);
    if (!(event.key in steps) || !this.found?.length) return undefined;
    event.preventDefault();
    const from = this.cursor === null ? history.at.length - 1 : this.place();
    return this.moveTo(history.at[Math.max(0, Math.min(history.at.length - 1, from + steps[event.key]))]);
  }
}

// Split points into runs without gaps; a run of one point becomes a short dash.
function pathRuns(points) {
  const runs = [[]];
  for (const point of points) {
    if (point) runs[runs.length - 1].push(point);
    else if (runs[runs.length - 1].length) runs.push([]);
  }
  return runs.filter((run) => run.length).map((run) => (run.length > 1 ? run : [run[0], [run[0][0] + 2, run[0][1]]]));
}

const charts = CHARTS.map((each) => new Chart(each));
let sparksDrawn = 0;

function drawCharts() {
  charts.forEach((chart) => chart.update());
  byId("charts").hidden = charts.every((chart) => chart.node.hidden);
  if (Date.now() - sparksDrawn > 5000) drawSparks();
}

// The last ten minutes of each table that is shown.
function drawSparks() {
  if (!history.at.length) return;
  sparksDrawn = Date.now();
  const end = history.at[history.at.length - 1];
  const first = Math.max(0, history.at.findIndex((at) => at > end - 600));
  const step = Math.max(1, Math.ceil((history.at.length - first) / 48));
  for (const svg of document.querySelectorAll(".spark[data-series]")) {
    const values = history.series[svg.dataset.series]?.rate;
    if (!values?.some((value) => value !== null) || svg.closest("tr").hidden) continue;
    const shown = [];
    for (let i = first; i < values.length; i += step) shown.push(Math.max(...values.slice(i, i + step).map((value) => value ?? 0)));
    const most = Math.max(...shown, 1);
    const d = shown.map((value, place) => `${place ? "L" : "M"}${((place / Math.max(1, shown.length - 1)) * 64).toFixed(1)} ${(17 - (value / most) * 15).toFixed(1)}`).join("");
    svg.replaceChildren(draw("path", { d }));
  }
}

// Water flows faster where more changes pass.
function setFlow() {
  for (const flow of document.querySelectorAll(".flow")) {
    const rate = Number(flow.dataset.rate) || 0;
    const speed = Math.min(4, 0.35 + Math.log10(1 + rate) * 0.75);
    for (const animation of flow.querySelector(".water").getAnimations()) animation.updatePlaybackRate(speed);
  }
}

// -- connection ----------------------------------------------------------------------------------------------------------

const SILENCE_MS = 20000; // the server sends something at least every 15 seconds
const connection = { events: null, heardAt: 0, lostAt: null, retry: null, wait: 1000, shown: "" };

function setConnection(state, text) {
  byId("connection").dataset.state = state;
  byId("connection-text").textContent = text;
}

function heard() {
  connection.heardAt = Date.now();
  connection.wait = 1000;
  if (connection.lostAt !== null) {
    connection.lostAt = null;
    byId("lost").hidden = true;
    document.body.classList.remove("stale");
  }
  setConnection("live", "live");
}

function lost(why) {
  if (connection.lostAt === null) {
    connection.lostAt = Date.now();
    document.body.classList.add("stale");
    byId("lost").textContent = `${why} The numbers below are from ${clockText((connection.heardAt || Date.now()) / 1000)}. Reconnecting …`;
    byId("lost").hidden = false;
  }
  setConnection("lost", "connection lost");
}

function connect() {
  clearTimeout(connection.retry);
  connection.events?.close();
  const events = (connection.events = new EventSource("/api/events"));
  events.addEventListener("history", (event) => {
    const { at, series } = JSON.parse(event.data);
    Object.assign(history, { at, series });
    drawCharts();
    drawSparks();
  });
  events.addEventListener("status", (event) => {
    heard();
    const data = JSON.parse(event.data);
    addPoint(data.history);
    if (document.hidden) return;
    drawCharts();
    const shown = JSON.stringify([data.status, data.history.series]);
    if (shown !== connection.shown) refresh(shown);
  });
  events.addEventListener("error", () => {
    lost("The connection to Penstock is lost: it has stopped, or the network is down.");
    if (events.readyState !== EventSource.CLOSED) return; // the browser connects again by itself
    connection.retry = setTimeout(connect, connection.wait);
    connection.wait = Math.min(connection.wait * 2, 15000);
  });
}

let refreshing = null;

// Get the page again, and update its live parts. One request at a time: a slow server is not asked more often.
async function refresh(shown) {
  if (refreshing) return;
  refreshing = new AbortController();
  const timer = setTimeout(() => refreshing.abort(), 10000);
  try {
    const response = await fetch("/", { headers: { Accept: "text/html" }, signal: refreshing.signal });
    if (response.redirected || response.status === 401) return void location.reload();
    if (!response.ok) return;
    update(new DOMParser().parseFromString(await response.text(), "text/html"));
    connection.shown = shown;
  } catch (error) {
    if (!(error instanceof TypeError || error.name === "AbortError")) throw error; // events report a lost connection
  } finally {
    clearTimeout(timer);
    refreshing = null;
  }
}

function update(wanted) {
  const shown = arrange(wanted.getElementById("table-rows"));
  const chips = wanted.getElementById("table-chips");
  if (chips) pressChips(chips);
  for (const part of wanted.querySelectorAll("[data-live]")) {
    const node = byId(part.id);
    if (node) morph(node, part);
  }
  byId("no-match").hidden = shown > 0 || byId("table-rows").children.length === 0;
  document.title = wanted.title;
  Object.assign(document.body.dataset, wanted.body.dataset);
  const icon = document.querySelector("link[rel=icon]"), level = wanted.querySelector("link[rel=icon]").getAttribute("href");
  if (icon.getAttribute("href") !== level) icon.setAttribute("href", level);
  setFlow();
  showExamples();
}

// -- query -----------------------------------------------------------------------------------------------------------------

const query = { running: null, id: null };

function showExamples() {
  const simple = /^[A-Za-z_][A-Za-z0-9_]{0,40}\.[A-Za-z_][A-Za-z0-9_]{0,40}$/;
  const rows = [...byId("table-rows").querySelectorAll("tr[data-state=live]")];
  const names = rows.map((row) => row.dataset.name).filter((name) => simple.test(name)).slice(0, 2);
  const texts = [...names.map((name) => `SELECT count(*) FROM ${name}`), names.length ? `SELECT * FROM ${names[0]} LIMIT 20` : "", "SHOW SOURCES"].filter(Boolean);
  const box = byId("query-examples");
  if (box.dataset.shown === texts.join("\n")) return;
  box.dataset.shown = texts.join("\n");
  box.replaceChildren(...texts.map((text) => make("button", { type: "button" }, text)));
  if (!byId("query-text").value && !byId("query-text").placeholder) byId("query-text").placeholder = texts[0];
}

function startQuery() {
  byId("query-form").hidden = false;
  byId("query-form").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  byId("query-cancel").addEventListener("click", cancel);
  byId("query-examples").addEventListener("click", (event) => {
    if (event.target.localName !== "button") return;
    byId("query-text").value = event.target.textContent;
    byId("query-text").focus();
  });
  byId("query-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    } else if (event.key === "Escape" && query.running) {
      cancel();
    }
  });
  showExamples();
}

function cancel() {
  if (!query.running) return;
  if (query.id !== null) fetch(`/api/sql/${encodeURIComponent(query.id)}`, { method: "DELETE", headers: { "Content-Type": "application/json" } }).catch(() => {});
  query.running.abort();
}

function setRunning(running) {
  query.running = running;
  query.id = null;
  byId("query-run").disabled = running !== null;
  byId("query-cancel").disabled = running === null;
}

async function run() {
  const sql = byId("query-text").value.trim() || byId("query-text").placeholder;
  if (query.running || !sql) return;
  const limit = Number(byId("query-limit").value);
  const hadFocus = document.activeElement === byId("query-run");
  setRunning(new AbortController());
  if (hadFocus) byId("query-cancel").focus();
  const answer = new Answer();
  try {
    const response = await fetch("/api/sql", {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/x-ndjson" },
      body: JSON.stringify({ sql, read_only: true, limit, format: "json" }),
      signal: query.running.signal,
    });
    for await (const line of lines(response.body)) answer.take(JSON.parse(line, exactly), response);
    answer.end(response);
  } catch (error) {
    if (error.name === "AbortError") answer.say("Cancelled.");
    else answer.fail({ message: "the query did not reach Penstock, or its answer broke off", hint: "Check that penstock run is active, then run the query again." });
  } finally {
    const refocus = document.activeElement === byId("query-cancel");
    setRunning(null);
    if (refocus) byId("query-run").focus();
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts.filter((part) => part.trim());
  }
  if (rest.trim()) yield rest;
}

// Numbers that JavaScript would round, such as large bigints, are kept as the text that was sent.
function exactly(key, value, context) {
  return typeof value === "number" && context?.source !== undefined && String(value) !== context.source ? context.source : value;
}

const NUMBER_TYPE = /^(tinyint|smallint|int|bigint|float|double|decimal)\b/;

// The lines of an answer, shown as they arrive.
class Answer {
  constructor() {
    this.body = null;
    this.rows = 0;
    this.ended = false;
    this.at = "";
    byId("query-error").hidden = true;
    byId("query-results").hidden = true;
    byId("query-results").replaceChildren();
    this.say("Running …");
  }

  say(...parts) { byId("query-state").replaceChildren(...parts); }

  take(line, response) {
    if (line.error) this.fail(line.error);
    else if (line.answer) this.statement(line.answer);
    else if (line.columns) this.begin(line);
    else if (line.rows && line.done === undefined) this.add(line.rows);
    else if (line.done) this.done(line);
    else if (!response.ok) this.fail({ message: `the server answered ${response.status}` });
  }

  begin({ query: id, columns, positions }) {
    query.id = id ?? null;
    this.at = Object.entries(positions ?? {}).map(([source, position]) => `${source} ${position}`);
    this.head(columns);
  }

  head(columns) {
    this.rows = 0;
    this.classes = columns.map(({ type }) => (NUMBER_TYPE.test(type ?? "") ? "amount" : ""));
    const cells = columns.map(({ name, type }, place) => make("th", { scope: "col", class: this.classes[place] }, make("bdi", {}, name), type ? make("small", {}, type) : ""));
    this.body = make("tbody");
    byId("query-results").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...cells)), this.body));
    byId("query-results").hidden = false;
  }

  add(rows) {
    this.rows += rows.length;
    this.body?.append(...rows.map((row) => make("tr", {}, ...row.map((value, place) => cell(value, this.classes[place])))));
  }

  statement(answer) {
    if (answer.columns) {
      this.head(answer.columns.map((column) => (typeof column === "string" ? { name: column } : column)));
      this.add(answer.rows);
    }
    this.ended = true;
    this.say(answer.message ?? `${whole.format(this.rows)} ${this.rows === 1 ? "row" : "rows"}`);
  }

  done({ rows, truncated, seconds }) {
    this.ended = true;
    const count = `${whole.format(rows)} ${rows === 1 ? "row" : "rows"}${truncated ? " (more exist: raise the limit, or add LIMIT and ORDER BY)" : ""}`;
    const parts = [`${count} in ${lagText(seconds * 1000)}`];
    if (this.at.length) parts.push(", read at ", ...this.at.flatMap((at, place) => [place ? ", " : "", make("code", {}, at)]));
    this.say(...parts);
  }

  fail({ message, hint }) {
    this.ended = true;
    const parts = [make("p", { class: "what" }, make("strong", {}, message))];
    if (hint) parts.push(make("p", { class: "hint" }, make("span", { class: "label" }, "What to do"), make("span", {}, hint)));
    byId("query-error").replaceChildren(...parts);
    byId("query-error").hidden = false;
    this.say();
  }

  end(response) {
    if (!this.ended) this.fail({ message: response.ok ? "the answer broke off" : `the server answered ${response.status}`, hint: "Run the query again." });
  }
}

function cell(value, kind) {
  if (value === null) return make("td", { class: `${kind} null` }, "null");
  return make("td", { class: kind }, typeof value === "object" ? JSON.stringify(value) : String(value));
}

// -- start -------------------------------------------------------------------------------------------------------------

byId("charts").append(...charts.map((chart) => chart.node));
startList();
startQuery();
applyList();
setFlow();
connect();
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) connection.shown = "";
});
setInterval(() => {
  if (connection.heardAt && Date.now() - connection.heardAt > SILENCE_MS) {
    lost("Penstock does not answer.");
    connect();
  }
}, 5000);
