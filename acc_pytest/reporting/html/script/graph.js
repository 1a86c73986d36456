/* The model as a graph: boxes in execution order that open to operators and edges. Made when it comes into sight. */

const graph = {
  ready: false, // whether the section has been in sight
  operators: [], edges: null, boxes: [], boxOf: [], localOf: [], byCode: null,
  opened: new Set(), // names of boxes that are open
  height: 0, crowded: false, shade: 0, // counts what makes operators stand back, or not
  canvas: null, size: { width: 0, height: 0 }, frame: 0,
  view: { x: 0, y: 0, k: 1 },
  focus: { box: 0, operator: -1 },
  hover: null,
  matched: null, // operators that the filters leave; null for all
  root: -1, followed: null, // the root that is followed, and the operators that inherit from it
  pointers: new Map(), moved: false, flight: 0,
  atRow: (place) => {
    const at = graph.byCode?.get(graphColumns().operators[place]);
    return at === undefined ? -1 : at;
  },
};

/** Wait for the section to come into sight; a page without edges has none. */
function startGraph() {
  const part = $("graph-part");
  part.hidden = rows.graph === null;
  if (part.hidden) return;
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    graph.ready = true;
    makeCanvas();
    foldGraph();
    firstSight();
  }, { rootMargin: "120px" }).observe(part);
}

function makeCanvas() {
  graph.canvas = make("canvas", { id: "graph-canvas", tabindex: "0", role: "application", on: graphEvents() });
  replace($("graph"), graph.canvas, make("div", { id: "graph-status", class: "unseen", role: "status" }));
  graph.canvas.setAttribute("aria-label", say("graph_help"));
  graph.canvas.addEventListener("wheel", wheelGraph, { passive: false });
  new ResizeObserver(measureGraph).observe($("graph"));
  measureGraph();
}

function measureGraph() {
  const frame = $("graph").getBoundingClientRect();
  graph.size = { width: Math.max(240, frame.width), height: Math.max(240, frame.height) };
  drawGraph();
}

/** Fold the rows of the chosen step and rank; what was open stays open. */
function foldGraph() {
  if (!graph.ready) return;
  const operators = foldOperators(network.places);
  const edges = foldEdges(operators, network.places);
  const boxes = foldBoxes(operators);
  Object.assign(graph, { operators, edges, focus: { box: 0, operator: -1 }, hover: null, crowded: boxes.length > 60 });
  graph.byCode = new Map(operators.map((one, at) => [one.code, at]));
  graph.boxOf = new Int32Array(operators.length);
  graph.localOf = new Int32Array(operators.length);
  graph.boxes = boxes.map(({ name, members }, number) => {
    const counts = {};
    let worst = operators[members[0]].worst, root = -1, roots = 0;
    members.forEach((at, local) => {
      const one = operators[at];
      graph.boxOf[at] = number;
      graph.localOf[at] = local;
      const verdict = rows.verdict(one.worst);
      counts[verdict] = (counts[verdict] ?? 0) + 1;
      if (worse(one.worst, worst)) worst = one.worst;
      if (one.root >= 0 && (root < 0 || one.root < root)) root = one.root;
      roots += one.root >= 0;
    });
    return { name: name || say("graph_model"), number, members, counts, worst, root, roots, open: graph.opened.has(name), layout: null, found: 0, edges: [], outer: [], before: [], after: [] };
  });
  edges.from.forEach((from, edge) => {
    const a = graph.boxOf[from], b = graph.boxOf[edges.to[edge]];
    if (a === b) graph.boxes[a].edges.push(edge);
    else {
      graph.boxes[a].outer.push(edge);
      graph.boxes[b].outer.push(edge);
      if (b === a + 1) {
        graph.boxes[a].after.push(edge);
        graph.boxes[b].before.push(edge);
      }
    }
  });
  for (const box of graph.boxes) box.edges.sort((one, other) => edges.bad[one] - edges.bad[other]); // bad ones on top
  matchGraph();
  followRoot(graph.root, false);
  placeBoxes();
  drawGraphControls();
  drawGraph();
}

const NEAR = 0.8; // the zoom at which names are still easily read

/** At first the box of the first root is open, and the root in the middle; else the chain from its top. */
function firstSight() {
  const first = graph.operators.reduce((best, one, at) =>
    (one.root >= 0 && (best < 0 || one.root < graph.operators[best].root) ? at : best), -1);
  const open = state.row === null ? -1 : graph.atRow(state.row);
  const narrow = Math.min(1, (graph.size.width - 40) / (SCENE.narrow + 20));
  graph.view.k = narrow;
  if (first < 0 && graph.boxes.length <= 3) openBox(graph.boxes[0], true);
  if (open >= 0 || first >= 0) {
    reveal(open >= 0 ? open : first);
    const wanted = (graph.size.width - 60) / graph.boxes[graph.focus.box].width;
    graph.view.k = Math.min(narrow, Math.max(wanted, NEAR));
    look(centreOf(graph.focus), false);
  } else {
    const whole = Math.min(narrow, (graph.size.height - 30) / graph.height);
    if (whole > 0.55) graph.view = { x: 0, y: graph.height / 2, k: whole };
    else graph.view = { x: 0, y: graph.size.height / 2 / narrow - 20, k: narrow };
  }
  drawGraph();
}

/** Open the box of an operator, and put the keyboard there. */
function reveal(operator) {
  const box = graph.boxes[graph.boxOf[operator]];
  if (!box.open) openBox(box, true);
  graph.focus = { box: box.number, operator };
}

function openBox(box, open) {
  box.open = open;
  graph.opened[open ? "add" : "delete"](box.name);
  placeBoxes();
  drawGraphControls();
  drawGraph();
}

