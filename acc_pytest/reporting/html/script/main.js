/* Start: the verdict first, then the rows; after that everything follows the state. */

const head = JSON.parse($("head-data").textContent);
/** The template of each reason among the texts, and what fills it. */
const REASONS = new Map(Object.entries(head.reasons ?? {}));
let rows = null;

function drawWords() {
  document.documentElement.lang = state.language === "zh" ? "zh-CN" : "en";
  for (const element of document.querySelectorAll("[data-say]")) element.textContent = say(element.dataset.say);
  $("kind").textContent = say(head.title);
  const set = (name) => (value) => {
    chosen[name] = true;
    change({ [name]: value });
  };
  replace(
    $("switches"),
    choice(say("language"), [["en", "English"], ["zh", "中文"]], state.language, set("language")),
    choice(say("theme"), ["auto", "light", "dark"].map((one) => [one, say(`theme_${one}`)]), state.theme, set("theme")),
    make("button", { type: "button", text: say("print"), on: { click: () => print() } }),
  );
}

function applyTheme() {
  document.documentElement.style.colorScheme = state.theme === "auto" ? "" : state.theme;
}

function drawAll() {
  drawWords();
  drawBanner();
  drawRoots();
  drawEnvironment();
  if (rows === null) return;
  drawNetworkControls();
  drawNetworkLegend();
  drawNetwork();
  drawHeat();
  drawGraphWords();
  drawFilters();
  renewTable();
  drawDetails();
}

const FILTERS = ["verdicts", "step", "rank", "layer", "type", "query"];

function follow(changed) {
  const any = (...names) => names.some((name) => changed.has(name));
  if (changed.has("theme")) applyTheme();
  if (changed.has("language")) {
    drawAll();
    return;
  }
  if (any("step", "rank")) {
    takeRows();
    drawHeat();
  }
  if (any("step", "rank", "metric")) drawNetworkControls();
  if (changed.has("row")) showRow(); // before the chart, which may become narrower
  if (any("step", "rank", "metric", "theme", "row")) drawNetwork();
  if (any("step", "layer", "type") || (changed.has("query") && $("search").value !== state.query)) drawFilters();
  else if (any(...FILTERS)) showFilters();
  if (any(...FILTERS, "sort", "descending", "metric")) renewTable();
  followInGraph(changed);
}

/** Open the chosen row (or close the panel), and mark it in the table. */
function showRow() {
  const index = table.places.indexOf(state.row);
  if (index >= 0) table.at = index;
  drawSight();
  drawDetails();
}

async function start() {
  readLook();
  applyTheme();
  drawAll();
  try {
    rows = await readRows();
  } catch (error) {
    $("loading").textContent = say("cannot_read", String(error.message ?? error));
    return;
  }
  $("loading").remove();
  $("explore").hidden = rows.length === 0;
  Object.assign(state, firstFilter(), readAddress());
  takeRows();
  drawAll();
  startGraph();
  watch(follow);
  addEventListener("resize", () => {
    drawNetwork();
    for (const box of [$("heat"), table.frame]) hintAtEdges(box);
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.row !== null && event.target !== network.canvas) closeDetails();
  });
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll(".compared, .root-places")) folded.open = true;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawNetwork();
    drawGraph();
  });
  document.documentElement.dataset.ready = String(rows.length);
  document.documentElement.dataset.milliseconds = String(Math.round(performance.now()));
}

/** Where something fails, the table begins with what is no pass. */
function firstFilter() {
  const notable = VERDICTS.filter((verdict) => verdict !== "pass" && verdict !== "unmapped" && head.counts[verdict]);
  return head.exit !== 0 && notable.length && head.counts.pass ? { verdicts: new Set(notable) } : {};
}

start();
