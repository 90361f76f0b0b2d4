"use strict";
// The inspection page. All data is in #data; strings from data reach the document through textContent alone.

const data = { traces: [] };
const SVG = "http://www.w3.org/2000/svg";
const VIEWS = [["read", "Read"], ["network", "Network"], ["compare", "Compare"], ["pairs", "Pairs"], ["segments", "Segments"], ["memory", "Memory"]];
const ALL = -1; // in place of a head: the mean of all
const state = { view: "read", trace: 0, memory: 0, head: 0, token: 0, pair: 0, other: { trace: 0, memory: 0, head: 0, token: 0, pair: 0 } };
// Told apart by the colour-blind and on both grounds; dashes tell what colours do not.
const COLOURS = ["#0072b2", "#d55e00", "#00805e", "#b5508f", "#808080"], DASHES = ["", "6 3", "2 2", "9 2 2 2"];
const HELPS = "#0072b2", HARMS = "#d55e00";
let bytes = null; // the arrays, as page/__init__.py packs them

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
  return text.replace(/[\u0000-\u0009\u000b-\u001f\u007f\ufffe\uffff]/g, "\u2400").replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\u25cc");
}

function quoted(text) {
  return "\u201c" + shown(text).replace(/\n/g, "\u21b5") + "\u201d";
}

