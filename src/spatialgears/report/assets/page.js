// What every part of the page uses. Words from data reach the page only through textContent, or through plain()
// where Plotly takes them, because Plotly reads a little HTML in its texts.
const gearsPage = (() => {
  "use strict";
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const FONT = { family: getComputedStyle(document.body).fontFamily, size: 13, color: "#1c2430" };
  const SOFT = "#55606e";
  const CONFIG = { displayModeBar: false, displaylogo: false, scrollZoom: true, responsive: false, doubleClick: false };
  const byId = (id) => document.getElementById(id);
  const count = (n) => n.toLocaleString("en");
  const format = (value) => value === 0 ? "0" : String(Number(value.toPrecision(3)));
  const shorten = (text, letters) => text.length > letters ? `${text.slice(0, Math.max(1, letters - 1))}…` : text;
  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }
  function range(values) {
    let low = Infinity, high = -Infinity;
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
    return low <= high ? [low, high] : [-1, 1];
  }
  const spanOf = (ends) => Math.abs(ends[1] - ends[0]);
  return { plain, FONT, SOFT, CONFIG, byId, count, format, shorten, element, range, spanOf };
})();
