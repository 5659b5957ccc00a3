// What every part of the page uses. Words from data reach the page only through textContent, or through plain()
// where Plotly takes them, because Plotly reads a little HTML in its texts.
const gearsPage = (() => {
  "use strict";
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const FONT = { family: getComputedStyle(document.body).fontFamily, size: 13, color: "#1c2430" };
  const SOFT = "#55606e";
  const CONFIG = { displayModeBar: false, displaylogo: false, scrollZoom: true, responsive: false, doubleClick: false };
  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }
  return { plain, FONT, SOFT, CONFIG, element };
})();