/** Open or fold a box; its head stays where it is on the screen. */
function toggleBox(box, open = !box.open) {
  const top = graph.view.y - graph.size.height / 2 / graph.view.k;
  const before = box.open ? headOf(box, top) : box.y;
  openBox(box, open);
  graph.view.y += box.y - before;
  if (!open && graph.focus.box === box.number) graph.focus.operator = -1;
  sayFocus();
}

function toggleAll() {
  const open = !graph.boxes.every((box) => box.open || box.alone);
  for (const box of graph.boxes) {
    box.open = open;
    graph.opened[open ? "add" : "delete"](box.name);
  }
  if (!open) graph.focus.operator = -1;
  placeBoxes();
  drawGraphControls();
  look(centreOf(graph.focus), false);
}

/** The operators that the filters leave, where some are set by hand. */
function matchGraph() {
  if (!graph.ready) return;
  const first = firstFilter().verdicts ?? null;
  const chosenVerdicts = state.verdicts !== null
    && (first === null || first.size !== state.verdicts.size || [...first].some((one) => !state.verdicts.has(one)));
  graph.matched = null;
  graph.shade += 1;
  if (chosenVerdicts || state.layer || state.type || state.query) {
    const { operators } = graphColumns();
    graph.matched = new Set();
    for (const place of filtered(chosenVerdicts ? state.verdicts : null)) {
      const at = graph.byCode.get(operators[place]);
      if (at !== undefined) graph.matched.add(at);
    }
    for (const box of graph.boxes) box.found = box.members.filter((one) => graph.matched.has(one)).length;
  }
}

/** Let everything stand back but a root and what inherits from it; -1 follows none. */
function followRoot(root, move = true) {
  graph.root = root;
  graph.followed = null;
  graph.shade += 1;
  if (root >= 0) {
    const numbers = new Set(head.diagnosis.roots[root].places.map((place) => rows.numbers[place]));
    graph.followed = new Set();
    graph.operators.forEach((one, at) => {
      if (one.root === root || one.places.some((place) => numbers.has(rows.roots[place]))) graph.followed.add(at);
    });
    const at = graph.operators.findIndex((one) => one.root === root);
    if (move && at >= 0) {
      reveal(at);
      look(centreOf(graph.focus));
      sayFocus();
    }
  }
  drawGraph();
}

function drawGraphControls() {
  if (rows.graph === null) return;
  $("graph-basis").textContent = say("graph_basis", count(graph.operators.length), tell(rows.graph.basis));
  drawGraphLegend();
  const roots = head.diagnosis === null ? [] : head.diagnosis.roots.slice(0, 50);
  const here = new Set(graph.operators.map((one) => one.root));
  const choices = roots.map((root, at) => [at, `${at + 1} · ${root.name}`]).filter(([at]) => here.has(at));
  const button = (text, label, call) => make("button", { type: "button", text, "aria-label": label, title: label, on: { click: call } });
  const all = graph.boxes.every((box) => box.open || box.alone);
  replace(
    $("graph-controls"),
    choices.length ? choice(say("graph_follow"), [[-1, say("graph_everything")], ...choices], graph.root, (root) => {
      followRoot(Number(root));
      graph.canvas.focus({ preventScroll: true });
    }) : null,
    make("button", { type: "button", text: say(all ? "graph_fold_all" : "graph_open_all"), on: { click: toggleAll } }),
    make("span", { class: "zooms" },
      button("−", say("graph_smaller"), () => zoomGraph(1 / 1.35)),
      button("+", say("graph_larger"), () => zoomGraph(1.35)),
      button("⤢", say("graph_fit"), fitGraph)),
  );
}

const LEGEND = { pass: "heat-1", tie: "", inherited: "heat-2", known: "", incomparable: "", fail: "heat-4" };

/** What the colours mean, of the verdicts that are there. */
function drawGraphLegend() {
  const there = new Set(graph.operators.map((one) => rows.verdict(one.worst)));
  const swatch = (name) => make("i", { class: `swatch ${name}`, "aria-hidden": "true" });
  replace(
    $("graph-legend"),
    Object.entries(LEGEND).filter(([verdict]) => there.has(verdict)).map(([verdict, name]) =>
      (name ? make("span", { class: "badge" }, swatch(name), say(verdict)) : badge(verdict))),
    graph.edges.bad.includes(true)
      ? make("span", { class: "badge" }, make("i", { class: "carried", "aria-hidden": "true" }), say("graph_carried")) : null,
    graph.edges.guessed.includes(true)
      ? make("span", { class: "badge" }, make("i", { class: "guessed", "aria-hidden": "true" }), say("graph_guessed")) : null,
  );
}

function drawGraphWords() {
  if (graph.canvas === null) return;
  graph.canvas.setAttribute("aria-label", say("graph_help"));
  widths.clear();
  drawGraphControls();
  drawGraph();
}

/** What changed in the state, as far as the graph cares. */
function followInGraph(changed) {
  if (!graph.ready) return;
  if (changed.has("step") || changed.has("rank")) {
    foldGraph();
    firstSight();
  } else if (["verdicts", "layer", "type", "query"].some((name) => changed.has(name))) {
    matchGraph();
    const box = changed.has("layer") && state.layer ? graph.boxes.find((one) => one.name === state.layer) : undefined;
    if (box) {
      graph.focus = { box: box.number, operator: -1 };
      look(seen(focusFrame(graph.focus)));
    }
    drawGraph();
  }
  if (changed.has("row") && state.row !== null) {
    const at = graph.atRow(state.row);
    if (at >= 0 && at !== graph.focus.operator) reveal(at);
    if (at >= 0) look(seen(frameOf(at)));
  }
  if (changed.has("row") || changed.has("theme")) drawGraph();
}
