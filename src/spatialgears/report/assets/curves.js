// Training curves, one figure for each phase.
const gearsCurves = (() => {
  "use strict";
  const { data } = gears;
  const { element, plain, format, range, FONT, SOFT, CONFIG } = gearsPage;
  const LINES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#857AFF"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const curvePlots = [];
  function logAxis(part) { // ticks at 1, 2, 5, 10, ... written out
    if (!part.log) return {};
    const ends = range(part.curves.flatMap((curve) => curve.y.filter((v) => v !== null)));
    const ticks = [];
    for (let power = Math.floor(Math.log10(ends[0])); power <= Math.log10(ends[1]); power++) {
      ticks.push(...[1, 2, 5].map((m) => m * 10 ** power));
    }
    const kept = ticks.length > 12 ? ticks.filter((_, i) => i % 3 === 0) : ticks;
    return { type: "log", tickvals: kept, ticktext: kept.map(format) };
  }
  function drawCurves() {
    if (!document.querySelector("#training details").open) return; // what is folded has no width
    for (const { plot, part } of curvePlots) {
      const axis = { zeroline: false, gridcolor: "#e8ecf0", tickfont: { size: 11, color: SOFT }, automargin: true };
      Plotly.react(plot, part.curves.map((curve, i) => ({
        type: "scatter", mode: curve.x.length > 1 ? "lines" : "markers", x: curve.x, y: curve.y, name: plain(curve.name),
        line: { width: 1.6, color: LINES[i % 8], dash: DASHES[Math.floor(i / 8) % 4] }, marker: { color: LINES[i % 8] },
        hovertemplate: "%{y:.4g}",
      })), {
        font: FONT, margin: { l: 52, r: 12, t: 10, b: 40 }, width: plot.clientWidth, height: plot.clientHeight, hovermode: "x unified",
        hoverlabel: { namelength: -1 }, showlegend: true, legend: { orientation: "h", y: -0.2, yanchor: "top", font: { size: 12 } },
        xaxis: { ...axis, title: { text: part.axis, font: { size: 12, color: SOFT } } },
        yaxis: { ...axis, ...logAxis(part), title: { text: "value", font: { size: 12, color: SOFT } } },
      }, { ...CONFIG, scrollZoom: false, doubleClick: "reset" });
    }
  }
  function makeCurves() {
    const box = document.getElementById("training-plots");
    const parts = data.history.filter((part) => part.curves.length);
    if (!parts.length) box.append(element("p", "No training history was given."));
    for (const part of parts) {
      const said = (value) => value === null ? "nothing" : format(value);
      const words = part.curves.map(({ name, y }) => `${name} from ${said(y[0])} to ${said(y[y.length - 1])}`).join(", ");
      const figure = element("figure"), plot = element("div", undefined, { class: "plot", role: "img", "aria-label": `${part.title}: ${words}` });
      figure.append(element("figcaption", part.title), plot);
      box.append(figure);
      curvePlots.push({ plot, part });
    }
    document.querySelector("#training details").addEventListener("toggle", drawCurves);
    drawCurves();
  }

  return { makeCurves, drawCurves };
})();
