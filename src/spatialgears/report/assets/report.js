// Controls, pointing, and the start.
(() => {
  "use strict";
  const { data, webgl, slides, fields, cellName, cellsOn, geneField, findGene, inflated } = gears;
  const { element, byId, count } = gearsPage;
  const { plot, state, draw, zoomBy, showAll, afterMove, linked, showRing, hideRing, rowOf } = gearsFigure;
  const SUGGESTED = 12; // genes in the menu; the search finds all

  // ---- pointing --------------------------------------------------------------------------------------------------
  const tip = byId("tip");
  function showTip(event, heading, part, i) {
    const others = fields.filter((f) => f !== state.field).slice(0, 6);
    const lines = (state.field ? [state.field, ...others] : []).filter((f) => f.codes(part));
    const words = (f) => `${f.name}${part >= 0 && f.resembled ? " (resembles)" : ""}: ${gearsPoints.valueText(f, part, i)}`;
    tip.replaceChildren(element("b", heading), ...lines.map((f) => element("span", words(f))));
    tip.hidden = false;
    const { clientX = 0, clientY = 0 } = event.event ?? {};
    tip.style.left = `${Math.max(8, Math.min(clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${clientY + 18 + tip.offsetHeight > innerHeight ? clientY - tip.offsetHeight - 12 : clientY + 18}px`;
  }
  function hideTip() {
    tip.hidden = true;
    hideRing();
  }
  /** Scrolling moves the page until the figure has been clicked. */
  function scrollOnlyWhenEntered() {
    let entered = false;
    plot.addEventListener("pointerdown", () => { entered = true; });
    plot.addEventListener("pointerleave", () => { entered = false; hideTip(); });
    plot.addEventListener("wheel", (event) => { if (!entered && !event.ctrlKey) event.stopPropagation(); }, { capture: true });
  }

  // ---- colours ---------------------------------------------------------------------------------------------------
  function redraw() {
    hideTip();
    return draw();
  }
  let wanted = 0;
  function show(field, value) {
    state.field = field;
    state.chosen.clear();
    byId("color").value = value;
    byId("gene").value = field?.group === "Genes" ? field.name : "";
    gearsKeys.draw(redraw);
    return redraw();
  }
  function colorByColumn(index) {
    wanted++;
    notes();
    return show(fields[index] ?? null, String(index));
  }
  async function colorByGene(name) {
    const asked = ++wanted;
    notes();
    let field;
    try {
      field = await geneField(name);
    } catch {
      return notes("This browser cannot unpack genes; a newer one can.");
    }
    if (asked !== wanted) return undefined; // another colour was chosen meanwhile
    const select = byId("color"), value = `gene:${name}`;
    if (![...select.options].some((option) => option.value === value)) {
      select.querySelector("optgroup[data-genes]").append(element("option", name, { value }));
    }
    return show(field, value);
  }
  const colorBy = (value) => value.startsWith("gene:") ? colorByGene(value.slice(5)) : colorByColumn(Number(value));
  function fillMenus() {
    const select = byId("color"), groups = [];
    const add = (label, options, attributes = {}) => {
      if (!options.length) return;
      const box = element("optgroup", undefined, { label, ...attributes });
      box.append(...options);
      groups.push(box);
    };
    add("Cells", fields.map((f, i) => element("option", f.name, { value: i })));
    add("Genes (search for others)", data.genes.names.slice(0, SUGGESTED).map((name) => (
      element("option", name, { value: `gene:${name}` }))), { "data-genes": "" });
    select.append(...groups);
    if (!groups.length) select.append(element("option", "nothing to colour by", { value: 0 }));
    select.disabled = !groups.length;
    select.addEventListener("change", () => colorBy(select.value));
    const search = byId("gene");
    search.placeholder = data.genes.names.length ? `${count(data.genes.names.length)} genes` : "no genes";
    search.disabled = !data.genes.names.length;
    byId("genes").append(...data.genes.names.map((name) => element("option", undefined, { value: name })));
    search.addEventListener("input", () => { const name = findGene(search.value); if (name) colorByGene(name); });
    search.addEventListener("change", () => {
      if (search.value && !findGene(search.value)) {
        notes(`“${search.value}” is not among the ${count(data.genes.names.length)} genes of this report. Write it again with --genes to add it.`);
      }
    });
    if (slides.length > 1) {
      byId("slide-control").hidden = false;
      byId("slide").append(...slides.map((slide, i) => element("option", slide.name, { value: i })));
      byId("slide").addEventListener("change", () => {
        Object.assign(state, { slide: Number(byId("slide").value), zoom: 1 });
        hints();
        gearsKeys.draw(redraw);
        redraw();
      });
    }
  }
  function notes(first = "") {
    const said = [first];
    if (data.drawn < data.total) said.push(`The map draws a random ${count(data.drawn)} of ${count(data.total)} cells.`);
    if (!webgl) said.push("This browser offers no WebGL, so fewer cells are drawn.");
    if (!fields.length && !data.genes.names.length) said.push("No column and no gene was given to colour by, so all cells look alike.");
    said.push(data.genes.note);
    byId("map-note").textContent = said.filter(Boolean).join(" ");
  }
  function hints() {
    const frame = !slides.length ? "No slides were given to draw beside the map. The map may be turned or mirrored: only distances mean something."
      : linked() ? "The map is in the pose of the slide beside it, and both move together."
        : "How this slide lies to the cells is not known: the map may be turned or mirrored against it.";
    byId("map-hint").textContent = `${frame} Drag to move; click, then scroll to zoom; double-click to see all.`;
  }

  const KEYS = { ArrowLeft: [1, -0.1, 0], ArrowRight: [1, 0.1, 0], ArrowUp: [1, 0, 0.1], ArrowDown: [1, 0, -0.1],
    "+": [1 / 1.4], "=": [1 / 1.4], "-": [1.4] };
  function wire() {
    byId("zoom-in").addEventListener("click", () => zoomBy(1 / 1.4));
    byId("zoom-out").addEventListener("click", () => zoomBy(1.4));
    byId("zoom-all").addEventListener("click", showAll);
    for (const kind of ["png", "svg"]) byId(`save-${kind}`).addEventListener("click", () => gearsSave.save(kind));
    for (const button of document.querySelectorAll("[data-color]")) {
      button.addEventListener("click", () => {
        colorByColumn(fields.findIndex((f) => f.name === button.dataset.color));
        byId("map").scrollIntoView();
      });
    }
    plot.addEventListener("keydown", (event) => {
      if (event.key === "0") showAll();
      else if (KEYS[event.key]) zoomBy(...KEYS[event.key]);
      else return;
      event.preventDefault();
    });
    plot.on("plotly_doubleclick", showAll);
    plot.on("plotly_relayouting", hideTip);
    plot.on("plotly_relayout", afterMove);
    plot.on("plotly_hover", (event) => {
      const { part, row } = rowOf(event.points[0]);
      showTip(event, part < 0 ? cellName(row) : `${slides[part].name}, spot ${count(row + 1)}`, part, row);
      showRing(event.points[0], part);
    });
    plot.on("plotly_unhover", hideTip);
    scrollOnlyWhenEntered();
    let width = innerWidth, later;
    addEventListener("resize", () => {
      clearTimeout(later);
      if (innerWidth !== width) later = setTimeout(() => { width = innerWidth; redraw(); gearsCurves.drawCurves(); }, 150);
    });
  }

  // ---- start -----------------------------------------------------------------------------------------------------
  for (const heading of document.querySelectorAll("main > section > h2")) {
    byId("contents").append(element("a", heading.textContent.split(":")[0], { href: `#${heading.parentElement.id}` }));
  }
  data.drawn = Math.min(data.drawn, cellsOn(-1).x.length);
  fillMenus();
  notes();
  hints();
  inflated(byId("plotly").textContent).then((plotly) => {
    (0, eval)(new TextDecoder().decode(plotly)); // a script of the whole page: it defines Plotly
    return fields.length || !data.genes.names.length ? colorByColumn(0) : colorByGene(data.genes.names[0]);
  }).then(() => {
    wire();
    gearsCurves.makeCurves();
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  });
})();
