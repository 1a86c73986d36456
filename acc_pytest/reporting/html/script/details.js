/* The panel of one comparison: everything that is known of it. */

let opener = null; // what had the focus before the panel

function drawDetails() {
  const panel = $("details"), place = state.row;
  if (place === null) {
    if (!panel.hidden) {
      panel.hidden = true;
      document.body.classList.remove("with-details");
      (opener?.isConnected ? opener : table.frame)?.focus({ preventScroll: true });
    }
    return;
  }
  if (panel.hidden) opener = document.activeElement;
  panel.hidden = false;
  document.body.classList.add("with-details");
  const detail = rows.details[place];
  replace(panel, panelHead(place), make("div", { class: "panel-body" },
    detail === undefined ? shortDetails(place) : fullDetails(place, detail)));
  panel.scrollTop = 0;
}

function panelHead(place) {
  const where = [
    rows.text("type", place), rows.text("layer", place),
    rows.text("step", place) && `${say("step")} ${stepText(rows.text("step", place))}`,
    rows.text("rank", place) && `${say("rank")} ${rows.text("rank", place)}`,
    rows.text("graph", place), rows.text("slot", place),
  ].filter(Boolean).join(" · ");
  const index = table.places.indexOf(place);
  const to = (step) => ({
    type: "button",
    disabled: index < 0 || table.places[index + step] === undefined,
    on: { click: () => { table.at = index + step; bringIntoSight(); change({ row: table.places[index + step] }); } },
  });
  const number = rootNumbers().get(place) ?? -1;
  return make("header", { class: "panel-head" },
    make("div", { class: "panel-tools" },
      badge(rows.verdict(place)),
      number >= 0 ? make("span", { class: "pill root-pill", text: say("root_n", number + 1) }) : null,
      make("span", { class: "spring" }),
      make("button", { ...to(-1), text: "↑", "aria-label": say("previous"), title: say("previous") }),
      make("button", { ...to(1), text: "↓", "aria-label": say("next"), title: say("next") }),
      make("button", { type: "button", id: "close", text: "✕", "aria-label": say("close"), title: `${say("close")} (Esc)`, on: { click: closeDetails } })),
    make("h2", { id: "details-name", text: rows.text("name", place) }),
    make("p", { class: "muted", text: where }));
}

function closeDetails() {
  change({ row: null });
}

function part(title, ...children) {
  return make("section", {}, make("h3", { text: say(title) }), children);
}

function fullDetails(place, detail) {
  return [
    make("p", { class: "said", text: tell(detail.sentence) }),
    detail.reasons.map((text) => make("p", { class: "said", text: tell(text) })),
    causePart(place, detail),
    checksPart(detail),
    detail.worst ? part("worst_title", plainTable(["index", "golden", "mine"],
      [[make("code", { text: detail.worst[0] }), short(detail.worst[1]), short(detail.worst[2])]],
      ["", "right number", "right number"])) : null,
    make("section", {}, drawPictures(detail.pictures)),
    historyPart(place),
    sidesPart(detail),
    detail.mapping || detail.policy
      ? part("mapping_title", make("p", {}, make("b", { text: detail.policy }), ` ${tell(detail.mapping)}`)) : null,
    detail.notes.length ? part("notes_title", make("ul", {}, detail.notes.map((text) => make("li", { text: tell(text) })))) : null,
    namesPart("counts_title", detail.counts),
    namesPart("case_title", detail.case),
    rerunPart(place),
  ];
}

/** Of a row that is not kept whole: what its columns say. */
function shortDetails(place) {
  const lines = rows.metrics.slice(1).map((metric) => [metric, rows.value(metric.values[place])])
    .filter(([, value]) => value !== null).map(([metric, value]) => [
      metric.fromOne ? say("from_one", metric.name) : metric.name, short(value),
      short(rows.value(metric.allowed[place])),
    ]);
  return [
    make("p", { class: "said", text: `${times(rows.closeness(place))} ${say("allowed")}` }),
    causePart(place, {}),
    part("checks_title", plainTable(["metric", "measured", "allowed"], lines, ["", "right number", "right number"])),
    plainTable(["", ""], [
      [say("node"), rows.text("golden", place)], [say("dtype"), rows.text("dtype", place)],
      [say("shape"), rows.text("shape", place)], [say("mapping_title"), rows.text("policy", place)],
    ].filter(([, text]) => text), ["key"]),
    rerunPart(place),
    make("p", { class: "muted", text: say("rounded") }),
  ];
}

