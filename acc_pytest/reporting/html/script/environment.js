/* Where and how the run was made, what it said in the terminal, and what this page leaves out. */

function drawEnvironment() {
  const block = (title, ...children) => make("div", {}, make("h3", { text: say(title) }), children);
  const listed = (texts) => make("ul", {}, texts.map((text) => make("li", { text: tell(text) })));
  replace(
    $("environment"),
    make("div", { class: "pair" },
      head.environment.length ? make("dl", { class: "facts" }, head.environment.map(([name, value]) =>
        make("div", {}, make("dt", { text: name }), make("dd", { text: value })))) : null,
      rows === null ? null : block("left_out", leftOut())),
    head.command ? block("command", make("pre", { class: "command", tabindex: "0", text: head.command })) : null,
    head.plan?.notes.length ? block("plan_notes", listed(head.plan.notes)) : null,
    head.lines.length ? make("details", {}, make("summary", { text: say("summary") }),
      make("pre", { class: "command", text: head.lines.join("\n") })) : null,
  );
}

function leftOut() {
  const missing = ["rows", "details", "metrics"].filter((name) => rows.leftOut[name])
    .map((name) => say(`left_${name}`, count(rows.leftOut[name])));
  return make("ul", {}, (missing.length ? missing : [say("left_nothing")]).map((text) => make("li", { text })));
}