// Base 85, with the digits of Python's base64.b85encode but , . / for & < >.
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%,()*+-;.=/?@^_`{|}~";

async function unpack() {
  const written = document.getElementById("data").textContent, text = written.padEnd(5 * Math.ceil(written.length / 5), "~");
  const value = new Uint8Array(128), packed = new DataView(new ArrayBuffer((text.length / 5) * 4));
  for (let digit = 0; digit < 85; digit++) value[DIGITS.charCodeAt(digit)] = digit;
  for (let index = 0; index < text.length; index += 5) {
    let word = 0;
    for (let place = 0; place < 5; place++) word = word * 85 + value[text.charCodeAt(index + place)];
    packed.setUint32((index / 5) * 4, word);
  }
  const stream = new Blob([packed.buffer.slice(0, Math.floor((written.length * 4) / 5))]).stream().pipeThrough(new DecompressionStream("gzip"));
  const all = await new Response(stream).arrayBuffer(), length = new DataView(all).getUint32(0, true);
  data.traces = JSON.parse(new TextDecoder().decode(new Uint8Array(all, 4, length)));
  bytes = new Uint8Array(all, 4 + length);
  for (const trace of data.traces) trace.tokens = Array.from(array(trace.tokens), (number) => trace.texts[number]);
}

// Numbers of `size` bytes whose lowest bytes come first, then the next ones.
function joined(first, length, size) {
  const values = new Uint8Array(size * length);
  for (let place = 0; place < size; place++) {
    const from = first + place * length;
    for (let index = 0; index < length; index++) values[index * size + place] = bytes[from + index];
  }
  return values.buffer;
}

// Integers whose sign is in the lowest bit. (Plain loops: a text of 100,000 tokens has millions of numbers.)
function integers(first, length) {
  const values = new Int32Array(joined(first, length, 4));
  for (let index = 0; index < length; index++) values[index] = (values[index] >>> 1) ^ -(values[index] & 1);
  return values;
}

function floats(values, meaning) {
  const result = new Float32Array(values.length);
  for (let index = 0; index < values.length; index++) result[index] = meaning(values[index]);
  return result;
}

const MISSING = 2 ** 30, NONE = 65535;
const READ = {
  f4: (first, length) => new Float32Array(joined(first, length, 4)),
  i4: integers,
  d4: (first, length) => {
    const values = integers(first, length);
    for (let index = 1; index < length; index++) values[index] += values[index - 1];
    return values;
  },
  m4: (first, length) => floats(integers(first, length), (value) => (value === MISSING ? NaN : value / 1000)),
  w2: (first, length) => floats(new Uint16Array(joined(first, length, 2)), (value) => (value === NONE ? 0 : 2 ** (-value / 64))),
};

const views = new Map();
function array(reference) {
  if (!reference) return null;
  const [kind, first, length] = reference, key = `${kind} ${first} ${length}`;
  if (!views.has(key)) views.set(key, READ[kind](first, length));
  return views.get(key);
}

// ---------------------------------------------------------------- what a trace says

function traceOf(place = state) { return data.traces[place.trace]; }
const NOTHING = { layer: 0, kind: "no memory traced", heads: 0, words: 0, recalls: false };
function memoryOf(place = state) { return traceOf(place).memories[place.memory] || NOTHING; }

// Change what a place shows. Where the new trace or memory has fewer memories, heads or tokens, the last of them.
function move(place, changes) {
  Object.assign(place, changes);
  place.memory = Math.max(0, Math.min(place.memory, traceOf(place).memories.length - 1));
  place.head = Math.min(place.head, Math.max(0, memoryOf(place).heads - 1));
  for (const name of ["token", "pair"]) place[name] = Math.max(0, Math.min(place[name], traceOf(place).tokens.length - 1));
}

// Show in a view, of one text, what another view showed.
function openIn(view, place) { move(state, place); show(view); }
function memoryName(memory) { return `layer ${memory.layer}, ${memory.kind.replace(/_/g, " ")}`; }

function queryNumber(trace, token) {
  if (!trace.numbers) trace.numbers = new Map(Array.from(array(trace.queries), (position, number) => [position, number]));
  return trace.numbers.has(token) ? trace.numbers.get(token) : -1;
}

// The pairs that a token recalled with the chosen head, heaviest first; with all heads, the mean of their weights.
function recalled(place, token) {
  const trace = traceOf(place), memory = memoryOf(place), number = queryNumber(trace, token);
  if (number < 0 || !memory.recalls) return { pairs: [], weights: [], number };
  const heads = place.head === ALL ? Array.from({ length: memory.heads }, (_, head) => head) : [place.head];
  const sums = new Map();
  let share = 0;
  for (const head of heads) {
    const row = number * memory.heads + head, rows = array(memory.rows);
    for (let index = rows[row]; index < rows[row + 1]; index++) {
      const pair = array(memory.pairs)[index];
      sums.set(pair, (sums.get(pair) ?? 0) + array(memory.weights)[index] / heads.length);
    }
    share += array(memory.share)[row] / heads.length;
  }
  const sorted = [...sums].sort((one, other) => other[1] - one[1]);
  return {
    number,
    pairs: sorted.map(([pair]) => pair),
    weights: sorted.map(([, weight]) => weight),
    share,
    bandwidth: heads.length === 1 ? array(memory.bandwidth)[number * memory.heads + place.head] : NaN,
    stored: array(memory.numPairs)[number],
  };
}

function words(trace, memory, tokens, scores, number) {
  if (!tokens || number < 0) return [];
  const from = number * memory.words;
  return Array.from({ length: memory.words }, (_, index) => {
    const token = array(tokens)[from + index];
    return [trace.vocabulary[token] ?? String(token), array(scores)[from + index]];
  });
}

function pairName(trace, pair) {
  if (pair >= 0) return `${quoted(trace.tokens[pair])} \u2192 ${quoted(trace.tokens[pair + 1] ?? "")}`;
  return trace.segments ? `memory token ${-pair} from the end` : `${-pair} before the text`;
}

// Whether both places show the same text, so that a token chosen in one is chosen in the other.
const same = new Map();
function sameText(one, other) {
  const key = `${one.trace} ${other.trace}`;
  if (!same.has(key)) {
    const [left, right] = [traceOf(one).tokens, traceOf(other).tokens];
    same.set(key, left.length === right.length && left.every((token, index) => token === right[index]));
  }
  return same.get(key);
}

// (A loop: functions take some 100,000 arguments at most, and a text may have more tokens.)
function largestOf(values, least = 1e-9) {
  let largest = least;
  for (const value of values) if (value > largest && value < Infinity) largest = value;
  return largest;
}

function inText(memory) { return memory.recalls && memory.kind !== "persistent"; }
function percent(value) {
  if (value > 0 && value < 0.0005) return "< 0.1\u00a0%";
  return (100 * value).toFixed(value < 0.0995 ? 1 : 0) + "\u00a0%";
}
function nats(value) { return Number.isNaN(value) ? "\u2013" : value.toFixed(3); }
function signed(value) { return (Math.abs(value) < 0.0005 ? "" : value >= 0 ? "+" : "\u2212") + Math.abs(value).toFixed(3); }

// ---------------------------------------------------------------- the text

// Tokens as spans, in blocks that the browser lays out when they come into sight. Those around the chosen token are made
// at once, the others soon.
const BLOCK = 250, AROUND = 4;
class Text {
  constructor(place, choose, legend = true) {
    this.place = place;
    this.trace = traceOf(place);
    this.spans = new Array(this.trace.tokens.length);
    this.marked = [];
    this.node = element("div", { class: "text", role: "group", "aria-label": "Text", onclick: (event) => {
      const token = event.target.dataset && event.target.dataset.token;
      if (token !== undefined) choose(Number(token));
    } });
    if (legend) this.node.append(element("p", { class: "legend" }, element("span", { class: "sample-loss" }, "underlined"), " loss of the token \u00a0 ",
      element("span", { class: "sample-recall" }, "shaded"), state.view === "pairs" ? " recalled the framed pair" : " recalled by the framed token"));
    this.starts = new Set(this.trace.segments ? array(this.trace.segments.starts) : []);
    this.blocks = Array.from({ length: Math.ceil(this.spans.length / BLOCK) }, () => element("div", { class: "block empty" }));
    if (this.spans.length <= 5000) this.blocks.forEach((block) => { block.style.display = "inline"; });
    this.node.append(...this.blocks);
    this.makeAround(this.chosen());
    let next = 0;
    const later = () => {
      for (let count = 0; count < 20 && next < this.blocks.length; count++) this.make(next++);
      if (next < this.blocks.length) setTimeout(later); else this.mark();
    };
    setTimeout(later);
  }
  chosen() { return state.view === "pairs" ? state.pair : this.place.token; }
  makeAround(token) {
    const middle = Math.floor(token / BLOCK);
    for (let number = Math.max(0, middle - AROUND); number < Math.min(this.blocks.length, middle + AROUND); number++) this.make(number);
  }
  make(number) {
    const block = this.blocks[number], begin = number * BLOCK, end = begin + BLOCK, losses = array(this.trace.losses);
    if (!block.classList.contains("empty")) return;
    block.classList.remove("empty");
    this.trace.tokens.slice(begin, end).forEach((text, index) => {
      const token = begin + index, span = element("span", { class: "token", "data-token": token });
      span.textContent = text === "" ? "\u25cc" : shown(text);
      const loss = losses[token];
      span.title = Number.isNaN(loss) ? `token ${token}` : `token ${token}, loss ${nats(loss)}`;
      if (!Number.isNaN(loss)) span.style.borderBottomColor = `rgba(var(--loss), ${Math.min(1, loss / 8).toFixed(2)})`;
      if (this.starts.has(token)) span.classList.add("start");
      this.spans[token] = span;
      block.append(span);
    });
  }
  mark() {
    this.makeAround(this.chosen());
    for (const span of this.marked) { span.style.backgroundColor = ""; span.classList.remove("here"); }
    this.marked = [];
    const put = (token, style) => {
      const span = this.spans[token];
      if (span) { style(span); this.marked.push(span); }
    };
    const shade = (token, part) => put(token, (span) => {
      span.style.backgroundColor = `rgba(var(--recall), ${(0.06 + 0.49 * Math.min(1, part)).toFixed(3)})`;
    });
    const memory = memoryOf(this.place);
    if (state.view === "pairs") {
      const recalls = inText(memory) ? recallsOf(this.place, state.pair) : [], largest = largestOf(recalls.map(([, weight]) => weight));
      recalls.forEach(([token, weight]) => shade(token, weight / largest));
      put(state.pair, (span) => span.classList.add("here"));
      return;
    }
    if (inText(memory)) {
      const { pairs, weights } = recalled(this.place, this.place.token);
      pairs.forEach((pair, index) => shade(pair, weights[index] / weights[0]));
    } else if (memory.kind === "association") {
      const [begin, end] = segmentAround(this.trace, this.place.token), reads = readsOf(this.trace, memory.layer, begin, end);
      const largest = largestOf(reads);
      reads.forEach((length, index) => { if (length > 0) shade(begin + index, length / largest); });
    }
    put(this.place.token, (span) => span.classList.add("here"));
  }
  show() {
    const span = this.spans[this.chosen()];
    if (span) span.scrollIntoView({ block: "nearest" });
  }
}

// The segment of a token: its first token and the first one behind it.
function segmentAround(trace, token) {
  const starts = array(trace.segments.starts), index = starts.findLastIndex((start) => start <= token);
  return [starts[index], starts[index + 1] ?? trace.tokens.length];
}

// How long what the tokens begin .. end - 1 read from the matrix of a layer is.
function readsOf(trace, layer, begin, end) {
  const { layers, largestRead } = trace.segments, reads = array(trace.segments.reads);
  return Array.from({ length: end - begin }, (_, index) => largestRead * reads[(begin + index) * layers + layer]);
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
    row.append(select("trace", data.traces.map((trace, index) => [index, trace.title]), place.trace, (trace) => move(place, { trace, head: 0 })));
  }
  if (traceOf(place).memories.length) row.append(select("memory", traceOf(place).memories.map((memory, index) => [index, memoryName(memory)]), place.memory, (memory) => move(place, { memory })));
  const heads = element("div", { class: "row", role: "group", "aria-label": `${label} head` });
  const count = memoryOf(place).heads;
  if (count) heads.append("head");
  for (let head = count > 1 ? ALL : 0; head < count; head++) {
    const [name, text] = head === ALL ? ["all heads", "all"] : [`head ${head}`, String(head)];
    heads.append(element("button", { type: "button", "aria-pressed": head === place.head, "aria-label": name,
      onclick: () => { place.head = head; changed(); } }, text));
  }
  return element("div", {}, row, heads);
}

function chooseToken(token, place = state) {
  move(place, { token });
  const twin = place === state ? state.other : state;
  if (sameText(place, twin)) twin.token = place.token;
  refresh();
}

// Words with their probabilities; `next`, the word that came, is printed bold.
function wordList(title, list, next) {
  const cell = element("td", { class: "words" });
  list.forEach(([text, share]) => cell.append(element(text === next ? "strong" : "span", {}, `${quoted(text)} ${percent(share)}`), " "));
  if (!list.length) cell.append("not traced");
  return element("tr", {}, typeof title === "string" ? element("th", {}, title) : title, cell);
}

function change(value) {
  if (Number.isNaN(value ?? NaN)) return element("span", {}, "\u2013");
  return element("span", { class: value >= 0.0005 ? "down" : value <= -0.0005 ? "up" : "faint" }, signed(value));
}

// What every memory made of this token: one row each, which chooses it.
function everyMemory(place, number) {
  const trace = traceOf(place), next = trace.tokens[place.token + 1], table = element("table", { class: "memories" });
  table.append(element("tr", {}, element("th", {}, "memory"), element("th", {}, "next tokens after it"), element("th", {}, "loss without it")));
  trace.memories.forEach((memory, index) => {
    const name = element("button", { class: "mark", type: "button", "aria-current": index === place.memory, onclick: () => { move(place, { memory: index }); refresh(); } }, memoryName(memory));
    const row = wordList(element("th", {}, name), words(trace, memory, memory.afterTokens, memory.afterScores, number).slice(0, 2), next);
    const cost = array(memory.lossChange);
    row.append(element("td", { class: "number" }, cost ? change(cost[place.token + 1]) : "\u2013"));
    table.append(row);
  });
  return table;
}

function details(place) {
  const trace = traceOf(place), memory = memoryOf(place), here = recalled(place, place.token);
  const { number } = here, node = element("div", {}), following = trace.tokens[place.token + 1];
  const next = following === undefined ? "the end" : quoted(following);
  node.append(element("h2", {}, `Token ${place.token}: ${quoted(trace.tokens[place.token])}`));
  node.append(element("p", {}, `followed by ${next}, loss ${nats(array(trace.losses)[place.token + 1] ?? NaN)} nats`));
  if (number < 0) { node.append(element("p", { class: "faint" }, "This token was not traced.")); return node; }
  const earlier = trace.memories[place.memory - 1];
  const before = earlier ? words(trace, earlier, earlier.afterTokens, earlier.afterScores, number) : words(trace, trace, trace.beforeTokens, trace.beforeScores, number);
  node.append(element("h3", {}, "Likeliest next tokens"), element("table", {},
    wordList("before", before, following),
    wordList("this memory alone", words(trace, memory, memory.ownTokens, memory.ownScores, number), following),
    wordList("after", words(trace, memory, memory.afterTokens, memory.afterScores, number), following)));
  const cost = array(memory.lossChange), headCost = array(memory.headLossChange);
  if (cost) {
    const line = element("p", {}, "memory ", change(cost[place.token + 1]));
    if (headCost && place.head !== ALL) line.append(`, head ${place.head} `, change(headCost[place.head * trace.tokens.length + place.token + 1]));
    node.append(element("h3", {}, "Loss of the next token without it"), line);
  }
  if (memory.kind === "association") {
    const [length] = readsOf(trace, memory.layer, place.token, place.token + 1);
    node.append(element("h3", {}, "Read from the matrix"), element("p", { class: "summary" }, `length ${length.toPrecision(3)}; shaded: what the tokens of this segment read`));
  }
  if (!memory.recalls) { node.append(element("p", { class: "faint" }, "This part stores nothing that it could recall by weight."),
    element("h3", {}, "All memories"), everyMemory(place, number)); return node; }
  const width = Number.isNaN(here.bandwidth) ? "" : `, bandwidth ${here.bandwidth.toFixed(3)}`;
  node.append(element("h3", {}, "Recalled pairs"), element("p", { class: "summary" },
    `${here.pairs.length} of ${here.stored} stored pairs listed, ${percent(here.share)} of the weight${width}`));
  const table = element("table", { class: "recalled" });
  here.weights.slice(0, 40).forEach((weight, index) => {
    const pair = here.pairs[index], bar = element("span", { class: "bar" });
    bar.style.width = `${((5 * weight) / here.weights[0]).toFixed(2)}rem`;
    const what = inText(memory) ? element("td", { class: "words" }, pairName(trace, pair)) : element("td", {}, `slot ${pair}`);
    const follow = inText(memory) && pair >= 0 ? element("button", { class: "mark", type: "button", title: "Follow this pair",
      onclick: () => openIn("pairs", { ...place, pair }) }, String(pair)) : null;
    table.append(element("tr", {}, element("td", { class: "number" }, percent(weight)), element("td", {}, bar), what, element("td", {}, follow)));
  });
  node.append(table, element("h3", {}, "All memories"), everyMemory(place, number));
  return node;
}

// ---------------------------------------------------------------- pictures

function picture(width, height, label) {
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label, xmlns: SVG });
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
  const largest = largestOf(values.map(Math.abs), 1e-12);
  values.forEach((value, index) => {
    const size = Number.isFinite(value) ? (Math.abs(value) / largest) * height : 0;
    const bar = drawn("rect", { x: x + (index * width) / values.length, y: y + height - size,
      width: Math.max(0.5, width / values.length - 0.5), height: size, fill: colour(value, index) });
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

// Means of `values` in at most `count` runs of equal length; NaN where a run has no number.
function binned(values, count) {
  const bins = Math.min(count, values.length);
  return Array.from({ length: bins }, (_, bin) =>
    averageOf(values.slice(Math.floor((bin * values.length) / bins), Math.floor(((bin + 1) * values.length) / bins))));
}

// Where in the text a memory lowers the loss (blue) and where it raises it (orange).
function effect(svg, x, y, width, height, trace, values, name) {
  const bins = binned(values, 180), size = width / bins.length, tokens = trace.tokens.length;
  const sorted = bins.filter(Number.isFinite).map(Math.abs).sort((one, other) => one - other);
  const largest = Math.max(1e-9, sorted[Math.floor(0.98 * (sorted.length - 1))] ?? 0);
  svg.append(drawn("rect", { x, y, width, height, fill: "none", stroke: "#808080", "stroke-width": 0.5 }));
  bins.forEach((value, bin) => {
    if (!Number.isFinite(value)) return;
    const half = height / 2, length = half * Math.min(1, Math.abs(value) / largest), first = Math.floor((bin * tokens) / bins.length);
    const box = drawn("rect", { class: "effect", x: (x + bin * size).toFixed(2), y: (value >= 0 ? y + half - length : y + half).toFixed(2),
      width: Math.max(0.4, size - 0.2).toFixed(2), height: length.toFixed(2), fill: value >= 0 ? HELPS : HARMS });
    box.append(drawn("title", {}, `${name}, from token ${first}: loss without it ${signed(value)} nats`));
    box.addEventListener("click", () => openIn("read", { trace: data.traces.indexOf(trace), token: first }));
    svg.append(box);
  });
}

function headLine(head) {
  return { stroke: COLOURS[head % COLOURS.length], "stroke-dasharray": DASHES[Math.floor(head / COLOURS.length) % DASHES.length], "stroke-width": 1.5, fill: "none" };
}

function network(trace) {
  const memories = trace.memories, rowHeight = 62, svg = picture(1240, 44 + rowHeight * memories.length, "All memories");
  const columns = [[0, "memory"], [130, "loss without it"], [240, "the same along the text"], [450, "pairs recalled, per head"],
    [600, "bandwidth, per head"], [750, "leak per step, per head"], [900, "weight by age 1, 2, 4, 8, \u2026 (logarithmic)"]];
  columns.forEach(([x, text]) => svg.append(drawn("text", { x, y: 14, "font-weight": 600 }, text)));
  if (memories.some((memory) => memory.lossChange)) svg.append(drawn("text", { x: 240, y: 30 }, "blue: it lowers the loss"));
  const most = Math.max(0, ...memories.map((memory) => memory.heads));
  for (let head = 0; head < Math.min(most, 8); head++) {
    svg.append(drawn("line", { x1: 900 + 42 * head, x2: 916 + 42 * head, y1: 26, y2: 26, ...headLine(head) }), drawn("text", { x: 920 + 42 * head, y: 30 }, String(head)));
  }
  const colour = (_, head) => COLOURS[head % COLOURS.length];
  memories.forEach((memory, index) => {
    const y = 40 + index * rowHeight, name = memoryName(memory);
    svg.append(drawn("text", { x: 0, y: y + 28 }, name));
    const cost = array(memory.lossChange);
    if (cost) {
      svg.append(drawn("text", { x: 130, y: y + 28, class: "cost" }, `${signed(array(memory.lossChangeMean)[0])} nats`));
      effect(svg, 240, y, 190, 44, trace, cost, name);
    }
    if (!memory.recalls) return;
    const rows = array(memory.rows), counts = Array.from({ length: rows.length - 1 }, (_, row) => rows[row + 1] - rows[row]);
    labelledBars(svg, 450, y, 130, headAverages(memory, counts), colour, (value) => value.toFixed(1), "pairs");
    const widths = headAverages(memory, Array.from(array(memory.bandwidth)));
    if (widths.some(Number.isFinite)) labelledBars(svg, 600, y, 130, widths, colour, (value) => value.toPrecision(2), "bandwidth");
    const leaks = array(memory.leak);
    if (leaks) labelledBars(svg, 750, y, 130, Array.from(leaks), colour, (value) => value.toFixed(2), "leak");
    const ages = array(memory.ages);
    if (ages) {
      const size = ages.length / memory.heads, largest = largestOf(ages, 1e-12);
      const smallest = Math.max(1e-6 * largest, Math.min(...ages.filter((weight) => weight > 0)));
      const decades = Math.max(0.3, Math.log10(largest / smallest));
      svg.append(drawn("text", { x: 1190, y: y + 10 }, largest.toPrecision(2)), drawn("text", { x: 1190, y: y + 44 }, smallest.toPrecision(2)));
      for (let head = 0; head < memory.heads; head++) {
        const points = Array.from({ length: size }, (_, age) => {
          const share = Math.max(0, 1 + Math.log10(Math.max(1e-12, ages[head * size + age] / largest)) / decades);
          return `${(900 + (age * 280) / Math.max(1, size - 1)).toFixed(1)},${(y + 44 - 44 * share).toFixed(1)}`;
        });
        const line = drawn("polyline", { points: points.join(" "), ...headLine(head) });
        line.append(drawn("title", {}, `head ${head}`));
        svg.append(line);
      }
    }
  });
  return svg;
}

// Bars with the smallest and the largest value beside them.
function labelledBars(svg, x, y, width, values, colour, text, what) {
  const finite = values.filter(Number.isFinite);
  bars(svg, x, y, width - 62, 44, values, colour, (head, value) => `head ${head}: ${what} ${text(value)}`);
  svg.append(drawn("text", { x: x + width - 58, y: y + 10 }, `most ${text(Math.max(...finite))}`), drawn("text", { x: x + width - 58, y: y + 44 }, `least ${text(Math.min(...finite))}`));
}

// Every query that recalled a pair: [token, weight], for one memory and head.
function recallsOf(place, pair) {
  const trace = traceOf(place), memory = memoryOf(place), rows = array(memory.rows), pairs = array(memory.pairs);
  const weights = array(memory.weights), recalls = [], heads = place.head === ALL ? memory.heads : 1;
  array(trace.queries).forEach((token, number) => {
    const first = number * memory.heads + (place.head === ALL ? 0 : place.head);
    let sum = 0;
    for (let index = rows[first]; index < rows[first + heads]; index++) if (pairs[index] === pair) sum += weights[index] / heads;
    if (sum > 0) recalls.push([token, sum]);
  });
  return recalls;
}

function timeline(trace, recalls, label) {
  const svg = picture(370, 150, label), last = Math.max(1, trace.tokens.length - 1);
  svg.append(drawn("line", { x1: 40, y1: 125, x2: 364, y2: 125, stroke: "#808080" }));
  const largest = largestOf(recalls.map(([, weight]) => weight));
  svg.append(drawn("text", { x: 0, y: 16 }, percent(largest)), drawn("text", { x: 40, y: 142 }, "0"), drawn("text", { x: 364, y: 142, "text-anchor": "end" }, `token ${last}`));
  const tallest = new Map();  // of each of the 324 columns, however long the text is
  for (const [token, weight] of recalls) {
    const column = Math.round((324 * token) / last);
    if (!(tallest.get(column)?.[1] >= weight)) tallest.set(column, [token, weight]);
  }
  for (const [token, weight] of tallest.values()) {
    const x = 40 + (324 * token) / last, stem = drawn("line", { class: "stem", x1: x, x2: x, y1: 125, y2: 125 - (112 * weight) / largest, stroke: HELPS, "stroke-width": 1.5 });
    stem.append(drawn("title", {}, `token ${token} ${quoted(trace.tokens[token])}: ${percent(weight)}`));
    svg.append(stem);
  }
  return svg;
}

function openSegment(trace, segment) {
  openIn("read", { trace: data.traces.indexOf(trace), token: array(trace.segments.starts)[segment] });
}

// The segments of a column: its first one, and their name.
function columnOf({ merged, count }, column) {
  const first = column * merged, last = Math.min(count, first + merged) - 1;
  return [first, first === last ? `segment ${first}` : `segments ${first} to ${last}`];
}

function strip(trace) {
  const segments = trace.segments, layers = segments.layers, count = Math.ceil(segments.count / segments.merged);
  const rows = [["written", "written"], ["erased", "erased"], ["read", "read"], ["norm", "size of the matrix"], ["gamma", "gamma"]];
  const cell = Math.max(4, Math.min(40, 820 / count)), svg = picture(150 + Math.max(120, cell * count) + 10, 34 + rows.length * (layers * 12 + 24), "Segments");
  svg.append(drawn("text", { x: 150, y: 12 }, columnOf({ ...segments, merged: segments.count }, 0)[1]));
  rows.forEach(([name, title], index) => {
    const values = array(segments[name]), top = 22 + index * (layers * 12 + 24), largest = largestOf(values, 1e-12);
    svg.append(drawn("text", { x: 0, y: top + 10, "font-weight": 600 }, title), drawn("text", { x: 0, y: top + 24 }, `largest ${largest.toPrecision(3)}`));
    for (let layer = 0; layer < layers; layer++) svg.append(drawn("text", { x: 144, y: top + 10 + layer * 12, "text-anchor": "end" }, String(layer)));
    for (let column = 0; column < count; column++) {
      const [segment, name] = columnOf(segments, column);
      for (let layer = 0; layer < layers; layer++) {
        const value = values[column * layers + layer], box = drawn("rect", { x: 150 + column * cell, y: top + layer * 12, width: cell - 0.5, height: 11,
          class: "cell", fill: HELPS, "fill-opacity": Number.isFinite(value) ? (0.04 + 0.96 * value / largest).toFixed(3) : 0, stroke: "#9a9a9a", "stroke-width": 0.3 });
        box.addEventListener("click", () => openSegment(trace, segment));
        box.append(drawn("title", {}, `${name}, layer ${layer}: ${title} ${Number.isFinite(value) ? value.toPrecision(4) : "nothing"}`));
        svg.append(box);
      }
    }
  });
  return svg;
}

// ---------------------------------------------------------------- views

const main = document.getElementById("view");
let redraw = () => {};

// A view that shows some traces one below the other, and does not depend on what is chosen.
function drawPage(traces, parts) {
  redraw = () => {};
  main.replaceChildren(element("div", { class: "page" }, ...traces.flatMap((trace) => [element("h2", {}, trace.title), ...parts(trace)])));
}

function viewRead() {
  const text = new Text(state, chooseToken), panel = element("div", { class: "panel", "aria-live": "polite" });
  main.replaceChildren(element("div", { class: "columns" }, text.node, panel));
  redraw = () => {
    if (text.trace !== traceOf()) return viewRead();
    panel.replaceChildren(chooser(state, refresh, "shown"), details(state));
    text.mark(); text.show();
  };
  redraw();
}

function viewNetwork() {
  drawPage(data.traces, (trace) => {
    const svg = network(trace), about = Object.entries(trace.model).map(([name, value]) => `${name.replace(/_/g, " ")} ${typeof value === "number" ? value.toLocaleString("en") : value}`).join(", ");
    return [element("p", { class: "faint" }, about), svg, saveButton(svg, "network")];
  });
}

function viewCompare() {
  const sides = [state, state.other].map((place) => {
    const text = new Text(place, (token) => chooseToken(token, place)), choice = element("div", { class: "panel" }), side = element("div", { class: "panel" });
    return { place, text, choice, side };
  });
  main.replaceChildren(element("div", { class: "columns two" }, ...sides.map(({ text, choice, side }) => element("div", { class: "side" }, choice, text.node, side))));
  redraw = () => {
    if (sides.some(({ place, text }) => text.trace !== traceOf(place))) return viewCompare();
    sides.forEach(({ place, text, choice, side }, index) => {
      choice.replaceChildren(chooser(place, refresh, index ? "right" : "left"));
      side.replaceChildren(details(place));
      text.mark(); text.show();
    });
  };
  redraw();
}

function viewPairs() {
  const text = new Text(state, (token) => { state.pair = token; refresh(); }), panel = element("div", { class: "panel" });
  main.replaceChildren(element("div", { class: "columns" }, text.node, panel));
  redraw = () => {
    if (text.trace !== traceOf()) return viewPairs();
    const trace = traceOf();
    panel.replaceChildren(chooser(state, refresh, "shown"), element("h2", {}, `Pair ${state.pair}: ${pairName(trace, state.pair)}`));
    if (inText(memoryOf())) {
      const recalls = recallsOf(state, state.pair), svg = timeline(trace, recalls, "Who recalled this pair, over the text");
      panel.append(element("p", { class: "summary" }, `recalled by ${recalls.length} of ${array(trace.queries).length} traced queries`), svg, saveButton(svg, `pair-${state.pair}`));
      const number = Array.from(array(trace.removedPairs)).indexOf(state.pair), worth = array(memoryOf().pairLossChange);
      if (number >= 0 && worth) {
        const steps = trace.tokens.length, values = worth.slice(number * steps, (number + 1) * steps), cost = picture(370, 60, "Loss without this pair, over the text");
        effect(cost, 40, 4, 324, 50, trace, values, "this pair");
        panel.append(element("h3", {}, "Loss without this pair"), element("p", { class: "worth" }, `${signed(array(memoryOf().pairLossSum)[number])} nats over the text; blue: it lowers the loss`), cost, saveButton(cost, `without-pair-${state.pair}`));
      }
      const table = element("table");
      panel.append(element("h3", {}, "Recalled most by"));
      [...recalls].sort((one, other) => other[1] - one[1]).slice(0, 30).forEach(([token, weight]) => table.append(element("tr", {},
        element("td", { class: "number" }, percent(weight)), element("td", { class: "words" }, quoted(trace.tokens[token])),
        element("td", {}, element("button", { class: "mark", type: "button", onclick: () => openIn("read", { token }) }, String(token))))));
      panel.append(table);
    } else panel.append(element("p", { class: "faint" }, "This memory stores no pair of the text."));
    text.mark(); text.show();
  };
  redraw();
}

function viewMemory() {
  drawPage(data.traces.filter((one) => one.stored), (trace) => {
    const { stored } = trace, [layers, count, width] = stored.shape, strengths = array(stored.strengths);
    const parts = [element("p", { class: "summary" },
      `${stored.kind.toUpperCase()} memory of ${stored.tokensRead.toLocaleString("en")} tokens in ${stored.segmentsRead.toLocaleString("en")} segments`),
      element("p", { class: "faint" }, stored.kind === "armt"
        ? "Each layer's matrix as the sum of its strongest contents (singular vectors): how strong each is, and what the output layer makes likeliest of it. The output layer was trained on the whole stream: take the words as a hint."
        : "The memory tokens: how long each is, and what the output layer makes likeliest of it. Take the words as a hint.")];
    for (let layer = 0; layer < layers; layer++) {
      const values = Array.from(strengths.subarray(layer * count, (layer + 1) * count)), largest = largestOf(values, 1e-12);
      const table = element("table", { class: "contents" });
      values.forEach((value, index) => {
        if (value < 1e-6 * largest) return; // rounding
        const bar = element("span", { class: "bar" }), first = (layer * count + index) * width;
        bar.style.width = `${((8 * value) / largest).toFixed(2)}rem`;
        const list = Array.from({ length: width }, (_, word) => [trace.vocabulary[array(stored.tokens)[first + word]] ?? "", array(stored.scores)[first + word]]);
        const row = wordList(element("td", { class: "number" }, value.toPrecision(3)), list, null);
        row.firstChild.after(element("td", { class: "strength" }, bar));
        table.append(row);
      });
      parts.push(element("h3", {}, `layer ${layer}, size ${array(stored.norms)[layer].toPrecision(3)}`), table);
    }
    return parts;
  });
}

function viewSegments() {
  drawPage(data.traces.filter((one) => one.segments), (trace) => {
    const svg = strip(trace), list = element("select", { "aria-label": "open a segment", onchange: (event) => openSegment(trace, Number(event.target.value)) });
    list.append(element("option", { value: "", selected: true, disabled: true }, "open a segment \u2026"));
    const { merged, count } = trace.segments;
    for (let column = 0; column * merged < count; column++) {
      const [segment, name] = columnOf(trace.segments, column);
      list.append(element("option", { value: segment }, `${name}, token ${array(trace.segments.starts)[segment]}`));
    }
    return [element("p", { class: "faint" },
      `One column per ${merged > 1 ? `${merged} segments, of which it shows the mean` : "segment"}, one row per layer: how much the memory tokens wrote, how much that erased, how much the segment read, the size of the matrix, and gamma. A click on a column opens its first segment in the text.`), svg,
      element("div", { class: "row" }, saveButton(svg, "segments"), list)];
  });
}

const DRAW = { read: viewRead, network: viewNetwork, compare: viewCompare, pairs: viewPairs, segments: viewSegments, memory: viewMemory };

function available() {
  const has = { segments: data.traces.some((trace) => trace.segments), memory: data.traces.some((trace) => trace.stored) };
  return VIEWS.filter(([name]) => has[name] ?? data.traces.some((trace) => trace.tokens.length));
}

function show(name) {
  state.view = name;
  document.querySelectorAll("#views button").forEach((button) => button.setAttribute("aria-selected", button.dataset.view === name));
  DRAW[name]();
}

function refresh() { redraw(); }

function turn(count, step, value) { return count ? (value + step + count) % count : 0; }

function onKey(event) {
  if (event.target.matches("select, input") || event.ctrlKey || event.metaKey || event.altKey) return;
  const memories = traceOf().memories.length, heads = memoryOf().heads, all = heads > 1 ? 1 : 0;
  const go = (step) => {
    if (state.view !== "pairs") return chooseToken(state.token + step);
    move(state, { pair: state.pair + step });
    refresh();
  };
  const actions = {
    ArrowRight: () => go(event.shiftKey ? 20 : 1),
    ArrowLeft: () => go(event.shiftKey ? -20 : -1),
    Home: () => go(-Infinity),
    End: () => go(Infinity),
    ArrowDown: () => { state.head = turn(heads + all, 1, state.head + all) - all; refresh(); },
    ArrowUp: () => { state.head = turn(heads + all, -1, state.head + all) - all; refresh(); },
    "]": () => { state.memory = turn(memories, 1, state.memory); state.head = 0; refresh(); },
    "[": () => { state.memory = turn(memories, -1, state.memory); state.head = 0; refresh(); },
    f: () => { const { pairs } = recalled(state, state.token); if (pairs[0] >= 0 && inText(memoryOf())) chooseToken(pairs[0]); },
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
  // The last traced token that another one follows: its prediction can be looked at.
  state.token = Array.from(array(traceOf().queries)).findLast((token) => token + 1 < traceOf().tokens.length) ?? 0;
  const first = traceOf().memories.findIndex((memory) => memory.recalls);
  state.memory = Math.max(0, first);
  state.other = { trace: Math.min(1, data.traces.length - 1), memory: state.memory, head: memoryOf().heads > 1 && data.traces.length === 1 ? 1 : 0, token: 0 };
  const right = traceOf(state.other);
  state.other.memory = Math.max(0, right.memories.findIndex((memory) => memory.recalls));
  state.other.token = sameText(state, state.other) ? state.token : array(right.queries).at(-1) ?? 0;
  document.getElementById("help-button").addEventListener("click", toggleHelp);
  document.addEventListener("keydown", onKey);
  show(traceOf().tokens.length ? (traceOf().segments ? "segments" : "read") : "memory");
  performance.mark("drawn");
  document.body.dataset.ready = "true";
}

start();
