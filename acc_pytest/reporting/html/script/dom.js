/* Elements. Text of a run goes in as text only: nothing here parses markup. */

const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);

/** An element. `on` holds listeners, `text` its text, everything else is an attribute; null ones are left out. */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}

/** A labelled choice. `options` are [value, text] pairs. */
function choice(label, options, value, chosen) {
  const select = make("select", { on: { change: () => chosen(select.value) } });
  for (const [one, text] of options) select.append(make("option", { value: one, text }));
  select.value = value;
  return make("label", { class: "choice" }, make("span", { text: label }), select);
}

/** A colour of the theme, as canvas wants it. */
function colour(name) {
  const probe = $("tip");
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.style.color = "";
  return found;
}

/** Show `lines` beside a point of the page; hide with no lines. */
function tip(lines, x = 0, y = 0) {
  const box = $("tip");
  box.hidden = lines.length === 0;
  if (box.hidden) return;
  replace(box, lines.map((line, place) => make("div", { class: place ? "" : "strong", text: line })));
  const { width, height } = box.getBoundingClientRect();
  const left = Math.min(x + 14, document.documentElement.clientWidth - width - 8);
  box.style.left = `${Math.max(8, left) + scrollX}px`;
  box.style.top = `${(y + 18 + height > innerHeight ? y - height - 12 : y + 18) + scrollY}px`;
}

/** The mark of a verdict: a shape and a word, so that colour is not needed to tell them apart. */
function badge(verdict, word = say(verdict)) {
  return make("span", { class: `badge ${verdict}` }, make("i", { "aria-hidden": "true", text: MARKS[verdict] }), word);
}

const MARKS = { pass: "●", tie: "=", fail: "◆", inherited: "◇", known: "■", incomparable: "✕", unmapped: "○", incomplete: "∅" };

/** Show at the edges of a box that scrolls sideways that there is more of it. Called whenever its content changes. */
function hintAtEdges(box) {
  const frame = box.parentElement;
  const look = () => {
    frame.classList.toggle("more-left", box.scrollLeft > 1);
    frame.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  frame.classList.add("edges");
  frame.dataset.hint = `${say("scroll_hint")} →`;
  box.onscroll = look;
  look();
}
