// The picture for a paper: both panels with title, legend or colour bars and scale bar, 7 inches wide; PNG at 300 dpi, or SVG.
const gearsSave = (() => {
  "use strict";
  const { data, slides } = gears;
  const { plain, byId, format, shorten, spanOf } = gearsPage;
  const figure = gearsFigure;
  const WIDTH = 672, DPI = 300, VECTORS = 20000; // CSS pixels of 7 inches; points up to which SVG holds each as a shape
  const FONT = { family: "Arial, Helvetica, sans-serif", size: 10, color: "#000" };

  function legendOf(field) {
    const names = field.names.map((name) => shorten(name, 34));
    const each = Math.min(WIDTH, 34 + 5.4 * Math.max(1, ...names.map((name) => name.length)));
    const columns = Math.max(1, Math.floor(WIDTH / each));
    const traces = names.map((name, code) => ({ type: "scatter", mode: "markers", x: [null], y: [null], name: plain(name),
      marker: { size: 8, color: field.colors[code] }, showlegend: true }));
    const title = plain(shorten(field.name, 60));
    return { traces, height: 16 * Math.ceil(names.length / columns) + 34, layout: { showlegend: true, legend: {
      orientation: "h", x: 0, xanchor: "left", yanchor: "top", font: { ...FONT, size: 9.5 }, entrywidth: each - 30,
      entrywidthmode: "pixels", itemsizing: "constant", title: { text: title, side: "top", font: { ...FONT, size: 10 } } } } };
  }
  function barsOf(field, each) {
    const made = (ends, title, x) => ({ type: "scatter", mode: "markers", x: [null], y: [null], showlegend: false, marker: {
      color: [ends.first], cmin: ends.first, cmax: ends.last, showscale: true, colorscale: data.scale.map((c, i) => [i / (data.scale.length - 1), c]),
      colorbar: { orientation: "h", x, xanchor: "left", yanchor: "top", len: 0.8 * each / WIDTH, thickness: 9, outlinewidth: 0, ypad: 4,
        tickvals: gearsKeys.ticksBetween(ends.first, ends.last), ticktext: gearsKeys.ticksBetween(ends.first, ends.last).map(format),
        tickfont: { ...FONT, size: 9.5 }, title: { text: plain(shorten(title, 56)), side: "top", font: FONT } } } });
    const onSlide = gearsKeys.onSlide(field);
    const traces = [made(field.ends, gearsKeys.barTitle(field, onSlide ? ", cells" : ""), 0)];
    if (onSlide) traces.push(made(field.slideEnds, gearsKeys.barTitle(field, ", spots"), each < WIDTH ? 1 - each / WIDTH : 0.5));
    return { traces, height: 62, layout: {} };
  }
  /** Plotly's data and layout of the picture as it is shown now. */
  function picture(format_) {
    const { field } = figure.state, views = figure.views();
    const box = figure.panels(WIDTH, 760, views), layout = figure.layout(WIDTH, box);
    const few = gears.cellsOn(figure.state.slide).x.length <= VECTORS;
    const points = figure.points(box, format_ === "svg" && few ? "scatter" : undefined).flatMap((part) => part.drawn);
    const key = !field ? { traces: [], height: 0, layout: {} } : field.kind === "labels" ? legendOf(field) : barsOf(field, box.each);
    const top = 30, height = top + box.total + 8 + key.height;
    views.forEach((view, i) => ["x", "y"].forEach((axis) => { layout[`${axis}axis${i ? i + 1 : ""}`].range = view[axis]; }));
    Object.assign(layout, key.layout, { font: FONT, width: WIDTH, height, margin: { l: 0, r: 0, t: top, b: 8 + key.height }, uirevision: undefined,
      title: { text: plain(shorten(byId("title").textContent, 90)), x: 0, xanchor: "left", y: 1 - 6 / height, yanchor: "top", font: { ...FONT, size: 12 } } });
    const below = -8 / box.total; // in shares of the panels' height
    if (layout.legend) layout.legend.y = below;
    for (const trace of key.traces) if (trace.marker.colorbar) trace.marker.colorbar.y = below;
    const perUnit = Math.min(box.each / spanOf(views[0].x), box.height / spanOf(views[0].y));
    const bar = figure.scale(box.each / perUnit, box.each);
    const [x0, bottom] = [6 / WIDTH, layout.yaxis.domain[0] + 4 / box.total];
    layout.shapes = [{ type: "line", xref: "paper", yref: "paper", x0, x1: x0 + bar.pixels / WIDTH, y0: bottom, y1: bottom,
      line: { color: "#000", width: 2 } }];
    layout.annotations.push({ text: plain(bar.words), x: x0, y: bottom + 2 / box.total, xref: "paper", yref: "paper", xanchor: "left",
      yanchor: "bottom", showarrow: false, font: { ...FONT, size: 9.5 } });
    return { data: [...points, ...key.traces], layout, config: { plotGlPixelRatio: 4 }, height };
  }

  const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
    for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
    return n;
  });
  /** The PNG with a chunk that says how many pixels make a metre. */
  function withDpi(png) {
    const chunk = new DataView(new ArrayBuffer(21)), perMetre = Math.round(DPI / 0.0254);
    [..."pHYs"].forEach((letter, i) => chunk.setUint8(4 + i, letter.charCodeAt(0)));
    chunk.setUint32(0, 9);
    chunk.setUint32(8, perMetre);
    chunk.setUint32(12, perMetre);
    chunk.setUint8(16, 1);
    let crc = 0xffffffff;
    for (let i = 4; i < 17; i++) crc = CRC[(crc ^ chunk.getUint8(i)) & 255] ^ (crc >>> 8);
    chunk.setUint32(17, ~crc >>> 0);
    return new Blob([png.slice(0, 33), chunk.buffer, png.slice(33)], { type: "image/png" }); // after the header
  }
  /** The file's bytes. */
  async function make(kind) {
    const { height, ...made } = picture(kind);
    const url = await Plotly.toImage(made, { format: kind, width: WIDTH, height, scale: kind === "png" ? DPI / 96 : 1 });
    const body = url.slice(url.indexOf(",") + 1);
    if (kind === "svg") return new Blob([decodeURIComponent(body)], { type: "image/svg+xml" });
    return withDpi(Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0)));
  }
  async function save(kind) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await make(kind));
    const by = figure.state.field ? ` ${figure.state.field.name}` : "";
    link.download = `map${by}`.replace(/[^\w.-]+/g, "_").slice(0, 80) + `.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  return { make, save };
})();
