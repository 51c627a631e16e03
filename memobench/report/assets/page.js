// The page's state is its address: controls write it, and everything is drawn from it. What the
// table is sorted by is the measure of bars and curves too, wherever it is one.

const ALL = "all";
const measuresOf = (track) =>
  DATA.columns.filter((c) => c.measure && known(rowsOf(track), c.key)).map((c) => c.key);
const mainOf = (track) => DATA.main.find((key) => known(rowsOf(track), key));
const namesOf = (track, key) => distinct(rowsOf(track).map((row) => row.text[key]));
const budgetsOf = (track) => distinct(rowsOf(track).map((row) => row.budget));
// The largest budget that has every family, or most of them.
function fullest(track) {
  const count = (budget) =>
    distinct(ofBudget(rowsOf(track), budget).map((row) => row.text.family)).length;
  const budgets = budgetsOf(track);
  return budgets.findLast((budget) => count(budget) === Math.max(...budgets.map(count)));
}
const asked = () => new URLSearchParams(location.hash.slice(1));

// What an address asks for; what does not exist is as if it had not been asked for.
function read() {
  const one = (name, values, usual) =>
    values.find((each) => String(each) === asked().get(name)) ?? usual;
  const track = one("track", TRACKS, TRACKS[0]);
  const sort = one("sort", [...COLUMNS.keys()].filter((key) => known(rowsOf(track), key)),
    mainOf(track));
  return {
    track, sort, measure: COLUMNS.get(sort).measure ? sort : mainOf(track),
    dir: one("dir", ["asc", "desc"], COLUMNS.get(sort).right && sort !== "rank" ? "desc" : "asc"),
    budget: one("budget", [...budgetsOf(track), ALL], fullest(track)),
    family: one("family", namesOf(track, "family"), ""),
    q: asked().get("q") ?? "",
    all: one("all", ["true"], ""),
  };
}

function change(changes) {
  const address = asked();
  for (const [name, value] of Object.entries(changes)) {
    if (value) address.set(name, value);
    else address.delete(name);
  }
  if (String(address) === String(asked())) return;
  // Letters of a search are no steps to go back to.
  history["q" in changes ? "replaceState" : "pushState"](null, "", `#${address}`);
  draw();
}

function draw() {
  const state = read();
  const labels = (keys) => keys.map((key) => [key, COLUMNS.get(key).label]);
  const options = {
    budget: [...budgetsOf(state.track).map((each) => [each, number(each)]), [ALL, "all"]],
    track: TRACKS.map((each) => [each, each]),
    family: [["", "all"], ...namesOf(state.track, "family").map((each) => [each, each])],
    sort: labels(measuresOf(state.track)),
  };
  const controls = byId("controls").elements;
  for (const [name, all] of Object.entries(options)) {
    controls[name].replaceChildren(...all.map(([value, label]) => html("option", { value }, label)));
    controls[name].value = name === "sort" ? state.measure : state[name];
  }
  if (controls.q.value !== state.q) controls.q.value = state.q;
  controls.all.checked = Boolean(state.all);
  const focused = byId("results").contains(document.activeElement)
    ? document.activeElement.dataset.key : undefined;
  drawTable(state);
  if (focused) byId("results").querySelector(`[data-key="${focused}"]`)?.focus();
  drawCurves(state);
}

for (const part of document.querySelectorAll("main > section")) part.hidden = !DATA.rows.length;
byId("empty").hidden = DATA.rows.length > 0;
if (DATA.rows.length) {
  const choose = ({ target }) => change({
    [target.name]: target.type === "checkbox" ? target.checked && "true" : target.value,
    ...(target.name === "sort" ? { dir: "" } : {}),
  });
  byId("controls").addEventListener("change", choose);
  byId("controls").elements.q.addEventListener("input", choose);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("results").addEventListener("click", (event) => {
    const key = event.target.closest("button[data-key]")?.dataset.key;
    if (key === undefined) return;
    const { sort, dir } = read();
    change(key === sort ? { dir: dir === "asc" ? "desc" : "asc" } : { sort: key, dir: "" });
  });
  addEventListener("hashchange", draw);
  draw();
  new ResizeObserver(drawPlot).observe(byId("chart"));
}
