// The measure against parameters on one track, a line for each family of each submitter.

// Outlines about the origin, by matplotlib's letters; another is a circle.
const MARKERS = {
  o: "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
  s: "M-4 -4h8v8h-8z",
  D: "M0 -5.6l5.6 5.6l-5.6 5.6l-5.6 -5.6z",
  "^": "M0 -5.2l5 8.7h-10z",
  v: "M0 5.2l5 -8.7h-10z",
  "<": "M-5.2 0l8.7 -5v10z",
  ">": "M5.2 0l-8.7 -5v10z",
  P: "M-1.6 -5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
  X: "M0 -2.3l2.7 -2.7l2.3 2.3l-2.7 2.7l2.7 2.7l-2.3 2.3l-2.7 -2.7l-2.7 2.7l-2.3 -2.3" +
    "l2.7 -2.7l-2.7 -2.7l2.3 -2.3z",
  p: "M0 -5.2L4.95 -1.61L3.06 4.21H-3.06L-4.95 -1.61z",
  h: "M-5 0l2.5 -4.4h5l2.5 4.4l-2.5 4.4h-5z",
};
const DRAWN_FIRST = 4;
const MARGIN = { left: 60, right: 16, top: 14, bottom: 46 };
// Lines that the reader drew or hid; until then the best of the table's budget and the reader's own.
const chosen = new Map();
let [lines, placed, current] = [[], [], -1];

// No two sweeps are joined. Of several entries at a budget a line goes through the best, and the
// others are points beside it.
function linesOf(state) {
  const found = new Map();
  const rows = filtered(state).filter((row) => value(row, state.measure) !== null);
  const order = ordered(rows, { sort: state.measure, dir: "desc" });
  for (const row of [...ofBudget(order, state.budget), ...order]) {
    const name = row.text.family + (row.text.by === DATA.own ? "" : `, ${row.text.by}`);
    if (!found.has(name)) found.set(name, { name, rows: new Set(), style: row.style });
    found.get(name).rows.add(row);
  }
  return [...found.values()].map(({ name, rows, style }, i) => ({
    name, style, rows: [...rows].sort((a, b) => value(a, "n_params") - value(b, "n_params")),
    drawn: chosen.get(name) ?? (i < DRAWN_FIRST || [...rows][0].text.by === DATA.yours),
  }));
}

function inColour({ style }, made) {
  made.style.setProperty("--line", style.colour);
  return made;
}
const stroke = ({ style }, d) => svg("path", { class: "line", d, "stroke-dasharray": style.dash });
const marker = ({ style }, x, y) => svg("path", {
  class: style.hollow ? "marker hollow" : "marker", d: MARKERS[style.marker] ?? MARKERS.o,
  transform: `translate(${x} ${y})`,
});

function drawCurves(state) {
  lines = linesOf(state);
  const label = COLUMNS.get(state.measure).label;
  byId("curves-title").textContent = `${label[0].toUpperCase()}${label.slice(1)} against parameters`;
  byId("legend").replaceChildren(...lines.map((line) => {
    const box = html("input", { type: "checkbox" });
    box.checked = line.drawn;
    box.addEventListener("change", () => {
      chosen.set(line.name, line.drawn = box.checked);
      drawPlot();
    });
    return html("label", {}, box,
      inColour(line, svg("svg", { width: 30, height: 14, "aria-hidden": "true" },
        stroke(line, "M0 7H30"), marker(line, 15, 7))),
      html("bdi", {}, line.name));
  }));
  drawPlot();
}

