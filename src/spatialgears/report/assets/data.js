// The report's data: positions, columns of the cells, and genes, which are unpacked when they are asked for.
const gears = (() => {
  "use strict";
  const data = JSON.parse(document.getElementById("gears-data").textContent);
  const webgl = (() => {
    const context = document.createElement("canvas").getContext("webgl");
    if (context) context.getExtension("WEBGL_lose_context")?.loseContext();
    return Boolean(context);
  })();
  const MOST_WITHOUT_WEBGL = 4000;

  function bytesOf(text) {
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  }
  const decode = (text, Type) => new Type(bytesOf(text).buffer);

  const names = data.cells.names?.split("\n");
  const rows = data.cells.rows && decode(data.cells.rows, Uint32Array);
  const cellName = (i) => names ? names[i] : `cell in row ${(rows[i] + 1).toLocaleString("en")}`;
  const own = { x: decode(data.cells.x, Float32Array), y: decode(data.cells.y, Float32Array) };
  if (!webgl) {
    own.x = own.x.subarray(0, MOST_WITHOUT_WEBGL);
    own.y = own.y.subarray(0, MOST_WITHOUT_WEBGL);
  }
  const slides = data.slides.map((slide) => (
    { ...slide, x: decode(slide.x, Float32Array), y: decode(slide.y, Float32Array) }));

  const laid = new Map();
  /** The cells in the coordinates of a slide, or in their own where the pose is not known. */
  function cellsOn(slide) {
    const pose = slides[slide]?.pose;
    if (!pose) return own;
    if (!laid.has(slide)) {
      const [a, b, c, d, moveX, moveY] = pose;
      laid.set(slide, {
        x: own.x.map((x, i) => x * a + own.y[i] * c + moveX),
        y: own.x.map((x, i) => x * b + own.y[i] * d + moveY),
      });
    }
    return laid.get(slide);
  }

  // A field is something to colour by. codes(part) are small integers for the cells (part -1) or a slide, or null.
  function columnField(column) {
    const labels = column.kind === "labels", kept = new Map();
    const codes = (part) => {
      const text = part < 0 ? column.codes : column.slides[part];
      if (!text) return null;
      if (!kept.has(part)) kept.set(part, decode(text, labels ? Uint8Array : Uint16Array));
      return kept.get(part);
    };
    const { low, step, first, last } = column;
    return { ...column, group: "Cells", missing: labels ? 255 : 65535, codes, ends: { low, step, first, last } };
  }
  const fields = data.fields.map(columnField);

  async function inflated(text) {
    const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  /** Codes of one gene: written one after the other ("d"), or as the gaps between those that are not zero ("s"). */
  async function unpack(text, n) {
    const raw = await inflated(text.slice(1));
    if (text[0] === "d") return raw;
    let gaps = 0, values = 0;
    while (gaps + values < raw.length) values += raw[gaps++] < 255;
    const codes = new Uint8Array(n);
    for (let i = 0, at = -1, next = gaps; i < gaps; i++) {
      at += raw[i];
      if (raw[i] < 255) codes[++at] = raw[next++];
    }
    return codes;
  }
  const endsOf = ([low, step, first, last]) => ({ low, step, first, last });
  const unpacked = new Map();
  async function geneField(name) {
    if (unpacked.has(name)) return unpacked.get(name);
    const i = data.genes.names.indexOf(name);
    const texts = [data.genes.cells[i], ...data.genes.slides.map((slide) => slide[i])];
    const sizes = [data.drawn, ...slides.map((slide) => slide.x.length)];
    const parts = await Promise.all(texts.map((text, p) => text ? unpack(text, sizes[p]) : null));
    const field = {
      name, group: "Genes", kind: "numbers", missing: 255, unit: "log-normalised expression", resembled: false,
      codes: (part) => parts[part + 1], slides: parts.slice(1),
      ends: endsOf(data.genes.ends[i]), slideEnds: endsOf(data.genes.slideEnds[i]),
    };
    unpacked.set(name, field);
    return field;
  }
  /** The gene of that name, in any case of letters; undefined if there is none. */
  const lower = new Map(data.genes.names.map((name) => [name.toLowerCase(), name]));
  const findGene = (text) => data.genes.names.includes(text) ? text : lower.get(text.trim().toLowerCase());

  return { data, webgl, slides, fields, cellName, cellsOn, geneField, findGene, inflated };
})();
