// The page's state is its address: controls write it, and everything is drawn from it. What the
// table is sorted by is the measure of bars and curves too, wherever it is one.

const first = (track, key) => measuresOf(track).includes(key) ? key : measuresOf(track)[0];
// The largest budget that has most of the families that the page asks about.
function fullest(track, budgets) {
  const families = (budget) => new Set(rowsOf(track, budget).map((row) => row.text.family));
  const known = (budget) => DATA.shown.filter((family) => families(budget).has(family)).length;
  const most = Math.max(...budgets.map(known));
  return budgets.findLast((budget) => known(budget) === most);
}
const DEFAULTS = { budget: fullest(TRACKS[0], BUDGETS), track: TRACKS[0], all: false };

// What an address asks for; what does not exist is as if it had not been asked for.
function read() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const one = (name, values) =>
    values.find((each) => String(each) === asked.get(name)) ?? DEFAULTS[name];
  const track = one("track", TRACKS);
  const budgets = BUDGETS.filter((each) => rowsOf(track, each).length);
  const asks = one("budget", budgets);
  const budget = budgets.includes(asks) ? asks : fullest(track, budgets);
  const usual = first(track, "bits_per_parameter");
  const sort = COLUMNS.has(asked.get("sort")) && known(rowsOf(track), asked.get("sort"))
    ? asked.get("sort") : usual;
  const measure = COLUMNS.get(sort).measure ? sort : usual;
  const dir = ["asc", "desc"].includes(asked.get("dir")) ? asked.get("dir") : firstDirection(sort);
  return { budget, track, sort, dir, measure, all: asked.get("all") === "true" };
}

const firstDirection = (key) => COLUMNS.get(key).right && key !== "rank" ? "desc" : "asc";

// Only what differs from the default is in the address.
function address(state) {
  const usual = { ...DEFAULTS, sort: first(state.track, "bits_per_parameter"),
    dir: firstDirection(state.sort) };
  const said = Object.entries(usual).filter(([name, value]) => state[name] !== value);
  return "#" + new URLSearchParams(said.map(([name]) => [name, state[name]]));
}

function change(changes) {
  const before = read();
  const state = { ...before, ...changes };
  // Not every track has every measure; its own comes first where nobody chose another.
  const chosen = before.sort !== first(before.track, "bits_per_parameter");
  if ("track" in changes) {
    state.sort = first(state.track, chosen ? before.sort : "bits_per_parameter");
  }
  if ("sort" in changes || "track" in changes) state.dir = firstDirection(state.sort);
  if (address(state) !== (location.hash || "#")) history.pushState(null, "", address(state));
  draw();
}

function offer(name, options, value) {
  const select = byId(`select-${name}`);
  select.replaceChildren(
    ...options.map(([option, label]) => html("option", { value: option }, label)));
  select.value = value;
}

function draw() {
  const state = read();
  const focused = byId("results").contains(document.activeElement)
    ? document.activeElement.dataset.key : undefined;
  const budgets = BUDGETS.filter((budget) => rowsOf(state.track, budget).length);
  offer("budget", budgets.map((each) => [each, number(each)]), state.budget);
  offer("track", TRACKS.map((each) => [each, each]), state.track);
  offer("sort", measuresOf(state.track).map((key) => [key, COLUMNS.get(key).label]), state.measure);
  byId("all").setAttribute("aria-pressed", state.all);
  drawTable(state);
  if (focused) byId("results").querySelector(`[data-key="${focused}"]`)?.focus();
  drawProvenance(state);
  drawCurves(state);
}

function addTheme() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
  const show = () => button.setAttribute("aria-pressed", theme() === "dark");
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  button.hidden = false;
  show();
}

function start() {
  addTheme();
  for (const part of document.querySelectorAll("main > section")) part.hidden = !DATA.rows.length;
  byId("empty").hidden = DATA.rows.length > 0;
  if (!DATA.rows.length) return;
  for (const name of ["budget", "track", "sort"]) {
    byId(`select-${name}`).addEventListener("change", (event) => {
      const chosen = event.target.value;
      change({ [name]: name === "budget" ? Number(chosen) : chosen });
    });
  }
  byId("all").addEventListener("click", () => change({ all: !read().all }));
  byId("results").addEventListener("click", (event) => {
    const key = event.target.closest("button[data-key]")?.dataset.key;
    if (key === undefined) return;
    const { sort, dir } = read();
    change(key === sort ? { dir: dir === "asc" ? "desc" : "asc" } : { sort: key });
  });
  // The address is the state's, so this link must not write it.
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("results").focus();
  });
  addEventListener("hashchange", draw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) drawCurves(read());
    width = innerWidth;
  });
  draw();
}

start();