function causePart(place, detail) {
  const root = rows.roots[place] < 0 ? -1 : rows.find(rows.roots[place]);
  const text = detail.cause?.text;
  if (!text && (root < 0 || root === place)) return null;
  return part("cause_title",
    text ? make("p", { text: tell(text) }) : null,
    root >= 0 && root !== place ? make("button", {
      type: "button",
      text: `${say("go_to_root")}: ${rows.text("name", root)}`,
      on: { click: () => openRow(root) },
    }) : null);
}

function checksPart(detail) {
  const checks = [...detail.checks].sort((one, other) => one.passed - other.passed);
  const bounded = new Set(checks.map((check) => check.metric));
  const others = Object.entries(detail.metrics).filter(([name]) => !bounded.has(name));
  return [
    checks.length ? part("checks_title", make("div", { class: "scroll", tabindex: "0" }, make("table", { class: "plain checks" },
      make("thead", {}, make("tr", {}, ["", "metric", "measured", "allowed", "share"].map((key, place) =>
        make("th", { scope: "col", class: place > 1 ? "right" : "", text: key ? say(key) : "" })))),
      checks.map(checkLines)))) : null,
    others.length ? make("details", {}, make("summary", { text: `${say("other_metrics")} (${others.length})` }),
      plainTable(["metric", "measured"], others.map(([name, value]) => [name, nearOne(value)]), ["", "right number"])) : null,
  ];
}

/** A name that may be broken after its underscores. */
function breakable(name) {
  return name.split(/(?<=_)/).flatMap((piece) => [piece, make("wbr")]);
}

/** A check: its numbers, and below them why the bound is what it is. */
function checkLines(check) {
  const mark = make("i", {
    class: check.passed ? "ok" : "broken", text: check.passed ? "✓" : "✗", role: "img",
    "aria-label": say(check.passed ? "pass" : "fail"),
  });
  const off = typeof check.allowed === "string";
  const bound = off ? say("off") : `${check.at_least ? "≥" : "≤"} ${nearOne(check.allowed)}`;
  const numbers = [nearOne(check.measured), bound, times(check.excess)];
  return make("tbody", {},
    make("tr", {}, make("td", {}, mark), make("td", {}, breakable(check.metric)),
      numbers.map((text) => make("td", { class: "right number", text }))),
    make("tr", {}, make("td"), make("td", { colspan: "4", class: "why", text: tell(check.reason) })));
}

function sidesPart({ golden, mine }) {
  const shown = (name, format = (value) => value ?? "") => {
    const cells = [format(golden[name]), format(mine[name])];
    return cells.some((cell) => cell !== "" && cell !== "–") ? [say(name), ...cells] : null;
  };
  const lines = [
    shown("node"), shown("op_type"), shown("code"), shown("slot"), shown("dtype"), shown("shape"),
    shown("max", short), shown("min", short), shown("mean", short),
  ].filter(Boolean);
  const files = [...golden.files.map((path) => ["golden", path]), ...mine.files.map((path) => ["mine", path])];
  return [
    lines.length ? part("sides_title", plainTable(["", "golden", "mine"], lines, ["key", "half", "half"])) : null,
    files.length ? part("files", make("ul", { class: "files" }, files.map(([side, path]) =>
      make("li", {}, make("span", { class: "muted", text: `${say(side)} ` }), make("code", { text: path }))))) : null,
  ];
}

function namesPart(title, values) {
  const pairs = Object.entries(values);
  if (pairs.length === 0) return null;
  return make("details", {}, make("summary", { text: say(title) }),
    plainTable(["", ""], pairs.map(([name, value]) => [name, make("span", { class: "why", text: short(value) })])));
}

function rerunPart(place) {
  const id = rows.testId(place);
  if (!id || !head.rerun) return part("rerun_title", make("p", { class: "muted", text: id || say("no_command") }));
  const command = `${head.rerun} ${quoted(id)}`;
  const button = make("button", {
    type: "button",
    text: say("copy"),
    on: { click: () => copy(command, button) },
  });
  return part("rerun_title", make("pre", { class: "command", tabindex: "0", text: command }), button);
}

/** A word for a POSIX shell. */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`;
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = say("copied");
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
  }
}