function drawPlot() {
  const { measure, track } = read();
  const label = COLUMNS.get(measure).label;
  const width = Math.max(260, byId("chart").clientWidth);
  const height = Math.round(Math.min(440, Math.max(280, width * 0.5)));
  // Axes are those of all lines: they stay where they are while lines come and go.
  const all = lines.flatMap((line) => line.rows);
  const counts = all.map((row) => value(row, "n_params"));
  const [low, high] = [Math.min(...counts), Math.max(...counts)];
  const room = high > low ? (high / low) ** 0.06 : 1.6;
  const references = measure.endsWith("_per_parameter") ? DATA.references : [];
  const ticks = linearTicks(Math.max(mostOf(all, measure), ...references.map(([at]) => at)), 5);
  const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
  const x = (at) =>
    MARGIN.left + (right - MARGIN.left) * Math.log(at * room / low) / Math.log(high * room ** 2 / low);
  const y = (at) =>
    bottom - (bottom - MARGIN.top) * Math.min(1, Math.max(0, at / ticks.at(-1)));
  const write = (x, y, anchor, text, more = {}) =>
    svg("text", { x, y, "text-anchor": anchor, ...more }, text);

  const axes = svg("g", {},
    ...ticks.map((t) =>
      svg("path", { class: t ? "grid" : "base", d: `M${MARGIN.left} ${y(t)}H${right}` })),
    ...ticks.map((t) => write(MARGIN.left - 8, y(t) + 4, "end", number(t))),
    ...distinct(all.map((row) => row.budget)).flatMap((t) => [
      svg("path", { class: "base", d: `M${x(t)} ${bottom}v5` }),
      write(x(t), bottom + 18, "middle", number(t))]),
    write((MARGIN.left + right) / 2, height - 6, "middle", "parameters (log scale)"),
    write(0, 0, "middle", label,
      { transform: `translate(12 ${(MARGIN.top + bottom) / 2}) rotate(-90)` }));
  const above = references.flatMap(([at, by]) => [
    svg("path", { class: "reference", d: `M${MARGIN.left} ${y(at)}H${right}` }),
    write(right, y(at) - 5, "end", `${at}: ${by}`, { class: "reference" })]);

  placed = [];
  const drawn = lines.filter((line) => line.drawn).map((line) => {
    const [best, whiskers, points] = [new Map(), [], []];
    for (const row of line.rows) {
      const [px, py] = [x(value(row, "n_params")), y(value(row, measure))];
      const [from, to] = interval(row, measure);
      if (from !== null) {
        whiskers.push(`M${px} ${y(from)}V${y(to)}M${px - 3} ${y(from)}h6M${px - 3} ${y(to)}h6`);
      }
      if (!(best.get(row.budget)?.py < py)) best.set(row.budget, { px, py });
      points.push(marker(line, px, py));
      placed.push({ px, py, text: `${row.text.entry}${row.text.by === DATA.own ? "" :
        `, ${row.text.by}`}: ${row.text[measure]} ${label}, ${row.text.n_params} parameters` });
    }
    const path = `M${[...best.values()].map(({ px, py }) => `${px} ${py}`).join("L")}`;
    return inColour(line, svg("g", { "aria-label": line.name }, stroke(line, path),
      svg("path", { d: whiskers.join(""), class: "whisker" }), ...points));
  });
  fill(byId("plot"), { width, height, "aria-label":
    `${label} against parameters, ${track}; the table of all budgets has the numbers` }, []);
  byId("plot").replaceChildren(axes, ...drawn, ...above,
    svg("circle", { id: "ring", r: 9, cx: -99 }));
  tell(-1);
}

// What a point is, in words below the plot.
function tell(index) {
  current = index;
  const { px, py, text } = placed[index] ?? { px: -99, py: 0, text: "" };
  fill(byId("ring"), { cx: px, cy: py }, []);
  byId("told").textContent = text || "Point at a value, or step through them with ← and →.";
}

// Lines come close to each other: the pointer means the nearest point, not the one on top.
function pointAt({ clientX, clientY }) {
  const { left, top } = byId("plot").getBoundingClientRect();
  const away = placed.map(({ px, py }) => Math.hypot(px - clientX + left, py - clientY + top));
  const least = Math.min(...away);
  if (least < 24) tell(away.indexOf(least));
}
byId("plot").addEventListener("pointermove", pointAt);
byId("plot").addEventListener("pointerdown", pointAt);
byId("plot").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || !placed.length) return;
  event.preventDefault();
  tell((Math.max(current, step < 0 ? 0 : -1) + step + placed.length) % placed.length);
});
