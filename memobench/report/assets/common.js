"use strict";

// Elements, numbers and order, for the table and the curves.

const DATA = JSON.parse(document.getElementById("data").textContent);
// The parser knows the namespace, so that the page needs to name no address.
const SVG = document.querySelector("svg").namespaceURI;
const MISSING = "–";
const byId = (id) => document.getElementById(id);

// Strings become text nodes here and markup nowhere: data come from strangers.
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}
const html = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

const number = (value) => Number(value.toPrecision(12)).toLocaleString("en-US");
const COLLATOR = new Intl.Collator("en", { numeric: true });
const compare = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b : COLLATOR.compare(String(a), String(b));
const distinct = (values) => [...new Set(values)].sort(compare);

// From 0 to a round number that is at least `most`.
function linearTicks(most, wanted) {
  const top = most > 0 && most < 1e300 ? most : 1;
  const power = 10 ** Math.floor(Math.log10(top / wanted));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s * wanted >= top * (1 - 1e-9));
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, i) => i * step);
}
