// The page's state is its address: controls write it, and everything is drawn from it.

const DEFAULTS = {
  version: VERSIONS[0] ?? "", ...Object.fromEntries(Object.keys(FILTERS).map((name) => [name, ""])),
  search: "", per: "all", measure: "bits", sort: "", dir: "", group: GROUPS[0] ?? "",
};

// What an address asks for; what does not exist is as if it had not been asked for.
function read() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const state = { ...DEFAULTS };
  for (const name of Object.keys(state)) if (asked.has(name)) state[name] = asked.get(name);
  const allow = (name, values) => {
    if (!values.map(String).includes(state[name])) state[name] = DEFAULTS[name];
  };
  allow("version", VERSIONS);
  for (const name of Object.keys(FILTERS)) allow(name, filterValues(name, state.version));
  allow("per", Object.keys(PER));
  allow("measure", Object.keys(MEASURES));
  allow("group", GROUPS);
  allow("sort", COLUMNS.map((column) => column.key));
  allow("dir", ["asc", "desc"]);
  const sort = state.sort || state.measure;
  return { ...state, sort, dir: state.dir || firstDirection(sort) };
}

const firstDirection = (key) => COLUMNS.find((column) => column.key === key).right ? "desc" : "asc";
const filterValues = (name, version) => distinct(rowsOf(version).map((row) => row[name]));

// Only what differs from the default stands in the address; order is given as a whole.
function address(state) {
  const byDefault = state.sort === state.measure && state.dir === "desc";
  const told = Object.entries(state).filter(([name, value]) =>
    name === "sort" || name === "dir" ? !byDefault : value !== DEFAULTS[name]);
  const query = new URLSearchParams(told).toString();
  // Legal in a fragment, and easier to read.
  return "#" + query.replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%2F", "/");
}

// Typing replaces the address, so that the back button does not go letter by letter.
function change(changes, { typing = false } = {}) {
  const before = read();
  const state = { ...before, ...changes };
  if ("measure" in changes && before.sort === before.measure) state.sort = state.measure;
  const target = address(state);
  if (target !== (location.hash || "#")) {
    history[typing ? "replaceState" : "pushState"](null, "", target);
  }
  draw();
}

const controls = new Map();
function addSelect(parent, name, label) {
  const select = html("select", { id: `select-${name}` });
  select.addEventListener("change", () => change({ [name]: select.value }));
  const head = html("label", { for: select.id }, label);
  parent.append(html("div", { class: "control" }, head, select));
  controls.set(name, select);
}

function offer(name, options, value) {
  const select = controls.get(name);
  select.replaceChildren(
    ...options.map(([option, label]) => html("option", { value: option }, label)));
  select.value = value;
  // Nothing to choose: nothing to show.
  const least = name === "version" || name === "group" ? 2 : 1;
  select.parentNode.hidden = options.length < least;
}

function draw() {
  const state = read();
  const focused = byId("results").contains(document.activeElement)
    ? document.activeElement.dataset.key : undefined;
  const same = (names) => names.map((name) => [name, name || MISSING]);
  offer("version", same(VERSIONS), state.version);
  offer("measure", Object.entries(MEASURES).map(([key, { label }]) => [key, label]), state.measure);
  offer("per", Object.entries(PER_LABELS), state.per);
  for (const name of Object.keys(FILTERS)) {
    const values = filterValues(name, state.version);
    const label = (value) => typeof value === "number" ? number(value) : value;
    const options = values.map((value) => [value, label(value)]);
    offer(name, options.length ? [["", "all"], ...options] : [], state[name]);
  }
  if (byId("search").value !== state.search) byId("search").value = state.search;
  drawTable(state);
  if (focused) byId("results").querySelector(`[data-key="${focused}"]`)?.focus();
  drawProvenance(state.version);
  if (GROUPS.length) {
    offer("group", same(GROUPS), state.group);
    drawCurves(state.group);
  }
}

function addSearch(parent) {
  const input = html("input",
    { id: "search", type: "search", autocomplete: "off", spellcheck: "false" });
  input.addEventListener("input", () => change({ search: input.value }, { typing: true }));
  const head = html("label", { for: "search" }, "Search");
  parent.append(html("div", { class: "control wide" }, head, input));
}

function addTheme() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
  const isDark = () => theme() === "dark";
  const show = () => button.setAttribute("aria-pressed", isDark());
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  button.hidden = false;
  show();
}

function start() {
  const parent = byId("controls");
  addSelect(parent, "version", "Board version");
  addSelect(parent, "measure", "Measure");
  addSelect(parent, "per", "Per parameter, counting");
  for (const [name, label] of Object.entries(FILTERS)) addSelect(parent, name, label);
  addSearch(parent);
  addSelect(byId("curve-controls"), "group", "Curves of");
  byId("reset").addEventListener("click", () => {
    change({ ...DEFAULTS, version: read().version, sort: DEFAULTS.measure, dir: "desc" });
  });
  byId("results").addEventListener("click", (event) => {
    const key = event.target.closest("button[data-key]")?.dataset.key;
    if (key === undefined) return;
    const { sort, dir } = read();
    change({ sort: key, dir: key !== sort ? firstDirection(key) : dir === "asc" ? "desc" : "asc" });
  });
  // The address is the state's, so this link must not write it.
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("results").focus();
  });
  byId("board").hidden = false;
  parent.hidden = byId("reset").hidden = !DATA.board.length;
  byId("provenance").hidden = !DATA.board.length;
  byId("curves").hidden = !GROUPS.length;
  addTheme();
  addEventListener("hashchange", draw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width && GROUPS.length) drawCurves(drawnGroup);
    width = innerWidth;
  });
  draw();
}

start();
