"use strict";
// Elements, numbers as text, and the page's data. Texts go in as text only, never as markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of [children].flat(Infinity)) {
    if (child === undefined || child === null) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

const make = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const draw = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

const lengths = (of) => of.join("×");
const counted = (number, word) => `${whole(number)} ${word}${number === 1 ? "" : "s"}`;
const whole = (number) => Math.round(number).toLocaleString("en");

function short(number) {
  if (number === null || number === undefined) return "not finite";
  if (number === 0) return "0";
  const size = Math.abs(number);
  const text = size >= 1e5 || size < 1e-3 ? number.toExponential(2) : String(Number(number.toPrecision(4)));
  return text.replace("-", "−");
}

function seconds(time) {
  if (time >= 1) return `${time.toFixed(2)} s`;
  return time >= 1e-3 ? `${(1e3 * time).toFixed(2)} ms` : `${(1e6 * time).toFixed(0)} µs`;
}

function bytes(number) {
  const units = ["B", "kB", "MB", "GB"];
  let place = 0;
  while (number >= 1000 && place < 3) { number /= 1000; place++; }
  return `${place ? number.toFixed(1) : number} ${units[place]}`;
}

const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.0995 ? 1 : 0)} %`;

function announce(text) {
  document.getElementById("announce").textContent = text;
}

// top, left, bottom, right as words; the shortest that is true.
function sidesText([top, left, bottom, right]) {
  if (top === left && top === bottom && top === right) return String(top);
  return `top ${top}, left ${left}, bottom ${bottom}, right ${right}`;
}

const isPadded = (sides) => Boolean(sides) && sides.some((side) => side > 0);

// The colour that a name of the style sheet stands for now.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A list of terms and what they are; pairs without a value are left out.
function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return make("dl", { class: "facts" }, shown.map(([term, value]) => [make("dt", {}, term), make("dd", {}, value)]));
}

// Sets the attributes of tabs; panels of the same keys are shown and hidden. Arrow keys walk.
function tabs(list, entries, show) {
  const buttons = entries.map(({ key, name }) => make("button", {
    type: "button", role: "tab", id: `tab-${key}`, "aria-controls": `panel-${key}`, tabindex: "-1",
  }, name));
  const choose = (place, focus) => {
    buttons.forEach((button, index) => {
      button.setAttribute("aria-selected", String(index === place));
      button.tabIndex = index === place ? 0 : -1;
    });
    if (focus) buttons[place].focus();
    show(entries[place].key);
  };
  buttons.forEach((button, place) => {
    button.addEventListener("click", () => choose(place, false));
    button.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: buttons.length - 1 };
      if (!(event.key in steps)) return;
      event.preventDefault();
      choose((steps[event.key] + buttons.length) % buttons.length, true);
    });
  });
  list.replaceChildren(...buttons);
  choose(0, false);
  return (key) => choose(entries.findIndex((entry) => entry.key === key), false);
}
