// The report's data and how points are layered and coloured; nothing here touches the page but for reading it.
const gears = (() => {
  "use strict";
  const data = JSON.parse(document.getElementById("gears-data").textContent);
  const format = (value) => value === 0 ? "0" : String(Number(value.toPrecision(3)));
  const webgl = (() => {
    const context = document.createElement("canvas").getContext("webgl");
    if (context) context.getExtension("WEBGL_lose_context")?.loseContext();
    return Boolean(context);
  })();
  const MOST_WITHOUT_WEBGL = 4000;

  function decode(text, Type) {
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return new Type(bytes.buffer);
  }
  const cells = { x: decode(data.cells.x, Float32Array), y: decode(data.cells.y, Float32Array) };
  const slides = data.slides.map((slide) => (
    { name: slide.name, x: decode(slide.x, Float32Array), y: decode(slide.y, Float32Array) }));
  const names = data.cells.names?.split("\n");
  const rows = data.cells.rows && decode(data.cells.rows, Uint32Array);
  const cellName = (i) => names ? names[i] : `cell in row ${(rows[i] + 1).toLocaleString("en")}`;
  if (!webgl) {
    cells.x = cells.x.subarray(0, MOST_WITHOUT_WEBGL);
    cells.y = cells.y.subarray(0, MOST_WITHOUT_WEBGL);
  }

  const decoded = new Map();
  /** Codes of a field for the cells (part -1) or a slide; null where the slide has no such values. */
  function codesOf(field, part) {
    const text = part < 0 ? field.codes : field.slides[part];
    if (!text) return null;
    const key = `${data.fields.indexOf(field)}/${part}`;
    if (!decoded.has(key)) decoded.set(key, decode(text, field.bits === 16 ? Uint16Array : Uint8Array));
    return decoded.get(key);
  }
  const missingCode = (field) => field.bits === 16 ? 65535 : 255;
  const endsOf = (field, part) => part < 0 ? field : field.slideEnds;
  function valueText(field, part, i) {
    const code = codesOf(field, part)?.[i];
    if (code === undefined || code === missingCode(field)) return "missing";
    if (field.kind === "labels") return field.names[code];
    const ends = endsOf(field, part);
    return format(ends.low + code * ends.step);
  }


  /** Rows drawn in grey (missing, or not chosen) and rows drawn in colour, higher numbers later. */
  function layers(field, part, n, chosen) {
    const codes = field && codesOf(field, part);
    if (!codes) return { grey: Uint32Array.from({ length: n }, (_, i) => i), colored: new Uint32Array(0) };
    const missing = missingCode(field);
    const wanted = (code) => code !== missing && (chosen.size === 0 || chosen.has(code));
    const starts = new Uint32Array(missing + 2); // counting sort
    let nGrey = 0;
    for (let i = 0; i < n; i++) {
      if (!wanted(codes[i])) nGrey++;
      else starts[field.kind === "labels" ? 1 : codes[i] + 1]++;
    }
    for (let c = 1; c < starts.length; c++) starts[c] += starts[c - 1];
    const grey = new Uint32Array(nGrey), colored = new Uint32Array(n - nGrey);
    for (let i = 0, g = 0; i < n; i++) {
      if (!wanted(codes[i])) grey[g++] = i;
      else colored[starts[field.kind === "labels" ? 0 : codes[i]]++] = i;
    }
    return { grey, colored };
  }

  const take = (values, index) => { // values at index
    const out = new Float32Array(index.length);
    for (let i = 0; i < index.length; i++) out[i] = values[index[i]];
    return out;
  };

  /** One colour per code, as text: Plotly takes ten times longer over numbers and a colour scale. */
  function colorsOf(field, part) {
    if (field.kind === "labels") return field.colors;
    const { low, step, first, last } = endsOf(field, part);
    const top = data.scale.length - 1;
    return Array.from({ length: missingCode(field) }, (_, code) => (
      data.scale[Math.round(top * Math.min(1, Math.max(0, (low + code * step - first) / (last - first))))]));
  }

  /** The two traces of one point set, and the rows behind their points; only chosen labels, if any, are coloured. */
  function traces(field, part, chosen, size, axes) {
    const places = part < 0 ? cells : slides[part];
    const n = places.x.length;
    const split = layers(field, part, n, chosen);
    const base = { type: webgl ? "scattergl" : "scatter", mode: "markers", hoverinfo: "none", showlegend: false, ...axes };
    const marker = { size, opacity: 1, line: { width: 0 } };
    const colored = { ...marker };
    if (split.colored.length) {
      const [codes, colors] = [codesOf(field, part), colorsOf(field, part)];
      colored.color = Array.from(split.colored, (row) => colors[codes[row]]);
    }
    const greyColor = field ? data.missing : "#0072B2";
    return {
      drawn: [
        { ...base, x: take(places.x, split.grey), y: take(places.y, split.grey), marker: { ...marker, color: greyColor } },
        { ...base, x: take(places.x, split.colored), y: take(places.y, split.colored), marker: colored },
      ],
      rows: [split.grey, split.colored],
    };
  }

  /** Diameter in pixels at which n points cover about a third of a square of the given side. */
  const pointSize = (side, n, zoom = 1) => (
    Math.min(12, Math.max(1.6, 0.5 * side / Math.sqrt(Math.max(n, 1))) * zoom ** 0.75));

  function range(values) {
    let low = Infinity, high = -Infinity;
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
    return low <= high ? [low, high] : [-1, 1];
  }

  const spanOf = (ends) => Math.abs(ends[1] - ends[0]);

  return { data, webgl, cells, slides, cellName, format, codesOf, missingCode, valueText, traces, pointSize, range, spanOf };
})();
