/* Layer by operator: the worst comparison of each. A cell is a button that filters the table. */

const HEAT_COLUMNS = 400, HEAT_ROWS = 60;
const HEAT_EDGES = [0.1, 1, 3, 10, 100];
/* Classes heat-0 (far within) to heat-5 (a hundred times beyond); heat-6 has no number. */

/** What the columns are: layers; or data types where there are no layers (operator checks). */
function heatColumn() {
  return distinct("layer").length > 1 ? "layer" : "dtype";
}

/**
 * Of each cell the worst share of what is allowed, and how many rows it has. A cell with a root shows the root, one
 * with own failures the worst of these; else it is `weak`: all that fails in it inherits.
 */
function heatCells(places, column) {
  const across = rows.texts[column], down = rows.texts.type, roots = rootNumbers();
  const cells = new Map(), columns = new Set(), types = new Set(), kept = { columns: new Set(), types: new Set() };
  for (const place of places) {
    const x = across.codes[place], y = down.codes[place];
    columns.add(x);
    types.add(y);
    const key = y * across.texts.length + x;
    const share = rows.closeness(place) ?? 0;
    const cell = cells.get(key) ?? { worst: -1, rank: -1, root: -1, rows: 0, bad: 0 };
    cell.rows += 1;
    cell.bad += rows.verdicts[place] > TIE ? 1 : 0;
    const size = Number.isNaN(share) ? Infinity : share;
    const root = roots.get(place) ?? -1;
    const rank = root >= 0 ? 2 : ["fail", "incomparable"].includes(rows.verdict(place)) ? 1 : 0;
    if (rank > cell.rank || (rank === cell.rank && size > cell.worst)) [cell.worst, cell.rank] = [size, rank];
    if (root >= 0 && (cell.root < 0 || root < cell.root)) cell.root = root;
    if (root >= 0) {
      kept.columns.add(x);
      kept.types.add(y);
    }
    cells.set(key, cell);
  }
  const cut = (codes, most, always) => [...codes].filter((code, place) => place < most || always.has(code));
  return {
    cells, columns: cut(columns, HEAT_COLUMNS, kept.columns), types: cut(types, HEAT_ROWS, kept.types),
    width: across.texts.length, all: columns.size + types.size,
  };
}

function drawHeat() {
  const column = heatColumn();
  $("heat-title").textContent = say(column === "layer" ? "heat_title" : "heat_title_types");
  const { cells, columns: across, types: down, width, all } = heatCells(network.places, column);
  const names = rows.texts[column].texts, kinds = rows.texts.type.texts;
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
  const root = firstRootCell(table);
  const first = root ?? table.querySelector("button");
  if (first) first.tabIndex = 0;
  const cut = all - across.length - down.length;
  replace($("heat"), table, cut ? make("p", { class: "muted", text: say("heat_cut", cut) }) : null);
  drawHeatLegend(root, [...cells.values()].some((cell) => isWeak(cell)));
  hintAtEdges($("heat"));
  if (root) $("heat").scrollLeft = root.parentElement.offsetLeft - $("heat").clientWidth / 2;
}

/** The cell of the root with the smallest number, which an address can name. */
function firstRootCell(table) {
  const found = [...table.querySelectorAll(".of-root")];
  found.sort((one, other) => Number(one.dataset.root) - Number(other.dataset.root));
  if (found.length) found[0].parentElement.id = "first-root";
  return found[0] ?? null;
}

function drawHeatLegend(root, weak) {
  const scale = ["<0.1×", "<1×", "≥1×", "≥3×", "≥10×", "≥100×", "∞"];
  const swatch = (name) => make("i", { class: `swatch ${name}`, "aria-hidden": "true" });
  replace(
    $("heat-legend"),
    scale.map((text, place) => make("span", { class: "badge" }, swatch(`heat-${place}`), text)),
    weak ? make("span", { class: "badge" }, swatch("heat-4 weak"), say("heat_inherited")) : null,
    root ? make("button", {
      type: "button",
      class: "badge plain-button",
      on: { click: () => { root.scrollIntoView({ block: "center", inline: "center" }); root.focus(); } },
    }, swatch("heat-4 of-root"), say("heat_root")) : null,
  );
}

/** Whether something fails in a cell, and nothing of it for itself. */
function isWeak(cell) {
  return cell.rank === 0 && cell.worst >= 1;
}

/** `layers.12` is 12 where columns are narrow. */
function brief(name) {
  const digits = /(\d+)$/.exec(name);
  return digits ? digits[1] : name.slice(0, 2);
}

function heatCell(cell, column, name, type, wide) {
  if (cell === undefined) return make("td", { class: "void" });
  const text = times(cell.worst), root = cell.root < 0 ? "" : say("root_n", cell.root + 1);
  const short = cell.root >= 0 ? String(cell.root + 1) : cell.worst >= 1 ? "•" : "";
  const said = [root, isWeak(cell) ? say("inherited") : ""].filter(Boolean);
  const weak = isWeak(cell) ? " weak" : cell.root >= 0 ? " of-root" : "";
  return make("td", {}, make("button", {
    type: "button",
    tabindex: "-1",
    class: `heat-${heatClass(cell.worst)}${weak}`,
    "data-root": cell.root < 0 ? null : cell.root,
    "aria-label": `${type}, ${name}: ${[text, ...said].join(", ")}`,
    text: wide ? text : short,
    on: {
      click: () => {
        change({ layer: column === "layer" ? name : "", type, verdicts: null, query: column === "layer" ? "" : name });
        $("rows").scrollIntoView({ block: "nearest" });
      },
      pointerenter: (event) => tip([`${type} · ${name}`, [`${text} ${say("allowed")}`, ...said].join(" · "),
        say("heat_n_fail", count(cell.bad), count(cell.rows))], event.clientX, event.clientY),
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
