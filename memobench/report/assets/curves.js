// The measure against parameters on one track, a line for each family.

// Colour, marker and dash differ together, so that no line is known by its colour alone.
const MARKERS = [
  "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
  "M-4 -4h8v8h-8z",
  "M0 -5.2l5 8.7h-10z",
  "M0 -5.6l5.6 5.6l-5.6 5.6l-5.6 -5.6z",
  "M0 5.2l5 -8.7h-10z",
  "M-1.6 -5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
  "M-5 0l2.5 -4.4h5l2.5 4.4l-2.5 4.4h-5z",
];
const COLOURS = 8;
const DASHES = ["none", "7 3", "2 3", "9 3 2 3"];
const MARGIN = { left: 50, right: 16, top: 12, bottom: 46 };

const PLAIN = new Set(DATA.shown);
const toggled = new Set();
const isShown = (line) => PLAIN.has(line.name) !== toggled.has(line.name);
let placed = [];

// A line is one family of one submitter on one track: no two sweeps are joined. Of several entries
// at a budget it goes through the best, and the others are points beside it. The families that the
// page asks about come first.
function linesOf({ track, measure }) {
  const lines = new Map();
  for (const row of rowsOf(track).filter((each) => value(each, measure) !== null)) {
    const name = row.text.family + (row.text.by === DATA.own ? "" : `, ${row.text.by}`);
    if (!lines.has(name)) lines.set(name, { name, rows: [] });
    lines.get(name).rows.push(row);
  }
  const order = (line) => DATA.shown.indexOf(line.name) + 1 || 9;
  const found = [...lines.values()].sort((a, b) => order(a) - order(b) || compare(a.name, b.name));
  // What is shown must not be nothing.
  if (found.length && !found.some((line) => PLAIN.has(line.name))) PLAIN.add(found[0].name);
  return found.map((line, index) => ({ ...line, index }));
}

function bestOf(rows, measure) {
  const best = new Map();
  for (const row of rows) {
    const before = best.get(row.budget);
    if (!before || value(before, measure) < value(row, measure)) best.set(row.budget, row);
  }
  return [...best.values()].sort((a, b) => value(a, "n_params") - value(b, "n_params"));
}

function drawCurves(state) {
  const lines = linesOf(state);
  const label = COLUMNS.get(state.measure).label;
  byId("curves-title").textContent = `${label[0].toUpperCase()}${label.slice(1)} against parameters`;
  drawLegend(lines, state);
  drawPlot(lines.filter(isShown), lines, state, label);
}

const styleOf = (index) => ({
  class: `line s${index % COLOURS}`,
  "stroke-dasharray": DASHES[Math.floor(index / 2) % DASHES.length],
});
const marker = (index, attributes = {}) =>
  svg("path",
    { class: `marker s${index % COLOURS}`, d: MARKERS[index % MARKERS.length], ...attributes });

function drawLegend(lines, state) {
  const held = document.activeElement?.dataset?.line;
  byId("legend").replaceChildren(...lines.map((line) => {
    const sample = svg("svg",
      { width: 34, height: 14, viewBox: "0 0 34 14", "aria-hidden": "true" },
      svg("path", { d: "M0 7H34", ...styleOf(line.index) }),
      marker(line.index, { transform: "translate(17 7)" }));
    const button = html("button",
      { type: "button", "data-line": line.index, "aria-pressed": isShown(line) },
      sample, html("bdi", {}, line.name));
    button.addEventListener("click", () => {
      if (!toggled.delete(line.name)) toggled.add(line.name);
      drawCurves(state);
    });
    return button;
  }));
  if (held !== undefined) byId("legend").querySelector(`[data-line="${held}"]`)?.focus();
}

const said = (row, { measure }) => `${row.text[measure]} ${COLUMNS.get(measure).label} ` +
  `at ${row.text.n_params} parameters`;

