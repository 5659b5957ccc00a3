// Keys: legends and colour bars in HTML.
const gearsKeys = (() => {
  "use strict";
  const { data, slides } = gears;
  const { element, format, count, byId } = gearsPage;
  const { state } = gearsFigure;

  function ticksBetween(first, last) {
    const raw = (last - first) / 4, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
    const ticks = [];
    for (let t = Math.ceil(first / step - 1e-6) * step; t <= last + step * 1e-6; t += step) ticks.push(t);
    return ticks;
  }
  function colorBar(title, ends) {
    const box = element("div", undefined, { class: "color-bar" });
    box.append(element("h3", title));
    const bar = element("div", "", { class: "bar" });
    bar.style.background = `linear-gradient(to right, ${data.scale.join(",")})`;
    const ticks = element("div", "", { class: "ticks" });
    for (const tick of ticksBetween(ends.first, ends.last)) {
      const at = (tick - ends.first) / (ends.last - ends.first);
      const label = element("span", format(tick), { class: at < 0.03 ? "start" : at > 0.97 ? "end" : "" });
      label.style.left = `${100 * at}%`;
      ticks.append(label);
    }
    box.append(bar, ticks);
    return box;
  }
  function tally(field) {
    const counts = new Uint32Array(256);
    for (const code of field.codes(-1)) counts[code]++;
    return counts;
  }
  function legend(field, redraw) {
    const list = element("ul", undefined, { class: "legend" });
    const counts = tally(field);
    field.names.forEach((name, code) => {
      const button = element("button", undefined, { type: "button", "aria-pressed": state.chosen.has(code) });
      const dot = element("i", undefined, { class: "dot" });
      dot.style.background = field.colors[code];
      button.append(dot, element("span", name), element("span", count(counts[code]), { class: "count" }));
      button.addEventListener("click", () => {
        if (!state.chosen.delete(code)) state.chosen.add(code);
        for (const [c, b] of list.querySelectorAll("button").entries()) b.setAttribute("aria-pressed", state.chosen.has(c));
        redraw();
      });
      const item = element("li");
      item.append(button);
      list.append(item);
    });
    if (counts[255]) list.append(missingItem(counts[255]));
    return [element("h3", `${field.name} (cells; press a label to single it out)`), list];
  }
  function missingItem(n, tag = "li") {
    const item = element(tag, undefined, { class: "absent" });
    const dot = element("i", undefined, { class: "dot" });
    dot.style.background = data.missing;
    item.append(dot, element("span", "missing"), element("span", count(n), { class: "count" }));
    return item;
  }
  /** The title of a colour bar: what the numbers are, and of which points. */
  const barTitle = (field, of) => `${field.name}${field.unit ? ` (${field.unit})` : ""}${of}`;
  const onSlide = (field) => Boolean(slides.length && field.codes(state.slide));

  function draw(redraw) {
    const { field } = state, key = byId("map-key");
    key.replaceChildren();
    if (!field) return;
    if (field.kind === "labels") key.append(...legend(field, redraw));
    else {
      const bars = element("div", undefined, { class: "bars" });
      bars.append(colorBar(barTitle(field, onSlide(field) ? ", cells" : ""), field.ends));
      if (onSlide(field)) bars.append(colorBar(barTitle(field, ", spots: a scale of their own, as depth differs"), field.slideEnds));
      const absent = field.codes(-1).reduce((n, code) => n + (code === field.missing), 0);
      if (absent) bars.append(missingItem(absent, "p"));
      key.append(bars);
    }
    if (!slides.length) return;
    if (!onSlide(field)) {
      key.append(element("p", `The slide has no values of “${field.name}”, so its spots are grey.`
        + (data.genes.names.length ? " Choose a gene to compare." : "")));
    } else if (field.resembled) {
      key.append(element("p", `The slide has no “${field.name}” of its own: each spot has the colour of the cells that its `
        + "expression resembles most. Positions play no part in that, so the two panels should agree where the map is right."));
    }
  }
  return { draw, ticksBetween, barTitle, onSlide };
})();
