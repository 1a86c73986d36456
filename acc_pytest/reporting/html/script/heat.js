/* Layer by operator: the worst comparison of each. A cell is a button that filters the table. */

const HEAT_COLUMNS = 400, HEAT_ROWS = 60;
const HEAT_EDGES = [0.1, 1, 3, 10, 100];
/* Classes heat-0 (far within) to heat-5 (a hundred times beyond); heat-6 has no number. */

/** What the columns are: layers; or data types where there are no layers (operator checks). */
function heatColumn() {
  return distinct("layer").length > 1 ? "layer" : "dtype";
}

/** Of each cell the worst share of what is allowed, and how many rows it has. */
function heatCells(places, column) {
  const across = rows.texts[column], down = rows.texts.type;
  const cells = new Map(), columns = new Set(), types = new Set();
  for (const place of places) {
    const x = across.codes[place], y = down.codes[place];
    columns.add(x);
    types.add(y);
    const key = y * across.texts.length + x;
    const share = rows.closeness(place) ?? 0;
    const cell = cells.get(key) ?? { worst: -1, rows: 0, bad: 0 };
    cell.rows += 1;
    cell.bad += rows.verdicts[place] > TIE ? 1 : 0;
    const size = Number.isNaN(share) ? Infinity : share;
    if (size > cell.worst) cell.worst = size;
    cells.set(key, cell);
  }
  return { cells, columns: [...columns], types: [...types], width: across.texts.length };
}

function drawHeat() {
  const column = heatColumn();
  $("heat-title").textContent = say(column === "layer" ? "heat_title" : "heat_title_types");
  const { cells, columns, types, width } = heatCells(network.places, column);
  const names = rows.texts[column].texts, kinds = rows.texts.type.texts;
  const across = columns.slice(0, HEAT_COLUMNS), down = types.slice(0, HEAT_ROWS);
  const wide = across.length <= 14;
  const headRow = make("tr", {}, make("td"), across.map((code) => make("th", { scope: "col" },
    make("span", { text: wide ? names[code] || "–" : brief(names[code]), title: names[code] }))));
  const body = down.map((type) => make("tr", {},
    make("th", { scope: "row", text: kinds[type] || "–", title: kinds[type] }),
    across.map((code) => heatCell(cells.get(type * width + code), column, names[code], kinds[type], wide))));
  const table = make("table", {
    class: wide ? "wide" : "narrow",
    role: "grid",
    "aria-label": say("heat_help"),
    on: { keydown: moveInHeat },
  }, make("thead", {}, headRow), make("tbody", {}, body));
  const first = table.querySelector("button");
  if (first) first.tabIndex = 0;
  const cut = columns.length - across.length + types.length - down.length;
  replace($("heat"), table, cut ? make("p", { class: "muted", text: say("heat_cut", cut) }) : null);
  const scale = ["<0.1×", "<1×", "≥1×", "≥3×", "≥10×", "≥100×", "∞"];
  replace($("heat-legend"), scale.map((text, place) =>
    make("span", { class: "badge" }, make("i", { class: `swatch heat-${place}`, "aria-hidden": "true" }), text)));
}

/** `layers.12` is 12 where columns are narrow. */
function brief(name) {
  const digits = /(\d+)$/.exec(name);
  return digits ? digits[1] : name.slice(0, 2);
}

function heatCell(cell, column, name, type, wide) {
  if (cell === undefined) return make("td", { class: "void" });
  const text = times(cell.worst);
  return make("td", {}, make("button", {
    type: "button",
    tabindex: "-1",
    class: `heat-${heatClass(cell.worst)}`,
    "aria-label": `${type}, ${name}: ${text}`,
    text: wide ? text : cell.worst >= 1 ? "•" : "",
    on: {
      click: () => {
        change({ layer: column === "layer" ? name : "", type, verdicts: null, query: column === "layer" ? "" : name });
        $("rows").scrollIntoView({ block: "nearest" });
      },
      pointerenter: (event) => tip([`${type} · ${name}`, `${text} ${say("allowed")}`,
        `${count(cell.bad)} / ${count(cell.rows)}`], event.clientX, event.clientY),
      pointerleave: () => tip([]),
    },
  }));
}

function heatClass(worst) {
  if (worst === Infinity) return 6;
  return HEAT_EDGES.filter((edge) => worst >= edge).length;
}

/** Arrows move from cell to cell; only one cell is in the tab order. */
function moveInHeat(event) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const button = event.target.closest("button");
  if (!(event.key in steps) || button === null) return;
  const [down, right] = steps[event.key];
  const lines = [...button.closest("tbody").rows];
  let y = lines.indexOf(button.closest("tr")), x = button.parentElement.cellIndex;
  for (;;) {
    [y, x] = [y + down, x + right];
    const cell = lines[y]?.cells[x];
    if (cell === undefined) break;
    const next = cell.querySelector("button");
    if (next === null) continue;
    button.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    break;
  }
  event.preventDefault();
}