function drawPlot(shown, lines, state, label) {
  const width = Math.max(260, byId("chart").clientWidth || 720);
  const height = Math.round(Math.min(440, Math.max(270, width * 0.5)));
  const { measure } = state;
  // Axes are those of all lines: they stay where they are while lines come and go.
  const all = lines.flatMap((line) => line.rows);
  const counts = all.map((row) => value(row, "n_params"));
  const [low, high] = [Math.min(...counts), Math.max(...counts)];
  const room = high > low ? (high / low) ** 0.06 : 1.6;
  const [start, end] = [low / room, high * room];
  const ticks = linearTicks(mostOf(all, measure), 5);
  const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
  const x = (at) => MARGIN.left + (right - MARGIN.left) *
    (Math.log(at) - Math.log(start)) / (Math.log(end) - Math.log(start));
  const y = (at) =>
    bottom - (bottom - MARGIN.top) * Math.min(1, Math.max(0, at / ticks.at(-1)));

  const plot = byId("plot");
  filled(plot, {
    width, height, viewBox: `0 0 ${width} ${height}`,
    "aria-label": `${label} against parameters, ${state.track}`,
  }, []);
  const labelled = (x, y, anchor, text, attributes = {}) =>
    svg("text", { x, y, "text-anchor": anchor, ...attributes }, text);
  const axes = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const tick of ticks) {
    const across = { x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick) };
    axes.append(svg("line", { class: tick ? "grid" : "base", ...across }),
      labelled(MARGIN.left - 8, y(tick) + 4, "end", String(Number(tick.toPrecision(3)))));
  }
  for (const tick of distinct(all.map((row) => row.budget))) {
    const mark = { x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 5 };
    axes.append(svg("line", { class: "base", ...mark }),
      labelled(x(tick), bottom + 18, "middle", number(tick)));
  }
  axes.append(labelled((MARGIN.left + right) / 2, height - 6, "middle", "parameters (log scale)"),
    labelled(0, 0, "middle", label,
      { transform: `translate(12 ${(MARGIN.top + bottom) / 2}) rotate(-90)` }));

  placed = [];
  const drawn = shown.map(({ name, rows, index }) => {
    const at = (row) => [x(value(row, "n_params")), y(value(row, measure))];
    const path = bestOf(rows, measure).map((row, i) => `${i ? "L" : "M"}${at(row).join(" ")}`);
    const whiskers = rows.filter((row) => interval(row, measure)[0] !== null).map((row) => {
      const [down, up] = interval(row, measure).map(y);
      return `M${at(row)[0]} ${down}V${up}M${at(row)[0] - 3} ${down}h6M${at(row)[0] - 3} ${up}h6`;
    });
    return svg("g", { role: "group", "aria-label": name },
      svg("path", { d: path.join(""), ...styleOf(index) }),
      svg("path", { d: whiskers.join(""), class: `whisker s${index % COLOURS}` }),
      ...rows.map((row) => dot(said(row, state), `${name}: ${row.text.entry}`, index, ...at(row))));
  });
  plot.replaceChildren(axes, ...drawn);
  // One stop of the Tab key for the whole plot; the arrow keys do the rest.
  plot.querySelector(".point")?.setAttribute("tabindex", "0");
  hideTooltip();
}

function dot(told, name, index, x, y) {
  const made = svg("g", {
    class: "point", role: "img", tabindex: "-1", transform: `translate(${x} ${y})`,
    "aria-label": `${name}: ${told}`,
  }, svg("circle", { class: "ring", r: 9 }), marker(index));
  const show = () => showTooltip(name, told, x, y);
  made.addEventListener("focus", show);
  made.addEventListener("blur", hideTooltip);
  placed.push({ made, show, x, y });
  return made;
}

// Lines come close to each other: the pointer means the nearest point, not the one on top.
function nearest(event) {
  const { left, top, width } = byId("plot").getBoundingClientRect();
  const scale = byId("plot").viewBox.baseVal.width / width;
  const away = ({ x, y }) =>
    Math.hypot(x - (event.clientX - left) * scale, y - (event.clientY - top) * scale);
  const first = placed.reduce((a, b) => (a && away(a) <= away(b) ? a : b), null);
  return first && away(first) < 20 ? first : null;
}

function pointTo(found) {
  for (const { made } of placed) made.classList.toggle("near", made === found?.made);
  if (found) found.show();
  else hideTooltip();
}

function showTooltip(line, told, x, y) {
  const tooltip = byId("tooltip");
  tooltip.replaceChildren(html("strong", {}, html("bdi", {}, line)), html("span", {}, told));
  tooltip.hidden = false;
  const most = byId("chart").clientWidth - tooltip.offsetWidth;
  const above = y - tooltip.offsetHeight - 14;
  tooltip.style.left = `${Math.max(0, Math.min(most, x - tooltip.offsetWidth / 2))}px`;
  tooltip.style.top = `${above >= 0 ? above : y + 14}px`;
}
function hideTooltip() { byId("tooltip").hidden = true; }

// Left and right along a line, up and down to the nearest point of the line before or after.
function moveFocus(event) {
  const current = event.target.closest(".point");
  if (event.key === "Escape") hideTooltip();
  if (!current) return;
  const own = [...current.parentNode.querySelectorAll(".point")];
  const at = own.indexOf(current);
  const beside = { ArrowLeft: own[at - 1], ArrowRight: own[at + 1], Home: own[0], End: own.at(-1) };
  let next = beside[event.key];
  if (event.key === "ArrowUp" || event.key === "ArrowDown") {
    const line = event.key === "ArrowUp"
      ? current.parentNode.previousElementSibling : current.parentNode.nextElementSibling;
    const left = (point) => point.getBoundingClientRect().left;
    next = [...(line?.querySelectorAll(".point") ?? [])].sort((a, b) =>
      Math.abs(left(a) - left(current)) - Math.abs(left(b) - left(current)))[0];
  }
  if (!(event.key in beside) && !event.key.startsWith("Arrow")) return;
  event.preventDefault();
  if (!next) return;
  current.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

byId("plot").addEventListener("keydown", moveFocus);
byId("plot").addEventListener("pointermove", (event) => pointTo(nearest(event)));
byId("plot").addEventListener("pointerleave", () => pointTo(null));
byId("plot").addEventListener("click", (event) =>
  nearest(event)?.made.focus({ preventScroll: true }));
