// The table of entries: what its columns are, and how rows are chosen, ordered and drawn.

const PER = { all: "n_params", memory: "n_params_memory", distinct: "n_params_distinct" };
const PER_LABELS = {
  all: "all parameters",
  memory: "all but embeddings",
  distinct: "distinct degrees of freedom",
};
const MEASURES = {
  bits: { label: "(c) Bits", digits: 3 },
  memorized: { label: "(b) Associations", digits: 4 },
  complete_99: { label: "(a) Largest set, 99%", digits: 4 },
  complete_100: { label: "(a) Largest set, 100%", digits: 4 },
};
const FILTERS = {
  family: "Family",
  track: "Track",
  budget: "Budget",
  vocab_size: "Vocabulary",
  device: "Device",
};
const SIZES = {
  d_model: "d", d_head: "d_h", n_heads: "H", n_layers: "L", d_mlp: "d_mlp",
};
const SEARCHED = [
  "entry", "submitter", "track", "family", "task", "architecture", "heads", "activation",
  "theorem", "verdict", "device", "memobench", "commit", "date",
];
// The axis of the bars: pixels, of which the margins hold half a tick's label.
const BAR = { width: 176, margin: 14, height: 20 };

const isLeast = (row) => row.verdict === "lower bound";
const isUnfinished = (row) => row.verdict === "not converged";
const per = (row, name, state) => {
  const count = row[PER[state.per]];
  return row[name] === null || !(count > 0) ? null : row[name] / count;
};

// A column: its key in the address, its label, the value it sorts by (null is last in either
// order), and the cell's content if not the value itself. Numbers stand right.
const text = (key, label, title) =>
  ({ key, label, title, value: (row) => row[key], cell: (row) => stranger(row[key]) });
const count = (key, label, title) =>
  ({ key, label, title, right: true, value: (row) => row[key], cell: (row) => number(row[key]) });

// Of text that others wrote neither direction nor length may spoil what stands beside it.
const stranger = (value) => value === null ? MISSING : html("bdi", {}, value);

function sizes(row) {
  const known = Object.entries(SIZES).filter(([name]) => row[name] !== null && row[name] !== 0);
  const kinds = ["architecture", "heads", "activation"].map((name) => row[name]);
  const told = [kinds.filter((kind) => kind !== null && kind !== "").join(" "),
    ...known.map(([name, letter]) => `${letter} ${number(row[name])}`)];
  return told.filter((part) => part !== "").join(", ") || null;
}

const measured = (key) => ({
  key,
  label: MEASURES[key].label,
  measure: true,
  right: true,
  title: "per parameter, with half of the 95% interval",
  value: (row, state) => per(row, key, state),
});
const ratio = (row) =>
  row.memorized === null || !(row.proven > 0) ? null : row.memorized / row.proven;

const COLUMNS = [
  { key: "entry", label: "Entry", value: (row) => row.entry, cell: (row) => [
    stranger(row.entry),
    ...(isUnfinished(row) || isLeast(row)
      ? [" ", html("span", { class: "badge" }, row.verdict)] : []),
  ] },
  ...Object.keys(MEASURES).map(measured),
  { key: "params", label: "Parameters", right: true, title: "as counted by the chosen convention",
    value: (row, state) => row[PER[state.per]],
    cell: (row, state) => number(row[PER[state.per]]) },
  text("family", "Family"),
  text("track", "Track"),
  count("budget", "Budget", "nominal number of parameters"),
  text("task", "Task"),
  count("vocab_size", "N", "vocabulary size"),
  count("context_length", "S", "context length"),
  count("n_examples", "T", "associations in the set"),
  { key: "accuracy", label: "Accuracy", right: true, title: "on the overfull set",
    value: (row) => row.accuracy,
    cell: (row) => plusMinus(row.accuracy, row.accuracy_interval, 3) },
  { key: "proven", label: "Memorized / proven", right: true,
    title: "how many times what a theorem promises for these sizes",
    value: ratio, cell: (row) => number(ratio(row), 2) },
  { key: "seeds", label: "Seeds", right: true, value: (row) => row.seeds, cell: (row) =>
    number(row.seeds) + (row.diverged > 0 ? ` (${number(row.diverged)} diverged)` : "") },
  count("steps", "Steps"),
  text("verdict", "Verdict"),
  { key: "sizes", label: "Architecture", value: sizes, cell: (row) => stranger(sizes(row)) },
  text("theorem", "Theorem"),
  text("submitter", "Submitter"),
  { key: "seconds", label: "Seconds", right: true, value: (row) => row.seconds,
    cell: (row) => number(row.seconds, row.seconds < 100 ? 1 : 0) },
  text("device", "Device"),
  text("memobench", "memobench"),
  text("commit", "Commit"),
  text("date", "Date"),
];

