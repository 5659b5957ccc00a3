// One figure of two panels in one frame: the cells at their predicted positions, and the slide beside them.
const gearsFigure = (() => {
  "use strict";
  const { data, slides, cellsOn } = gears;
  const { plain, FONT, SOFT, CONFIG, byId, count, format, shorten, range, spanOf } = gearsPage;
  const { traces, pointSize } = gearsPoints;
  const plot = byId("map-plot"), bar = byId("scale-bar"), ring = byId("ring");
  const TITLE = 24, GAP = 14, NARROW = 640; // pixels: above a panel, between panels, below which they are stacked
  const state = { field: null, chosen: new Set(), zoom: 1, slide: 0 };
  let behind = []; // per trace: the part it shows and the rows of its points
  let whole = 1; // span of the horizontal axis when all is shown

  const linked = () => Boolean(slides[state.slide]?.pose);
  const padded = (parts) => {
    const [x, y] = ["x", "y"].map((axis) => {
      const ends = parts.map((part) => range(part[axis]));
      return [Math.min(...ends.map((e) => e[0])), Math.max(...ends.map((e) => e[1]))];
    });
    const pad = 0.03 * Math.max(spanOf(x), spanOf(y), 1e-6);
    return { x: [x[0] - pad, x[1] + pad], y: [y[0] - pad, y[1] + pad] };
  };
  const homes = new Map();
  /** What is shown of each panel when all is shown. */
  function home() {
    if (!homes.has(state.slide)) {
      const [cells, slide] = [cellsOn(state.slide), slides[state.slide]];
      const both = linked() ? padded([cells, slide]) : padded([cells]);
      const right = !slide || linked() ? both : padded([slide]);
      for (const one of new Set([both, right])) if (slide?.yDown && (linked() || one === right)) one.y.reverse();
      homes.set(state.slide, { left: both, right });
    }
    return homes.get(state.slide);
  }

  /** Where the panels are, in pixels of a figure of this width that shows these ranges. */
  function panels(width, tallest, views = Object.values(home())) {
    const two = slides.length > 0, stacked = two && width < NARROW;
    const each = two && !stacked ? (width - GAP) / 2 : width;
    const aspect = Math.max(...views.map((one) => spanOf(one.y) / spanOf(one.x)));
    const height = Math.round(Math.max(220, Math.min(each * aspect, tallest / (stacked ? 1.6 : 1) - TITLE)));
    const total = stacked ? 2 * (height + TITLE) + GAP : height + TITLE;
    return { two, stacked, each, height, total };
  }
  function layout(width, box) {
    const { left, right } = home(), { two, stacked, each, height, total } = box;
    const axis = { visible: false, zeroline: false };
    const made = {
      font: FONT, margin: { l: 0, r: 0, t: 0, b: 0 }, hovermode: "closest", hoverdistance: 12, dragmode: "pan", width, height: total,
      uirevision: `${state.slide} ${stacked} ${width}`, paper_bgcolor: "#fff", plot_bgcolor: "#fff", annotations: [],
      xaxis: { ...axis, range: [...left.x], domain: [0, each / width], anchor: "y" },
      yaxis: { ...axis, range: [...left.y], domain: [1 - (TITLE + height) / total, 1 - TITLE / total], anchor: "x", scaleanchor: "x" },
    };
    const shown = slides[state.slide], image = shown?.image;
    made.images = !image ? [] : [...(linked() ? [["x", "y"]] : []), ["x2", "y2"]].map(([xref, yref]) => ({ source: image.source, xref, yref,
      x: image.x, y: image.y, sizex: image.width, sizey: image.height, sizing: "stretch", opacity: 0.55, layer: "below" }));
    const title = (text, x, y) => made.annotations.push({ text: plain(shorten(text, Math.floor(each / 7.2))), x, y, xref: "paper",
      yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 13, color: SOFT } });
    title(`${count(data.total)} cells at their predicted positions`, 0, 1 - (TITLE - 3) / total);
    if (!two) return made;
    const slide = slides[state.slide];
    made.xaxis2 = { ...axis, range: [...right.x], domain: stacked ? [0, 1] : [1 - each / width, 1], anchor: "y2" };
    made.yaxis2 = { ...axis, range: [...right.y], domain: stacked ? [0, height / total] : made.yaxis.domain, anchor: "x2" };
    if (linked()) Object.assign(made.xaxis2, { matches: "x" }) && Object.assign(made.yaxis2, { matches: "y" });
    else made.yaxis2.scaleanchor = "x2";
    title(`${slide.name}: ${count(slide.x.length)} spots, measured`, stacked ? 0 : 1 - each / width,
      stacked ? (height + 3) / total : 1 - (TITLE - 3) / total);
    return made;
  }
  function points(box, type) {
    const side = Math.min(box.each, box.height), cells = cellsOn(state.slide);
    const made = [traces(state.field, -1, state.slide, state.chosen, pointSize(side, cells.x.length, state.zoom), {}, type)];
    if (box.two) {
      const size = 1.25 * pointSize(side, slides[state.slide].x.length, state.zoom);
      made.push(traces(state.field, state.slide, state.slide, state.chosen, size, { xaxis: "x2", yaxis: "y2" }, type));
    }
    return made;
  }
  /** What each panel shows now, without the empty margins that fill a panel. */
  function views() {
    const { left, right } = home(), shown = plot._fullLayout;
    const cut = (axis, all) => {
      const [a, b] = shown[axis].range, [low, high] = [Math.min(...all), Math.max(...all)];
      const ends = [Math.max(Math.min(a, b), low), Math.min(Math.max(a, b), high)];
      return ends[0] < ends[1] ? (a < b ? ends : ends.reverse()) : [a, b]; // moved off everything: as it is
    };
    const first = { x: cut("xaxis", left.x), y: cut("yaxis", left.y) };
    return slides.length ? [first, { x: cut("xaxis2", right.x), y: cut("yaxis2", right.y) }] : [first];
  }
  /** As tall as fits on the first screen below what stands above it, and not less than is of use. */
  const tallest = () => Math.max(340, Math.min(innerHeight - plot.getBoundingClientRect().top - scrollY - 110, 820));

  function draw() {
    const width = plot.clientWidth, box = panels(width, tallest());
    plot.style.height = `${box.total}px`;
    const made = points(box);
    behind = made.flatMap((part, p) => part.rows.map((rows) => ({ part: p === 0 ? -1 : state.slide, rows })));
    return Plotly.react(plot, made.flatMap((part) => part.drawn), layout(width, box), CONFIG).then(() => {
      if (state.zoom === 1) whole = spanOf(plot._fullLayout.xaxis.range);
      drawScale();
    });
  }

  // ---- scale bar: a round number of spot spacings, or of RMS radii where no slide says how far apart spots are ----
  function scale(span, pixels) {
    const slide = linked() ? slides[state.slide] : null, microns = slide?.microns ?? null, pitch = slide?.pitch ?? null;
    const unit = microns ? 1 / microns : pitch ?? 1, most = 0.3 * span / unit;
    const power = 10 ** Math.floor(Math.log10(most));
    const length = [5, 2, 1].map((m) => m * power).find((one) => one <= most) ?? power;
    const words = microns ? (length >= 1000 ? `${format(length / 1000)} mm` : `${format(length)} µm`) : pitch ? `${format(length)} spot spacing${length === 1 ? "" : "s"}` : `${format(length)} × ${data.unit}`;
    return { pixels: length * unit / span * pixels, data: length * unit, words };
  }
  function drawScale() {
    const { xaxis, yaxis } = plot._fullLayout;
    const { pixels, words } = scale(spanOf(xaxis.range), xaxis._length);
    bar.style.width = `${pixels}px`;
    bar.style.left = `${xaxis._offset + 8}px`;
    bar.style.top = `${yaxis._offset + yaxis._length - 26}px`;
    bar.textContent = words;
  }

  // ---- moving ------------------------------------------------------------------------------------------------
  function zoomBy(factor, moveX = 0, moveY = 0) {
    const { xaxis, yaxis } = plot._fullLayout;
    const next = ([a, b], move) => {
      const [middle, half] = [(a + b) / 2 + move * (b - a), (b - a) * factor / 2];
      return [middle - half, middle + half];
    };
    Plotly.relayout(plot, { "xaxis.range": next(xaxis.range, moveX), "yaxis.range": next(yaxis.range, moveY) });
  }
  function showAll() {
    const { left, right } = home();
    const all = { "xaxis.range": [...left.x], "yaxis.range": [...left.y] };
    if (slides.length && !linked()) Object.assign(all, { "xaxis2.range": [...right.x], "yaxis2.range": [...right.y] });
    return Plotly.relayout(plot, all);
  }
  let settle;
  function afterMove() { // points grow as one zooms in, once the movement has ended
    drawScale();
    clearTimeout(settle);
    settle = setTimeout(() => {
      const zoom = Math.max(1, whole / spanOf(plot._fullLayout.xaxis.range));
      if (zoom / state.zoom < 1.2 && zoom / state.zoom > 0.83) return;
      state.zoom = zoom;
      const box = panels(plot.clientWidth, tallest());
      const sizes = points(box).flatMap((part) => part.drawn.map((trace) => trace.marker.size));
      Plotly.restyle(plot, { "marker.size": sizes });
    }, 250);
  }
  /** A ring in the other panel where the pointer is in this one. */
  function showRing(point, part) {
    const axes = plot._fullLayout;
    if (!linked() || !axes.xaxis2) return;
    const [x, y] = part < 0 ? [axes.xaxis2, axes.yaxis2] : [axes.xaxis, axes.yaxis];
    ring.style.left = `${x._offset + x.l2p(point.x)}px`;
    ring.style.top = `${y._offset + y.l2p(point.y)}px`;
    ring.hidden = false;
  }
  const hideRing = () => { ring.hidden = true; };

  return { plot, state, draw, zoomBy, showAll, afterMove, linked, panels, views, layout, points, scale, showRing, hideRing,
    rowOf: ({ curveNumber, pointNumber }) => ({ part: behind[curveNumber].part, row: behind[curveNumber].rows[pointNumber] }) };
})();
