/* From the shown rows to the graph: operators (rows of all steps and ranks that are shown), edges, boxes. */

const BOX = { large: 300, block: 100, few: 12, small: 8 };
/* Above `large` operators a box is cut by module path, and where there is none into blocks of about `block`; of
   more than `few` boxes in a row, those below `small` are put together. */

const SEVERITY = { pass: 0, tie: 1, known: 2, unmapped: 3, inherited: 4, incomplete: 5, incomparable: 6, fail: 7 };
const severity = (place) => SEVERITY[rows.verdict(place)];

/** Layers of what a run was given, which stands first whenever it is read. */
const GIVEN = new Set(["inputs", "weights"]);

let unpacked = null;

/** The columns of the graph: operator of each row, and the rows above it. */
function graphColumns() {
  if (unpacked !== null) return unpacked;
  const { operators, counts, back, fed, paths } = rows.graph;
  const starts = new Int32Array(counts.length + 1);
  counts.forEach((many, place) => { starts[place + 1] = starts[place] + Math.abs(many); });
  const given = new Map();
  for (const [kind, places] of Object.entries(fed)) for (const place of summed(places)) given.set(place, kind);
  unpacked = {
    operators: summed(operators), starts, back, given,
    guessed: counts.map((many) => many < 0),
    paths: { texts: paths.texts, codes: summed(paths.codes) },
  };
  return unpacked;
}

/**
 * Operators in execution order, which steps and ranks share: an operator stands where it first ran in any of them.
 * `worst` is the row that says most of one, `first` the row it is named by.
 */
function foldOperators(places) {
  const { operators, given } = graphColumns();
  const found = new Map(), turns = new Map(), graphs = new Map();
  const roots = rootNumbers();
  const { step, rank, graph: program } = rows.texts;
  for (const place of places) {
    const code = operators[place], kind = given.get(place) ?? "";
    if (code < 0) continue;
    let one = found.get(code);
    if (one === undefined) {
      one = { code, places: [], first: place, worst: place, kind, root: -1, rootPlace: -1, turn: Infinity, graph: 0 };
      found.set(code, one);
    }
    one.places.push(place);
    if (one.kind && !kind) Object.assign(one, { first: place, kind });
    if (!ofOperator(kind)) {
      const run = `${program.codes[place]} ${step.codes[place]} ${rank.codes[place]}`;
      turns.set(run, (turns.get(run) ?? 0) + 1);
      if (!graphs.has(program.codes[place])) graphs.set(program.codes[place], graphs.size);
      one.turn = Math.min(one.turn, turns.get(run));
      one.graph = graphs.get(program.codes[place]);
    }
    if (worse(place, one.worst)) one.worst = place;
    const root = roots.get(place) ?? -1;
    if (root >= 0 && (one.root < 0 || root < one.root)) [one.root, one.rootPlace] = [root, place];
  }
  const runs = (one) => (one.turn === Infinity ? 0 : one.turn);
  return [...found.values()].sort((one, other) =>
    one.graph - other.graph || runs(one) - runs(other) || one.first - other.first);
}

/** What belongs to the operator that reads it, of what a run was given. */
const ofOperator = (kind) => kind === "weight" || kind === "buffer";

function worse(place, than) {
  const by = severity(place) - severity(than);
  return by > 0 || (by === 0 && sizeRank(rows.metrics[0].values[place]) > sizeRank(rows.metrics[0].values[than]));
}

/** Edges between operators, without those against the order of execution. `bad` ones carry a difference on. */
function foldEdges(operators, places) {
  const { operators: codes, starts, back, guessed } = graphColumns();
  const index = new Map(operators.map((one, at) => [one.code, at]));
  const known = new Map(), edges = { from: [], to: [], bad: [], guessed: [] };
  const bad = (place) => severity(place) >= SEVERITY.inherited;
  for (const place of places) {
    const to = index.get(codes[place]);
    if (to === undefined) continue;
    for (let at = starts[place]; at < starts[place + 1]; at += 1) {
      const parent = place - back[at], from = index.get(codes[parent]);
      if (from === undefined || from >= to) continue;
      const key = from * operators.length + to;
      let edge = known.get(key);
      if (edge === undefined) {
        edge = edges.from.length;
        known.set(key, edge);
        edges.from.push(from);
        edges.to.push(to);
        edges.bad.push(false);
        edges.guessed.push(guessed[place]);
      }
      if (bad(place) && bad(parent)) edges.bad[edge] = true;
    }
  }
  return edges;
}

/** The boxes that the operators are folded into, in execution order: [{ name, members }]. */
function foldBoxes(operators) {
  const { paths } = graphColumns();
  return boxesOf(operators.map((one) => ({
    layer: rows.text("layer", one.first),
    path: paths.texts[paths.codes[one.code]],
  })));
}

/**
 * Boxes of `nodes` ({ layer, path }): a repeated layer is one; what is outside is cut by module path, and
 * by order where there are no paths.
 */
function boxesOf(nodes) {
  const runs = new Map();
  const layers = new Set();
  nodes.forEach(({ layer }, at) => {
    const named = /\.\d+$/.test(layer);
    if (named) layers.add(layer);
    const key = named || GIVEN.has(layer) ? layer : `${layer}\n${layers.size}`;
    if (!runs.has(key)) runs.set(key, { name: layer, named, members: [] });
    runs.get(key).members.push(at);
  });
  const boxes = [];
  for (const { name, named, members } of runs.values()) {
    if (named || (GIVEN.has(name) && members.length <= BOX.large)) boxes.push({ name, members });
    else boxes.push(...merged(cut(members, name, 0, nodes)));
  }
  return boxes.sort((one, other) => one.members[0] - other.members[0]);
}

/** Members by the next part of their paths; what is still large is cut further. */
function cut(members, name, depth, nodes) {
  const parts = new Map();
  for (const at of members) {
    const part = nodes[at].path.split(".")[depth] ?? "";
    if (!parts.has(part)) parts.set(part, []);
    parts.get(part).push(at);
  }
  if (parts.size > 1) {
    return [...parts].flatMap(([part, inside]) =>
      inside.length > BOX.large ? cut(inside, part || name, depth + 1, nodes) : [{ name: part || name, members: inside }]);
  }
  if (members.length === 0) return [];
  const [[part]] = parts;
  if (part !== "") return cut(members, part, depth + 1, nodes);
  return members.length > BOX.large ? blocks(members) : [{ name, members }];
}

/** By order alone. */
function blocks(members) {
  const each = Math.min(BOX.large, Math.max(BOX.block, Math.ceil(members.length / 200)));
  const found = [];
  for (let start = 0; start < members.length; start += each) {
    const inside = members.slice(start, start + each);
    found.push({ name: `#${start + 1} – ${start + inside.length}`, members: inside });
  }
  return found;
}

/** Where there are many small boxes, neighbours are put together. */
function merged(boxes) {
  if (boxes.length <= BOX.few) return boxes;
  const found = [];
  for (const box of boxes) {
    const last = found.at(-1);
    const small = box.members.length < BOX.small;
    if (small && last?.small && last.members.length < BOX.block / 2) {
      last.members = [...last.members, ...box.members].sort((one, other) => one - other);
      last.to = box.name;
    } else {
      found.push({ ...box, small, to: box.name });
    }
  }
  return found.map(({ name, to, members }) => ({ name: to === name ? name : `${name} … ${to}`, members }));
}
