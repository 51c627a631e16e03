// The table of one budget and track: which rows and columns, in which order, and the bars.

const COLUMNS = new Map(DATA.columns.map((column) => [column.key, column]));
const BUDGETS = distinct(DATA.rows.map((row) => row.budget));
const TRACKS = Object.keys(DATA.tracks).filter((t) => DATA.rows.some((row) => row.track === t));
// The axis of the bars: pixels, of which the margins hold half a tick's label.
const BAR = { width: 168, margin: 14, height: 20 };

const rowsOf = (track, budget) =>
  DATA.rows.filter((row) => row.track === track && (!budget || row.budget === budget));
// A column's number and its interval; a rank has its range only.
const value = (row, key) => row.range[key]?.[0] ?? null;
// JSON has no number for an upper end that is infinite.
const interval = (row, key) => {
  const [, low, high] = row.range[key]?.length > 2 ? row.range[key] : [];
  return (low ?? null) === null ? [null, null] : [low, high ?? Infinity];
};
// The largest number that is drawn.
const mostOf = (rows, key) => Math.max(0, ...rows.flatMap((row) =>
  [value(row, key), interval(row, key)[1]]).filter(Number.isFinite));
const known = (rows, key) =>
  rows.some((row) => COLUMNS.get(key).right ? value(row, key) !== null : row.text[key] !== MISSING);
const measuresOf = (track) =>
  DATA.columns.filter((c) => c.measure && known(rowsOf(track), c.key)).map((c) => c.key);

// Columns of which nothing is known are left out, and behind a button all but the first; the
// measure comes right after the entry. Who found weights shows where it is not always the same.
function columnsOf(rows, { sort, measure, all }) {
  const many = distinct(rows.map((row) => row.text.by)).length > 1;
  const shown = DATA.columns.filter((c) => known(rows, c.key) &&
    (c.first || all || c.key === sort || c.key === measure || (c.key === "by" && many)));
  const place = (c) => ["rank", "entry", measure].indexOf(c.key) + 1 || 9;
  return shown.sort((a, b) => place(a) - place(b));
}

function ordered(rows, { sort, dir }) {
  const sign = dir === "asc" ? 1 : -1;
  const key = (row) => COLUMNS.get(sort).right ? value(row, sort) : row.text[sort];
  return [...rows].sort((a, b) => (key(a) === null) - (key(b) === null) ||
    (key(a) === null ? 0 : sign * compare(key(a), key(b))) ||
    compare(value(a, "rank"), value(b, "rank")) || compare(a.text.entry, b.text.entry));
}

function scaleOf(rows, measure) {
  const ticks = linearTicks(mostOf(rows, measure), 4);
  const length = BAR.width - 2 * BAR.margin;
  const x = (at) => BAR.margin + length * Math.min(1, Math.max(0, at / ticks.at(-1)));
  return { ticks, x };
}

function axis({ ticks, x }) {
  const base = { x1: x(0), x2: x(ticks.at(-1)), y1: BAR.height, y2: BAR.height, class: "tick" };
  return svg("svg",
    { class: "axis", width: BAR.width, height: BAR.height + 1, "aria-hidden": "true" },
    svg("line", base),
    ...ticks.map((t) =>
      svg("line", { x1: x(t), x2: x(t), y1: 16, y2: BAR.height, class: "tick" })),
    ...ticks.map((t, i) => i % 2 && ticks.length > 4 ? null
      : svg("text", { x: x(t), y: 12, "text-anchor": "middle" }, String(Number(t.toPrecision(3))))));
}

// Its numbers are beside it as text.
function bar(row, measure, { ticks, x }) {
  const drawn = svg("svg",
    { class: "bar", width: BAR.width, height: BAR.height, "aria-hidden": "true" },
    ...ticks.map((t) =>
      svg("line", { x1: x(t), x2: x(t), y1: 0, y2: BAR.height, class: "grid" })));
  const [at, [low, high], y] = [value(row, measure), interval(row, measure), BAR.height / 2];
  if (low !== null) {
    drawn.append(svg("path", { class: "whisker", d:
      `M${x(low)} ${y}H${x(high)}M${x(low)} ${y - 5}v10M${x(high)} ${y - 5}v10` }));
  }
  if (at !== null) drawn.append(svg("circle", { class: "dot", cx: x(at), cy: y, r: 3 }));
  return drawn;
}

const kindOf = (column, state) => [`c-${column.key}`, column.right ? "right" : "left",
  column.key === state.measure ? "chosen" : ""].join(" ").trim();

function header(column, state, scale) {
  const active = column.key === state.sort;
  const button = html("button", { type: "button", "data-key": column.key, title: column.title },
    column.label, html("span", { class: "arrow", "aria-hidden": "true" },
      active ? (state.dir === "asc" ? "▲" : "▼") : ""));
  const inside = column.key === state.measure
    ? [html("span", { class: "value" }, button), axis(scale)] : [button];
  const sorted = state.dir === "asc" ? "ascending" : "descending";
  return html("th", { scope: "col", class: kindOf(column, state),
    ...(active ? { "aria-sort": sorted } : {}) }, html("div", { class: "cell" }, ...inside));
}

// Of text that others wrote neither direction nor length may spoil what is beside it. A path is
// relative, whatever it says.
function content(column, row) {
  const text = row.text[column.key];
  if (column.key !== "weights" || text === MISSING) return html("bdi", {}, text);
  const href = text.split("/").map(encodeURIComponent).join("/");
  return html("a", { href, download: "" }, html("bdi", {}, text.split("/").at(-1)));
}

function cell(column, row, state, scale) {
  const inside = column.key === state.measure
    ? [html("span", { class: "value" }, row.text[column.key]), bar(row, state.measure, scale)]
    : [content(column, row)];
  if (column.key === "entry" && row.text.by !== DATA.own) {
    inside.push(" ", html("span", { class: "badge" }, html("bdi", {}, row.text.by)));
  }
  const box = html("div", { class: "cell" }, ...inside);
  return column.key === "entry"
    ? html("th", { scope: "row", class: kindOf(column, state) }, box)
    : html("td", { class: kindOf(column, state) }, box);
}

function drawTable(state) {
  const rows = ordered(rowsOf(state.track, state.budget), state);
  const columns = columnsOf(rows, state);
  const scale = scaleOf(rows, state.measure);
  const caption = html("caption", { id: "caption" }, html("span", {},
    `${number(state.budget)} parameters, ${state.track}: ${DATA.tracks[state.track]}.`));
  byId("results").replaceChildren(html("table", {}, caption,
    html("thead", {}, html("tr", {}, ...columns.map((column) => header(column, state, scale)))),
    html("tbody", {}, ...rows.map((row) =>
      html("tr", {}, ...columns.map((column) => cell(column, row, state, scale)))))));
  byId("count").textContent = `${rows.length} entries`;
}

function drawProvenance(state) {
  const rows = rowsOf(state.track, state.budget);
  const facts = { memobench: "memobench", commit: "Commits", device: "Devices", by: "By" };
  byId("facts").replaceChildren(...Object.entries(facts).flatMap(([key, label]) => {
    const all = distinct(rows.map((row) => row.text[key])).filter((text) => text !== MISSING);
    return all.length
      ? [html("dt", {}, label), html("dd", {}, html("bdi", {}, all.join("; ")))] : [];
  }));
}
