/* The filters of the table, and which rows they leave. */

function drawFilters() {
  const tally = new Array(VERDICTS.length).fill(0);
  for (const verdict of rows.verdicts) tally[verdict] += 1;
  const search = make("input", {
    type: "search",
    id: "search",
    placeholder: say("search"),
    "aria-label": say("search"),
    on: { input: () => change({ query: search.value }) },
  });
  search.value = state.query;
  const options = (column, any) => [["", any], ...distinct(column).map((text) => [text, text])];
  const steps = [["", say("all_steps")], ...distinct("step").map((step) => [step, stepText(step)])];
  const present = VERDICTS.filter((_, code) => tally[code]);
  replace(
    $("filters"),
    search,
    make("div", { class: "chips", role: "group", "aria-label": say("verdict") }, present.map((verdict) =>
      make("button", {
        type: "button",
        class: "chip",
        "data-verdict": verdict,
        "aria-pressed": "false",
        on: { click: () => toggle(verdict, present) },
      }, badge(verdict), make("span", { class: "chip-count", text: count(tally[VERDICTS.indexOf(verdict)]) })))),
    steps.length > 2 ? choice(say("step"), steps, state.step, (step) => change({ step })) : null,
    options("layer", "").length > 2
      ? choice(say("layer"), options("layer", say("any_layer")), state.layer, (layer) => change({ layer })) : null,
    choice(say("operator"), options("type", say("any_type")), state.type, (type) => change({ type })),
    make("button", { type: "button", id: "clear", text: say("clear"), on: { click: clearFilters } }),
  );
  showFilters();
}

/** Bring the controls in line with the state. */
function showFilters() {
  for (const chip of document.querySelectorAll(".chip")) {
    chip.setAttribute("aria-pressed", String(state.verdicts === null || state.verdicts.has(chip.dataset.verdict)));
  }
  $("clear").disabled = !(state.verdicts || state.layer || state.type || state.query || state.step || state.rank);
}

/** From "all", the first click leaves one verdict; the last one taken away brings all back. */
function toggle(verdict, present) {
  const verdicts = new Set(state.verdicts ?? []);
  if (!verdicts.delete(verdict)) verdicts.add(verdict);
  change({ verdicts: verdicts.size === 0 || verdicts.size === present.length ? null : verdicts });
}

function clearFilters() {
  change({ verdicts: null, layer: "", type: "", query: "", step: "", rank: "" });
  $("search").focus();
}

const SEARCHED = ["name", "golden", "leaf", "home", "type", "dtype", "policy", "graph"];

/** Places of the rows that the filters leave, in execution order; `verdicts` are those that are chosen. */
function filtered(verdicts = state.verdicts) {
  const tests = [];
  if (verdicts !== null) {
    const allowed = VERDICTS.map((verdict) => verdicts.has(verdict));
    tests.push((place) => allowed[rows.verdicts[place]]);
  }
  for (const name of ["step", "rank", "layer", "type"]) {
    if (state[name] === "") continue;
    const code = codeOf(name, state[name]), { codes } = rows.texts[name];
    tests.push((place) => codes[place] === code);
  }
  for (const word of state.query.toLowerCase().split(/\s+/).filter(Boolean)) tests.push(wordTest(word));
  const found = new Int32Array(rows.length);
  let length = 0;
  for (let place = 0; place < rows.length; place += 1) {
    if (!tests.every((test) => test(place))) continue;
    found[length] = place;
    length += 1;
  }
  return found.subarray(0, length);
}

/** Whether any searched text of a row holds `word`: decided once for each text, not for each row. */
function wordTest(word) {
  const columns = SEARCHED.map((name) => {
    const { texts, codes } = rows.texts[name];
    return { codes, holds: texts.map((text) => text.toLowerCase().includes(word)) };
  });
  return (place) => columns.some(({ codes, holds }) => holds[codes[place]]);
}
