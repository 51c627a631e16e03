"use strict";

// Elements, numbers, ticks and order, for the table and the curves.

const DATA = JSON.parse(document.getElementById("data").textContent);
// The parser knows the namespace, so that the page needs to name no address.
const SVG = document.querySelector("svg").namespaceURI;
const MISSING = "–";
const byId = (id) => document.getElementById(id);

// Strings become text nodes here and markup nowhere: data come from strangers.
function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}
const html = (tag, attributes = {}, ...children) =>
  filled(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

const formats = new Map();
function number(value, digits = 0) {
  if (value === null) return MISSING;
  if (Math.abs(value) >= 1e9) return value.toExponential(2);
  if (!formats.has(digits)) {
    const exactly = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    formats.set(digits, new Intl.NumberFormat("en-US", exactly));
  }
  return formats.get(digits).format(value);
}

const COLLATOR = new Intl.Collator("en", { numeric: true });
const compare = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b : COLLATOR.compare(String(a), String(b));
const distinct = (values) =>
  [...new Set(values.filter((value) => value !== null && value !== ""))].sort(compare);

// From 0 to a round number that is at least `most`.
function linearTicks(most, wanted) {
  const top = most > 0 && most < 1e300 ? most : 1;
  const power = 10 ** Math.floor(Math.log10(top / wanted));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s * wanted >= top * (1 - 1e-9));
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, i) => i * step);
}

// The finest round numbers between two positive ones of which at most `most` fit.
function logTicks(low, high, most) {
  const multiples = [
    [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8], [1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1],
  ];
  // Multiples of every power of ten first, then only every second power and fewer.
  const choices = [
    ...multiples.map((within) => [within, 1]),
    ...[2, 5, 10, 20, 50, 100].map((every) => [[1], every]),
  ];
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  let ticks = [];
  for (const [within, every] of choices) {
    ticks = [];
    for (let power = Math.floor(first / every) * every; power <= last; power += every) {
      for (const multiple of within) ticks.push(Number(`${multiple}e${power}`));
    }
    ticks = ticks.filter((tick) => tick >= low && tick <= high);
    if (ticks.length <= most) break;
  }
  return ticks;
}
