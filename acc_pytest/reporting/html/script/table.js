/* The table: sorted, filtered, and of any length, for only the rows in sight are in the document. */

const ROW_HEIGHT = 30, AROUND = 8;

const table = { places: new Int32Array(0), at: 0, body: null, frame: null };

/** Columns of the table: how a row is shown, and by what it is sorted. */
function columns() {
  const text = (name) => ({ key: name, show: (place) => rows.text(name, place), rank: textRanks(name) });
  // The numbers of operator checks leave room for outputs, so that rows are counted instead.
  const number = (place) => head.title === "opcheck" ? place : rows.numbers[place] < 0 ? "" : rows.numbers[place];
  const digits = String(Math.max(0, number(rows.length - 1))).length;
  const all = [
    { key: "order", label: "#", width: `${Math.max(64, 30 + 9 * digits)}px`, class: "right", show: number, rank: (place) => place },
    { key: "verdict", label: say("verdict"), width: "126px", show: (place) => badge(rows.verdict(place)), rank: (place) => [7, 6, 0, 3, 4, 2, 5, 1][rows.verdicts[place]] },
    { ...text("name"), label: say("name"), width: "minmax(220px, 3fr)", class: "name" },
    { ...text("type"), label: say("operator"), width: "minmax(140px, 2fr)" },
    { ...text("layer"), label: say("layer"), width: "96px" },
    { ...text("step"), label: say("step"), width: "64px", class: "right", rank: stepRank },
    { ...text("rank"), label: say("rank"), width: "64px", class: "right" },
    { ...text("slot"), label: say("slot"), width: "96px" },
    { key: "share", label: say("share"), width: "104px", class: "right number", show: (place) => times(rows.closeness(place)), rank: (place) => sizeRank(rows.metrics[0].values[place]) },
  ];
  if (state.metric) {
    const metric = rows.metrics[state.metric];
    all.push({
      key: "metric",
      label: metric.fromOne ? say("from_one", metric.name) : metric.name,
      width: "minmax(110px, 1fr)",
      class: "right number",
      show: (place) => short(rows.value(metric.values[place])),
      rank: (place) => sizeRank(metric.values[place]),
    });
  }
  all.push({ ...text("because"), label: say("because"), width: "minmax(150px, 2fr)", class: "muted" });
  return all.filter((column) => column.key === "name" || column.key === "type" || !(column.key in rows.texts)
    || distinct(column.key).length > 0);
}

/** Texts sort as people count: layers.2 before layers.10. */
function textRanks(name) {
  const { texts, codes } = rows.texts[name];
  let ranks = null;
  return (place) => {
    if (ranks === null) {
      const order = texts.map((_, code) => code);
      const compare = new Intl.Collator("en", { numeric: true }).compare;
      order.sort((one, other) => compare(texts[one], texts[other]));
      ranks = new Int32Array(texts.length);
      order.forEach((code, rank) => { ranks[code] = rank; });
    }
    return ranks[codes[place]];
  };
}

function stepRank(place) {
  const number = Number(rows.text("step", place));
  return Number.isNaN(number) ? Infinity : number;
}

/** Codes in the order of what they mean: nothing, zero, numbers, infinite, NaN. */
function sizeRank(code) {
  if (code === NAN) return 1e6;
  if (code === INFINITE) return 1e5;
  return code === MINUS_INFINITE ? -1e5 : code;
}

/** Filter and sort anew, and draw. */
function renewTable() {
  const places = filtered();
  const column = columns().find((one) => one.key === state.sort);
  if (column && (state.sort !== "order" || state.descending)) {
    const ranks = Float64Array.from(places, column.rank);
    const order = Uint32Array.from(places, (_, index) => index);
    const sign = state.descending ? -1 : 1;
    order.sort((one, other) => sign * (ranks[one] - ranks[other]) || one - other);
    table.places = Int32Array.from(order, (index) => places[index]);
  } else {
    table.places = places;
  }
  table.at = Math.max(0, table.places.indexOf(state.row));
  $("shown").textContent = say("shown_of", count(places.length), count(rows.length));
  drawTable();
}

