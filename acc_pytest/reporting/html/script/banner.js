/* The verdict of the run, what was compared, and where errors start. */

function drawBanner() {
  const { counts, verdict } = head;
  const banner = $("banner");
  banner.className = `banner ${verdict.tone}`;
  replace(
    banner,
    make("h1", { id: "verdict", text: tell(verdict.text) }),
    head.caveats.length ? make("p", { class: "lead caveats", text: head.caveats.map(tell).join("; ") }) : null,
    verdict.lead ? make("p", { class: "lead", text: tell(verdict.lead) }) : null,
    head.problems.length
      ? make("ul", { class: "problems" }, head.problems.map((text) => make("li", { text: tell(text) }))) : null,
    make("ul", { class: "counts" },
      make("li", { class: "muted", text: say(head.title === "opcheck" ? "outputs" : "pairs") }),
      VERDICTS.filter((name) => counts[name]).map((name) =>
        make("li", {}, make("button", {
          type: "button",
          class: `count ${name}`,
          on: { click: () => showOnly(name) },
        }, make("b", { text: count(counts[name]) }), badge(name))))),
    make("details", { class: "compared" }, make("summary", { text: say("compared_title") }), facts([
      ["golden", head.plan && sideText(head.plan.golden)],
      ["mine", head.plan && sideText(head.plan.mine)],
      ["sources", head.sources.length ? head.sources.map((source) => make("code", { class: "path", text: source })) : null],
      ["coverage", head.coverage === null ? null : coverageText()],
      ["hash", head.hash && make("code", { text: head.hash })],
      ["made", head.made],
    ])),
    head.history.errors?.length > 1 ? make("details", {}, make("summary", { text: say("history_run") }), timeline(head.history.errors)) : null,
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
  // Operators alone inherit from nothing, and where nothing fails there is no root.
  $("roots").hidden = head.verdict.tone === "good" || (diagnosis === null && head.title === "opcheck");
  const title = make("h2", { id: "roots-title", text: say("roots_title") });
  if (diagnosis === null) {
    replace($("roots"), title, make("p", { class: "muted", text: say("roots_no_analysis") }));
    return;
  }
  const list = make("ol", { class: "roots" }, diagnosis.roots.map(rootCard));
  replace(
    $("roots"),
    title,
    diagnosis.roots.length ? list : make("p", { class: "muted", text: say("roots_none") }),
    diagnosis.more ? make("p", { class: "muted", text: say("roots_more", count(diagnosis.more)) }) : null,
    diagnosis.roots.length && diagnosis.basis
      ? make("p", { class: "muted", text: say("roots_basis", tell(diagnosis.basis)) }) : null,
    (head.history.since ?? []).map((text) => make("p", { class: "muted", text: tell(text) })),
    diagnosis.notes.map((text) => make("p", { class: "muted", text: tell(text) })),
  );
}

/** One fault: what and where, what follows from it, why it is one, and its other steps and ranks to unfold. */
function rootCard(root) {
  const place = root.places[0] ?? null;
  const where = [root.type, root.layer, root.step && stepName(root.step)].filter(Boolean).join(" · ");
  const size = root.excess === "Infinity" || root.excess === 0 ? "" : say("beyond_n", times(root.excess));
  const effects = [
    size,
    root.inherited ? say("inherit_n", count(root.inherited)) : "",
    root.amplification === null || root.amplification < 1.05 ? "" : say("amplified", times(root.amplification)),
    root.share === null || root.share < 0.005 ? "" : say("explains", percent(root.share)),
  ].filter(Boolean);
  return make("li", { class: "root-card" }, make("button", {
    type: "button",
    class: "root",
    disabled: place === null,
    on: { click: () => openRow(place) },
  },
  make("span", { class: "root-title" },
    make("span", { class: "root-name", text: root.type ? root.name : tell(root.name) }), " ",
    make("span", { class: "root-where", text: where })),
  make("span", { class: "root-effects" }, effects.map((text) => make("span", { class: "pill", text }))),
  root.cause ? make("span", { class: "root-said", text: tell(root.cause) }) : null,
  make("span", { class: root.cause ? "root-said muted" : "root-said", text: tell(root.sentence) })),
  root.places.length > 1 ? rootPlaces(root) : null);
}

const ROOT_PLACES = 60;
/* So many steps and ranks of one root are listed; the table has the others. */

function rootPlaces(root) {
  const at = [
    root.steps > 1 ? say("n_steps", count(root.steps)) : "",
    root.ranks > 1 ? say("n_ranks", count(root.ranks)) : "",
  ].filter(Boolean);
  const text = say("at_places", at.length ? at.join(say("comma")) : say("n_tensors", count(root.places.length)));
  const more = root.places.length - ROOT_PLACES;
  const listed = () => rows === null ? [] : root.places.slice(0, ROOT_PLACES).map((place) => make("li", {}, make("button", {
    type: "button", on: { click: () => openRow(place) },
  }, make("span", { text: placeText(root, place) }), make("b", { class: "number", text: times(rows.closeness(place)) }))));
  return make("details", { class: "root-places" }, make("summary", { text }),
    make("ul", {}, listed()), more > 0 ? make("p", { class: "muted", text: say("more_n", count(more)) }) : null);
}

/** Where one row of a root is: its step, rank and graph, and its name where that is another one. */
function placeText(root, place) {
  const step = rows.text("step", place), rank = rows.text("rank", place), name = rows.text("name", place);
  return [
    step && `${say("step")} ${stepText(step)}`, rank && `${say("rank")} ${rank}`, rows.text("graph", place),
    root.type === "" ? name : rows.text("slot", place),
  ].filter(Boolean).join(" · ");
}

/** `0 · prefill`, `3 · decode 3`; steps that are no numbers as they are. */
function stepText(step) {
  if (!/^\d+$/.test(step)) return step;
  return step === "0" ? say("step_prefill", step) : say("step_decode", step);
}

/** `prefill`, `decode 3`. */
function stepName(step) {
  if (!/^\d+$/.test(step)) return step;
  return step === "0" ? say("prefill") : say("decode_n", step);
}

function openRow(place) {
  if (rows === null || place === null) return;
  change({ row: place });
  $("details").focus();
}
