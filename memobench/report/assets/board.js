// The table: which rows and columns, in which order and of which rank, and the bars.

const COLUMNS = new Map(DATA.columns.map((column) => [column.key, column]));
const TRACKS = Object.keys(DATA.tracks);
// The axis of the bars: pixels, of which the margins hold half a tick's label.
const BAR = { width: 104, margin: 17, height: 16 };

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
const known = (rows, key) => rows.some((row) => row.text[key] !== MISSING);

const rowsOf = (track) => DATA.rows.filter((row) => row.track === track);
// Every word that is searched for stands in an entry's name or is of who found its weights.
function filtered({ track, family, q }) {
  const words = q.toLowerCase().split(/\s+/);
  const said = ({ text }) => [text.entry, text.by, text.theorem].join(" ").toLowerCase();
  return rowsOf(track).filter((row) => (!family || row.text.family === family) &&
    words.every((word) => said(row).includes(word)));
}
const ofBudget = (rows, budget) => rows.filter((row) => budget === ALL || row.budget === budget);

// Columns of which nothing is known are left out, and on demand only all but the first; the
// measure comes right after the entry. Budgets and submitters show where there are several.
function columnsOf(rows, { sort, measure, all }) {
  const several = (key) => distinct(rows.map((row) => row.text[key])).length > 1;
  const shown = DATA.columns.filter(({ key, first }) => known(rows, key) && (key === "budget"
    ? several(key)
    : first || all || [sort, measure].includes(key) || (key === "by" && several(key))));
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

// The board has ranks by its main measure; by another, entries whose intervals overlap share some.
function rankOf(row, { track, measure }) {
  if (measure === mainOf(track)) return row.text.rank;
  if (value(row, measure) === null) return MISSING;
  const ends = (each) => interval(each, measure)[0] === null
    ? [value(each, measure), value(each, measure)] : interval(each, measure);
  const [low, high] = ends(row);
  const others = ofBudget(rowsOf(track), row.budget).filter((each) => value(each, measure) !== null);
  const best = 1 + others.filter((each) => ends(each)[0] > high).length;
  const last = others.filter((each) => ends(each)[1] >= low).length;
  return best === last ? `${best}` : `${best}–${last}`;
}

function scaleOf(rows, measure) {
  const ticks = linearTicks(mostOf(rows, measure), 4);
  const length = BAR.width - 2 * BAR.margin;
  const x = (at) => BAR.margin + length * Math.min(1, Math.max(0, at / ticks.at(-1)));
  return { ticks, x };
}
// What it says is beside it as text.
const strip = ({ ticks, x }, ...inside) => svg("svg",
  { class: "bar", width: BAR.width, height: BAR.height, "aria-hidden": "true" },
  svg("path", { class: "grid", d: ticks.map((t) => `M${x(t)} 0V${BAR.height}`).join("") }),
  ...inside);
const axis = (scale) => strip(scale, ...[0, scale.ticks.at(-1)].map((t) =>
  svg("text", { x: scale.x(t), y: 12, "text-anchor": "middle" }, number(t))));
function bar(row, measure, scale) {
  const [at, ends, y] = [value(row, measure), interval(row, measure), BAR.height / 2];
  const [low, high] = ends.map(scale.x);
  const d = `M${low} ${y}H${high}M${low} ${y - 4}v8M${high} ${y - 4}v8`;
  return strip(scale, ends[0] === null ? null : svg("path", { class: "whisker", d }),
    at === null ? null : svg("circle", { class: "dot", cx: scale.x(at), cy: y, r: 3 }));
}

const kindOf = (column, { measure, sort }) => [`c-${column.key}`, column.right ? "right" : "left",
  column.key === measure ? "chosen" : "", column.key === sort ? "sorted" : ""].join(" ").trim();

function header(column, state, scale) {
  const button = html("button", { type: "button", "data-key": column.key, title: column.title },
    column.label, html("span", { class: "arrow", "aria-hidden": "true" },
      column.key !== state.sort ? "" : state.dir === "asc" ? "▲" : "▼"));
  const order = { "aria-sort": state.dir === "asc" ? "ascending" : "descending" };
  return html("th", { scope: "col", class: kindOf(column, state),
    ...(column.key === state.sort ? order : {}) },
  html("div", { class: "cell" }, button, column.key === state.measure ? axis(scale) : null));
}

// Of text that others wrote neither direction nor length may spoil what is beside it. A path is
// relative, whatever it says.
function content(column, row, state) {
  const text = column.key === "rank" ? rankOf(row, state) : row.text[column.key];
  if (column.key === "weights" && text !== MISSING) {
    const href = text.split("/").map(encodeURIComponent).join("/");
    return [html("a", { href, download: "", title: text.split("/").at(-1) }, "file")];
  }
  const end = column.key === "entry" && text.startsWith(`${row.text.family} (`)
    ? row.text.family.length : column.range ? text.indexOf(" [") : -1;
  if (end <= 0) return [html("bdi", {}, text)];
  return [html("bdi", {}, text.slice(0, end)), " ", html("small", {}, text.slice(end + 1))];
}

function cell(column, row, state, scale) {
  const inside = content(column, row, state);
  if (column.key === state.measure) inside.push(bar(row, state.measure, scale));
  if (column.key === "entry" && row.text.by !== DATA.own) {
    inside.push(" ", html("span", { class: "badge" }, html("bdi", {}, row.text.by)));
  }
  const kind = column.key === "entry" ? ["th", { scope: "row" }] : ["td", {}];
  return html(kind[0], { ...kind[1], class: kindOf(column, state) },
    html("div", { class: "cell" }, ...inside));
}

function drawTable(state) {
  const rows = ordered(ofBudget(filtered(state), state.budget), state);
  const columns = columnsOf(rows, state);
  const scale = scaleOf(rows, state.measure);
  const where = state.budget === ALL ? "All budgets, ranked within each"
    : `${number(state.budget)} parameters`;
  byId("results").className = state.all ? "scroll all" : "scroll";
  byId("results").replaceChildren(html("table", {},
    html("caption", { id: "caption" }, `${where}, ${state.track}: ${DATA.tracks[state.track]}.`),
    html("thead", {}, html("tr", {}, ...columns.map((column) => header(column, state, scale)))),
    html("tbody", {}, ...rows.map((row) =>
      html("tr", {}, ...columns.map((column) => cell(column, row, state, scale)))))));
  byId("certified").textContent = DATA.certified[state.budget] ?? "";
  byId("count").textContent = `${rows.length} of ` +
    `${ofBudget(rowsOf(state.track), state.budget).length} entries`;
  describe("help", columns.map((column) => [column.label, column.title]));
  const facts = { memobench: "memobench", commit: "Commits", device: "Devices", by: "By" };
  describe("facts", Object.entries(facts).map(([key, label]) => [label,
    distinct(rows.map((row) => row.text[key])).filter((text) => text !== MISSING).join("; ")]));
}

const describe = (id, pairs) => byId(id).replaceChildren(...pairs.filter(([, text]) => text)
  .flatMap(([term, text]) => [html("dt", {}, term), html("dd", {}, html("bdi", {}, text))]));