function drawTable() {
  const shown = columns();
  const heads = shown.map((column) => make("button", {
    type: "button",
    role: "columnheader",
    class: column.class ?? "",
    "aria-sort": state.sort === column.key ? (state.descending ? "descending" : "ascending") : "none",
    on: { click: () => sortBy(column.key) },
  }, make("span", { text: column.label }), make("i", {
    "aria-hidden": "true",
    text: state.sort === column.key ? (state.descending ? "▼" : "▲") : "",
  })));
  table.body = make("div", { class: "grid-body", role: "rowgroup" });
  const empty = table.places.length === 0 ? make("p", { class: "muted empty", text: say("no_rows") }) : null;
  const scroller = make("div", {
    class: "grid",
    role: "grid",
    tabindex: "0",
    "aria-label": `${say("table_title")}. ${say("table_help")}`,
    "aria-rowcount": table.places.length + 1,
    on: { scroll: () => drawSight(shown), keydown: moveInTable },
  }, make("div", { class: "grid-head", role: "row", "aria-rowindex": "1" }, heads), table.body, empty);
  scroller.style.setProperty("--columns", shown.map((column) => column.width).join(" "));
  table.body.style.height = `${table.places.length * ROW_HEIGHT}px`;
  const kept = table.frame !== null && document.activeElement === table.frame;
  table.frame = scroller;
  replace($("table"), scroller);
  if (kept) scroller.focus({ preventScroll: true });
  bringIntoSight();
  drawSight(shown);
  hintAtEdges(scroller);
}

/** Put the rows in sight into the document. */
function drawSight(shown = columns()) {
  const { frame, body, places } = table;
  const first = Math.max(0, Math.floor(frame.scrollTop / ROW_HEIGHT) - AROUND);
  const last = Math.min(places.length, Math.ceil((frame.scrollTop + frame.clientHeight) / ROW_HEIGHT) + AROUND);
  const lines = [];
  for (let index = first; index < last; index += 1) lines.push(tableLine(shown, index, places[index]));
  replace(body, lines);
  frame.setAttribute("aria-activedescendant", places.length ? `row-${table.at}` : "");
}

function tableLine(shown, index, place) {
  const cells = shown.map((column) => {
    const value = column.show(place);
    const title = typeof value === "string" && value.length > 12 ? value : null;
    return make("div", { class: column.class ?? "", role: "gridcell", title }, value);
  });
  const line = make("div", {
    class: `line ${rows.verdict(place)}${index === table.at ? " at" : ""}${place === state.row ? " open" : ""}`,
    role: "row",
    id: `row-${index}`,
    "aria-rowindex": index + 2,
    "aria-selected": String(index === table.at),
    on: { click: () => { table.at = index; openRow(place); } },
  }, cells);
  line.style.top = `${index * ROW_HEIGHT}px`;
  return line;
}

function sortBy(key) {
  change(state.sort === key ? { descending: !state.descending } : { sort: key, descending: key === "share" || key === "metric" });
}

function bringIntoSight() {
  const { frame } = table, top = table.at * ROW_HEIGHT;
  if (top < frame.scrollTop) frame.scrollTop = top;
  const bottom = top + 2 * ROW_HEIGHT - frame.clientHeight;
  if (bottom > frame.scrollTop) frame.scrollTop = bottom;
}

function moveInTable(event) {
  if (event.target !== table.frame) return;
  const page = Math.max(1, Math.floor(table.frame.clientHeight / ROW_HEIGHT) - 2);
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (event.key === "Enter" && table.places.length) openRow(table.places[table.at]);
  else if (!(event.key in steps)) return;
  else {
    table.at = Math.max(0, Math.min(table.places.length - 1, table.at + steps[event.key]));
    bringIntoSight();
    drawSight();
    if (state.row !== null) change({ row: table.places[table.at] });
  }
  event.preventDefault();
}
