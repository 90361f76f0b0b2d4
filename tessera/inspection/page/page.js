"use strict";
// The inspection page. All data is in #data; strings from data reach the document through textContent alone.

const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const VIEWS = [["read", "Read"], ["network", "Network"], ["compare", "Compare"], ["pairs", "Pairs"], ["segments", "Segments"]];
const KINDS = { f4: Float32Array, i4: Int32Array, u2: Uint16Array };
const state = { view: "read", trace: 0, memory: 0, head: 0, token: 0, pair: 0, other: { trace: 0, memory: 0, head: 0 } };
let buffer = null;

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("aria-")) node.setAttribute(name, String(value));
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function drawn(tag, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
}

// A token as a person can read it: control characters get signs, so that none of them acts on the page.
function shown(text) {
  return text.replace(/[\u0000-\u0009\u000b-\u001f\u007f]/g, "\u2400").replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\u25cc");
}

function quoted(text) {
  return "\u201c" + shown(text).replace(/\n/g, "\u21b5") + "\u201d";
}

async function unpack() {
  const bytes = Uint8Array.from(atob(data.binary), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  buffer = await new Response(stream).arrayBuffer();
}

const views = new Map();
function array(reference) {
  if (!reference) return null;
  const key = reference.join();
  if (!views.has(key)) views.set(key, new KINDS[reference[0]](buffer, reference[1], reference[2]));
  return views.get(key);
}

// ---------------------------------------------------------------- what a trace says

function traceOf(place = state) { return data.traces[place.trace]; }
const NOTHING = { layer: 0, kind: "no memory traced", heads: 0, words: 0, recalls: false };
function memoryOf(place = state) { return traceOf(place).memories[place.memory] || NOTHING; }
function memoryName(memory) { return `layer ${memory.layer}, ${memory.kind.replace(/_/g, " ")}`; }

function queryNumber(trace, token) {
  if (!trace.numbers) trace.numbers = new Map(Array.from(array(trace.queries), (position, number) => [position, number]));
  return trace.numbers.has(token) ? trace.numbers.get(token) : -1;
}

function recalled(place, token) {
  const trace = traceOf(place), memory = memoryOf(place), number = queryNumber(trace, token);
  if (number < 0 || !memory.recalls) return { pairs: [], weights: [], number };
  const row = number * memory.heads + place.head, rows = array(memory.rows);
  const [begin, end] = [rows[row], rows[row + 1]];
  return {
    number,
    pairs: array(memory.pairs).subarray(begin, end),
    weights: Array.from(array(memory.weights).subarray(begin, end), (weight) => weight / 65535),
    share: array(memory.share)[row],
    bandwidth: array(memory.bandwidth)[row],
    stored: array(memory.numPairs)[number],
  };
}

function words(trace, memory, tokens, scores, number) {
  if (!tokens || number < 0) return [];
  const from = number * memory.words;
  return Array.from({ length: memory.words }, (_, index) => {
    const token = array(tokens)[from + index];
    return [trace.vocabulary[token] ?? String(token), Math.exp(array(scores)[from + index])];
  });
}

function inText(memory) { return memory.recalls && memory.kind !== "persistent"; }
function percent(value) { return (100 * value).toFixed(value < 0.0995 ? 1 : 0) + " %"; }
function nats(value) { return Number.isNaN(value) ? "\u2013" : value.toFixed(3); }
function signed(value) { return (value >= 0 ? "+" : "\u2212") + Math.abs(value).toFixed(3); }

// ---------------------------------------------------------------- the text

// Tokens as spans, in blocks that the browser lays out when they come into sight. The first blocks are made at once.
class Text {
  constructor(place, choose) {
    this.place = place;
    this.trace = traceOf(place);
    this.spans = new Array(this.trace.tokens.length);
    this.marked = [];
    this.node = element("div", { class: "text", role: "group", "aria-label": "Text", onclick: (event) => {
      const token = event.target.dataset && event.target.dataset.token;
      if (token !== undefined) choose(Number(token));
    } });
    const size = 250, blocks = Math.ceil(this.spans.length / size);
    let next = 0;
    const make = (until) => { for (; next < Math.min(until, blocks); next++) this.block(next * size, (next + 1) * size); };
    make(8);
    const later = () => { make(next + 20); if (next < blocks) setTimeout(later); else this.mark(); };
    if (next < blocks) setTimeout(later);
  }
  block(begin, end) {
    const losses = array(this.trace.losses), block = element("div", { class: "block" });
    if (this.spans.length <= 5000) block.style.display = "inline";
    this.trace.tokens.slice(begin, end).forEach((text, index) => {
      const token = begin + index, span = element("span", { class: "token", "data-token": token });
      span.textContent = text === "" ? "\u25cc" : shown(text);
      const loss = losses[token];
      span.title = Number.isNaN(loss) ? `token ${token}` : `token ${token}, loss ${nats(loss)}`;
      if (!Number.isNaN(loss)) span.style.borderBottomColor = `rgba(var(--loss), ${Math.min(1, loss / 8).toFixed(2)})`;
      this.spans[token] = span;
      block.append(span);
    });
    this.node.append(block);
  }
  mark() {
    for (const span of this.marked) { span.style.backgroundColor = ""; span.classList.remove("here", "pair"); }
    this.marked = [];
    const { pairs, weights } = recalled(this.place, state.token);
    const put = (token, style) => {
      const span = this.spans[token];
      if (span) { style(span); this.marked.push(span); }
    };
    if (inText(memoryOf(this.place))) {
      const largest = Math.max(...weights.slice(0, 1), 1e-9);
      pairs.forEach((pair, index) => put(pair, (span) => {
        span.style.backgroundColor = `rgba(var(--recall), ${(0.06 + 0.49 * Math.min(1, weights[index] / largest)).toFixed(3)})`;
      }));
    }
    if (state.view === "pairs") put(state.pair, (span) => span.classList.add("pair"));
    put(state.token, (span) => span.classList.add("here"));
  }
  show() {
    const span = this.spans[state.token];
    if (span) span.scrollIntoView({ block: "nearest" });
  }
}

// ---------------------------------------------------------------- choosing

function chooser(place, changed, label) {
  const select = (name, options, chosen, set) => {
    const node = element("select", { "aria-label": `${label} ${name}`, onchange: (event) => { set(Number(event.target.value)); changed(); } });
    options.forEach(([value, text]) => node.append(element("option", { value, selected: value === chosen }, text)));
    return node;
  };
  const row = element("div", { class: "row" });
  if (data.traces.length > 1) {
    row.append(select("trace", data.traces.map((trace, index) => [index, trace.title]), place.trace, (value) => {
      place.trace = value; place.memory = Math.min(place.memory, traceOf(place).memories.length - 1); place.head = 0;
    }));
  }
  if (traceOf(place).memories.length) row.append(select("memory", traceOf(place).memories.map((memory, index) => [index, memoryName(memory)]), place.memory, (value) => {
    place.memory = value; place.head = Math.min(place.head, Math.max(0, memoryOf(place).heads - 1));
  }));
  const heads = element("div", { class: "row", role: "group", "aria-label": `${label} head` });
  for (let head = 0; head < memoryOf(place).heads; head++) {
    heads.append(element("button", { type: "button", "aria-pressed": head === place.head, "aria-label": `head ${head}`,
      onclick: () => { place.head = head; changed(); } }, String(head)));
  }
  return element("div", {}, row, heads);
}

function chooseToken(token) {
  state.token = Math.max(0, Math.min(traceOf().tokens.length - 1, token));
  refresh();
}

function wordList(title, list) {
  return element("tr", {}, element("th", {}, title), element("td", { class: "words" }, list.length
    ? list.map(([text, share]) => `${quoted(text)} ${percent(share)}`).join("  ") : "not traced"));
}

function details(place) {
  const trace = traceOf(place), memory = memoryOf(place), here = recalled(place, state.token);
  const { number } = here, node = element("div", {});
  const next = state.token + 1 < trace.tokens.length ? quoted(trace.tokens[state.token + 1]) : "the end";
  node.append(element("h2", {}, `Token ${state.token}: ${quoted(trace.tokens[state.token])}`));
  node.append(element("p", {}, `followed by ${next}, loss ${nats(array(trace.losses)[state.token + 1] ?? NaN)} nats`));
  if (number < 0) { node.append(element("p", { class: "faint" }, "This token was not traced.")); return node; }
  const before = trace.memories[place.memory - 1];
  node.append(element("h3", {}, "Likeliest next tokens"), element("table", {},
    before ? wordList("before", words(trace, before, before.afterTokens, before.afterScores, number)) : null,
    wordList("this memory alone", words(trace, memory, memory.ownTokens, memory.ownScores, number)),
    wordList("after", words(trace, memory, memory.afterTokens, memory.afterScores, number))));
  const cost = array(memory.lossChange), headCost = array(memory.headLossChange);
  if (cost) {
    const places = [["memory", cost[state.token + 1]]];
    if (headCost) places.push([`head ${place.head}`, headCost[place.head * trace.tokens.length + state.token + 1]]);
    node.append(element("h3", {}, "Loss of the next token without it"), element("p", {}, places
      .map(([what, change]) => `${what} ${Number.isNaN(change ?? NaN) ? "\u2013" : signed(change)}`).join(", ")));
  }
  if (!memory.recalls) { node.append(element("p", { class: "faint" }, "This part stores nothing that it could recall by weight.")); return node; }
  const width = Number.isNaN(here.bandwidth) ? "" : `, bandwidth ${here.bandwidth.toFixed(3)}`;
  node.append(element("h3", {}, "Recalled pairs"), element("p", { class: "summary" },
    `${here.pairs.length} of ${here.stored} stored pairs listed, ${percent(here.share)} of the weight${width}`));
  const table = element("table", { class: "recalled" });
  here.weights.slice(0, 40).forEach((weight, index) => {
    const pair = here.pairs[index], bar = element("span", { class: "bar" });
    bar.style.width = `${(5 * weight).toFixed(2)}rem`;
    const what = inText(memory)
      ? element("td", { class: "words" }, `${quoted(trace.tokens[pair])} \u2192 ${quoted(trace.tokens[pair + 1] ?? "")}`)
      : element("td", {}, `slot ${pair}`);
    const follow = inText(memory) ? element("button", { class: "mark", type: "button", title: "Follow this pair",
      onclick: () => { state.pair = pair; show("pairs"); } }, String(pair)) : null;
    table.append(element("tr", {}, element("td", { class: "number" }, percent(weight)), element("td", {}, bar), what, element("td", {}, follow)));
  });
  node.append(table);
  return node;
}

// ---------------------------------------------------------------- pictures

function picture(width, height, label) {
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label, xmlns: SVG });
  return svg;
}

