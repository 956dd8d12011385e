"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (value) => (value === null || value === undefined ? "—" : Number(value).toPrecision(3).replace("-", "−"));

// ------------------------------------------------------------------------------------------------------------- curves

// The library of the charts travels compressed: base64 of gzip.
async function loadPlotly() {
  const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.nonce = document.currentScript?.nonce ?? nonce;
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}
const nonce = document.currentScript.nonce;

// Plotly reads a little HTML in names, which may come from a run.
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

const hidden = new Set(); // names that the reader has switched off
const dashes = ["solid", "dash", "dot", "dashdot"];

function lines(chart) {
  const shown = chart.traces.filter((trace) => !hidden.has(trace.name));
  return shown.flatMap((trace) => (chart.kind === "forest" ? [interval(trace)] : trace.points ? [points(trace)] : curve(chart, trace)));
}

function curve(chart, trace) {
  const colour = css(`--c${trace.colour % 8}`);
  const bounds = trace.low?.length ? [{ x: [...trace.x, ...[...trace.x].reverse()], y: [...trace.high, ...[...trace.low].reverse()] }] : [];
  const bands = bounds.map((bound) => ({ ...bound, fill: "toself", fillcolor: colour, opacity: chart.traces.length > 3 ? 0.07 : 0.14, line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false }));
  return [
    ...bands,
    {
      x: trace.x,
      y: trace.y,
      name: plain(trace.name),
      type: "scatter",
      mode: trace.x.length < 25 || (chart.across && !chart.kind) ? "lines+markers" : "lines",
      // between two or three points nothing was measured: a faint line must not look like a trend
      line: { color: colour, width: trace.x.length < 4 ? 0.7 : 1.9, dash: dashes[trace.dash % 4] },
      marker: { size: trace.x.length < 4 ? 8 : 5 },
      text: (trace.steps ?? trace.x).map((step) => (trace.steps ? ` · step ${step}` : "")),
      hovertemplate: (chart.across ? "%{y:.4g} at %{x:.3g}" : "%{y:.4g}") + "%{text}",
    },
  ];
}

// Single runs, which no line joins.
function points(trace) {
  return {
    x: trace.x,
    y: trace.y,
    name: plain(trace.name),
    mode: "markers",
    marker: { color: css(`--c${trace.colour % 8}`), size: 6, opacity: 0.45 },
    hovertemplate: "%{y:.4g} at %{x:.3g}",
    showlegend: false,
  };
}

// A value with its interval, in the row of its name.
function interval(trace) {
  const colour = css(`--c${trace.colour % 8}`);
  const distance = (bounds) => bounds.map((bound, at) => Math.abs(bound - trace.x[at]));
  const bars = trace.low.length ? { type: "data", symmetric: false, array: distance(trace.high), arrayminus: distance(trace.low), color: colour, thickness: 2.4, width: 0 } : undefined;
  return {
    x: trace.x,
    y: trace.x.map(() => plain(trace.name)),
    name: plain(trace.name),
    mode: "markers",
    marker: { color: colour, size: trace.points ? 6 : 10, opacity: trace.points ? 0.45 : 1 },
    error_x: bars,
    hovertemplate: trace.low.length ? `%{x:.4g} [${short(trace.low[0])}, ${short(trace.high[0])}]` : "%{x:.4g}",
    showlegend: false,
  };
}

function layout(chart) {
  const axis = { gridcolor: css("--line"), linecolor: css("--line"), zerolinecolor: css("--line"), automargin: true };
  const legend = chart.traces.length > 1 && !chart.kind;
  const names = new Set(chart.traces.map((trace) => trace.name).filter((name) => !hidden.has(name)));
  const rows = { ...axis, autorange: "reversed", showgrid: false, ticksuffix: " " };
  const line = { type: "line", x0: 0, x1: 0, y0: 0, y1: 1, yref: "paper", line: { color: css("--ink"), width: 1 } };
  return {
    height: chart.kind === "forest" ? 62 + 28 * Math.max(names.size, 1) : 225 + (legend ? 17 * Math.max(Math.ceil(chart.traces.length / 3) - 1, 0) : 0), // a legend of several lines
    margin: { l: 44, r: 8, t: legend ? 26 : 10, b: 36 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: css("--sans"), size: 11.5, color: css("--muted") },
    xaxis: { ...axis, title: { text: plain(chart.across ?? (chart.traces.some((trace) => trace.steps) ? "iteration" : "optimiser step")), standoff: 6, font: { size: 11.5 } }, showgrid: chart.kind === "forest", nticks: 6 },
    yaxis: chart.kind === "forest" ? rows : { ...axis, nticks: 5, exponentformat: "power" },
    shapes: chart.kind === "forest" && chart.across.startsWith("difference") ? [line] : [],
    showlegend: legend,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    hovermode: chart.across ? "closest" : "x unified",
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 } },
  };
}

