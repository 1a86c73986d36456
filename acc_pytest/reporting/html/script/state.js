/* What the reader chose. It is kept in the address after #, so that a view can be bookmarked and sent. */

const state = {
  language: navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en",
  theme: "auto",
  metric: 0,
  step: "",
  rank: "",
  verdicts: null, // a Set; null is all
  layer: "",
  type: "",
  query: "",
  sort: "order",
  descending: false,
  row: null,
};

const watchers = [];

/** Call `watcher` with the names of what changed, after each change. */
function watch(watcher) {
  watchers.push(watcher);
}

/** Change some of the state and redraw what depends on it. */
function change(changes) {
  const changed = new Set(Object.keys(changes).filter((name) => state[name] !== changes[name]));
  if (changed.size === 0) return;
  Object.assign(state, changes);
  writeAddress();
  for (const watcher of watchers) watcher(changed);
}

const WORDS = ["step", "rank", "layer", "type", "query", "sort"];

function writeAddress() {
  const words = new URLSearchParams();
  for (const name of WORDS) if (state[name] && state[name] !== "order") words.set(name, state[name]);
  if (state.metric) words.set("metric", rows.metrics[state.metric].name);
  if (state.verdicts) words.set("verdict", [...state.verdicts].join(","));
  if (state.descending) words.set("descending", "1");
  if (state.row !== null) words.set("row", state.row);
  if (chosen.language) words.set("lang", state.language);
  if (chosen.theme) words.set("theme", state.theme);
  const text = words.toString();
  try {
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  } catch {
    // A page in a sandbox has no history of its own; the view is only not bookmarked.
  }
}

/** Which of the two were chosen by hand rather than taken from the browser. */
const chosen = { language: false, theme: false };

/** Language and theme of the address, which are needed before the rows are there. */
function readLook() {
  const words = new URLSearchParams(location.hash.slice(1));
  const language = words.get("lang"), theme = words.get("theme");
  if (language === "zh" || language === "en") [state.language, chosen.language] = [language, true];
  if (theme === "light" || theme === "dark") [state.theme, chosen.theme] = [theme, true];
}

/** The rest of the address; unknown words are ignored. Returns the changes. */
function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const found = {};
  for (const name of WORDS) if (words.has(name)) found[name] = words.get(name);
  if (words.has("metric")) {
    found.metric = Math.max(0, rows.metrics.findIndex((metric) => metric.name === words.get("metric")));
  }
  if (words.has("verdict")) {
    found.verdicts = new Set(words.get("verdict").split(",").filter((verdict) => VERDICTS.includes(verdict)));
  }
  if (words.has("descending")) found.descending = true;
  const row = Number(words.get("row") ?? NaN);
  if (Number.isInteger(row) && row >= 0 && row < rows.length) found.row = row;
  return found;
}