function plusMinus(value, half, digits, least = false) {
  const told = value === null ? MISSING : (least ? "≥ " : "") + number(value, digits);
  const known = value !== null && half !== null;
  return [told, html("span", { class: "half" }, known ? ` ± ${number(half, digits)}` : "")];
}

const VERSIONS = [...new Set(DATA.board.map((row) => row.version ?? ""))].sort(compare).reverse();
const rowsOf = (version) => DATA.board.filter((row) => (row.version ?? "") === version);

function chosen(rows, state) {
  const words = state.search.toLowerCase().split(/\s+/);
  return rows.filter((row) => {
    const matches = Object.keys(FILTERS).every(
      (name) => state[name] === "" || String(row[name] ?? "") === state[name]);
    const said = SEARCHED.map((name) => row[name] ?? "").join("\n").toLowerCase();
    return matches && words.every((word) => said.includes(word));
  });
}

function ordered(rows, column, state) {
  const sign = state.dir === "asc" ? 1 : -1;
  const keyed = rows.map((row) => [column.value(row, state), row]);
  keyed.sort(([a, rowA], [b, rowB]) =>
    (a === null) - (b === null) || (a === null ? 0 : sign * compare(a, b)) ||
    compare(rowA.entry ?? "", rowB.entry ?? ""));
  return keyed.map(([, row]) => row);
}

// The chosen measure comes right after the entry; columns of which nothing is known are left out.
function columnsFor(rows, state) {
  const known = COLUMNS.filter((column) => column.key === "entry" ||
    rows.some((row) => column.value(row, state) !== null));
  const [entry, ...others] = known;
  return [entry, ...others.filter((c) => c.key === state.measure),
    ...others.filter((c) => c.key !== state.measure)];
}

function barScale(rows, state) {
  const ends = rows.map((row) => (per(row, state.measure, state) ?? 0) +
    (per(row, `${state.measure}_interval`, state) ?? 0));
  const ticks = linearTicks(ends.reduce((most, end) => Math.max(most, end), 0), 4);
  const length = BAR.width - 2 * BAR.margin;
  const x = (value) => BAR.margin +
    length * Math.min(1, Math.max(0, value / ticks.at(-1)));
  return { ticks, x };
}

function axis({ ticks, x }) {
  const labels = ticks.map((tick) => String(Number(tick.toPrecision(3))));
  const every = labels.some((label) => label.length > 4) ? 2 : 1;
  const mark = (tick) =>
    svg("line", { x1: x(tick), x2: x(tick), y1: 16, y2: BAR.height, class: "tick" });
  const base = { x1: x(0), x2: x(ticks.at(-1)), y1: BAR.height, y2: BAR.height, class: "tick" };
  return svg("svg",
    { class: "axis", width: BAR.width, height: BAR.height + 1, "aria-hidden": "true" },
    svg("line", base), ...ticks.map(mark), ...ticks.map((tick, i) => i % every ? null
      : svg("text", { x: x(tick), y: 12, "text-anchor": "middle" }, labels[i])));
}

