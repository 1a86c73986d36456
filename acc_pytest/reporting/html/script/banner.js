/* The verdict of the run, what was compared, and where errors start. */

function drawBanner() {
  const counts = head.counts;
  const sum = (...names) => names.reduce((total, name) => total + (counts[name] ?? 0), 0);
  const compared = sum("pass", "tie", "fail", "inherited", "known", "incomparable");
  const passed = head.exit === 0;
  const words = { 0: "verdict_passed", 1: "verdict_failed", 2: "verdict_stopped" };
  const word = say(words[head.exit] ?? "verdict_other", head.exit);
  const red = head.own_failures;
  let sentence = say("said_passed", count(sum("pass", "tie")), count(compared));
  if (red && counts.inherited) sentence = say("said_failed", count(red), count(compared), count(counts.inherited));
  else if (red) sentence = say("said_failed_plain", count(red), count(compared));
  const banner = $("banner");
  banner.className = `banner ${passed ? "passed" : "failed"}`;
  replace(
    banner,
    make("h1", { id: "verdict", text: word }),
    make("p", { class: "lead", text: sentence }),
    make("ul", { class: "counts" }, VERDICTS.filter((verdict) => counts[verdict]).map((verdict) =>
      make("li", {}, make("button", {
        type: "button",
        class: `count ${verdict}`,
        on: { click: () => showOnly(verdict) },
      }, make("b", { text: count(counts[verdict]) }), badge(verdict))))),
    facts([
      ["golden", head.plan && sideText(head.plan.golden)],
      ["mine", head.plan && sideText(head.plan.mine)],
      ["coverage", head.coverage === null ? null : coverageText()],
      ["hash", head.hash && make("code", { text: head.hash })],
      ["made", head.made],
    ]),
    head.problems.length ? make("ul", { class: "problems" }, head.problems.map((text) => make("li", { text }))) : null,
  );
}

function sideText(side) {
  return make("span", {}, make("code", { class: "path", text: side.root }), ` ${side.kind}`);
}

function coverageText() {
  const { golden, mine } = head.plan;
  const floor = head.coverage >= head.floor ? "floor" : "floor_missed";
  const part = (name, side) => `${say(name)} ${say("coverage_side", count(side.mapped), count(side.total))}`;
  return say("coverage_said", percent(head.coverage), part("golden", golden), part("mine", mine), say(floor, percent(head.floor)));
}

/** A list of names and values; those without a value are left out. */
function facts(pairs) {
  const present = pairs.filter(([, value]) => value);
  return make("dl", { class: "facts" }, present.map(([name, value]) =>
    make("div", {}, make("dt", { text: say(name) }), make("dd", {}, value))));
}

function showOnly(verdict) {
  if (rows === null) return;
  change({ verdicts: new Set([verdict]), layer: "", type: "", query: "", step: "" });
  $("rows").scrollIntoView();
}

function drawRoots() {
  const diagnosis = head.diagnosis;
  $("roots").hidden = diagnosis === null && head.title === "opcheck"; // operators alone inherit from nothing
  const title = make("h2", { id: "roots-title", text: say("roots_title") });
  if (diagnosis === null) {
    replace($("roots"), title, make("p", { class: "muted", text: say("roots_no_analysis") }));
    return;
  }
  const list = make("ol", { class: "roots" }, diagnosis.roots.map(rootLine));
  replace(
    $("roots"),
    title,
    diagnosis.roots.length ? list : make("p", { class: "muted", text: say("roots_none") }),
    diagnosis.more ? make("p", { class: "muted", text: say("roots_more", count(diagnosis.more)) }) : null,
    diagnosis.roots.length && diagnosis.basis
      ? make("p", { class: "muted", text: say("roots_basis", diagnosis.basis) }) : null,
    diagnosis.notes.map((text) => make("p", { class: "muted", text })),
  );
}

function rootLine(root) {
  const place = root.places[0] ?? null;
  const steps = root.steps.length > 1 ? say("steps_n", root.steps.join(", ")) : root.steps.map(stepText)[0];
  const ranks = root.ranks.length > 1 ? say("ranks_n", root.ranks.join(", ")) : "";
  const where = [root.type, root.layer, steps, ranks].filter(Boolean).join(" · ");
  const effects = [
    root.inherited ? say("inherit_n", count(root.inherited)) : "",
    root.amplification === null || root.amplification < 1.05 ? "" : say("amplified", times(root.amplification)),
    root.share === null ? "" : say("explains", percent(root.share)),
  ].filter(Boolean);
  return make("li", {}, make("button", {
    type: "button",
    class: "root",
    disabled: place === null,
    on: { click: () => openRow(place) },
  },
  make("span", { class: "root-name", text: root.name }),
  make("span", { class: "root-where", text: where }),
  make("span", { class: "root-effects" }, effects.map((text) => make("span", { class: "pill", text }))),
  make("span", { class: "root-said", text: root.sentence }),
  root.cause ? make("span", { class: "root-said muted", text: root.cause }) : null));
}

/** `0 · prefill`, `3 · decode 3`; steps that are no numbers as they are. */
function stepText(step) {
  if (!/^\d+$/.test(step)) return step;
  return step === "0" ? say("step_prefill", step) : say("step_decode", step);
}

function openRow(place) {
  if (rows === null || place === null) return;
  change({ row: place });
  $("details").focus();
}
