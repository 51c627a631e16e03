// Accuracy against parameters, a line per architecture.

const POINTS = DATA.curves.filter((point) => point.n_params > 0 && point.accuracy !== null);
const GROUPS = [...new Set(POINTS.map((point) => point.group ?? ""))];
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
const MARGIN = { left: 46, right: 16, top: 12, bottom: 46 };

const hiddenLines = new Set();
let drawnGroup = null;
let placed = [];

function drawCurves(group) {
  drawnGroup = group;
  const points = POINTS.filter((point) => (point.group ?? "") === group);
  const lines = [...new Set(points.map((point) => point.line ?? MISSING))];
  drawLegend(lines);
  drawPlot(points, lines, group);
}

const styleOf = (index) => ({
  class: `line s${index % COLOURS}`,
  "stroke-dasharray": DASHES[Math.floor(index / 2) % DASHES.length],
});
const marker = (index, attributes = {}) =>
  svg("path",
    { class: `marker s${index % COLOURS}`, d: MARKERS[index % MARKERS.length], ...attributes });

function drawLegend(lines) {
  const held = document.activeElement?.dataset?.line;
  byId("legend").replaceChildren(...lines.map((line, index) => {
    const sample = svg("svg",
      { width: 34, height: 14, viewBox: "0 0 34 14", "aria-hidden": "true" },
      svg("path", { d: "M0 7H34", ...styleOf(index) }),
      marker(index, { transform: "translate(17 7)" }));
    const button = html("button",
      { type: "button", "data-line": index, "aria-pressed": !hiddenLines.has(line) },
      sample, html("bdi", {}, line));
    button.addEventListener("click", () => {
      if (!hiddenLines.delete(line)) hiddenLines.add(line);
      drawCurves(drawnGroup);
    });
    return button;
  }));
  if (held !== undefined) byId("legend").querySelector(`[data-line="${held}"]`)?.focus();
}

const shortCount = (value) => value >= 1e12 ? value.toExponential(0)
  : value >= 1e6 ? `${value / 1e6}M` : number(value, value < 1 ? 3 : 0);
const said = (point) => `accuracy ${number(point.accuracy, 3)}` +
  (point.interval === null ? "" : ` ± ${number(point.interval, 3)}`) +
  ` at ${number(point.n_params)} parameters`;

function drawPlot(points, lines, group) {
  const width = Math.max(260, byId("chart").clientWidth || 720);
  const height = Math.round(Math.min(440, Math.max(270, width * 0.5)));
  const counts = points.map((point) => point.n_params);
  const low = counts.reduce((a, b) => Math.min(a, b), Infinity);
  const high = counts.reduce((a, b) => Math.max(a, b), 0);
  const room = high > low ? (high / low) ** 0.04 : 1.6;
  const [first, last] = [low / room, high * room];
  const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
  const x = (value) => MARGIN.left + (right - MARGIN.left) *
    (Math.log(value) - Math.log(first)) / (Math.log(last) - Math.log(first));
  const y = (value) => bottom - (bottom - MARGIN.top) * Math.min(1, Math.max(0, value));

  const plot = byId("plot");
  filled(plot, {
    width, height, viewBox: `0 0 ${width} ${height}`,
    "aria-label": `Accuracy against parameters, ${group}`,
  }, []);
  const labelled = (x, y, anchor, label, attributes = {}) =>
    svg("text", { x, y, "text-anchor": anchor, ...attributes }, label);
  const axes = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const tick of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    const across = { x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick) };
    axes.append(svg("line", { class: tick ? "grid" : "base", ...across }),
      labelled(MARGIN.left - 8, y(tick) + 4, "end", number(tick, 1)));
  }
  for (const tick of logTicks(first, last, (right - MARGIN.left) / 62)) {
    const mark = { x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 5 };
    axes.append(svg("line", { class: "base", ...mark }),
      labelled(x(tick), bottom + 18, "middle", shortCount(tick)));
  }
  axes.append(labelled((MARGIN.left + right) / 2, height - 6, "middle", "parameters (log scale)"),
    labelled(0, 0, "middle", "accuracy",
      { transform: `translate(12 ${(MARGIN.top + bottom) / 2}) rotate(-90)` }));

  placed = [];
  const drawn = lines.map((line, index) => {
    if (hiddenLines.has(line)) return null;
    const own = points.filter((point) => (point.line ?? MISSING) === line)
      .sort((a, b) => a.n_params - b.n_params);
    const path = own.map((p, i) => `${i ? "L" : "M"}${x(p.n_params)} ${y(p.accuracy)}`).join("");
    const whiskers = own.filter((p) => p.interval !== null).map((p) => {
      const at = x(p.n_params);
      const [down, up] = [y(p.accuracy - p.interval), y(p.accuracy + p.interval)];
      return `M${at} ${down}V${up}M${at - 3} ${down}h6M${at - 3} ${up}h6`;
    }).join("");
    const dots = own.map((point) => dot(point, line, index, x(point.n_params), y(point.accuracy)));
    return svg("g", { role: "group", "aria-label": line },
      svg("path", { d: path, ...styleOf(index) }),
      svg("path", { d: whiskers, class: `whisker s${index % COLOURS}` }), ...dots);
  });
  plot.replaceChildren(axes, ...drawn.filter((group) => group !== null));
  // One stop of the Tab key for the whole plot; the arrow keys do the rest.
  plot.querySelector(".point")?.setAttribute("tabindex", "0");
  hideTooltip();
}

function dot(point, line, index, x, y) {
  const made = svg("g", {
    class: "point", role: "img", tabindex: "-1", transform: `translate(${x} ${y})`,
    "aria-label": `${line}: ${said(point)}`,
  }, svg("circle", { class: "ring", r: 9 }), marker(index));
  const show = () => showTooltip(line, said(point), x, y);
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