// Its numbers stand beside it as text. Lower bounds point right; hollow is not converged.
function bar(row, state, { ticks, x }) {
  const value = per(row, state.measure, state);
  const half = per(row, `${state.measure}_interval`, state);
  const drawn = svg("svg",
    { class: "bar", width: BAR.width, height: BAR.height, "aria-hidden": "true" });
  for (const tick of ticks) {
    drawn.append(svg("line", { x1: x(tick), x2: x(tick), y1: 0, y2: BAR.height, class: "grid" }));
  }
  if (value === null) return drawn;
  const y = BAR.height / 2;
  if (half !== null) {
    const [low, high] = [x(value - half), x(value + half)];
    drawn.append(svg("path", { class: "whisker", d:
      `M${low} ${y}H${high}M${low} ${y - 5}v10M${high} ${y - 5}v10` }));
  }
  const at = x(value);
  drawn.append(isLeast(row)
    ? svg("path", { class: "dot", d: `M${at - 2.5} ${y - 3.8}l6.5 3.8l-6.5 3.8z` })
    : svg("circle", { class: isUnfinished(row) ? "dot hollow" : "dot", cx: at, cy: y, r: 2.8 }));
  return drawn;
}

function header(column, state, scale) {
  const active = column.key === state.sort;
  const arrow = active ? (state.dir === "asc" ? "▲" : "▼") : "";
  const button = html("button", { type: "button", "data-key": column.key },
    column.label, html("span", { class: "arrow", "aria-hidden": "true" }, arrow));
  if (column.title) button.title = column.title;
  const inside = column.key === state.measure
    ? [html("span", { class: "value" }, button), axis(scale)] : [button];
  const attributes = { scope: "col", class: kindOf(column, state) };
  if (active) attributes["aria-sort"] = state.dir === "asc" ? "ascending" : "descending";
  return html("th", attributes, html("div", { class: "cell" }, ...inside));
}

function cell(column, row, state, scale) {
  let inside;
  if (column.measure) {
    const half = per(row, `${column.key}_interval`, state);
    const { digits } = MEASURES[column.key];
    const value = plusMinus(column.value(row, state), half, digits, isLeast(row));
    inside = column.key === state.measure
      ? [html("span", { class: "value" }, ...value), bar(row, state, scale)] : value;
  } else {
    inside = [column.cell(row, state)].flat();
  }
  const content = html("div", { class: "cell" }, ...inside.filter((part) => part !== null));
  return column.key === "entry"
    ? html("th", { scope: "row", class: kindOf(column, state) }, content)
    : html("td", { class: kindOf(column, state) }, content);
}

const kindOf = (column, state) => [
  `c-${column.key}`, column.right ? "right" : "left", column.key === state.measure ? "chosen" : "",
].join(" ").trim();

function drawTable(state) {
  const all = rowsOf(state.version);
  const columns = columnsFor(all, state);
  const rows = ordered(chosen(all, state), COLUMNS.find((c) => c.key === state.sort), state);
  const scale = barScale(rows, state);
  const caption = html("caption", { id: "caption" }, html("span", {},
    `Board ${state.version || MISSING}. Measures per parameter, counting ` +
    `${PER_LABELS[state.per]}. Every column sorts.`));
  const body = rows.map((row) =>
    html("tr", {}, ...columns.map((column) => cell(column, row, state, scale))));
  if (!rows.length) {
    body.push(html("tr", {}, html("td", { class: "none", colspan: columns.length },
      all.length ? "No entry matches these filters." : "No entries yet.")));
  }
  byId("results").replaceChildren(html("table", {}, caption,
    html("thead", {}, html("tr", {}, ...columns.map((column) => header(column, state, scale)))),
    html("tbody", {}, ...body)));
  byId("count").textContent = `${rows.length} of ${all.length} entries`;
}

function drawProvenance(version) {
  const rows = rowsOf(version);
  const list = (name) => distinct(rows.map((row) => row[name])).join("; ");
  const dates = distinct(rows.map((row) => row.date));
  const seconds = rows.reduce((sum, row) => sum + (row.seconds ?? 0), 0);
  const facts = {
    "Board": version,
    "memobench": list("memobench"),
    "Commits": list("commit"),
    "Devices": list("device"),
    "Dates": dates.length > 1 ? `${dates[0]} to ${dates.at(-1)}` : dates.join(""),
    "Device time": seconds > 0 ? `${number(seconds / 3600, 1)} hours` : "",
    "Submitters": list("submitter"),
  };
  byId("facts").replaceChildren(...Object.entries(facts).filter(([, told]) => told).flatMap(
    ([name, told]) => [html("dt", {}, name), html("dd", {}, html("bdi", {}, told))]));
}