function draw(place) {
  const chart = data.charts[place.dataset.chart];
  place.dataset.drawn = "";
  Plotly.react(place, lines(chart), layout(chart), { displayModeBar: false, responsive: true });
}

const plots = [...document.querySelectorAll("[data-chart]")];
const whenSeen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      whenSeen.unobserve(entry.target);
      draw(entry.target);
    }
  },
  { rootMargin: "600px" },
);
const dark = matchMedia("(prefers-color-scheme: dark)");

loadPlotly().then(() => {
  plots.forEach((place) => whenSeen.observe(place));
  dark.addEventListener("change", () => plots.filter((place) => "drawn" in place.dataset).forEach(draw));
  addEventListener("beforeprint", () => plots.filter((place) => place.offsetParent).forEach(draw));
  document.documentElement.dataset.ready = "";
});

// A legend for all charts: what is switched off is left out of each.
for (const box of document.querySelectorAll("input[data-name]")) {
  box.addEventListener("change", () => {
    hidden[box.checked ? "delete" : "add"](box.dataset.name);
    plots.filter((place) => "drawn" in place.dataset).forEach(draw);
  });
}

// ------------------------------------------------------------------------------------------------------------- tokens

function colour(box, key) {
  const { layers, rollouts } = data.tokens[box.dataset.tokens];
  const layer = layers.find((one) => one.key === key);
  for (const text of box.querySelectorAll("[data-rollout]")) {
    const values = rollouts[text.dataset.rollout][key] ?? [];
    for (const token of text.children) {
      const value = values[token.dataset.token] ?? 0;
      const strength = Math.min(Math.abs(value) / layer.limit, 1) * 0.75;
      token.style.background = strength > 0.01 ? `rgba(var(--${value > 0 ? "up" : "down"}), ${strength.toFixed(3)})` : "";
    }
  }
  const unit = layer.unit ? ` ${layer.unit}` : "";
  box.querySelector(".low").textContent = short(-layer.limit) + unit;
  box.querySelector(".high").textContent = short(layer.limit) + unit;
}

const tip = document.getElementById("tip");

function explain(token, box) {
  const { layers, rollouts } = data.tokens[box.dataset.tokens];
  const own = rollouts[token.parentElement.dataset.rollout];
  const head = document.createElement("b");
  head.textContent = JSON.stringify(token.textContent.replace("↵", ""));
  const table = document.createElement("table");
  for (const layer of layers.filter((one) => one.key in own)) {
    const row = table.insertRow();
    row.insertCell().textContent = layer.title;
    row.insertCell().textContent = short(own[layer.key][token.dataset.token]);
  }
  tip.replaceChildren(head, table);
  tip.hidden = false;
  const at = token.getBoundingClientRect();
  const below = at.bottom + tip.offsetHeight + 12 < innerHeight;
  tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${below ? at.bottom + 6 : at.top - tip.offsetHeight - 6}px`;
}

for (const box of document.querySelectorAll("[data-tokens]")) {
  box.addEventListener("change", (event) => colour(box, event.target.value));
  box.addEventListener("pointerover", (event) =>
    event.target.matches(".token") ? explain(event.target, box) : (tip.hidden = true),
  );
  box.addEventListener("pointerleave", () => (tip.hidden = true));
  colour(box, box.querySelector("input").value);
}

// A link to a chart opens the group that it is folded in.
addEventListener("hashchange", () => {
  const target = document.getElementById(location.hash.slice(1));
  for (let node = target?.parentElement; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  target?.scrollIntoView();
});