function saveButton(svg, name) {
  return element("button", { type: "button", onclick: () => {
    const copy = svg.cloneNode(true), style = drawn("style");
    style.textContent = "text{font:11px sans-serif;fill:#1a1a1a}";
    copy.prepend(style);
    const link = element("a", { download: `${name}.svg`,
      href: URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } }, "Save as SVG");
}

function bars(svg, x, y, width, height, values, colour, title) {
  const finite = values.filter((value) => Number.isFinite(value)), largest = Math.max(1e-12, ...finite.map(Math.abs));
  values.forEach((value, index) => {
    const size = Number.isFinite(value) ? (Math.abs(value) / largest) * height : 0;
    const bar = drawn("rect", { x: x + (index * width) / values.length, y: y + height - size,
      width: Math.max(0.5, width / values.length - 0.5), height: size, fill: colour(value) });
    bar.append(drawn("title", {}, title(index, value)));
    svg.append(bar);
  });
}

function averageOf(values) {
  let sum = 0, count = 0;
  for (const value of values) if (Number.isFinite(value)) { sum += value; count++; }
  return count ? sum / count : NaN;
}

function headAverages(memory, values) {
  return Array.from({ length: memory.heads }, (_, head) => averageOf(values.filter((_, index) => index % memory.heads === head)));
}

function network(trace) {
  const memories = trace.memories, rowHeight = 62, svg = picture(1000, 30 + rowHeight * memories.length, "All memories");
  const columns = [[0, "memory"], [200, "loss without it"], [320, "pairs recalled, per head"], [490, "bandwidth"], [640, "leak per step"], [770, "weight by age: 1, 2, 4, 8, ..."]];
  columns.forEach(([x, text]) => svg.append(drawn("text", { x, y: 14, "font-weight": 600 }, text)));
  const blue = () => "#0072b2";
  memories.forEach((memory, index) => {
    const y = 26 + index * rowHeight;
    svg.append(drawn("text", { x: 0, y: y + 28 }, memoryName(memory)));
    const cost = array(memory.lossChange);
    if (cost) {
      const mean = averageOf(Array.from(cost));
      svg.append(drawn("text", { x: 200, y: y + 28, class: "cost" }, `${signed(mean)} nats`));
    }
    if (!memory.recalls) return;
    const rows = array(memory.rows), counts = Array.from({ length: rows.length - 1 }, (_, row) => rows[row + 1] - rows[row]);
    bars(svg, 320, y, 140, 44, headAverages(memory, counts), blue, (head, value) => `head ${head}: ${value.toFixed(1)} pairs`);
    const widths = headAverages(memory, Array.from(array(memory.bandwidth)));
    if (widths.some(Number.isFinite)) bars(svg, 490, y, 120, 44, widths, blue, (head, value) => `head ${head}: bandwidth ${value.toFixed(3)}`);
    const leaks = array(memory.leak);
    if (leaks) bars(svg, 640, y, 110, 44, Array.from(leaks), blue, (head, value) => `head ${head}: leak ${value.toFixed(4)}`);
    const ages = array(memory.ages);
    if (ages) {
      const size = ages.length / memory.heads, largest = Math.max(1e-12, ...ages);
      for (let head = 0; head < memory.heads; head++) {
        const points = Array.from({ length: size }, (_, age) => {
          const share = Math.log10(1 + (999 * ages[head * size + age]) / largest) / 3;
          return `${(770 + (age * 220) / Math.max(1, size - 1)).toFixed(1)},${(y + 44 - 44 * share).toFixed(1)}`;
        });
        const line = drawn("polyline", { points: points.join(" "), fill: "none", stroke: `hsl(${(head * 360) / memory.heads} 55% 45%)`, "stroke-width": 1.5 });
        line.append(drawn("title", {}, `head ${head}`));
        svg.append(line);
      }
    }
  });
  return svg;
}

// Every query that recalled a pair: [token, weight], for one memory and head.
function recallsOf(place, pair) {
  const trace = traceOf(place), memory = memoryOf(place), rows = array(memory.rows), pairs = array(memory.pairs);
  const weights = array(memory.weights), found = [];
  array(trace.queries).forEach((token, number) => {
    const row = number * memory.heads + place.head;
    for (let index = rows[row]; index < rows[row + 1]; index++) if (pairs[index] === pair) found.push([token, weights[index] / 65535]);
  });
  return found;
}

function timeline(trace, recalls, label) {
  const svg = picture(900, 150, label), last = Math.max(1, trace.tokens.length - 1);
  svg.append(drawn("line", { x1: 40, y1: 125, x2: 890, y2: 125, stroke: "#888888" }));
  const largest = Math.max(1e-9, ...recalls.map(([, weight]) => weight));
  svg.append(drawn("text", { x: 0, y: 16 }, percent(largest)), drawn("text", { x: 40, y: 142 }, "0"), drawn("text", { x: 860, y: 142 }, String(last)));
  for (const [token, weight] of recalls) {
    const x = 40 + (850 * token) / last, stem = drawn("line", { x1: x, x2: x, y1: 125, y2: 125 - (112 * weight) / largest, stroke: "#0072b2", "stroke-width": 2 });
    stem.append(drawn("title", {}, `token ${token} ${quoted(trace.tokens[token])}: ${percent(weight)}`));
    svg.append(stem);
  }
  return svg;
}

function strip(trace) {
  const segments = trace.segments, count = segments.count, layers = segments.layers;
  const rows = [["written", "written"], ["erased", "erased"], ["read", "read"], ["norm", "size of the matrix"], ["gamma", "gamma"]];
  const cell = Math.max(4, Math.min(40, 820 / count)), svg = picture(150 + cell * count + 10, 24 + rows.length * (layers * 12 + 24), "Segments");
  rows.forEach(([name, title], index) => {
    const values = array(segments[name]), top = 20 + index * (layers * 12 + 24), largest = Math.max(1e-12, ...Array.from(values).filter(Number.isFinite));
    svg.append(drawn("text", { x: 0, y: top + 10, "font-weight": 600 }, title), drawn("text", { x: 0, y: top + 24 }, `largest ${largest.toPrecision(3)}`));
    for (let segment = 0; segment < count; segment++) {
      for (let layer = 0; layer < layers; layer++) {
        const value = values[segment * layers + layer], box = drawn("rect", { x: 150 + segment * cell, y: top + layer * 12, width: cell - 0.5, height: 11,
          fill: "#0072b2", "fill-opacity": Number.isFinite(value) ? (0.04 + 0.96 * value / largest).toFixed(3) : 0, stroke: "#9a9a9a", "stroke-width": 0.3 });
        box.append(drawn("title", {}, `segment ${segment}, layer ${layer}: ${title} ${Number.isFinite(value) ? value.toPrecision(4) : "nothing"}`));
        svg.append(box);
      }
    }
  });
  return svg;
}

// ---------------------------------------------------------------- views

const main = document.getElementById("view");
let texts = [], panel = null, redraw = () => {};

function viewRead() {
  const text = new Text(state, chooseToken);
  texts = [text];
  panel = element("div", { class: "panel", "aria-live": "polite" });
  main.replaceChildren(element("div", { class: "columns" }, text.node, panel));
  redraw = () => {
    if (text.trace !== traceOf()) return viewRead();
    panel.replaceChildren(chooser(state, refresh, "shown"), details(state));
    text.mark(); text.show();
  };
  redraw();
}

function viewNetwork() {
  const page = element("div", { class: "page" });
  for (const trace of data.traces) {
    const svg = network(trace), about = Object.entries(trace.model).map(([name, value]) => `${name.replace(/_/g, " ")} ${value}`).join(", ");
    page.append(element("h2", {}, trace.title), element("p", { class: "faint" }, about), svg, saveButton(svg, "network"));
  }
  texts = []; redraw = () => {};
  main.replaceChildren(page);
}

function viewCompare() {
  const sides = [state, state.other].map((place) => {
    const text = new Text(place, chooseToken), side = element("div", { class: "panel" });
    return { place, text, side };
  });
  texts = sides.map(({ text }) => text);
  main.replaceChildren(element("div", { class: "columns two" }, ...sides.map(({ text, side }) => element("div", { class: "page" }, side, text.node))));
  redraw = () => {
    if (sides.some(({ place, text }) => text.trace !== traceOf(place))) return viewCompare();
    sides.forEach(({ place, text, side }, index) => {
      side.replaceChildren(chooser(place, refresh, index ? "right" : "left"), details(place));
      text.mark(); text.show();
    });
  };
  redraw();
}

function viewPairs() {
  const text = new Text(state, (token) => { state.pair = token; refresh(); });
  texts = [text];
  panel = element("div", { class: "panel" });
  main.replaceChildren(element("div", { class: "columns" }, text.node, panel));
  redraw = () => {
    if (text.trace !== traceOf()) return viewPairs();
    const trace = traceOf();
    panel.replaceChildren(chooser(state, refresh, "shown"),
      element("h2", {}, `Pair ${state.pair}: ${quoted(trace.tokens[state.pair])} \u2192 ${quoted(trace.tokens[state.pair + 1] ?? "")}`));
    if (inText(memoryOf())) {
      const recalls = recallsOf(state, state.pair), svg = timeline(trace, recalls, "Who recalled this pair, over the text");
      panel.append(element("p", { class: "summary" }, `recalled by ${recalls.length} of ${array(trace.queries).length} traced queries`), svg, saveButton(svg, `pair-${state.pair}`));
      const table = element("table");
      [...recalls].sort((one, other) => other[1] - one[1]).slice(0, 30).forEach(([token, weight]) => table.append(element("tr", {},
        element("td", { class: "number" }, percent(weight)), element("td", { class: "words" }, quoted(trace.tokens[token])),
        element("td", {}, element("button", { class: "mark", type: "button", onclick: () => { state.token = token; show("read"); } }, String(token))))));
      panel.append(table);
    } else panel.append(element("p", { class: "faint" }, "This memory stores no pair of the text."));
    text.mark();
  };
  redraw();
}

function viewSegments() {
  const page = element("div", { class: "page" });
  for (const trace of data.traces.filter((one) => one.segments)) {
    const svg = strip(trace);
    page.append(element("h2", {}, trace.title), element("p", { class: "faint" },
      "One column per segment, one row per layer: the size of what the memory tokens wrote, of what that erased, of what the next segment read, of the matrix, and gamma."), svg, saveButton(svg, "segments"));
  }
  texts = []; redraw = () => {};
  main.replaceChildren(page);
}

const DRAW = { read: viewRead, network: viewNetwork, compare: viewCompare, pairs: viewPairs, segments: viewSegments };

function available() { return VIEWS.filter(([name]) => name !== "segments" || data.traces.some((trace) => trace.segments)); }

function show(name) {
  state.view = name;
  document.querySelectorAll("#views button").forEach((button) => button.setAttribute("aria-selected", button.dataset.view === name));
  DRAW[name]();
}

function refresh() { redraw(); }

function turn(count, step, value) { return count ? (value + step + count) % count : 0; }

function onKey(event) {
  if (event.target.matches("select, input") || event.ctrlKey || event.metaKey || event.altKey) return;
  const memories = traceOf().memories.length;
  const actions = {
    ArrowRight: () => chooseToken(state.token + 1),
    ArrowLeft: () => chooseToken(state.token - 1),
    ArrowDown: () => { state.head = turn(memoryOf().heads, 1, state.head); refresh(); },
    ArrowUp: () => { state.head = turn(memoryOf().heads, -1, state.head); refresh(); },
    "]": () => { state.memory = turn(memories, 1, state.memory); state.head = 0; refresh(); },
    "[": () => { state.memory = turn(memories, -1, state.memory); state.head = 0; refresh(); },
    f: () => { const { pairs } = recalled(state, state.token); if (pairs.length && inText(memoryOf())) chooseToken(pairs[0]); },
    "?": toggleHelp,
  };
  available().forEach(([name], index) => { actions[String(index + 1)] = () => show(name); });
  if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
}

function toggleHelp() {
  const help = document.getElementById("help");
  help.hidden = !help.hidden;
  document.getElementById("help-button").setAttribute("aria-expanded", String(!help.hidden));
}

async function start() {
  await unpack();
  const nav = document.getElementById("views");
  available().forEach(([name, title]) => nav.append(element("button", { type: "button", role: "tab", "data-view": name, onclick: () => show(name) }, title)));
  state.token = array(traceOf().queries).at(-1) ?? 0;
  const first = traceOf().memories.findIndex((memory) => memory.recalls);
  state.memory = Math.max(0, first);
  state.other = { trace: Math.min(1, data.traces.length - 1), memory: state.memory, head: memoryOf().heads > 1 && data.traces.length === 1 ? 1 : 0 };
  document.getElementById("help-button").addEventListener("click", toggleHelp);
  document.addEventListener("keydown", onKey);
  show(traceOf().segments && first < 0 ? "segments" : "read");
  document.body.dataset.ready = "true";
}

start();
