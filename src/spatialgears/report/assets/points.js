// How points are layered and coloured.
const gearsPoints = (() => {
  "use strict";
  const { data, webgl, slides, cellsOn } = gears;
  const { format } = gearsPage;
  const endsOf = (field, part) => part < 0 ? field.ends : field.slideEnds;

  function valueText(field, part, i) {
    const code = field.codes(part)?.[i];
    if (code === undefined || code === field.missing) return "missing";
    if (field.kind === "labels") return field.names[code];
    const ends = endsOf(field, part);
    return format(ends.low + code * ends.step);
  }

  /** Rows drawn in grey (missing, or not chosen) and rows drawn in colour, higher numbers later. */
  function layers(field, part, n, chosen) {
    const codes = field?.codes(part);
    if (!codes) return { grey: Uint32Array.from({ length: n }, (_, i) => i), colored: new Uint32Array(0) };
    const wanted = (code) => code !== field.missing && (chosen.size === 0 || chosen.has(code));
    const starts = new Uint32Array(field.missing + 2); // counting sort
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
    return Array.from({ length: field.missing }, (_, code) => (
      data.scale[Math.round(top * Math.min(1, Math.max(0, (low + code * step - first) / (last - first))))]));
  }

  /** The two traces of the cells (part -1) or of a slide, and the rows behind their points. */
  function traces(field, part, slide, chosen, size, axes, type = webgl ? "scattergl" : "scatter") {
    const { x, y } = part < 0 ? cellsOn(slide) : slides[part];
    const split = layers(field, part, x.length, chosen);
    const base = { type, mode: "markers", hoverinfo: "none", showlegend: false, ...axes };
    const marker = { size, opacity: 1, line: { width: 0 } };
    const colored = { ...marker };
    if (split.colored.length) {
      const [codes, colors] = [field.codes(part), colorsOf(field, part)];
      colored.color = Array.from(split.colored, (row) => colors[codes[row]]);
    }
    const greyColor = field ? data.missing : "#0072B2";
    return {
      drawn: [
        { ...base, x: take(x, split.grey), y: take(y, split.grey), marker: { ...marker, color: greyColor } },
        { ...base, x: take(x, split.colored), y: take(y, split.colored), marker: colored },
      ],
      rows: [split.grey, split.colored],
    };
  }

  /** Diameter in pixels at which n points cover about a third of a square of the given side. */
  const pointSize = (side, n, zoom = 1) => (
    Math.min(12, Math.max(1.8, 0.6 * side / Math.sqrt(Math.max(n, 1))) * zoom ** 0.75));

  return { traces, pointSize, valueText };
})();
