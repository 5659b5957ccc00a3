// The map, the slides beside it, their keys and controls.
(() => {
  "use strict";
  const { data, webgl, cells, slides, cellName, format, codesOf, missingCode, valueText, traces, pointSize, range, spanOf } = gears;
  const { element, plain, FONT, SOFT, CONFIG } = gearsPage;
  const byId = (id) => document.getElementById(id);
  const count = (n) => n.toLocaleString("en");
  const state = { field: data.fields[0] ?? null, chosen: new Set(), zoom: 1 };

  // ---- the map -------------------------------------------------------------------------------------------------
  const mapPlot = byId("map-plot");
  const home = (() => {
    const [x, y] = [range(cells.x), range(cells.y)];
    const pad = 0.04 * Math.max(x[1] - x[0], y[1] - y[0], 1e-6);
    return { x: [x[0] - pad, x[1] + pad], y: [y[0] - pad, y[1] + pad] };
  })();
  let mapRows = [];

  function mapLayout() {
    const axis = { zeroline: false, showgrid: false, ticks: "outside", ticklen: 4, tickcolor: "#98a3b0", linecolor: "#98a3b0",
      showline: true, tickfont: { size: 11, color: SOFT }, nticks: 7 };
    const title = (text) => ({ text: plain(text), font: { size: 12, color: SOFT }, standoff: 6 });
    const narrow = mapPlot.clientWidth < 520;
    return {
      font: FONT, margin: { l: narrow ? 46 : 58, r: 12, t: 12, b: 46 }, hovermode: "closest", hoverdistance: 12, dragmode: "pan",
      uirevision: "map", paper_bgcolor: "#fff", plot_bgcolor: "#fff", width: mapPlot.clientWidth, height: mapPlot.clientHeight,
      xaxis: { ...axis, range: [...home.x], title: title(`x (${data.unit})`) },
      yaxis: { ...axis, range: [...home.y], title: title(`y (${data.unit})`), scaleanchor: "x", scaleratio: 1 },
    };
  }
  function mapHeight() { // as tall as the layout needs at this width
    const tallest = Math.max(320, Math.min(0.8 * innerHeight, 760));
    const needed = (mapPlot.clientWidth - 70) * spanOf(home.y) / spanOf(home.x) + 58;
    mapPlot.style.height = `${Math.max(320, Math.min(needed, tallest))}px`;
  }
  function drawMap() {
    mapHeight();
    const side = Math.min(mapPlot.clientWidth, mapPlot.clientHeight);
    const made = traces(state.field, -1, state.chosen, pointSize(side, cells.x.length, state.zoom), {});
    mapRows = made.rows;
    return Plotly.react(mapPlot, made.drawn, mapLayout(), CONFIG);
  }
  function zoomBy(factor, moveX = 0, moveY = 0) {
    const { xaxis, yaxis } = mapPlot._fullLayout;
    const next = (range, move) => {
      const [middle, half] = [(range[0] + range[1]) / 2 + move * spanOf(range), spanOf(range) * factor / 2];
      return [middle - half, middle + half];
    };
    Plotly.relayout(mapPlot, { "xaxis.range": next(xaxis.range, moveX), "yaxis.range": next(yaxis.range, moveY) });
  }
  const showAll = () => Plotly.relayout(mapPlot, { "xaxis.range": [...home.x], "yaxis.range": [...home.y] });

  let settle;
  function afterMove() { // points grow as one zooms in, once the movement has ended
    clearTimeout(settle);
    settle = setTimeout(() => {
      const { xaxis, yaxis } = mapPlot._fullLayout;
      const zoom = Math.max(1, Math.min(spanOf(home.x) / spanOf(xaxis.range), spanOf(home.y) / spanOf(yaxis.range)));
      if (zoom / state.zoom > 1.2 || zoom / state.zoom < 0.83) {
        state.zoom = zoom;
        const side = Math.min(mapPlot.clientWidth, mapPlot.clientHeight);
        Plotly.restyle(mapPlot, { "marker.size": pointSize(side, cells.x.length, zoom) });
      }
    }, 250);
  }

  // ---- the slides, all in one figure so that any number of them needs one WebGL context ---------------------------
  const slidesPlot = byId("slides-plot");
  let slideRows = [], slidesHome = {};

  const TITLE = 26; // pixels above each slide
  /** The columns that make slides largest in the room beside the map; the figure grows where they would be tiny. */
  function slideGrid(width) {
    const n = slides.length, room = Math.max(420, mapPlot.clientHeight + 100);
    const aspect = Math.max(0.3, ...slides.map((slide) => spanOf(range(slide.y)) / (spanOf(range(slide.x)) || 1)));
    const options = Array.from({ length: Math.min(n, Math.max(1, Math.floor(width / 150))) }, (_, i) => {
      const rows = Math.ceil(n / (i + 1));
      const tile = Math.min(width / (i + 1), Math.max(150, room / rows - TITLE) / aspect);
      return { columns: i + 1, rows, tile, height: rows * (tile * aspect + TITLE) + 14 };
    });
    return options.reduce((best, option) => (
      option.tile > best.tile || (option.tile === best.tile && option.height < best.height) ? option : best));
  }
  function drawSlides() {
    const width = slidesPlot.clientWidth;
    const { columns, rows, height } = slideGrid(width);
    slidesPlot.style.height = `${height}px`;
    const layout = { font: FONT, margin: { l: 6, r: 6, t: 6, b: 6 }, hovermode: "closest", dragmode: "pan", uirevision: `${columns}`,
      width, height, paper_bgcolor: "#fff", plot_bgcolor: "#fff", annotations: [] };
    const drawn = [];
    slideRows = [];
    slides.forEach((slide, i) => {
      const name = i === 0 ? "" : String(i + 1);
      const [column, row] = [i % columns, Math.floor(i / columns)];
      const title = TITLE / height;
      const x = [column / columns + 0.01, (column + 1) / columns - 0.01];
      const y = [1 - (row + 1) / rows + 0.01, 1 - row / rows - title];
      const axis = { visible: false, zeroline: false };
      const pad = (ends) => { const p = 0.05 * (spanOf(ends) || 1); return [ends[0] - p, ends[1] + p]; };
      layout[`xaxis${name}`] = { ...axis, domain: x, range: pad(range(slide.x)), anchor: `y${name}` };
      layout[`yaxis${name}`] = { ...axis, domain: y, range: pad(range(slide.y)), anchor: `x${name}`, scaleanchor: `x${name}` };
      slidesHome[`xaxis${name}.range`] = [...layout[`xaxis${name}`].range];
      slidesHome[`yaxis${name}.range`] = [...layout[`yaxis${name}`].range];
      const letters = Math.floor(width / columns / 8);
      layout.annotations.push({ text: plain(slide.name.length > letters ? `${slide.name.slice(0, letters - 1)}…` : slide.name),
        x: (x[0] + x[1]) / 2, y: y[1], xref: "paper", yref: "paper", xanchor: "center", yanchor: "bottom", showarrow: false,
        font: { size: 12.5, color: SOFT } });
      const size = 1.4 * pointSize(Math.min(width / columns, height / rows - TITLE), slide.x.length);
      const made = traces(state.field, i, state.chosen, Math.min(size, 11), { xaxis: `x${name}`, yaxis: `y${name}` });
      drawn.push(...made.drawn);
      slideRows.push(...made.rows.map((index) => ({ index, part: i })));
    });
    return Plotly.react(slidesPlot, drawn, layout, CONFIG);
  }

  // ---- keys: legends and colour bars in HTML ---------------------------------------------------------------------
  function ticksBetween(first, last) {
    const raw = (last - first) / 4, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
    const ticks = [];
    for (let t = Math.ceil(first / step - 1e-6) * step; t <= last + step * 1e-6; t += step) ticks.push(t);
    return ticks;
  }
  function colorBar(title, ends) {
    const box = document.createDocumentFragment();
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
    for (const code of codesOf(field, -1)) counts[code]++;
    return counts;
  }
  function labelLegend(field) {
    const box = document.createDocumentFragment();
    const heading = element("h3", `${field.name} (press a label to single it out)`);
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
        drawPoints();
      });
      const item = element("li");
      item.append(button);
      list.append(item);
    });
    if (counts[255]) list.append(missingItem(counts[255]));
    box.append(heading, list);
    return box;
  }
  function missingItem(n) {
    const item = element("li", undefined, { class: "absent" });
    const dot = element("i", undefined, { class: "dot" });
    dot.style.background = data.missing;
    item.append(dot, element("span", "missing"), element("span", count(n), { class: "count" }));
    return item;
  }
  function drawKeys() {
    const { field } = state, mapKey = byId("map-key"), slidesKey = byId("slides-key");
    mapKey.replaceChildren();
    slidesKey?.replaceChildren();
    if (!field) return;
    const unit = field.unit ? ` (${field.unit})` : field.group === "Genes" ? " (expression)" : "";
    if (field.kind === "labels") mapKey.append(labelLegend(field));
    else {
      mapKey.append(colorBar(`${field.name}${unit}${field.slides.some(Boolean) ? ", cells" : ""}`, field));
      const absent = codesOf(field, -1).reduce((n, code) => n + (code === missingCode(field)), 0);
      if (absent) mapKey.append(missingItem(absent));
    }
    if (!slides.length) return;
    if (!field.slides.some(Boolean)) {
      slidesKey.append(element("p", `The slides have no values of “${field.name}”, so their spots are grey.`
        + (data.fields.some((f) => f.slides.some(Boolean)) ? " Choose a gene to compare." : "")));
    } else if (field.kind === "numbers") {
      slidesKey.append(colorBar(`${field.name}${unit}, spots: a scale of their own, as depth differs`, field.slideEnds));
    }
  }

  // ---- pointing --------------------------------------------------------------------------------------------------
  const tip = byId("tip");
  function showTip(event, heading, part, i) {
    const others = data.fields.filter((f) => f.group === "Cells" && f !== state.field).slice(0, 6);
    const lines = (state.field ? [state.field, ...others] : []).filter((f) => codesOf(f, part));
    tip.replaceChildren(element("b", heading), ...lines.map((f) => element("span", `${f.name}: ${valueText(f, part, i)}`)));
    tip.hidden = false;
    const { clientX = 0, clientY = 0 } = event.event ?? {};
    tip.style.left = `${Math.max(8, Math.min(clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${clientY + 18 + tip.offsetHeight > innerHeight ? clientY - tip.offsetHeight - 12 : clientY + 18}px`;
  }
  const hideTip = () => { tip.hidden = true; };
  /** Scrolling moves the page until the figure has been clicked. */
  function scrollOnlyWhenEntered(plot) {
    let entered = false;
    plot.addEventListener("pointerdown", () => { entered = true; });
    plot.addEventListener("pointerleave", () => { entered = false; hideTip(); });
    plot.addEventListener("wheel", (event) => { if (!entered && !event.ctrlKey) event.stopPropagation(); }, { capture: true });
  }

  // ---- controls --------------------------------------------------------------------------------------------------
  function drawPoints() {
    hideTip();
    return Promise.all([drawMap(), slides.length ? drawSlides() : null]);
  }
  function colorBy(index) {
    state.field = data.fields[index] ?? null;
    state.chosen.clear();
    byId("color").value = index;
    drawKeys();
    return drawPoints();
  }
  function fillSelect() {
    const select = byId("color");
    for (const group of ["Cells", "Genes"]) {
      const options = data.fields.flatMap((f, i) => f.group === group ? [element("option", f.name, { value: i })] : []);
      if (!options.length) continue;
      const box = element("optgroup", undefined, { label: group });
      box.append(...options);
      select.append(box);
    }
    if (!data.fields.length) select.append(element("option", "nothing to colour by", { value: 0 }));
    select.disabled = !data.fields.length;
    select.addEventListener("change", () => colorBy(Number(select.value)));
  }
  function notes() {
    const said = [];
    if (cells.x.length < data.total) said.push(`The map draws a random ${count(cells.x.length)} of ${count(data.total)} cells.`);
    if (!webgl) said.push("This browser offers no WebGL, so fewer cells are drawn.");
    if (!data.fields.length) said.push("No column and no gene was chosen to colour by, so all cells look alike.");
    else if (!data.fields.some((f) => f.group === "Genes")) said.push("No genes were chosen for this report.");
    byId("map-note").textContent = said.join(" ");
  }
  const KEYS = { ArrowLeft: [1, -0.1, 0], ArrowRight: [1, 0.1, 0], ArrowUp: [1, 0, 0.1], ArrowDown: [1, 0, -0.1],
    "+": [1 / 1.4], "=": [1 / 1.4], "-": [1.4] };
  function wire() {
    byId("zoom-in").addEventListener("click", () => zoomBy(1 / 1.4));
    byId("zoom-out").addEventListener("click", () => zoomBy(1.4));
    byId("zoom-all").addEventListener("click", showAll);
    byId("save").addEventListener("click", () => Plotly.downloadImage(mapPlot,
      { format: "png", scale: 2, width: mapPlot.clientWidth, height: mapPlot.clientHeight, filename: "reconstruction" }));
    for (const button of document.querySelectorAll("[data-color]")) {
      button.addEventListener("click", () => {
        colorBy(data.fields.findIndex((f) => f.group === "Cells" && f.name === button.dataset.color));
        byId("map").scrollIntoView();
      });
    }
    mapPlot.addEventListener("keydown", (event) => {
      if (event.key === "0") showAll();
      else if (KEYS[event.key]) zoomBy(...KEYS[event.key]);
      else return;
      event.preventDefault();
    });
    mapPlot.on("plotly_doubleclick", showAll);
    mapPlot.on("plotly_relayout", afterMove);
    mapPlot.on("plotly_hover", (event) => {
      const { curveNumber, pointNumber } = event.points[0];
      const i = mapRows[curveNumber][pointNumber];
      showTip(event, cellName(i), -1, i);
    });
    mapPlot.on("plotly_unhover", hideTip);
    scrollOnlyWhenEntered(mapPlot);
    if (slides.length) {
      slidesPlot.on("plotly_hover", (event) => {
        const { curveNumber, pointNumber } = event.points[0];
        const { index, part } = slideRows[curveNumber];
        showTip(event, `${slides[part].name}, spot ${count(index[pointNumber] + 1)}`, part, index[pointNumber]);
      });
      slidesPlot.on("plotly_unhover", hideTip);
      slidesPlot.on("plotly_doubleclick", () => Plotly.relayout(slidesPlot, slidesHome));
      scrollOnlyWhenEntered(slidesPlot);
    }
    let width = innerWidth, later;
    const redraw = () => { drawPoints(); gearsCurves.drawCurves(); };
    addEventListener("resize", () => {
      clearTimeout(later);
      if (innerWidth !== width) later = setTimeout(() => { width = innerWidth; redraw(); }, 150);
    });
  }

  // ---- start -----------------------------------------------------------------------------------------------------
  for (const heading of document.querySelectorAll("main > section > h2")) {
    byId("contents").append(element("a", heading.textContent.split(":")[0], { href: `#${heading.parentElement.id}` }));
  }
  fillSelect();
  notes();
  if (slides.length) document.querySelector(".maps").classList.add("two");
  else byId("slides").replaceWith(element("p", "No slides were given to draw beside the map.", { class: "empty" }));
  colorBy(0).then(() => {
    wire();
    gearsCurves.makeCurves();
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  });
})();
